//! Closing a port withdraws its waiting messages, and those of no other port.

use std::net::UdpSocket;
use std::time::Duration;

use crate::cluster::{Cluster, RECEIVER};
use midplane_nicvm::coordination;
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, PortOptions, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::shm::{ShmConfig, ShmNic};
use midplane_simhw::udp::{UdpConfig, UdpNic};

#[test]
fn a_message_is_sent_after_one_that_waited_for_the_token_was_withdrawn() {
    let cluster = Cluster::ethernet(2);
    let mut world = cluster.world();
    // The token begins at node 1.
    let host = world.host(NodeId(2));
    let sent = world.block_on(NodeId(2), async move {
        let mut closed = host.open_port().unwrap();
        let memory = closed.register(2_000).unwrap();
        closed.submit(&coordination::send(RECEIVER, PortId(0), memory.whole(), 0)).unwrap();
        host.sleep_until(host.now() + Duration::from_micros(3)).await;
        drop((closed, memory));
        host.sleep_until(host.now() + Duration::from_millis(5)).await;
        let mut port = host.open_port().unwrap();
        let memory = port.register(2_000).unwrap();
        port.submit(&coordination::send(RECEIVER, PortId(0), memory.whole(), 0)).unwrap();
        port.completion().await.unwrap().status
    });
    assert_eq!(sent, Some(Status::Done));
}

/// Posts more commands than a NIC takes in one turn; the doorbell rings only as the port closes.
#[test]
fn a_port_with_many_commands_in_its_ring_closes() {
    let cluster = Cluster::ethernet(2);
    let mut world = cluster.world();
    let host = world.host(NodeId(2));
    let numbered = PortOptions::default().number(PortId(9)).depth(256);
    let is_free = world.block_on(NodeId(2), async move {
        let mut port = host.open_port_with(numbered).unwrap();
        for cookie in 0..200 {
            port.post(&Command { opcode: 99, cookie, ..Command::default() }).unwrap();
        }
        drop(port);
        host.sleep_until(host.now() + Duration::from_millis(20)).await;
        host.open_port_with(numbered).is_ok()
    });
    assert_eq!(is_free, Some(true));
}

/// Drops ports at different times while the NIC takes their commands, more than one turn's share. Returns the numbers
/// of the ports that do not close.
async fn ports_that_stay(host: impl Host) -> Vec<u16> {
    let numbered = |number| PortOptions::default().number(PortId(number)).depth(256);
    let mut stay = Vec::new();
    for after in 1..40 {
        let mut port = host.open_port_with(numbered(after)).unwrap();
        for cookie in 0..200 {
            port.post(&Command { opcode: 99, cookie, ..Command::default() }).unwrap();
        }
        port.ring();
        host.sleep_until(host.now() + Duration::from_micros(after.into())).await;
        drop(port);
        let end = host.now() + Duration::from_secs(5);
        while host.open_port_with(numbered(after)).is_err() {
            if host.now() > end {
                stay.push(after);
                break;
            }
            host.sleep_until(host.now() + Duration::from_millis(2)).await;
        }
    }
    stay
}

#[test]
fn a_port_dropped_in_the_middle_of_a_burst_closes() {
    let mut world = Cluster { profile: NicProfile::SBA_200E, ..Cluster::ethernet(2) }.world();
    let host = world.host(NodeId(2));
    assert_eq!(world.block_on(NodeId(2), ports_that_stay(host)), Some(vec![]));
}

#[test]
fn a_port_dropped_in_the_middle_of_a_burst_closes_on_live_nics() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let name = format!("burst-{}", std::process::id());
        let shm = ShmNic::start(ShmConfig::new(&name, NodeId(0), 1), Unit::default()).unwrap();
        assert_eq!(ports_that_stay(shm.host()).await, []);
        let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let udp = UdpNic::start(UdpConfig::new(NodeId(0), vec![address]), Unit::default()).unwrap();
        assert_eq!(ports_that_stay(udp.host()).await, []);
    });
}
