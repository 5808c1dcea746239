//! A socket of the system.

use std::future::Future as _;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use midplane_simhw::time::Instant;
use midplane_simhw::udp::{Alarm, interface_mtu};
use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSockRef, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::Sleep;

#[cfg(target_os = "linux")]
use super::reports::{self, Report};
use super::{Clock, SENDS_PER_TURN, lock};
use crate::wire::buffer::Buffer;
use crate::wire::endpoint::{Endpoint, Outgoing};
use crate::wire::pipe::Transmit;

/// Bytes of one receive buffer: the largest datagram, and the most that receive offload joins.
const BUFFER_BYTES: usize = 65_536;
/// Buffers of one receive call: 1 MiB of memory.
const BUFFERS: usize = if BATCH_SIZE < 16 { BATCH_SIZE } else { 16 };
/// Most receive calls of one turn, so that other tasks run.
const RECEIVES_PER_TURN: usize = 8;
/// Most network errors handled in one turn.
#[cfg(target_os = "linux")]
const ERRORS_PER_TURN: usize = 64;
/// Bytes requested for the system's socket buffers; the system grants less if its own limit is lower.
const SOCKET_BYTES: usize = 4 << 20;
/// Nanoseconds after which trains are tried again. The error of one path, such as a lower MTU, ends them on all paths.
const TRAINS_AGAIN: u64 = 10_000_000_000;
/// Nanoseconds below which a timeout is exact, as pacing and acknowledgements need. The resolution of tokio's timers is
/// 1 ms.
const EXACT: u64 = 5_000_000;

/// A UDP socket on a tokio runtime.
#[derive(Debug)]
pub(super) struct System {
    io: UdpSocket,
    state: UdpSocketState,
    inbox: Vec<Buffer>,
    meta: [RecvMeta; BUFFERS],
    outbox: Vec<u8>,
    /// The train in the outbox that the system has not taken yet.
    pending: Option<Outgoing>,
    /// True if the system can send trains.
    has_trains: bool,
    /// When trains were found to fail.
    without_trains: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
    alarm_at: Option<Instant>,
    exact: Alarm,
}

/// Configures a socket, and finds out what it can do.
fn configure(socket: &impl AsFd) -> io::Result<UdpSocketState> {
    let state = UdpSocketState::new(UdpSockRef::from(socket))?;
    receive_bare(socket);
    // Without these reports, the exit of a peer is detected only by its silence.
    let _ = state.enable_transport_errors(UdpSockRef::from(socket));
    Ok(state)
}

/// Has the system report nothing of a datagram but its length; and its destination, if the socket receives at all
/// addresses of this host. The time of receipt, the destination and the ECN bits would cost a fifth of a receive call.
fn receive_bare(socket: &impl AsFd) {
    let options = socket2::SockRef::from(socket);
    #[cfg(target_os = "linux")]
    {
        use nix::sys::socket::{setsockopt, sockopt};
        let bound = options.local_addr().ok().and_then(|bound| bound.as_socket());
        let _ = setsockopt(socket, sockopt::ReceiveTimestampns, &false);
        if bound.is_none_or(|bound| !bound.ip().is_unspecified()) {
            let _ = setsockopt(socket, sockopt::Ipv4PacketInfo, &false);
            let _ = setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &false);
        }
    }
    let _ = options.set_recv_tos_v4(false);
    let _ = options.set_recv_tclass_v6(false);
}

/// Returns the least bytes of the datagrams that the system refuses, after it has refused one of these.
fn refused_bytes(outgoing: &Outgoing) -> usize {
    let headers = if outgoing.to.ip().to_canonical().is_ipv4() { 28 } else { 48 };
    let bytes = outgoing.transmit.segment_bytes;
    let fits = interface_mtu(outgoing.to).map(|mtu| mtu.saturating_sub(headers));
    // If the system does not report the MTU, half of the bytes are tried next.
    fits.unwrap_or(bytes / 2).min(bytes - 1) + 1
}

impl System {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind(address)?;
        let options = socket2::SockRef::from(&socket);
        let _ = options.set_recv_buffer_size(SOCKET_BYTES);
        let _ = options.set_send_buffer_size(SOCKET_BYTES);
        socket.set_nonblocking(true)?;
        let state = configure(&socket)?;
        let has_trains = state.max_gso_segments() > 1;
        Ok(Self {
            io: UdpSocket::from_std(socket)?,
            state,
            inbox: (0..BUFFERS).map(|_| Buffer::new(BUFFER_BYTES)).collect(),
            meta: [RecvMeta::default(); BUFFERS],
            outbox: Vec::new(),
            pending: None,
            has_trains,
            without_trains: None,
            alarm: Box::pin(tokio::time::sleep(Duration::ZERO)),
            alarm_at: None,
            exact: Alarm::new()?,
        })
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    pub(super) fn receive_bytes(&self) -> u64 {
        socket2::SockRef::from(&self.io).recv_buffer_size().map_or(u64::MAX, |bytes| bytes as u64)
    }

