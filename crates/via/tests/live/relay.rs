//! A faulty switch between NICs over UDP: it loses, duplicates and reorders datagrams.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use midplane_simhw::fault::Faults;
use midplane_simhw::frame::Header;
use midplane_simhw::rng::Rng;

/// Time for which a reordered datagram is held back.
const HELD: Duration = Duration::from_millis(1);

/// A relay, which runs until it is dropped.
pub(crate) struct Relay {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    /// The relay's thread; returns how many datagrams met a fault.
    thread: Option<JoinHandle<u64>>,
}

impl Relay {
    /// Starts a relay between `peers`: node `i` is at `peers[i]`.
    pub(crate) fn start(peers: Vec<SocketAddr>, faults: Faults) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_read_timeout(Some(HELD)).unwrap();
        let address = socket.local_addr().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || relay(&socket, &peers, faults, &over));
        Self { address, is_over, thread: Some(thread) }
    }

    /// Ends the relay; returns how many datagrams met a fault.
    pub(crate) fn end(mut self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().expect("it ends once").join().unwrap()
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn relay(socket: &UdpSocket, peers: &[SocketAddr], faults: Faults, is_over: &AtomicBool) -> u64 {
    let mut rng = Rng::new(11, "relay");
    let mut happens = |probability: f64| (rng.below(1_000_000) as f64) < probability * 1e6;
    let mut faulty = 0;
    let mut datagram = vec![0; 65_536];
    // A datagram that others overtake.
    let mut held: Option<(Vec<u8>, SocketAddr)> = None;
    // A NIC may have closed its socket, which is no error of the relay.
    let send = |bytes: &[u8], to: SocketAddr| drop(socket.send_to(bytes, to));
    while !is_over.load(Ordering::Relaxed) {
        let Ok((length, _)) = socket.recv_from(&mut datagram) else {
            if let Some((bytes, to)) = held.take() {
                send(&bytes, to);
            }
            continue;
        };
        let bytes = &datagram[..length];
        let Ok((header, _)) = Header::parse(bytes) else { continue };
        let Some(&to) = peers.get(header.destination.index()) else { continue };
        if happens(faults.loss) {
            faulty += 1;
            continue;
        }
        if held.is_none() && happens(faults.reorder) {
            held = Some((bytes.to_vec(), to));
            faulty += 1;
            continue;
        }
        send(bytes, to);
        if happens(faults.duplicate) {
            send(bytes, to);
            faulty += 1;
        }
        if let Some((bytes, to)) = held.take_if(|_| happens(0.5)) {
            send(&bytes, to);
        }
    }
    faulty
}
