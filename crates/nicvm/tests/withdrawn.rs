//! Memory that is deregistered while its message waits for a token: the token is passed on.

use std::time::Duration;

use crate::cluster::{Cluster, RECEIVER};
use midplane_nicvm::coordination;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::Status;
use midplane_simhw::time::Instant;

#[test]
fn a_message_whose_memory_is_deregistered_keeps_no_token() {
    let mut world = Cluster::ethernet(2).world();
    let careless = world.host(NodeId(1));
    world.spawn(NodeId(1), async move {
        let mut port = careless.open_port().unwrap();
        let region = port.register(1 << 20).unwrap();
        port.submit(&coordination::send(RECEIVER, PortId(0), region.whole(), 0)).unwrap();
        careless.sleep_until(careless.now() + Duration::from_millis(20)).await;
        drop(region);
        assert_eq!(port.completion().await.unwrap().status, Status::Region);
        let region = port.register(100).unwrap();
        port.submit(&coordination::send(RECEIVER, PortId(0), region.whole(), 0)).unwrap();
        assert_eq!(port.completion().await.unwrap().status, Status::Done);
    });
    let other = world.host(NodeId(2));
    let ended = world.block_on(NodeId(2), async move {
        let mut port = other.open_port().unwrap();
        let region = port.register(10_000).unwrap();
        other.sleep_until(Instant::from_nanos(1_000_000)).await;
        port.submit(&coordination::send(RECEIVER, PortId(0), region.whole(), 0)).unwrap();
        port.completion().await.unwrap();
        other.now()
    });
    assert!(ended.unwrap() < Instant::from_nanos(100_000_000), "{ended:?}");
    world.run_until(Instant::ZERO + Duration::from_secs(1));
    assert_eq!(world.tasks(), 0);
}
