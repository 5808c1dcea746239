//! Tests NICs with a key: they drop what is not sealed or arrives twice.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::frame::Header;
use midplane_simhw::host::Host as _;
use midplane_simhw::id::{Incarnation, NodeId};
use midplane_simhw::seal::{Key, SEAL_BYTES};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::udp::{Coprocessor, UdpConfig, UdpNic};

use crate::udp::firmware::{
    Cluster, ECHO, Probe, SEND, Seen, command, completion, free_addresses, run,
};
use crate::udp::switched;

fn key() -> Key {
    Key::new(1, [3; 32])
}

/// Sends `count` frames of `bytes` from the first NIC to the second, which sends them back.
async fn send(nic: &UdpNic, bytes: usize, count: usize) {
    let mut port = nic.host().open_port().unwrap();
    let region = port.register(bytes).unwrap();
    region.write(0, &vec![9; bytes]).unwrap();
    for _ in 0..count {
        let mut send = command(SEND, 1, &region);
        send.flags = u16::from(ECHO);
        port.submit(&send).unwrap();
        completion(&mut port).await;
    }
}

#[test]
fn sealed_frames_of_any_length_are_echoed() {
    for coprocessor in [Coprocessor::Thread, Coprocessor::Task] {
        run(async {
            let cluster =
                Cluster::start("127.0.0.1", 2, |config| config.key(key()).coprocessor(coprocessor));
            assert!(cluster.nics[0].is_sealed());
            for bytes in [1, 1_400, 65_400] {
                send(&cluster.nics[0], bytes, 1).await;
            }
            let there = cluster.seen[1].wait_for(3).await;
            let back = cluster.seen[0].wait_for(3).await;
            for (seen, source) in [(there, 0), (back, 1)] {
                let lengths: Vec<usize> =
                    seen.iter().map(|arrival| arrival.payload.len()).collect();
                assert_eq!(lengths, [1, 1_400, 65_400]);
                assert!(seen.iter().all(|a| a.payload.iter().all(|byte| *byte == 9)));
                assert!(seen.iter().all(|a| a.header.source.0 == source));
            }
            for nic in cluster.nics {
                assert_eq!(nic.shutdown().await.drops.total(), 0);
            }
        });
    }
}

#[test]
fn frames_that_wait_for_keys_still_leave_when_the_nic_is_shut_down() {
    run(async {
        let mut cluster = Cluster::start("127.0.0.1", 2, |config| config.key(key()));
        let sender = cluster.nics.remove(0);
        send(&sender, 100, 20).await;
        sender.shutdown().await;
        assert_eq!(cluster.seen[1].wait_for(20).await.len(), 20);
    });
}

