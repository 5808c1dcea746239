//! Tests that frames that reach their hop limit come back, with the time at which they arrived there.

use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::hardware::Source;
use midplane_simhw::id::TimerId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::Payload;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, Forwarding, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;
use proptest::prelude::*;

use crate::sim::harness::{A, B, Happening, Log, Probe, RATE, ROOMY};

/// Returns two hosts with two switches between them, and a slower trunk.
fn line_of_two(profile: SwitchProfile, trunk: LineRate) -> Topology {
    let link = LinkProfile::plain(RATE, Duration::from_nanos(500));
    let mut topology = Topology::new();
    let (near, far) = (topology.add_switch(profile), topology.add_switch(profile));
    topology.add_host(near, link);
    topology.add_host(far, link);
    topology.add_trunk(near, far, LinkProfile::plain(trunk, Duration::from_nanos(500)));
    topology
}

/// Has node 0 send frames of these hop limits and lengths, a millisecond apart.
fn run(topology: &Topology, frames: Vec<(u8, u16)>) -> (World<Probe>, Log<(u64, Header)>) {
    let log = Log::new();
    let seen = log.clone();
    let mut world = World::new(topology, NicProfile::FREE, 1, move |node, _| {
        let (log, frames) = (seen.clone(), frames.clone());
        let mut next = 0;
        Probe::new(move |hw, happening| match happening {
            Happening::Start | Happening::Timer(_) if node == A => {
                if let Some((hop_limit, length)) = frames.get(next).copied() {
                    let header = Header {
                        source: A,
                        destination: B,
                        hop_limit,
                        length,
                        sequence: next as u32,
                        ..Header::default()
                    };
                    let bytes = vec![7; usize::from(length)];
                    hw.transmit(&header, Source::Bytes(Payload::from(&bytes[..]))).unwrap();
                    next += 1;
                    hw.set_timer(TimerId(0), hw.now() + Duration::from_millis(1));
                    hw.commit();
                }
            }
            Happening::Frame(frame) => log.add((hw.now().as_nanos(), frame.header)),
            _ => {}
        })
    });
    world.run();
    (world, log)
}

#[test]
fn each_switch_of_a_path_returns_frames_that_end_there() {
    let topology = line_of_two(ROOMY, LineRate::mbps(10));
    let (world, log) = run(&topology, vec![(0, 952), (1, 952), (2, 952)]);
    let entries = log.entries();
    let kinds: Vec<_> = entries.iter().map(|(_, header)| header.kind).collect();
    assert_eq!(kinds, [Kind::Returned, Kind::Returned, Kind::Data]);
    assert_eq!(entries[2].1.hop_limit, 0);
    // 1,000 bytes take 80 us at 100 Mb/s, and 800 us at 10 Mb/s; each link adds 500 ns.
    let stamps: Vec<u64> = entries[..2].iter().map(|(_, header)| header.words[1]).collect();
    assert_eq!(stamps, [80_500, 1_000_000 + 80_500 + 800_500]);
    assert!(entries[..2].iter().all(|(_, header)| (header.source, header.destination) == (B, A)));
    assert_eq!(world.traffic().drops.of(DropCause::HopLimit), 2);
}

proptest! {
    #[test]
    fn no_frame_is_lost_or_returned_twice(
        frames in proptest::collection::vec((0_u8..4, 0_u16..1_400), 1..20), cells: bool,
        cut_through: bool,
    ) {
        let forwarding = if cut_through {
            Forwarding::CutThrough { header: 5 }
        } else {
            Forwarding::StoreAndForward
        };
        let profile = SwitchProfile { forwarding, ..SwitchProfile::new(Buffer::Bytes(1 << 20)) };
        let topology = if cells {
            Topology::star(2, LinkProfile::atm(RATE, Duration::from_nanos(300)), profile)
        } else {
            line_of_two(profile, RATE)
        };
        let switches = if cells { 1 } else { 2 };
        let (world, log) = run(&topology, frames.clone());
        let back: Vec<u32> = log.entries().iter().filter(|(_, header)| header.kind == Kind::Returned)
            .map(|(_, header)| header.sequence).collect();
        let ended: Vec<u32> = (0..).zip(&frames).filter(|(_, (hops, _))| *hops < switches)
            .map(|(number, _)| number).collect();
        prop_assert_eq!(&back, &ended);
        let traffic = world.traffic();
        prop_assert_eq!(traffic.drops.of(DropCause::HopLimit), ended.len() as u64);
        prop_assert_eq!(traffic.sent, traffic.delivered + traffic.drops.total());
        prop_assert_eq!(log.entries().len(), frames.len());
    }
}
