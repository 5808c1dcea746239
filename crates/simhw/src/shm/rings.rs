//! Pairs of byte rings between processes of one host: how they connect and wake each other.
//!
//! A process listens at a name in the abstract namespace of Unix sockets, which leaves nothing in a file system
//! however the process ends. Another process connects, makes the memory of both rings and passes it on, with
//! one end of a channel on which the two wake each other. Both sides accept only a process of the same user, as
//! identified by the system: any user can listen at a name. The connection is then closed. When the peer exits, its
//! end of the channel closes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use rustix::net::SocketAddrUnix;
use rustix::process::geteuid;

use super::byte_ring::{MIN_CAPACITY, RingReceiver, RingSender, ring, ring_bytes};
use crate::acceptor::{Acceptor, Admitted};
use crate::live::clock::Clock;
use crate::passing::{MAGIC, Passed, Socket};
use crate::segment::{Kind, Segment, SegmentError};
use crate::wakes::Wakes;

/// Version of the greeting and of the rings' layout.
const VERSION: u64 = 1;
/// Words of a greeting: magic, version, bytes of each ring, and a word of the caller.
const WORDS: usize = 4;
/// Connections that one process may have to a listener.
const PER_PROCESS: usize = 256;
/// Most bytes of a ring.
pub(crate) const MAX_CAPACITY: usize = 16 << 20;

/// Both directions between two processes. Dropping it ends the pair for both.
#[derive(Debug)]
pub struct RingPair {
    /// The direction to the peer.
    pub sender: RingSender,
    /// The direction from the peer.
    pub receiver: RingReceiver,
    channel: Arc<Socket>,
}

impl RingPair {
    /// Wakes the peer's process.
    pub fn wake(&self) {
        self.channel.wake();
    }

    /// Makes both ends for two threads of this process.
    ///
    /// # Errors
    /// The error of the operating system, such as no free descriptor.
    pub fn local(capacity: usize) -> io::Result<[Self; 2]> {
        let segment = Arc::new(Segment::private(2 * ring_bytes(capacity)));
        let [there, back] = rings(&segment, capacity);
        let (one, other) = Socket::pair()?;
        Ok([
            Self { sender: there.0, receiver: back.1, channel: Arc::new(one) },
            Self { sender: back.0, receiver: there.1, channel: Arc::new(Socket::new(other)) },
        ])
    }
}

impl Drop for RingPair {
    fn drop(&mut self) {
        // A set of wake-ups may still hold the channel.
        self.channel.hang_up();
    }
}

fn rings(segment: &Arc<Segment>, capacity: usize) -> [(RingSender, RingReceiver); 2] {
    [0, ring_bytes(capacity)].map(|offset| ring(segment, offset, capacity))
}

/// Connects to the process of this user that listens at `name` in the abstract namespace, with rings of `capacity`
/// bytes, and passes it `word`.
///
/// # Errors
/// `PermissionDenied` if another user's process listens at the name: it receives nothing. The error of the operating
/// system, such as `ConnectionRefused` if no process listens there.
///
/// # Panics
/// If `capacity` is not a power of two from 4 KiB to 16 MiB.
pub fn connect(name: &[u8], capacity: usize, word: u64) -> io::Result<RingPair> {
    connect_to(geteuid().as_raw(), name, capacity, word)
}