#[test]
fn a_restarted_nic_sends_and_receives_with_any_incarnation_number() {
    run(async {
        let configure = |config: UdpConfig| config.key(key()).incarnation(Incarnation::FIRST);
        let mut cluster = Cluster::start("127.0.0.1", 2, configure);
        send(&cluster.nics[0], 10, 1).await;
        cluster.seen[0].wait_for(1).await;
        cluster.nics.remove(1).shutdown().await;
        let (probe, seen) = Probe::new();
        let config = configure(UdpConfig::new(NodeId(1), cluster.peers.clone()));
        let restarted = UdpNic::start(config, probe).unwrap();
        // The first frames are sealed with keys that the restarted NIC has lost; it then begins a handshake for new
        // ones.
        for _ in 0..200 {
            send(&cluster.nics[0], 10, 1).await;
            if !seen.arrivals().is_empty() {
                assert!(restarted.counters().drops.of(DropCause::Unsealed) > 0);
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never heard: {:?}", restarted.counters());
    });
}

/// Rounds of polling both sockets, 20 ms each, after which no more datagrams are expected.
const QUIET: usize = 10;

/// Forwards datagrams between two NICs, each of which takes one of its sockets for the other NIC.
struct Tap {
    sockets: [UdpSocket; 2],
    nics: [SocketAddr; 2],
}

impl Tap {
    /// Starts the NICs and the tap between them; returns also the frames that each firmware receives.
    fn start() -> ([UdpNic; 2], [Seen; 2], Self) {
        let nics = free_addresses("127.0.0.1".parse().unwrap(), 2);
        let bind = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            socket
        };
        let sockets = [bind(), bind()];
        let started = [0_u16, 1].map(|node| {
            let mut peers = nics.clone();
            let other = usize::from(1 - node);
            peers[other] = sockets[other].local_addr().unwrap();
            let (probe, seen) = Probe::new();
            let config = UdpConfig::new(NodeId(node), peers).key(key());
            (UdpNic::start(config, probe).unwrap(), seen)
        });
        let [(first, seen_first), (second, seen_second)] = started;
        ([first, second], [seen_first, seen_second], Self { sockets, nics: [nics[0], nics[1]] })
    }

    /// Forwards datagrams until none arrives; returns them with their receivers.
    fn pass(&self) -> Vec<(usize, Vec<u8>)> {
        let mut passed = Vec::new();
        let mut buffer = [0; 2_000];
        let mut quiet = 0;
        while quiet < QUIET {
            quiet += 1;
            for to in [0, 1] {
                // A datagram for a NIC arrives at the socket that stands for that NIC.
                while let Ok(length) = self.sockets[to].recv(&mut buffer) {
                    quiet = 0;
                    passed.push((to, buffer[..length].to_vec()));
                    self.inject(to, &buffer[..length]);
                }
            }
        }
        passed
    }

    /// Sends a NIC a datagram that seems to come from the other.
    fn inject(&self, to: usize, datagram: &[u8]) {
        self.sockets[1 - to].send_to(datagram, self.nics[to]).unwrap();
    }
}

#[test]
fn sealed_datagrams_are_unreadable_on_the_wire_and_useless_as_replays() {
    run(async {
        let ([first, second], [_, seen], tap) = Tap::start();
        send(&first, 40, 3).await;
        let record = tokio::task::spawn_blocking(move || {
            let passed = tap.pass();
            (passed, tap)
        });
        let (record, tap) = record.await.unwrap();
        assert_eq!(seen.wait_for(3).await.len(), 3);
        for (_, datagram) in &record {
            assert!(!datagram.windows(8).any(|bytes| bytes == [9; 8]), "it can be read");
        }
        let before = second.counters();
        let again: Vec<_> = record.iter().filter(|(to, _)| *to == 1).collect();
        for (to, datagram) in &again {
            tap.inject(*to, datagram);
        }
        // Frames that are not sealed, under the peer's address.
        let header = Header { destination: NodeId(1), length: 40, ..Header::default() };
        let mut plain = header.emit().to_vec();
        plain.extend([9; 40]);
        assert_eq!(plain.len() + SEAL_BYTES, again.last().unwrap().1.len());
        tap.inject(1, &plain);
        let mut counters = second.counters();
        for _ in 0..1_000 {
            if counters.drops.total() == before.drops.total() + again.len() as u64 + 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            counters = second.counters();
        }
        let more = |cause| counters.drops.of(cause) - before.drops.of(cause);
        assert_eq!(more(DropCause::Replayed), again.len() as u64, "{counters:?}");
        assert_eq!(more(DropCause::Unsealed), 1);
        assert_eq!(counters.frames_received, 3);
        assert_eq!(seen.arrivals().len(), 3);
        drop(first);
    });
}

#[test]
fn sealed_frames_pass_a_switch_that_has_no_key() {
    run(async {
        let profile = SwitchProfile::new(Buffer::Bytes(32 << 10));
        let (switch, cluster) = switched::start("::1", 2, profile, |config| config.key(key()));
        send(&cluster.nics[0], 500, 2).await;
        let back = cluster.seen[0].wait_for(2).await;
        // Each direction crosses one switch.
        assert!(back.iter().all(|arrival| arrival.header.hop_limit < 64));
        assert_eq!(switch.shutdown().await.frame_drops.total(), 0);
    });
}

#[test]
fn nics_with_different_keys_or_none_receive_nothing_from_each_other() {
    run(async {
        let cluster = Cluster::start("127.0.0.1", 3, |config| match config.node() {
            NodeId(0) => config.key(key()),
            NodeId(1) => config.key(Key::new(1, [4; 32])),
            _ => config,
        });
        for from in [0, 2] {
            send(&cluster.nics[from], 10, 1).await;
        }
        for _ in 0..1_000 {
            if cluster.nics[1].counters().drops.of(DropCause::Unsealed) >= 2 {
                assert!(cluster.seen[1].arrivals().is_empty());
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{:?}", cluster.nics[1].counters());
    });
}
