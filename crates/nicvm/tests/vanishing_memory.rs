//! Large accesses whose memory is deregistered, or whose capability is revoked, while they are under way.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_nicvm::capability::{Capability, CapabilityRights};
use midplane_nicvm::memory::{self, MEMORY, Memory, READ, REVOKE, WRITE};
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Port, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::World;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;

const OWNER: NodeId = NodeId(0);
const OTHER: NodeId = NodeId(1);
/// Bytes of an access: 8 ms on the line.
const BYTES: usize = 1_000_000;
/// Bytes of a region's end that are checked.
const END: usize = 8;

/// The memory that vanishes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Loss {
    /// The owner's, or the requester's, is deregistered.
    OwnersRegion,
    RequestersRegion,
    /// The owner closes its port.
    OwnersPort,
    /// The owner revokes the capability.
    Capability,
}

fn world() -> World<Unit> {
    let link = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::from_nanos(500));
    let topology = Topology::star(2, link, SwitchProfile::new(Buffer::Bytes(256 << 10)));
    World::new(&topology, NicProfile::MODERN, 1, |_, _| {
        let mut unit = Unit::default();
        unit.install(MEMORY, Memory::new()).unwrap();
        unit
    })
}

async fn grant(port: &mut Port, bytes: &midplane_simhw::region::Region) -> Capability {
    let rights = CapabilityRights::READ.and(CapabilityRights::WRITE);
    port.submit(&memory::grant(bytes.whole(), rights, 0)).unwrap();
    let done = port.completion().await.unwrap();
    assert_eq!(done.status, Status::Done);
    memory::granted(&done)
}

/// Begins a large access, and lets some memory vanish 2 ms later. Returns the status of the access, how long it took,
/// and whether the end of the memory that it writes has changed: the requester's for a read, the owner's for a write.
fn lose(opcode: u8, loss: Loss) -> (Status, Duration, bool) {
    let mut world = world();
    let (given, result) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
    let owners_end = Arc::new(Mutex::new(None));
    let (owner, into, end_into) = (world.host(OWNER), Arc::clone(&given), Arc::clone(&owners_end));
    world.spawn(OWNER, async move {
        let mut port = owner.open_port().unwrap();
        let region = port.register(BYTES).unwrap();
        region.write(0, &[7; BYTES]).unwrap();
        let capability = grant(&mut port, &region).await;
        *into.lock().unwrap() = Some(capability);
        owner.sleep_until(owner.now() + Duration::from_millis(3)).await;
        if loss == Loss::OwnersRegion {
            drop(region);
        } else if loss == Loss::OwnersPort {
            drop(port);
        } else if loss == Loss::Capability {
            port.submit(&memory::access(REVOKE, &capability, Default::default(), 0)).unwrap();
            assert_eq!(port.completion().await.unwrap().status, Status::Done);
            owner.sleep_until(owner.now() + Duration::from_secs(10)).await;
            let mut end = [0; END];
            region.read(BYTES - END, &mut end).unwrap();
            *end_into.lock().unwrap() = Some(end);
        }
        std::future::pending::<()>().await;
    });
    world.run_until(world.now() + Duration::from_millis(1));
    let capability = given.lock().unwrap().expect("it is granted");
    let (other, into) = (world.host(OTHER), Arc::clone(&result));
    world.spawn(OTHER, async move {
        let mut port = other.open_port().unwrap();
        let mut region = Some(port.register(BYTES).unwrap());
        let content = if opcode == WRITE { 9 } else { 0 };
        region.as_ref().unwrap().write(0, &[content; BYTES]).unwrap();
        let (begun, whole) = (other.now(), region.as_ref().unwrap().whole());
        port.submit(&memory::access(opcode, &capability, whole, 1)).unwrap();
        other.sleep_until(begun + Duration::from_millis(2)).await;
        if loss == Loss::RequestersRegion {
            region = None;
        }
        let status = port.completion().await.unwrap().status;
        let took = other.now().nanos_since(begun);
        let mut end = [0; END];
        if let Some(region) = &region {
            region.read(BYTES - END, &mut end).unwrap();
        }
        *into.lock().unwrap() = Some((status, Duration::from_nanos(took), end != [0; END]));
    });
    world.run_until(world.now() + Duration::from_secs(20));
    let (status, took, is_read) = result.lock().unwrap().take().expect("the access ends");
    let is_written = owners_end.lock().unwrap().is_some_and(|end| end != [7; END]);
    (status, took, if opcode == WRITE { is_written } else { is_read })
}

#[test]
fn a_large_access_whose_memory_is_deregistered_ends_at_once() {
    for opcode in [READ, WRITE] {
        for loss in [Loss::OwnersRegion, Loss::RequestersRegion] {
            let (status, took, _) = lose(opcode, loss);
            assert_eq!(status, Status::Region, "opcode {opcode}, {loss:?}");
            assert!(took < Duration::from_millis(50), "opcode {opcode}, {loss:?}: {took:?}");
        }
    }
}

#[test]
fn a_large_write_to_a_port_that_closes_ends_at_once() {
    let (status, took, _) = lose(WRITE, Loss::OwnersPort);
    assert_eq!(status, Status::Region);
    assert!(took < Duration::from_millis(50), "{took:?}");
}

#[test]
fn a_large_access_whose_capability_is_revoked_ends_and_delivers_no_more() {
    for opcode in [READ, WRITE] {
        let (status, took, is_changed) = lose(opcode, Loss::Capability);
        assert_eq!(status, Status::Region, "opcode {opcode}");
        assert!(took < Duration::from_millis(50), "opcode {opcode}: {took:?}");
        assert!(!is_changed, "opcode {opcode}: bytes crossed after the revocation");
    }
}
