//! Tests datagrams that no peer may send, and configurations that are invalid.

use std::net::UdpSocket;
use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::frame::{HEADER_BYTES, Header};
use midplane_simhw::host::{Host as _, OpenError};
use midplane_simhw::id::{Incarnation, NodeId};
use midplane_simhw::nic::StartError;
use midplane_simhw::rng::Rng;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::udp::{SoftSwitch, SwitchConfig, UdpConfig, UdpNic};

use crate::udp::firmware::{Cluster, ECHO, Probe, free_addresses, run};

/// Returns a frame from node 1 to node 0 that requests an echo.
fn frame(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        source: NodeId(source),
        destination: NodeId(destination),
        incarnation: Incarnation::FIRST,
        length: u16::try_from(payload.len()).unwrap(),
        flags: ECHO,
        hop_limit: 1,
        ..Header::default()
    };
    let mut bytes = header.emit().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// Waits until `of` returns at least `count`; panics after 10 s.
async fn count(of: impl Fn() -> u64, count: u64) {
    for _ in 0..2_000 {
        if of() >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{} of {count}", of());
}

#[track_caller]
fn assert_silent(socket: &UdpSocket) {
    socket.set_nonblocking(true).unwrap();
    let error = socket.recv(&mut [0; 100]).expect_err("no datagram is answered");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

/// Returns a lone NIC, and a socket at the address of its peer, node 1.
fn nic_and_peer(ip: &str) -> (UdpNic, crate::udp::firmware::Seen, UdpSocket) {
    loop {
        let mut peers = free_addresses(ip.parse().unwrap(), 1);
        let peer = UdpSocket::bind((peers[0].ip(), 0)).unwrap();
        peers.push(peer.local_addr().unwrap());
        let (probe, seen) = Probe::new();
        if let Ok(nic) = UdpNic::start(UdpConfig::new(NodeId(0), peers), probe) {
            return (nic, seen, peer);
        }
    }
}

#[test]
fn datagrams_that_are_no_frame_of_a_peer_are_counted_and_not_answered() {
    for ip in ["127.0.0.1", "::1"] {
        run(async {
            let (nic, seen, peer) = nic_and_peer(ip);
            let to = nic.address();
            let stranger = UdpSocket::bind((to.ip(), 0)).unwrap();
            let good = frame(1, 0, b"payload");
            let mut other_version = good.clone();
            other_version[1] = 99;
            let mut grown = good.clone();
            grown.push(0);
            let malformed: [&[u8]; 5] =
                [&[], &good[..20], &good[..HEADER_BYTES + 2], &other_version, &grown];
            for bytes in malformed {
                peer.send_to(bytes, to).unwrap();
            }
            peer.send_to(&frame(1, 7, b""), to).unwrap();
            peer.send_to(&frame(0, 0, b""), to).unwrap();
            peer.send_to(&frame(7, 0, b""), to).unwrap();
            stranger.send_to(&good, to).unwrap();
            count(|| nic.counters().drops.total(), 9).await;
            let counted = nic.counters().drops;
            assert_eq!(counted.of(DropCause::Malformed), 5);
            assert_eq!(counted.of(DropCause::Misrouted), 1);
            assert_eq!(counted.of(DropCause::Stranger), 3);
            assert_eq!(counted.total(), 9);
            assert_silent(&peer);
            assert_silent(&stranger);
            assert!(seen.arrivals().is_empty());
            peer.send_to(&good, to).unwrap();
            assert_eq!(seen.wait_for(1).await[0].payload, b"payload");
        });
    }
}

#[test]
fn random_datagrams_are_counted_by_nic_and_switch() {
    const BATCHES: u64 = 20;
    const BATCH: u64 = 50;
    run(async {
        let (nic, seen, peer) = nic_and_peer("127.0.0.1");
        let switch = switch_for(&peer);
        let mut rng = Rng::new(1, "datagrams");
        for batch in 1..=BATCHES {
            for _ in 0..BATCH {
                let mut bytes = frame(1, 0, &[5; 30]);
                bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
                // Any two bytes are damaged: length, magic or payload.
                for _ in 0..2 {
                    let at = rng.below(bytes.len() as u64) as usize;
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = rng.next_u64() as u8;
                    }
                }
                peer.send_to(&bytes, nic.address()).unwrap();
                peer.send_to(&bytes, switch.address()).unwrap();
            }
            // Small batches, so that no socket's buffer overflows.
            let seen_by_nic = || {
                let counters = nic.counters();
                counters.drops.total() + counters.frames_received
            };
            count(seen_by_nic, batch * BATCH).await;
            count(|| switch.counters().frames_in, batch * BATCH).await;
        }
        let counters = nic.counters();
        assert_eq!(counters.drops.total() + counters.frames_received, BATCHES * BATCH);
        assert_eq!(counters.frames_received, seen.arrivals().len() as u64);
        assert!(counters.drops.total() > BATCHES * BATCH / 2);
        assert!(switch.counters().frame_drops.total() > BATCHES * BATCH / 2);
    });
}

/// Returns a switch to which the peer is host 1, and whose host 0 is absent.
fn switch_for(peer: &UdpSocket) -> SoftSwitch {
    let here = peer.local_addr().unwrap();
    let free = free_addresses(here.ip(), 2);
    SoftSwitch::start(SwitchConfig::new(free[0], vec![free[1], here])).unwrap()
}

#[test]
fn a_start_that_fails_returns_the_reason() {
    run(async {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let holder = UdpSocket::bind(taken).unwrap();
        let start = |config| UdpNic::start(config, Probe::new().0).map(drop);
        let peers = vec![taken];
        let config = UdpConfig::new(NodeId(0), peers.clone());
        assert_eq!(start(config.clone()), Err(StartError::PortInUse(taken)));
        let switch =
            SwitchConfig::new(taken, peers.clone()).profile(SwitchProfile::new(Buffer::Bytes(1)));
        assert!(matches!(SoftSwitch::start(switch), Err(StartError::PortInUse(_))));
        drop(holder);
        // A documentation address, which no host has.
        let elsewhere = "192.0.2.1:7000".parse().unwrap();
        assert_eq!(start(config.clone().bind(elsewhere)), Err(StartError::NotLocal(elsewhere)));
        let rank = UdpConfig::new(NodeId(1), peers);
        assert_eq!(start(rank), Err(StartError::Rank { node: NodeId(1), nodes: 1 }));
        assert_eq!(start(config), Ok(()));
    });
    let alone = UdpConfig::new(NodeId(0), vec!["127.0.0.1:0".parse().unwrap()]);
    assert_eq!(UdpNic::start(alone, Probe::new().0).map(drop), Err(StartError::NoRuntime));
}

#[test]
fn a_nic_that_stops_closes_its_ports_and_frees_its_address() {
    run(async {
        let Cluster { mut nics, peers, .. } = Cluster::start("127.0.0.1", 1, |config| config);
        let nic = nics.pop().unwrap();
        let host = nic.host();
        let mut port = host.open_port().unwrap();
        nic.shutdown().await;
        assert!(port.is_closed());
        assert!(port.completion().await.is_err());
        assert_eq!(host.open_port().unwrap_err(), OpenError::Stopped(NodeId(0)));
        drop(UdpSocket::bind(peers[0]).expect("the address is free"));
    });
}
