//! Sends and receives datagrams in batches: several in one system call if the system supports it.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use super::clock::{Clock, Stamps};
use super::kernel;
use super::watched::Watched;
use crate::region::Payload;
#[cfg(target_os = "linux")]
use crate::segment::send_gathered;
use crate::time::Instant;

/// Bytes of one receive buffer: the largest datagram, and the most that the system coalesces.
const BUFFER_BYTES: usize = 65_536;
/// Alignment of the first buffer: the system's memory begins at pages. If a copy's destination begins up to 63 bytes
/// after its source, modulo a page, processors of AMD's Zen copy at a tenth of their speed.
const PAGE: usize = 4_096;
/// Buffers of one receive call: 1 MiB of memory. 16 coalesced batches are enough for one turn.
const BUFFERS: usize = if BATCH_SIZE < 16 { BATCH_SIZE } else { 16 };
/// Most bytes of a datagram that is sent together with others. Each must fit an Ethernet packet of 1,500 bytes
/// with its UDP and IP headers.
const fn most_segment_bytes(to: SocketAddr) -> usize {
    if to.is_ipv4() { 1_472 } else { 1_452 }
}
/// Most bytes of the datagrams sent in one call, without headers.
const SEND_BYTES: usize = 65_000;

/// Pause in nanoseconds after the system accepted no datagram. The data that it still holds, at most one send buffer,
/// leaves within the time of a few frames.
pub(super) const RETRY_NANOS: u64 = 100_000;
/// Nanoseconds after which datagrams are sent together again. The error of one path, such as a lower MTU, ends that on
/// all paths.
const TOGETHER_AGAIN: u64 = 10_000_000_000;

/// Bytes that are requested from the system for each of a socket's two buffers: 4 MiB, a third of a second at 100 Mb/s.
/// Systems commonly grant less unless configured.
const SOCKET_BUFFER: usize = 4 << 20;

/// Binds a socket that is not yet registered with a runtime.
pub(super) fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    let options = socket2::SockRef::from(&socket);
    // The system grants less if its own limit is lower; bursts may then be lost, but nothing else fails.
    let _ = options.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = options.set_send_buffer_size(SOCKET_BUFFER);
    Ok(socket)
}

/// A socket that is registered with a runtime.
#[derive(Debug)]
pub(super) struct Socket {
    io: Arc<Watched>,
    state: UdpSocketState,
    /// When datagrams are sent together again, if that has failed.
    together_at: Option<Instant>,
    /// Datagrams that are sent together, concatenated.
    joined: Vec<u8>,
}

/// A datagram to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving<'a> {
    pub(super) to: SocketAddr,
    pub(super) bytes: &'a [u8],
    /// Bytes that follow `bytes`, sent from where they are stored; Linux only.
    pub(super) rest: Payload<'a>,
}

impl<'a> Leaving<'a> {
    /// Creates a datagram whose bytes are all in `bytes`.
    pub(super) const fn whole(to: SocketAddr, bytes: &'a [u8]) -> Self {
        Self { to, bytes, rest: Payload::EMPTY }
    }
}

/// The outcome for the datagrams at the front of a queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sent {
    /// The system accepted this many.
    Taken(usize),
    /// The system accepts none now.
    Blocked,
    /// The system refused the first.
    Refused,
    /// The system refused the first as longer than its interface allows.
    TooLong,
}