    /// Passes arrived datagrams to the endpoint; returns whether there were any.
    pub(super) fn receive(
        &mut self,
        context: &mut Context<'_>,
        clock: Clock,
        endpoint: &Mutex<Endpoint>,
    ) -> io::Result<bool> {
        let mut has_received = false;
        for _ in 0..RECEIVES_PER_TURN {
            let Poll::Ready(ready) = self.io.poll_recv_ready(context) else { break };
            ready?;
            let filled = self.fill(true);
            self.feed(filled, clock, endpoint);
            has_received |= filled > 0;
            if filled == 0 {
                has_received |= self.receive_errors(clock, endpoint);
            }
        }
        Ok(has_received)
    }

    /// Passes a batch of datagrams to the endpoint without asking the runtime whether there are any; returns whether
    /// there were. Arranges no wake-up: the task polls.
    #[cfg(feature = "session")]
    pub(super) fn receive_now(&mut self, clock: Clock, endpoint: &Mutex<Endpoint>) -> bool {
        let filled = self.fill(false);
        self.feed(filled, clock, endpoint);
        filled > 0
    }

    /// Passes the datagrams in the first `filled` buffers to the endpoint.
    fn feed(&mut self, filled: usize, clock: Clock, endpoint: &Mutex<Endpoint>) {
        if filled == 0 {
            return;
        }
        let now = clock.now();
        let mut endpoint = lock(endpoint);
        for (buffer, meta) in self.inbox.iter_mut().zip(&self.meta[..filled]) {
            let (length, stride) = (meta.len.min(BUFFER_BYTES), meta.stride.max(1));
            // A datagram to a group of hosts has a destination that is no source.
            endpoint.own = meta.dst_ip.filter(|own| match own.to_canonical() {
                IpAddr::V4(own) => !own.is_multicast() && !own.is_broadcast(),
                IpAddr::V6(own) => !own.is_multicast(),
            });
            endpoint.handle_buffer(now, meta.addr, buffer, length, stride);
        }
    }

    /// Passes the network's reports about peers to the endpoint; returns whether there were any.
    #[cfg(target_os = "linux")]
    fn receive_errors(&self, clock: Clock, endpoint: &Mutex<Endpoint>) -> bool {
        let mut has_received = false;
        for _ in 0..ERRORS_PER_TURN {
            match reports::next(&self.io) {
                Some(Report::Unreachable(peer)) => {
                    lock(endpoint).handle_unreachable(clock.now(), peer);
                    has_received = true;
                }
                Some(Report::Other) => {}
                None => break,
            }
        }
        has_received
    }

    /// Returns false: the network's reports are read on Linux alone.
    #[cfg(not(target_os = "linux"))]
    fn receive_errors(&self, _: Clock, _: &Mutex<Endpoint>) -> bool {
        false
    }

    /// Receives a batch; with `is_ready`, only if the runtime believes that there is one. Returns the number of
    /// buffers filled.
    fn fill(&mut self, is_ready: bool) -> usize {
        let mut inbox = self.inbox.iter_mut();
        let mut buffers: [IoSliceMut<'_>; BUFFERS] = std::array::from_fn(|_| {
            IoSliceMut::new(inbox.next().expect("memory for every buffer"))
        });
        let mut filled = 0;
        let mut receive = || {
            filled = self.state.recv(UdpSockRef::from(&self.io), &mut buffers, &mut self.meta)?;
            // A batch that is not full has taken all datagrams: this saves a call that would find none.
            let is_all = cfg!(target_os = "linux") && filled < BUFFERS;
            if is_all { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        };
        // Errors here concern datagrams sent before, or are transient.
        let _ = if is_ready { self.io.try_io(Interest::READABLE, receive) } else { receive() };
        filled
    }

