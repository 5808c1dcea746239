//! Tests that datagrams are as long as their path carries, and never longer.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::host::Host as _;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::Status;
use midplane_simhw::seal::Key;
use midplane_simhw::time::LineRate;
use midplane_simhw::udp::{Coprocessor, UdpConfig};

use crate::udp::firmware::{Cluster, ECHO, SEND, command, completion, run};

/// A router, which forwards datagrams that are not too long for the network behind it.
struct Router {
    at: SocketAddr,
    carries: Arc<AtomicUsize>,
    /// Lengths of the datagrams received, except probes.
    lengths: Arc<Mutex<Vec<usize>>>,
    probes: Arc<Mutex<Vec<usize>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Router {
    /// Starts a router between `peers`, on a port of its own.
    fn start(carries: usize, peers: Arc<Mutex<Vec<SocketAddr>>>) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut router = Self {
            at: socket.local_addr().unwrap(),
            carries: Arc::new(AtomicUsize::new(carries)),
            lengths: Arc::default(),
            probes: Arc::default(),
            stop: Arc::default(),
            thread: None,
        };
        let (carries, stop) = (Arc::clone(&router.carries), Arc::clone(&router.stop));
        let (lengths, probes) = (Arc::clone(&router.lengths), Arc::clone(&router.probes));
        router.thread = Some(std::thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while !stop.load(Ordering::Relaxed) {
                let Ok((length, _)) = socket.recv_from(&mut bytes) else { continue };
                // A sealed datagram does not show its kind, and counts as a probe; its destination is readable.
                let (is_probe, destination) = match Header::parse(&bytes[..length]) {
                    Ok((header, _)) => (header.kind == Kind::Probe, header.destination.index()),
                    Err(_) => (true, usize::from(u16::from_le_bytes([bytes[6], bytes[7]]))),
                };
                if is_probe { &probes } else { &lengths }.lock().unwrap().push(length);
                if length <= carries.load(Ordering::Relaxed) {
                    let to = peers.lock().unwrap()[destination];
                    let _ = socket.send_to(&bytes[..length], to);
                }
            }
        }));
        router
    }

    fn longest(&self) -> usize {
        self.lengths.lock().unwrap().iter().copied().max().unwrap_or(0)
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Starts two NICs with such a router between them.
fn start(carries: usize, change: impl Fn(UdpConfig) -> UdpConfig) -> (Router, Cluster) {
    let peers = Arc::new(Mutex::new(Vec::new()));
    let router = Router::start(carries, Arc::clone(&peers));
    let line = LinkProfile::plain(LineRate::mbps(10_000), Duration::ZERO);
    let cluster = Cluster::start("127.0.0.1", 2, |config| change(config.via(router.at).line(line)));
    peers.lock().unwrap().clone_from(&cluster.peers);
    (router, cluster)
}

fn key() -> Key {
    Key::new(1, [7; 32])
}

/// Sends frames of `length` until `done`.
async fn send_until(cluster: &Cluster, length: usize, mut done: impl FnMut() -> bool) {
    let mut port = cluster.nics[0].host().open_port().unwrap();
    let region = port.register(length).unwrap();
    for _ in 0..20_000 {
        if done() {
            return;
        }
        port.submit(&command(SEND, 1, &region)).unwrap();
        assert_eq!(completion(&mut port).await.status, Status::Done);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never came");
}

#[test]
fn frames_of_any_length_are_echoed_over_a_path_of_short_datagrams() {
    for coprocessor in [Coprocessor::Thread, Coprocessor::Task] {
        run(async {
            let (router, cluster) = start(1_300, |config| config.coprocessor(coprocessor));
            let mut port = cluster.nics[0].host().open_port().unwrap();
            for (number, length) in [1, 1_152, 1_153, 1_252, 9_000, 65_400].into_iter().enumerate()
            {
                let region = port.register(length).unwrap();
                region.write(0, &vec![number as u8; length]).unwrap();
                let mut send = command(SEND, 1, &region);
                send.flags = u16::from(ECHO);
                port.submit(&send).unwrap();
                assert_eq!(completion(&mut port).await.status, Status::Done);
                let there = &cluster.seen[1].wait_for(number + 1).await[number];
                let back = &cluster.seen[0].wait_for(number + 1).await[number];
                assert!(there.payload == vec![number as u8; length], "{length} bytes");
                assert!(back.payload == there.payload, "{length} bytes");
            }
            assert!(router.longest() <= 1_300, "{} bytes", router.longest());
        });
    }
}

#[test]
fn datagrams_grow_to_the_length_that_their_path_carries_and_no_further() {
    // The router stands for a switch in software, through which no datagram is longer than 8,972 bytes.
    for (carries, finds) in [(1_372, 1_372), (8_972, 8_972), (65_507, 8_972)] {
        run(async {
            let (router, cluster) = start(carries, |config| config);
            send_until(&cluster, 65_400, || router.longest() == finds).await;
            // Lengths that were too long were probed a few times at most, and carried nothing.
            assert!(router.probes.lock().unwrap().contains(&finds));
            assert!(router.longest() <= carries);
            // The peer's answers and echoes keep to the same lengths.
            assert_eq!(cluster.nics[1].counters().drops.of(DropCause::Malformed), 0);
        });
    }
}

#[test]
fn datagrams_shrink_where_the_path_does() {
    run(async {
        let (router, cluster) = start(8_972, |config| config);
        send_until(&cluster, 20_000, || router.longest() == 8_972).await;
        router.carries.store(1_472, Ordering::Relaxed);
        let before = cluster.seen[1].with(|record| record.arrivals.len());
        // Frames arrive again.
        send_until(&cluster, 20_000, || {
            cluster.seen[1].with(|record| record.arrivals.len()) > before + 100
        })
        .await;
        let lengths = router.lengths.lock().unwrap().clone();
        assert!(lengths[lengths.len() - 10..].iter().all(|length| *length <= 1_472));
    });
}

#[test]
fn sealed_datagrams_keep_to_the_same_lengths() {
    run(async {
        let (router, cluster) = start(1_472, |config| config.key(key()));
        let full = |lengths: &[usize]| lengths.iter().filter(|length| **length == 1_472).count();
        // A probe of that length, and then frames.
        send_until(&cluster, 20_000, || full(&router.probes.lock().unwrap()) > 100).await;
        let lengths = router.probes.lock().unwrap().clone();
        let long = lengths.iter().filter(|length| **length > 1_472).count();
        assert!((1..20).contains(&long), "{long} of {} are probes", lengths.len());
        assert!(cluster.seen[1].with(|record| !record.arrivals.is_empty()));
    });
}

#[test]
fn vouched_lengths_are_used_from_the_first_frame_and_nothing_is_probed() {
    run(async {
        let (router, cluster) = start(65_507, |config| config.datagram_bytes(8_972));
        let arrived = || cluster.seen[1].with(|record| record.arrivals.len()) >= 20;
        send_until(&cluster, 20_000, arrived).await;
        assert!(router.probes.lock().unwrap().is_empty());
        let lengths = router.lengths.lock().unwrap().clone();
        assert_eq!(lengths[..3], [8_972, 8_972, 20_048 - 2 * 8_924 + 48]);
    });
}

#[test]
fn invalid_pieces_are_counted_and_harmless() {
    run(async {
        let mut cluster = Cluster::start("127.0.0.1", 2, |config| config);
        cluster.nics.remove(0).shutdown().await;
        let peer = UdpSocket::bind(cluster.peers[0]).unwrap();
        let piece = |sequence, words, length: u16| {
            let header = Header {
                kind: Kind::Piece,
                destination: cluster.nics[0].host().node(),
                sequence,
                length,
                words,
                ..Header::default()
            };
            let mut bytes = header.emit().to_vec();
            bytes.resize(header.frame_bytes(), 0x4D);
            peer.send_to(&bytes, cluster.peers[1]).unwrap();
        };
        // Pieces beyond their frame, without a stride, and of an impossible frame.
        piece(0, [600 << 32 | 600, 300], 300);
        piece(1, [600 << 32, 0], 300);
        piece(2, [u64::MAX, u64::MAX], 300);
        // A complete frame whose contents are no frame.
        piece(3, [600 << 32, 300], 300);
        piece(3, [600 << 32 | 300, 300], 300);
        // Halves that are never completed.
        for number in 10..30 {
            piece(number, [600 << 32, 300], 300);
        }
        for _ in 0..2_000 {
            let drops = cluster.nics[0].counters().drops;
            if drops.of(DropCause::Malformed) == 4 && drops.of(DropCause::Incomplete) == 16 {
                assert!(cluster.seen[1].with(|record| record.arrivals.is_empty()));
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{:?}", cluster.nics[0].counters().drops);
    });
}