impl Socket {
    /// Registers a socket with the current runtime.
    ///
    /// # Panics
    /// Outside of a runtime, or if its I/O is not enabled.
    pub(super) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        // This sets don't-fragment, and makes the system ignore what routers report about MTUs.
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let io = Arc::new(Watched::new(socket)?);
        Ok(Self { io, state, together_at: None, joined: Vec::new() })
    }

    /// Returns the socket, for a task that waits for it.
    pub(super) fn watched(&self) -> Arc<Watched> {
        Arc::clone(&self.io)
    }

    pub(super) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        self.io.poll_readable(context)
    }

    /// Returns the number of datagrams for which the system had no space, if it reports that.
    pub(super) fn dropped(&self) -> u64 {
        self.io.socket().local_addr().map_or(0, kernel::dropped)
    }

    /// Sends one or more datagrams from the front of `frames`, which must not be empty. Those that go together
    /// have one destination and one length; the last may be shorter.
    pub(super) fn send<'a>(
        &mut self,
        now: Instant,
        frames: impl Iterator<Item = Leaving<'a>> + Clone,
    ) -> Sent {
        let mut all = frames.clone();
        let Some(first) = all.next() else {
            return Sent::Taken(0);
        };
        let alike = self.join(now, &first, all);
        if alike > 1 {
            match self.send_datagrams(first.to, &self.joined, Some(first.bytes.len())) {
                Ok(()) => return Sent::Taken(alike),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Blocked,
                // Some drivers do not support it; quinn-udp then stops trying, for `TOGETHER_AGAIN`.
                Err(_) => {}
            }
        }
        match self.send_one(&first) {
            Ok(()) => Sent::Taken(1),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Blocked,
            Err(error) if is_too_long(&error) => Sent::TooLong,
            Err(_) => Sent::Refused,
        }
    }

    /// Collects the datagrams that can go with `first`; returns their number, including `first`.
    fn join<'a>(
        &mut self,
        now: Instant,
        first: &Leaving<'a>,
        rest: impl Iterator<Item = Leaving<'a>> + Clone,
    ) -> usize {
        let bytes = first.bytes.len();
        let most = self.most_together(now).min(SEND_BYTES / bytes.max(1));
        if bytes > most_segment_bytes(first.to) || !first.rest.is_empty() {
            return 1;
        }
        self.joined.clear();
        let mut count = 1;
        for frame in rest.take(most.saturating_sub(1)) {
            let length = frame.bytes.len();
            if frame.to != first.to || length > bytes || length == 0 || !frame.rest.is_empty() {
                break;
            }
            if count == 1 {
                self.joined.extend_from_slice(first.bytes);
            }
            self.joined.extend_from_slice(frame.bytes);
            count += 1;
            if length < bytes {
                break;
            }
        }
        count
    }

    /// Returns the most datagrams that the system sends together.
    fn most_together(&mut self, now: Instant) -> usize {
        let most = self.state.max_gso_segments();
        let again = || now.plus_nanos(TOGETHER_AGAIN);
        if most > 1 || now < *self.together_at.get_or_insert_with(again) {
            return most;
        }
        self.together_at = None;
        if let Ok(state) = UdpSocketState::new(UdpSockRef::from(self.io.socket())) {
            self.state = state;
        }
        self.state.max_gso_segments()
    }

    fn send_one(&self, frame: &Leaving<'_>) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if !frame.rest.is_empty() {
            let socket = self.io.socket();
            return send_gathered(socket, frame.to, frame.bytes, frame.rest.view());
        }
        self.send_datagrams(frame.to, frame.bytes, None)
    }

    fn send_datagrams(
        &self,
        destination: SocketAddr,
        contents: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip: None };
        self.state.try_send(UdpSockRef::from(self.io.socket()), &transmit)
    }

    /// Fills `inbox` with received datagrams if the runtime has reported any; returns `false` if there are
    /// none.
    pub(super) fn receive(&self, inbox: &mut Inbox) -> bool {
        inbox.clear();
        // Errors here concern datagrams sent before, or are transient.
        let _ = self.io.try_read(|io| {
            inbox.fill(&self.state, io)?;
            if inbox.emptied { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        inbox.stamp()
    }

    /// Receives as [`Socket::receive`] does, but always makes the system call. For callers that do not let the runtime
    /// poll the socket in between.
    pub(super) fn receive_always(&self, inbox: &mut Inbox) -> bool {
        inbox.clear();
        let _ = inbox.fill(&self.state, self.io.socket());
        inbox.stamp()
    }
}

/// Returns whether the system refused a datagram as longer than its interface allows.
#[cfg(target_os = "linux")]
fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::errno::Errno::EMSGSIZE as i32)
}

#[cfg(not(target_os = "linux"))]
const fn is_too_long(_: &io::Error) -> bool {
    false
}

/// Memory for one batch of received datagrams.
#[derive(Debug)]
pub(super) struct Inbox {
    /// Shared with users that have yet to copy out of it; between two batches there are none.
    memory: Arc<Vec<u8>>,
    /// Offset of the first buffer in the memory: a page boundary.
    start: usize,
    meta: [RecvMeta; BUFFERS],
    filled: usize,
    /// True if no more datagrams waited after this batch.
    emptied: bool,
    stamps: Stamps,
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram<'a> {
    pub(super) from: SocketAddr,
    /// When the system received it, if the system reports that.
    pub(super) at: Instant,
    pub(super) bytes: &'a [u8],
}

impl Inbox {
    pub(super) fn new() -> Self {
        let memory = vec![0; PAGE + BUFFERS * BUFFER_BYTES];
        Self {
            start: memory.as_ptr().align_offset(PAGE),
            memory: Arc::new(memory),
            meta: [RecvMeta::default(); BUFFERS],
            filled: 0,
            emptied: true,
            stamps: Clock::stamps(),
        }
    }

    fn clear(&mut self) {
        self.filled = 0;
        self.emptied = true;
    }