    /// Sends trains, the first one at `now`; returns whether more can be sent. Without a context, does not ask the
    /// runtime whether the system accepts any.
    pub(super) fn transmit(
        &mut self,
        mut context: Option<&mut Context<'_>>,
        clock: Clock,
        mut now: Instant,
        endpoint: &Mutex<Endpoint>,
    ) -> io::Result<bool> {
        let is_direct = context.is_none();
        for _ in 0..SENDS_PER_TURN {
            let outgoing = match self.pending.take() {
                Some(pending) => pending,
                None => {
                    self.outbox.clear();
                    let most = self.most_segments(now);
                    let mut held = lock(endpoint);
                    let polled = held.poll_transmit_apart(now, &mut self.outbox, most);
                    let Some(outgoing) = polled else { return Ok(false) };
                    let parts = held.parts(&outgoing);
                    if !parts[0].is_empty() {
                        if self.send_apart(&outgoing, parts, is_direct).is_ok() {
                            drop(held);
                            now = clock.now();
                            continue;
                        }
                        parts.into_iter().for_each(|part| self.outbox.extend_from_slice(part));
                    }
                    outgoing
                }
            };
            let ready = context.as_deref_mut().map(|context| self.io.poll_send_ready(context));
            match ready {
                None => {}
                Some(Poll::Ready(ready)) => ready?,
                Some(Poll::Pending) => {
                    self.pending = Some(outgoing);
                    return Ok(false);
                }
            }
            match self.send(outgoing, is_direct) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.pending = Some(outgoing);
                    if is_direct {
                        return Ok(false);
                    }
                }
                Err(_) => self.retry(outgoing, is_direct, clock, endpoint),
                Ok(()) => {}
            }
            now = clock.now();
        }
        Ok(true)
    }

    /// Sends a train again after an error. The error may concern another train, or trains as such: a router's report that a
    /// datagram was too long is the error of whichever is sent next. What fails again counts as lost.
    fn retry(
        &mut self,
        mut outgoing: Outgoing,
        is_direct: bool,
        clock: Clock,
        endpoint: &Mutex<Endpoint>,
    ) {
        let mut sent = self.send_again(outgoing, is_direct);
        let is_invalid =
            sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput);
        // A single datagram fails, too: the source may be no address of this host, which says nothing about trains.
        if is_invalid && outgoing.from.take().is_some() {
            self.renew_state();
            sent = self.send_again(outgoing, is_direct);
        }
        // Only now: if more reports wait than are read, the first of the rest is the error of the next send.
        self.receive_errors(clock, endpoint);
        let is_refused = sent.is_err_and(|error| quinn_udp::is_msg_size_err(&error));
        if let Some(id) = outgoing.pipe.filter(|_| is_refused) {
            lock(endpoint).handle_refused(clock.now(), id, refused_bytes(&outgoing));
        }
    }

    /// Returns the most datagrams of a train.
    fn most_segments(&mut self, now: Instant) -> usize {
        let most = self.state.max_gso_segments();
        if most > 1 || !self.has_trains {
            self.without_trains = None;
            return most;
        }
        let since = *self.without_trains.get_or_insert(now);
        if now >= since.plus_nanos(TRAINS_AGAIN) {
            self.without_trains = None;
            self.renew_state();
        }
        self.state.max_gso_segments()
    }

    /// Finds out again what the socket can do.
    fn renew_state(&mut self) {
        if let Ok(state) = configure(&self.io) {
            self.state = state;
        }
    }

    /// Sends a long datagram without copying its bytes into the outbox, which saves one copy. The lock is held
    /// meanwhile.
    #[cfg(target_os = "linux")]
    fn send_apart(
        &self,
        outgoing: &Outgoing,
        [first, second]: [&[u8]; 2],
        is_direct: bool,
    ) -> io::Result<()> {
        use std::io::IoSlice;
        use std::os::fd::AsRawFd as _;

        use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
        use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};
        let parts = [&self.outbox, first, second].map(IoSlice::new);
        let (v4, v6);
        let from = match outgoing.from {
            None => None,
            Some(IpAddr::V4(ip)) => {
                let [ipi_spec_dst, ipi_addr] =
                    [ip.octets(), [0; 4]].map(|ip| in_addr { s_addr: u32::from_ne_bytes(ip) });
                v4 = in_pktinfo { ipi_ifindex: 0, ipi_spec_dst, ipi_addr };
                Some(ControlMessage::Ipv4PacketInfo(&v4))
            }
            Some(IpAddr::V6(ip)) => {
                let ipi6_addr = in6_addr { s6_addr: ip.octets() };
                v6 = in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 };
                Some(ControlMessage::Ipv6PacketInfo(&v6))
            }
        };
        let to = SockaddrStorage::from(outgoing.to);
        self.try_send(is_direct, || {
            let (socket, flags) = (self.io.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
            sendmsg(socket, &parts, from.as_slice(), flags, Some(&to))?;
            Ok(())
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn send_apart(&self, _: &Outgoing, _: [&[u8]; 2], _: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Calls the system: if `is_direct`, in any case; otherwise, if the runtime expects room to send.
    fn try_send(&self, is_direct: bool, send: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if is_direct { send() } else { self.io.try_io(Interest::WRITABLE, send) }
    }

    fn send(&self, outgoing: Outgoing, is_direct: bool) -> io::Result<()> {
        let transmit = outgoing.transmit;
        let segments = transmit.bytes > transmit.segment_bytes;
        let segment_size = segments.then_some(transmit.segment_bytes);
        self.send_bytes(&outgoing, &self.outbox[..transmit.bytes], segment_size, is_direct)
    }

    /// Sends datagrams again; each of a train on its own, if trains fail.
    fn send_again(&self, outgoing: Outgoing, is_direct: bool) -> io::Result<()> {
        if self.state.max_gso_segments() > 1 {
            return self.send(outgoing, is_direct);
        }
        let Transmit { bytes, segment_bytes } = outgoing.transmit;
        let mut datagrams = self.outbox[..bytes].chunks(segment_bytes);
        datagrams.try_for_each(|datagram| self.send_bytes(&outgoing, datagram, None, is_direct))
    }

    fn send_bytes(
        &self,
        &Outgoing { to: destination, from: src_ip, .. }: &Outgoing,
        contents: &[u8],
        segment_size: Option<usize>,
        is_direct: bool,
    ) -> io::Result<()> {
        let transmit =
            quinn_udp::Transmit { destination, ecn: None, contents, segment_size, src_ip };
        self.try_send(is_direct, || self.state.try_send(UdpSockRef::from(&self.io), &transmit))
    }

    /// Waits until `at` of the socket's clock.
    pub(super) fn poll_alarm(
        &mut self,
        context: &mut Context<'_>,
        clock: Clock,
        at: Instant,
    ) -> Poll<()> {
        let left = at.nanos_since(clock.now());
        if left < EXACT {
            return self.exact.poll_after(context, left);
        }
        if self.alarm_at != Some(at) {
            self.alarm_at = Some(at);
            self.alarm.as_mut().reset(clock.0 + Duration::from_nanos(at.as_nanos()));
        }
        ready!(self.alarm.as_mut().poll(context));
        self.alarm_at = None;
        Poll::Ready(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::wire::pipe::Config;
    use crate::wire::pipe::packet::emit_header;

    /// Regression: a datagram was lost, or counted as too long, because of the 65th report about others.
    #[test]
    fn a_datagram_leaves_although_more_reports_about_others_wait_than_are_read_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let own: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let closed = std::net::UdpSocket::bind(own).unwrap().local_addr().unwrap();
        let peer = std::net::UdpSocket::bind(own).unwrap();
        peer.set_nonblocking(true).unwrap();
        let mut system = System::bind(own).unwrap();
        let mut reports = 0;
        // A report fails the next send, which causes none.
        while reports <= ERRORS_PER_TURN {
            let sent = socket2::SockRef::from(&system.io).send_to(b"x", &closed.into());
            reports += usize::from(sent.is_ok());
        }
        let clock = Clock::start();
        let endpoint = Mutex::new(Endpoint::new(Config::default(), 1));
        lock(&endpoint).dial(clock.now(), peer.local_addr().unwrap());
        system.transmit(None, clock, clock.now(), &endpoint).unwrap();
        assert!(peer.recv(&mut [0; 1_500]).is_ok(), "the dial has arrived");
    }

    /// A datagram to a multicast address has such a destination, and so has one to an address that the host then loses.
    #[test]
    fn a_source_that_is_no_address_of_this_host_ends_no_trains() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_nonblocking(true).unwrap();
        let mut system = System::bind("0.0.0.0:0".parse().unwrap()).unwrap();
        let trains = system.state.max_gso_segments();
        let clock = Clock::start();
        let mut endpoint = Endpoint::new(Config::default(), 1);
        endpoint.own = Some([224, 0, 0, 1].into());
        let mut unknown = Vec::new();
        emit_header(7, 0, &mut unknown);
        endpoint.handle_datagram(clock.now(), peer.local_addr().unwrap(), &mut unknown);
        system.transmit(None, clock, clock.now(), &Mutex::new(endpoint)).unwrap();
        assert!(peer.recv(&mut [0; 1_500]).is_ok(), "the answer leaves from another address");
        assert_eq!(system.state.max_gso_segments(), trains);
    }
}