fn connect_to(user: u32, name: &[u8], capacity: usize, word: u64) -> io::Result<RingPair> {
    assert!(is_capacity(capacity), "a power of two within bounds");
    let socket = Socket::connect(&SocketAddrUnix::new_abstract_name(name)?)?;
    if socket.user()? != user {
        let text = "a process of another user listens at the name";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let bytes = 2 * ring_bytes(capacity);
    let refused = |error| match error {
        SegmentError::System(kind) => io::Error::new(kind, error),
        error => io::Error::other(error),
    };
    let (segment, file) = Segment::shared(Kind::Rings, bytes).map_err(refused)?;
    let (channel, theirs) = Socket::pair()?;
    socket.send(&[MAGIC, VERSION, capacity as u64, word], &[file.as_fd(), theirs.as_fd()])?;
    let [there, back] = rings(&Arc::new(segment), capacity);
    Ok(RingPair { sender: there.0, receiver: back.1, channel: Arc::new(channel) })
}

const fn is_capacity(bytes: usize) -> bool {
    bytes.is_power_of_two() && bytes >= MIN_CAPACITY && bytes <= MAX_CAPACITY
}

/// A process's name in the abstract namespace, to which other processes connect.
#[derive(Debug)]
pub struct RingListener(Acceptor);

impl RingListener {
    /// Listens at `name`, for processes of the same user.
    ///
    /// # Errors
    /// The error of the operating system: `AddrInUse` if another process listens at the name.
    pub fn bind(name: &[u8]) -> io::Result<Self> {
        let address = SocketAddrUnix::new_abstract_name(name)?;
        Ok(Self(Acceptor::open(&address, Admitted::default(), PER_PROCESS)?))
    }

    /// Accepts the waiting connections, at most one batch. Call it when the descriptor is readable.
    ///
    /// Also returns whether no connection waits any more. If some wait and none was returned, the system has no free
    /// descriptor, or they are not of this user: call it again after a pause.
    pub fn accept(&mut self) -> (Vec<RingRequest>, bool) {
        let (sockets, is_drained) = self.0.accept(true, Clock::now());
        (sockets.into_iter().map(RingRequest).collect(), is_drained)
    }

    /// Accepts one waiting connection; `None` if none waits, the connection was refused or has ended, or descriptors are
    /// short: see [`is_paused`](Self::is_paused).
    pub fn accept_one(&mut self) -> Option<RingRequest> {
        let (mut sockets, _) = self.0.accept_most(1, true, Clock::now());
        sockets.pop().map(RingRequest)
    }

    /// Returns whether the process has no free descriptor for a connection; try again later.
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.0.paused_until().is_some()
    }
}

impl AsFd for RingListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for RingListener {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// An accepted connection whose greeting has not been read.
#[derive(Debug)]
pub struct RingRequest(Socket);

impl RingRequest {
    /// Returns whether the greeting has arrived with descriptors. Reads nothing.
    #[must_use]
    pub fn brings_descriptors(&self) -> bool {
        self.0.brings_descriptors()
    }

    /// Reads the greeting, once the descriptor is readable. Returns the rings, and the word that the peer
    /// passed. The greeting passes two descriptors: without as many free ones, the connection is lost.
    ///
    /// # Errors
    /// `WouldBlock` if the greeting has not arrived; `InvalidData` if it is malformed. Another error if its memory
    /// cannot be mapped as described.
    pub fn accept(&self) -> io::Result<(RingPair, u64)> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let (words, passed) = self.0.receive::<WORDS>()?.ok_or_else(invalid)?;
        let [MAGIC, VERSION, capacity, word] = words else { return Err(invalid()) };
        let capacity = usize::try_from(capacity).ok().filter(|bytes| is_capacity(*bytes));
        let capacity = capacity.ok_or_else(invalid)?;
        let [memory, channel]: [Passed; 2] = passed.try_into().map_err(|_| invalid())?;
        let file = memory.memory().ok_or_else(invalid)?;
        let channel = channel.channel(&self.0).ok_or_else(invalid)?;
        let user = self.0.user()?;
        let segment =
            Segment::open(&file, Kind::Rings, 2 * ring_bytes(capacity), |owner| owner == user)
                .map_err(io::Error::other)?;
        let [there, back] = rings(&Arc::new(segment), capacity);
        let pair = RingPair { sender: back.0, receiver: there.1, channel: Arc::new(channel) };
        Ok((pair, word))
    }
}

impl AsFd for RingRequest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for RingRequest {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The wake-ups of a process: one descriptor that is readable when a peer has woken the process.
#[derive(Clone, Debug)]
pub struct WakeSet(Arc<Wakes>);

impl WakeSet {
    /// Creates a set without pairs.
    ///
    /// # Errors
    /// The error of the operating system, such as no free descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Wakes::new()?))
    }

