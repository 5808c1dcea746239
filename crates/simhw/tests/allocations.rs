//! Tests that the steady path allocates nothing: no frame, command, completion, alarm or sleep does.

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::frame::{Frame, Header};
use midplane_simhw::hardware::{Firmware, Hardware, Source};
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId, TimerId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Command, Completion};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::RegionRef;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, DiscardPolicy, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;

const TO: NodeId = NodeId(0);

/// Sends the region of each command without a cookie, and fills the regions of those with one.
#[derive(Default)]
struct Messenger {
    buffers: VecDeque<(PortId, RegionRef)>,
}

impl Firmware for Messenger {
    fn on_start(&mut self, hw: &mut impl Hardware) {
        self.on_timer(hw, TimerId(0));
    }

    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        while let Some(command) = hw.next_command(port) {
            if command.cookie > 0 {
                self.buffers.push_back((port, command.region));
                continue;
            }
            let length = u16::try_from(command.region.length).unwrap();
            let header = Header { source: hw.node(), destination: TO, length, ..Header::default() };
            let _ = hw.transmit(&header, Source::Region(command.region));
            hw.complete(port, &Completion::default());
            hw.commit();
        }
    }

    fn on_frame(&mut self, hw: &mut impl Hardware, frame: Frame<'_>) {
        if let Some((port, region)) = self.buffers.pop_front() {
            hw.write(region, frame.payload).unwrap();
            hw.complete(port, &Completion::default());
            hw.commit();
        }
    }

    /// Sends a frame of its own, which needs no buffer.
    fn on_timer(&mut self, hw: &mut impl Hardware, timer: TimerId) {
        let header = Header { source: hw.node(), destination: NodeId(1), ..Header::default() };
        let _ = hw.transmit(&header, Source::Bytes(midplane_simhw::region::Payload::EMPTY));
        hw.set_timer(timer, hw.now().plus_nanos(7_000));
        hw.commit();
    }
}

/// Returns the allocations and frames of a stretch of time after the start.
fn steady(link: LinkProfile, discard: DiscardPolicy) -> (u64, u64) {
    let switch = SwitchProfile { discard, ..SwitchProfile::new(Buffer::Bytes(20_000)) };
    let topology = Topology::star(5, link, switch);
    let mut world = World::new(&topology, NicProfile::MODERN, 1, |_, _| Messenger::default());
    for node in (0..5).map(NodeId) {
        let host = world.host(node);
        world.spawn(node, async move {
            let mut port = host.open_port().unwrap();
            let region = port.register(1_500).unwrap();
            let cookie = u64::from(node == TO);
            let command = Command { region: region.whole(), cookie, ..Command::default() };
            loop {
                port.submit(&command).unwrap();
                port.completion().await.unwrap();
                host.sleep_until(host.now().plus_nanos(3_000)).await;
            }
        });
    }
    world.run_until(Instant::from_nanos(20_000_000));
    let sent = world.traffic().sent;
    let allocated = allocation_counter::measure(|| {
        world.run_until(Instant::from_nanos(40_000_000));
    });
    (allocated.count_total, world.traffic().sent - sent)
}

#[test]
fn the_steady_path_allocates_nothing() {
    let rate = LineRate::mbps(1_000);
    let propagation = Duration::from_nanos(500);
    for link in [
        LinkProfile::plain(rate, propagation),
        LinkProfile::ethernet(rate, propagation),
        LinkProfile::atm(rate, propagation),
    ] {
        for discard in [DiscardPolicy::Tail, DiscardPolicy::Partial, DiscardPolicy::EARLY] {
            let (allocations, frames) = steady(link, discard);
            assert!(frames > 5_000, "{frames} frames");
            assert_eq!(allocations, 0, "in {frames} frames over {link:?}, {discard:?}");
        }
    }
}
