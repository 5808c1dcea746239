//! Packets that wait for the line or for an admission take bounded memory, are not sent twice, and arrive.

use std::time::Duration;

use midplane_nicvm::admission::{Admission, AdmissionUpdate, Verdict};
use midplane_nicvm::capability::{Capability, CapabilityRights};
use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError};
use midplane_nicvm::memory::{self, MEMORY, Memory};
use midplane_nicvm::messages::{self, MESSAGES, Messages};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::Header;
use midplane_simhw::host::Host;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Command, Port, PortOptions, PostError, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::Region;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::{Instant, LineRate};
use midplane_simhw::topology::Topology;

const HOLD_ALL: ExtensionId = FIRST_USER_EXTENSION;

/// Holds every data frame until a command opens it.
#[derive(Default)]
struct HoldAll {
    is_open: bool,
}

impl Admission for HoldAll {
    fn admit(&self, _: Instant, _: &Header) -> Verdict {
        if self.is_open { Verdict::Now } else { Verdict::Hold }
    }

    fn on_sent(&mut self, _: Instant, _: &Header, _: Instant) {}

    fn update(&mut self, _: Instant, _: AdmissionUpdate) {
        self.is_open = true;
    }
}

pub(crate) struct HoldAllExtension;

impl Extension for HoldAllExtension {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        nic.install_admission(HoldAll::default()).expect("it is the first");
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        nic.update_admission(AdmissionUpdate { destination: NodeId(1), values: [0; 2] });
        nic.refuse(&command, Status::Done);
    }
}

/// Creates two nodes; node 0 has the admission if `has_admission`.
fn world(mbps: u64, has_admission: bool) -> World<Unit> {
    let link = LinkProfile::plain(LineRate::mbps(mbps), Duration::from_nanos(500));
    let topology = Topology::star(2, link, SwitchProfile::new(Buffer::Bytes(64 << 20)));
    World::new(&topology, NicProfile::MODERN, 1, move |node, _| {
        let mut unit = Unit::default();
        unit.install(MESSAGES, Messages::new()).unwrap();
        unit.install(MEMORY, Memory::new()).unwrap();
        if has_admission && node == NodeId(0) {
            unit.install(HOLD_ALL, HoldAllExtension).unwrap();
        }
        unit
    })
}

#[test]
fn held_messages_are_no_more_than_a_port_has_commands_in_flight() {
    let mut world = world(10_000, true);
    let host = world.host(NodeId(0));
    let port = world.block_on(NodeId(0), async move {
        let mut port = host.open_port().unwrap();
        let memory = port.register(64).unwrap();
        let send = messages::send(NodeId(1), PortId(0), memory.whole(), 1);
        let mut posted = 0;
        for round in 0..100 {
            let full = (0..100).find_map(|_| port.submit(&send).map(|()| posted += 1).err());
            assert!(matches!(full, None | Some(PostError::QueueFull { .. })), "round {round}");
            host.sleep_until(host.now().plus_nanos(10_000)).await;
        }
        (port, posted)
    });
    let posted = port.unwrap().1;
    assert!((1..=256).contains(&posted), "{posted}");
    assert_eq!(world.firmware(NodeId(0)).pending(NodeId(1)), posted);
}

/// Makes node 0 grant a capability to `bytes` bytes of memory, each 7; returns the port and the region that keep it.
fn share(world: &mut World<Unit>, bytes: usize) -> (Port, Region, Capability) {
    let host = world.host(NodeId(0));
    let shared = world.block_on(NodeId(0), async move {
        let mut port = host.open_port().unwrap();
        let region = port.register(bytes).unwrap();
        region.write(0, &vec![7; bytes]).unwrap();
        port.submit(&memory::grant(region.whole(), CapabilityRights::ALL, 1)).unwrap();
        let capability = memory::granted(&port.completion().await.unwrap());
        (port, region, capability)
    });
    shared.unwrap()
}

#[test]
fn a_peer_that_repeats_held_reads_takes_bounded_memory_and_gets_all_data() {
    const BYTES: usize = 1 << 20;
    /// Reads of 256 frames each: more than may wait.
    const READS: usize = 400;
    let mut world = world(10_000, true);
    let (mut port, _region, capability) = share(&mut world, BYTES);
    let host = world.host(NodeId(1));
    let reader = world.block_on(NodeId(1), async move {
        let mut port = host.open_port_with(PortOptions::default().depth(512)).unwrap();
        let region = port.register(BYTES).unwrap();
        for cookie in 0..READS as u64 {
            let read = memory::access(memory::READ, &capability, region.whole(), cookie);
            port.submit(&read).unwrap();
        }
        host.sleep_until(host.now().plus_nanos(100_000_000)).await;
        (port, region)
    });
    let (mut reader, region) = reader.unwrap();
    let unit = world.firmware(NodeId(0));
    let (waiting, dropped) = (unit.pending(NodeId(1)), unit.counters().packets_dropped);
    assert!(waiting < 80_000, "{waiting} frames wait");
    assert!(dropped > 0 && waiting + dropped as usize >= READS * 256, "{dropped} were dropped");
    let _port = world.block_on(NodeId(0), async move {
        port.submit(&Command { extension: HOLD_ALL, ..Command::default() }).unwrap();
        assert_eq!(port.completion().await.unwrap().status, Status::Done);
        port
    });
    let done = world.block_on(NodeId(1), async move {
        for _ in 0..READS {
            assert_eq!(reader.completion().await.unwrap().status, Status::Done);
        }
        let mut bytes = vec![0; BYTES];
        region.read(0, &mut bytes).unwrap();
        bytes == [7; BYTES]
    });
    assert_eq!(done, Some(true));
}

#[test]
fn long_reads_and_writes_over_a_slow_line_send_every_frame_once() {
    const BYTES: usize = 4 << 20;
    let mut world = world(1_000, false);
    let (_port, _region, capability) = share(&mut world, BYTES);
    let host = world.host(NodeId(1));
    world.block_on(NodeId(1), async move {
        let mut port = host.open_port().unwrap();
        let region = port.register(BYTES).unwrap();
        for opcode in [memory::READ, memory::WRITE] {
            port.submit(&memory::access(opcode, &capability, region.whole(), 1)).unwrap();
            assert_eq!(port.completion().await.unwrap().status, Status::Done);
        }
    });
    for node in [0, 1].map(NodeId) {
        let memory = world.firmware(node).extension::<Memory>(MEMORY).unwrap();
        assert_eq!(memory.counters().retransmitted, 0);
    }
}
