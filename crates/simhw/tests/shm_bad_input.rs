//! Tests invalid input to NICs over shared memory: contradictory configurations, occupied nodes, hostile connections.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::time::Duration;

use midplane_simhw::host::{Host, OpenError};
use midplane_simhw::id::NodeId;
use midplane_simhw::nic::StartError;
use midplane_simhw::port::{Command, PortClosed, PostError};
use midplane_simhw::shm::{ShmConfig, ShmNic};

use crate::shm::firmware::{Probe, name, run, start};

#[test]
fn an_occupied_node_is_refused_until_its_nic_stops() {
    let fabric = name("taken");
    run(async {
        let config = || ShmConfig::new(&fabric, NodeId(0), 2);
        let (nic, _) = start(config());
        let refused = ShmNic::start(config(), Probe::new(false).0).map(drop);
        let occupied = StartError::Occupied { node: NodeId(0), name: fabric.clone() };
        assert_eq!(refused.unwrap_err(), occupied);
        let host = nic.host();
        nic.shutdown().await;
        assert_eq!(host.open_port().unwrap_err(), OpenError::Stopped(NodeId(0)));
        start(config());
    });
}

#[test]
fn no_nic_starts_outside_a_runtime() {
    let config = ShmConfig::new("nowhere", NodeId(0), 1);
    let refused = ShmNic::start(config, Probe::new(false).0).map(drop);
    assert_eq!(refused.unwrap_err(), StartError::NoRuntime);
}

#[test]
fn peers_of_different_shapes_do_not_connect_and_harm_no_other() {
    let fabric = name("shapes");
    run(async {
        let of_shape = |node, mtu| start(ShmConfig::new(&fabric, NodeId(node), 4).mtu(mtu)).0;
        let nics = [of_shape(0, 2_000), of_shape(1, 1_000), of_shape(2, 2_000), of_shape(3, 1_000)];
        // Each has one peer of its shape. Once it has met that one, it has tried the others, too.
        for (nic, alike) in nics.iter().zip([2, 3, 0, 1]) {
            let mut peers = nic.peers();
            let met = peers.wait_for(|peers| !peers.is_empty());
            let met = tokio::time::timeout(Duration::from_secs(20), met).await;
            assert_eq!(*met.expect("two of one shape meet").unwrap(), [NodeId(alike)]);
        }
        for (nic, alike) in nics.iter().zip([2, 3, 0, 1]) {
            assert_eq!(*nic.peers().borrow(), [NodeId(alike)]);
        }
    });
}

#[test]
fn an_invalid_greeting_is_refused() {
    let fabric = name("stranger");
    run(async {
        let (nic, _) = start(ShmConfig::new(&fabric, NodeId(0), 2));
        let place = format!("midplane/{fabric}/0");
        let address = SocketAddr::from_abstract_name(place).unwrap();
        // Sockets of other kinds do not even connect.
        assert!(UnixStream::connect_addr(&address).is_err());
        assert!(UnixDatagram::unbound().unwrap().connect_addr(&address).is_err());
        for words in [&b""[..], b"let me in", &[0xFF; 64], &[0; 4_096]] {
            let flags = rustix::net::SocketFlags::CLOEXEC;
            let kind = rustix::net::SocketType::SEQPACKET;
            let family = rustix::net::AddressFamily::UNIX;
            let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
            let at = rustix::net::SocketAddrUnix::new_abstract_name(
                format!("midplane/{fabric}/0").as_bytes(),
            );
            rustix::net::connect(&socket, &at.unwrap()).unwrap();
            let mut stream = UnixStream::from(socket);
            stream.write_all(words).unwrap();
        }
        let (peer, _) = start(ShmConfig::new(&fabric, NodeId(1), 2));
        tokio::time::timeout(Duration::from_secs(20), nic.meet())
            .await
            .expect("a peer is accepted");
        drop(peer);
    });
}

#[test]
fn a_panic_of_the_firmware_closes_its_ports_and_disconnects_its_peers() {
    let fabric = name("panic");
    run(async {
        let (nic, _) = start(ShmConfig::new(&fabric, NodeId(0), 2).spin(Duration::ZERO));
        let (peer, _) = start(ShmConfig::new(&fabric, NodeId(1), 2));
        nic.meet().await;
        let (mut port, mut other) =
            (nic.host().open_port().unwrap(), nic.host().open_port().unwrap());
        let fatal = Command { flags: 1, ..Command::default() };
        let ring = std::panic::AssertUnwindSafe(|| port.submit(&fatal));
        assert!(std::panic::catch_unwind(ring).is_err(), "it runs where it is rung");
        assert_eq!(other.poll(), None);
        assert_eq!(other.completion().await, Err(PortClosed));
        assert_eq!(port.post(&Command::default()), Err(PostError::Closed));
        assert_eq!(nic.host().open_port().unwrap_err(), OpenError::Stopped(NodeId(0)));
        nic.shutdown().await;
        let mut peers = peer.peers();
        let left = peers.wait_for(Vec::is_empty);
        tokio::time::timeout(Duration::from_secs(20), left)
            .await
            .expect("its exit is reported")
            .unwrap();
    });
}