    fn fill(&mut self, state: &UdpSocketState, socket: &std::net::UdpSocket) -> io::Result<()> {
        let memory = Arc::get_mut(&mut self.memory).expect("a turn drops its references");
        let mut chunks = memory[self.start..].chunks_exact_mut(BUFFER_BYTES);
        let mut buffers: [IoSliceMut<'_>; BUFFERS] = std::array::from_fn(|_| {
            IoSliceMut::new(chunks.next().expect("memory for every buffer"))
        });
        self.filled = state.recv(UdpSockRef::from(socket), &mut buffers, &mut self.meta[..])?;
        // If fewer arrived than fit, none is left; recording that saves a system call. Later datagrams make the socket
        // readable again.
        self.emptied = cfg!(target_os = "linux") && self.filled < BUFFERS;
        Ok(())
    }

    fn stamp(&mut self) -> bool {
        let any = self.filled > 0;
        self.stamps = if any { Clock::stamps() } else { Clock::stamps_of_none() };
        any
    }

    /// Returns whether no datagram had arrived.
    pub(super) const fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Returns whether no more datagrams waited after the last batch.
    pub(super) const fn was_all(&self) -> bool {
        self.emptied
    }

    /// Returns when the batch was received.
    pub(super) const fn taken_at(&self) -> Instant {
        self.stamps.now()
    }

    /// Returns the memory that holds the datagrams of the last batch.
    pub(super) const fn memory(&self) -> &Arc<Vec<u8>> {
        &self.memory
    }

    /// Iterates over the datagrams of the last batch, in order.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let buffers = self.memory[self.start..].chunks_exact(BUFFER_BYTES);
        self.meta[..self.filled].iter().zip(buffers).flat_map(|(meta, buffer)| {
            let bytes = &buffer[..meta.len];
            let stride = meta.stride.max(1);
            let at = self.stamps.arrival(meta.timestamp);
            // An empty buffer is one empty datagram.
            let count = meta.len.div_ceil(stride).max(1);
            (0..count).map(move |index| {
                let begin = (index * stride).min(bytes.len());
                let end = (begin + stride).min(bytes.len());
                Datagram { from: plain(meta.addr), at, bytes: &bytes[begin..end] }
            })
        })
    }
}

/// Returns an address in the form in which addresses are compared. IPv4 addresses that a dual-stack socket
/// shows as IPv6 become IPv4, and flow labels are cleared.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_none() => {
            let mut v6 = v6;
            v6.set_flowinfo(0);
            SocketAddr::V6(v6)
        }
        other => SocketAddr::new(other.ip().to_canonical(), other.port()),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Returns how many of four equal frames of `bytes` leave together.
    fn together(bytes: usize, to: &str) -> usize {
        let mut socket = Socket::new(bind("127.0.0.1:0".parse().unwrap()).unwrap()).unwrap();
        let (bytes, to) = (vec![7; bytes], to.parse().unwrap());
        let frame = Leaving::whole(to, &bytes);
        socket.join(Instant::ZERO, &frame, std::iter::repeat_n(frame, 3))
    }

    #[test]
    fn datagrams_up_to_an_ethernet_packet_leave_together_and_longer_ones_do_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        let (v4, v6) = ("127.0.0.1:9", "[::1]:9");
        assert_eq!((together(1_472, v4), together(1_473, v4)), (4, 1));
        assert_eq!((together(1_452, v6), together(1_453, v6)), (4, 1));
    }

    #[test]
    fn a_shorter_datagram_ends_those_that_leave_together() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        let mut socket = Socket::new(bind("127.0.0.1:0".parse().unwrap()).unwrap()).unwrap();
        let to = "127.0.0.1:9".parse().unwrap();
        for (lengths, together) in
            [(&[9, 9, 4, 9][..], 3), (&[9, 10, 9], 1), (&[9, 4, 4], 2), (&[9, 0, 9], 1)]
        {
            let bytes: Vec<Vec<u8>> = lengths.iter().map(|bytes| vec![0; *bytes]).collect();
            let mut frames = bytes.iter().map(|bytes| Leaving::whole(to, bytes));
            let first = frames.next().unwrap();
            assert_eq!(socket.join(Instant::ZERO, &first, frames), together, "{lengths:?}");
        }
    }

    /// Regression: after one failure, each datagram was sent alone for as long as the socket lived.
    #[test]
    fn datagrams_leave_together_again_some_seconds_after_that_has_failed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        let mut socket = Socket::new(bind("127.0.0.1:0".parse().unwrap()).unwrap()).unwrap();
        let to = "127.0.0.1:9".parse().unwrap();
        // The system sends at most 128 datagrams together.
        assert!(socket.send_datagrams(to, &[0; 200], Some(1)).is_err());
        let frame = Leaving::whole(to, &[7; 9]);
        let mut together = |at| {
            let now = Instant::from_nanos(1).plus_nanos(at);
            socket.join(now, &frame, std::iter::repeat_n(frame, 3))
        };
        assert_eq!([0, TOGETHER_AGAIN - 1, TOGETHER_AGAIN].map(&mut together), [1, 1, 4]);
    }

    #[test]
    fn no_socket_lets_ip_cut_its_datagrams() {
        use rustix::net::sockopt::{
            Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, ip_mtu_discover, ipv6_mtu_discover,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        let v4 = Socket::new(bind("127.0.0.1:0".parse().unwrap()).unwrap()).unwrap();
        assert_eq!(ip_mtu_discover(v4.io.socket()), Ok(Ipv4PathMtuDiscovery::PROBE));
        let v6 = Socket::new(bind("[::1]:0".parse().unwrap()).unwrap()).unwrap();
        assert_eq!(ipv6_mtu_discover(v6.io.socket()), Ok(Ipv6PathMtuDiscovery::PROBE));
        assert!(!v4.state.may_fragment() && !v6.state.may_fragment());
    }
}