    /// Adds the wake-ups of a pair under `number`, which must be unique in the set.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn add(&self, number: u64, pair: &RingPair) -> io::Result<()> {
        self.0.add(number, Arc::clone(&pair.channel))
    }

    /// Removes the wake-ups of a pair.
    pub fn remove(&self, number: u64) {
        self.0.remove(number);
    }

    /// Takes the pending wake-ups: calls `each` with the number of a pair, and whether its peer has
    /// disconnected.
    pub fn take(&self, each: impl FnMut(u64, bool)) {
        self.0.take_each(each);
    }
}

impl AsFd for WakeSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for WakeSet {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;

    fn name() -> String {
        format!("midplane/test/{}/{:x}", std::process::id(), getrandom::u64().unwrap())
    }

    #[test]
    fn a_record_crosses_in_each_direction_and_a_disconnect_is_reported() {
        let name = name();
        let mut listener = RingListener::bind(name.as_bytes()).unwrap();
        let mut one = connect(name.as_bytes(), MIN_CAPACITY, 7).unwrap();
        let request = listener.accept().0.pop().unwrap();
        let (mut other, word) = request.accept().unwrap();
        assert_eq!(word, 7);
        for (from, to) in [(0, 1), (1, 0)] {
            let pairs = [&mut one, &mut other];
            let room = pairs[from].sender.room().unwrap();
            assert!(room >= 5);
            pairs[from].sender.push([1, 2], &[IoSlice::new(b"hello")]);
            let record = pairs[to].receiver.peek().unwrap().unwrap();
            let mut bytes = [0; 5];
            pairs[to].receiver.read(0, &mut bytes);
            assert_eq!((record.words, &bytes), ([1, 2], b"hello"));
        }
        let wakes = WakeSet::new().unwrap();
        wakes.add(3, &other).unwrap();
        one.wake();
        let mut reports = Vec::new();
        wakes.take(|number, is_gone| reports.push((number, is_gone)));
        drop(one);
        wakes.take(|number, is_gone| reports.push((number, is_gone)));
        assert_eq!(reports, [(3, false), (3, true)]);
    }

    #[test]
    fn another_users_listener_receives_nothing() {
        let name = name();
        let mut listener = RingListener::bind(name.as_bytes()).unwrap();
        let other = geteuid().as_raw() + 1;
        let error = connect_to(other, name.as_bytes(), MIN_CAPACITY, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let request = listener.accept().0.pop().unwrap();
        assert_eq!(request.accept().unwrap_err().kind(), io::ErrorKind::InvalidData, "it ended");
    }

    #[test]
    fn refused_connections_hide_none_behind_them() {
        let name = name();
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let (most, surplus) = (2, 64);
        let acceptor = Acceptor::open(&address, Admitted::default(), most).unwrap();
        let mut listener = RingListener(acceptor);
        let mut sockets: Vec<_> =
            (0..most + surplus).map(|_| Socket::connect(&address).unwrap()).collect();
        let (mut taken, is_drained) = listener.accept();
        assert_eq!((taken.len(), is_drained), (most, false));
        taken.clear();
        sockets.push(Socket::connect(&address).unwrap());
        let (taken, is_drained) = listener.accept();
        assert_eq!((taken.len(), is_drained), (2, true), "the last of the surplus, and a new one");
    }

    #[test]
    fn an_invalid_greeting_is_refused() {
        let name = name();
        let mut listener = RingListener::bind(name.as_bytes()).unwrap();
        assert!(connect(b"midplane/test/unbound", MIN_CAPACITY, 0).is_err());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let words = [MAGIC, VERSION, MIN_CAPACITY as u64, 0];
        for (at, word) in [(0, 1), (1, 99), (2, 1 << 40), (2, 5_000), (3, 0)] {
            let socket = Socket::connect(&address).unwrap();
            let request = listener.accept().0.pop().unwrap();
            assert_eq!(request.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
            let mut words = words;
            words[at] = word;
            socket.send(&words, &[]).unwrap();
            assert_eq!(request.accept().unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
