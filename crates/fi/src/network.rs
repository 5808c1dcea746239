//! Reaches endpoints on other hosts: a bridge copies records between rings of this process and UDP pipes.
//!
//! To the endpoint, a peer on another host is a pair of rings, like one on this host. The bridge holds the other ends.
//! Threads that poll the endpoint also run the bridge, so that no other thread needs a processor. A thread of the
//! bridge takes over 1 ms after the last poll, and at once if a caller waits without polling. There is a bridge only if
//! the environment names a network.

mod bridge;
mod frames;
mod link;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use midplane_simhw::seal::{Key, KeyFileError, read_key};
use midplane_simhw::shm::rings::RingPair;
use midplane_via::wire::pipe::Config;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::Notify;

use bridge::Bridge;

/// An address in the network to use: the endpoint binds the address from which this host reaches it.
const NETWORK: &str = "FI_MIDPLANE_NETWORK";
/// A file with the key that all processes share, in the format of `midplane`.
const KEY_FILE: &str = "FI_MIDPLANE_KEY_FILE";

/// Idle turns after which polls of the bridge become rare: each costs a system call, and the application probably uses
/// other peers.
const BUSY: u32 = 1000;
/// Turns per poll from then on.
const RARELY: u32 = 16;

/// The address that an endpoint binds, and the key for other hosts.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) address: IpAddr,
    pub(crate) key: Option<Key>,
}

impl Terms {
    /// Reads the environment; `None` if it names no network.
    ///
    /// # Errors
    /// A malformed address or key, or an address beyond this host without a key.
    pub(crate) fn from_environment() -> io::Result<Option<Self>> {
        let Some(network) = std::env::var_os(NETWORK) else { return Ok(None) };
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let network = network.to_str().and_then(|text| text.parse::<IpAddr>().ok());
        let network = network.ok_or_else(|| invalid(format!("{NETWORK} is not an IP address")))?;
        let key = match std::env::var_os(KEY_FILE) {
            None => None,
            Some(path) => {
                let wrong = |error| {
                    let text = format!("{KEY_FILE}: {}: {error}", Path::new(&path).display());
                    match error {
                        KeyFileError::Unreadable(kind, _) => io::Error::new(kind, text),
                        _ => invalid(text),
                    }
                };
                Some(read_key::<Key>(Path::new(&path)).map_err(wrong)?)
            }
        };
        if key.is_none() && !network.is_loopback() {
            return Err(invalid(format!("{NETWORK} beyond this host needs {KEY_FILE}")));
        }
        let any: IpAddr = if network.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() };
        let probe = UdpSocket::bind((any, 0))?;
        // Connecting a UDP socket sends nothing: it makes the system choose the route.
        probe.connect((network, 1))?;
        Ok(Some(Self { address: probe.local_addr()?.ip(), key }))
    }
}

/// State that the endpoint and the thread share.
#[derive(Debug)]
struct Shared {
    /// Wakes the thread when it waits.
    notify: Notify,
    /// Number of turns of the application's threads.
    polls: AtomicU64,
    /// True if the thread must work although the application has just polled.
    is_released: AtomicBool,
    /// True while the thread works, or waits for work.
    is_serving: AtomicBool,
    /// Readable when the bridge has accepted a peer.
    accepted: OwnedFd,
}

/// A peer to connect to, with the bridge's ends of its rings.
type Dial = (SocketAddr, RingPair);
/// The endpoint's ends of an accepted peer's rings, and the peer's number.
type Accept = (RingPair, u64);

/// The connection of an endpoint to other hosts. Dropping it sends the remaining records, for at most some seconds.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    bridge: Arc<Mutex<Bridge>>,
    /// Number of idle turns of the application in a row.
    idle: u32,
    dials: Option<Sender<Dial>>,
    accepted: Receiver<Accept>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// Starts the thread of the endpoint with this number.
    pub(crate) fn start(terms: &Terms, endpoint: u64) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            notify: Notify::new(),
            polls: AtomicU64::new(0),
            is_released: AtomicBool::new(false),
            is_serving: AtomicBool::new(false),
            accepted: eventfd(0, flags)?,
        });
        let (dials, dialed) = channel();
        let (accepts, accepted) = channel();
        let config = Config::default().key(terms.key.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let bridge = Bridge::open(
            SocketAddr::new(terms.address, 0),
            config,
            endpoint,
            (dialed, accepts),
            Arc::clone(&shared),
        )?;
        drop(entered);
        let address = bridge.address()?;
        let bridge = Arc::new(Mutex::new(bridge));
        let (served, with) = (Arc::clone(&bridge), Arc::clone(&shared));
        let thread = thread::Builder::new()
            .name("midplane-fi udp".into())
            .spawn(move || bridge::serve(&runtime, &served, &with))?;
        let (dials, thread) = (Some(dials), Some(thread));
        Ok(Self { address, shared, bridge, idle: 0, dials, accepted, thread })
    }

    /// Copies pending records, for a thread that polls; returns whether there were any.
    pub(crate) fn drive(&mut self) -> bool {
        self.idle = self.idle.wrapping_add(1);
        if self.idle > BUSY && !self.idle.is_multiple_of(RARELY) {
            return false;
        }
        let is_busy = self.with(Bridge::poll_now).unwrap_or(false);
        if is_busy {
            self.idle = 0;
        }
        is_busy
    }

    /// Sends the records in the rings, because the caller may not poll soon.
    pub(crate) fn send_now(&mut self) {
        self.idle = 0;
        self.with(Bridge::send_now);
    }

    /// Calls `work` with the bridge, unless the thread is using it. The thread then waits for some time.
    fn with<T>(&self, work: impl FnOnce(&mut Bridge) -> T) -> Option<T> {
        self.shared.polls.fetch_add(1, Ordering::AcqRel);
        if self.shared.is_serving.load(Ordering::Acquire)
            && self.shared.is_serving.swap(false, Ordering::AcqRel)
        {
            self.shared.notify.notify_one();
        }
        // `None` as well if the thread has panicked.
        self.bridge.try_lock().ok().map(|mut bridge| work(&mut bridge))
    }

    /// Lets the thread work from now on, because the caller waits and does not poll.
    pub(crate) fn release(&self) {
        self.shared.is_released.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Connects to an endpoint on another host, with rings of `capacity` bytes.
    pub(crate) fn connect(&self, to: SocketAddr, capacity: usize) -> io::Result<RingPair> {
        let [mine, theirs] = RingPair::local(capacity)?;
        let dials = self.dials.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        dials.send((to, theirs)).map_err(|_| io::ErrorKind::NotConnected)?;
        self.shared.notify.notify_one();
        Ok(mine)
    }

    /// Returns the next peer that has connected, with its number.
    pub(crate) fn accept(&self) -> Option<(RingPair, u64)> {
        self.accepted.try_recv().ok()
    }

    /// Returns the descriptor that is readable when a peer has connected.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.accepted.as_fd()
    }

    /// Makes the descriptor unreadable again.
    pub(crate) fn clear(&self) {
        // An error means that the eventfd was not set.
        let _ = rustix::io::read(&self.shared.accepted, &mut [0; 8]);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.dials = None;
        self.shared.notify.notify_one();
        self.release();
        if let Some(thread) = self.thread.take() {
            // An error means that the thread has panicked.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
