//! One connection: a byte pipe each way.
//!
//! No I/O and no clock here. `packet.rs` defines the datagrams; [`congestion`] limits the bytes in flight.
//!
//! ```text
//!   Dialing --accept--> Open --close--> Closing --confirmed--> Ended
//!      |                  |                |
//!      +--- refused, no answer, silence, reset, the peer's close ---> Ended
//! ```

pub(crate) mod acks;
mod body;
pub(crate) mod chunks;
mod cipher;
pub(crate) mod config;
pub mod congestion;
mod handling;
mod loss;
mod pacing;
pub(crate) mod packet;
pub(crate) mod ranges;
mod reassembly;
mod reserve;
pub(crate) mod sealing;
mod send_buffer;
mod transmitting;

use std::io::IoSlice;
use std::net::SocketAddr;

use midplane_simhw::seal::PublicKey;
use midplane_simhw::time::Instant;
use midplane_simhw::udp::discovery::Discovery;

use acks::Acks;
use config::{CLOSE_TIMEOUT, DEFAULT_WINDOW, IDLE_TIMEOUT};
pub use config::{Config, Ended, RefuseReason, Stats};
use congestion::{Controller, Start};
use loss::{Loss, Outcome};
use pacing::Pacer;
use packet::COOKIE_BYTES;
use packet::Dial;
pub(crate) use reassembly::FIRST_WINDOW;
use reassembly::Reassembly;
use sealing::{DATAGRAMS, Offers, Seal};
use send_buffer::SendBuffer;

/// Nanoseconds from a dial to the next: first, and at most.
const DIAL_AGAIN: (u64, u64) = (100_000_000, 1_000_000_000);
/// Nanoseconds of silence, while something is outstanding, after which a peer is suspected.
const SUSPECTED: u64 = 1_000_000_000;
/// Least and most nanoseconds that an open connection waits for the peer itself to refute an unauthenticated end: five
/// round trips. Pings that are lost are repeated meanwhile.
const CONFIRM_OPEN: (u64, u64) = (240_000_000, 500_000_000);
/// Nanoseconds by which this process may be late to end a connection so. After a longer pause of its own, an answer may
/// wait in its socket: it waits as long once more.
const CONFIRM_LATE: u64 = 20_000_000;
/// The same nanoseconds while it dials.
const CONFIRM_DIAL: u64 = 1_500_000_000;
/// Most bytes that are written ahead of those that were sent, unless a quarter of the window is more, or the peer grants
/// tokens. Bytes sent soon after they were written are still in the processor's cache.
const MOST_UNSENT: usize = 256 << 10;
/// Nanoseconds that an acceptor waits for the dialer's first packet.
const CONFIRM: u64 = 5_000_000_000;

/// Datagrams to send, all to the same peer: each has `segment_bytes`, except the last, which may be shorter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Transmit {
    /// Bytes of all datagrams together, as appended.
    pub bytes: usize,
    /// Bytes of each datagram but the last.
    pub segment_bytes: usize,
}

/// An end that may be forged, since its packet is not authenticated.
#[derive(Clone, Copy, Debug)]
struct UnconfirmedEnd {
    end: Ended,
    /// When it takes effect unless the peer answers.
    at: Instant,
    /// True if this process was paused at that time before.
    is_late: bool,
}

/// A dial that was not answered yet.
#[derive(Debug)]
struct Dialing {
    /// The handshakes that it offers, with a key.
    offers: Option<Offers>,
    cookie: [u8; COOKIE_BYTES],
    /// When another cookie is accepted: forged ones cause about as many dials as the timer does.
    cookie_at: Instant,
    at: Instant,
    again_after: u64,
    give_up: Instant,
}

/// The state of this side's close.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Closing {
    give_up: Instant,
    /// True if a packet with the close is to be sent.
    is_due: bool,
    /// True once the peer has acknowledged the close; bytes before it may still be missing there.
    is_acknowledged: bool,
}

/// Bytes that the peer has sent over a connection, and wants to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    /// Bytes received, including those behind a gap.
    pub(crate) received: u64,
    /// Offset up to which the peer has bytes to send, as it reported when it was blocked; `None` if it can't
    /// report that.
    pub(crate) wanted: Option<u64>,
    /// Offset up to which there is room for bytes.
    pub(crate) most: u64,
}

/// One connection of an endpoint.
///
/// After any `&mut self` call: drain [`Pipe::poll_transmit`], then re-read [`Pipe::poll_timeout`]. The time never goes
/// back. An early [`Pipe::handle_timeout`] does nothing.
#[derive(Debug)]
pub struct Pipe {
    now: Instant,
    config: Config,
    local: u64,
    /// The peer's id; 0 while dialing.
    remote: u64,
    dialing: Option<Box<Dialing>>,
    /// The datagram that accepts a dial, kept until the dialer's first packet; and whether it is to be sent.
    accept: Option<(Vec<u8>, bool)>,
    seal: Option<Seal>,
    send: SendBuffer,
    receive: Reassembly,
    acks: Acks,
    loss: Loss,
    law: Box<dyn Controller>,
    pacer: Pacer,
    discovery: Discovery,
    mtu: usize,
    /// Offset up to which the peer accepts bytes.
    peer_window: u64,
    /// True if the peer grants tokens: this side then requests windows.
    peer_grants: bool,
    /// Offset of this side's last request.
    requested: u64,
    /// True if the peer can request a window; and the offset that it has requested.
    peer_requests: bool,
    wanted: u64,
    /// Size in bytes of the receive buffer of the peer's system.
    peer_socket_bytes: u64,
    closing: Option<Closing>,
    /// Offset at which the peer's bytes end.
    peer_end: Option<u64>,
    ended: Option<Ended>,
    unconfirmed_end: Option<UnconfirmedEnd>,
    /// Resets and network reports before this time do not ping the peer again.
    pinged_until: Instant,
    heard_at: Instant,
    keepalive_at: Instant,
    /// When data was last received, consumed or acknowledged.
    used_at: Instant,
    /// When memory in reserve is released next; far in the future if there is none.
    trim_at: Instant,
    /// When the pacer lets the next packet pass; far in the future if it delays none.
    paced_until: Instant,
    /// Packets that may be sent although the window is full, to probe a silent peer.
    probes: u32,
    is_ping_due: bool,
    is_window_limited: bool,
    has_progress: bool,
    outcome: Outcome,
    /// The range of the pipe's bytes that the last packet carries and that were left out of its buffer.
    left_out: Option<(u64, u64)>,
    counted: Stats,
}

impl Pipe {
    /// Dials `to` under the random id `local`.
    pub(crate) fn dial(now: Instant, config: &Config, local: u64, to: SocketAddr) -> Self {
        let offers = config.secrets().map(|secrets| Offers::new(secrets, DATAGRAMS, local));
        let has_failed = matches!(offers, Some(None));
        let mut this = Self::new(now, config, local, 0, to);
        this.dialing = Some(Box::new(Dialing {
            offers: offers.flatten(),
            cookie: [0; COOKIE_BYTES],
            cookie_at: now,
            at: now,
            again_after: DIAL_AGAIN.0,
            give_up: now.plus_nanos(config.dial_timeout),
        }));
        // Without random numbers from the system, no handshake can be made.
        this.ended = has_failed.then_some(Ended::KeyMismatch);
        this
    }

    /// Accepts a dial of `remote` with the datagram `accept`.
    pub(crate) fn accept(
        now: Instant,
        config: &Config,
        ids: (u64, u64),
        from: SocketAddr,
        dial: &Dial<'_>,
        seal: Option<Seal>,
        accept: Vec<u8>,
    ) -> Self {
        let mut this = Self::new(now, config, ids.0, ids.1, from);
        this.seal = seal;
        this.peer_socket_bytes = dial.socket_bytes;
        this.on_first_window(dial.first_window);
        this.accept = Some((accept, true));
        this
    }

    fn new(now: Instant, config: &Config, local: u64, remote: u64, peer: SocketAddr) -> Self {
        let headers = if peer.is_ipv4() { 28 } else { 48 };
        let discovery = Discovery::new(headers, config.mtu_limit);
        let mtu = discovery.usable();
        Self {
            now,
            local,
            remote,
            dialing: None,
            accept: None,
            seal: None,
            send: SendBuffer::default(),
            receive: Reassembly::new(config.most_window),
            acks: Acks::new(),
            loss: Loss::new(),
            law: (config.congestion)(Start { now, mtu, seed: local }),
            pacer: Pacer::new(),
            discovery,
            mtu,
            peer_window: FIRST_WINDOW,
            peer_grants: false,
            requested: 0,
            peer_requests: false,
            wanted: 0,
            peer_socket_bytes: u64::MAX,
            closing: None,
            peer_end: None,
            ended: None,
            unconfirmed_end: None,
            pinged_until: now,
            heard_at: now,
            keepalive_at: now.plus_nanos(config.keepalive),
            used_at: now,
            trim_at: Instant::FAR_FUTURE,
            paced_until: Instant::FAR_FUTURE,
            probes: 0,
            is_ping_due: false,
            is_window_limited: false,
            has_progress: false,
            outcome: Outcome::default(),
            left_out: None,
            counted: Stats::default(),
            config: config.clone(),
        }
    }

    /// Limits the peer to `first` bytes at first, and then to the limit that is granted.
    pub(crate) fn limit(&mut self, first: u64) {
        self.receive.limit(first);
        if self.remote != 0 && !self.peer_requests {
            self.receive.presume(FIRST_WINDOW);
        }
    }

    /// Lets the peer send up to `limit`. Notifies it at once if it waits for that, or can't request it.
    pub(crate) fn raise_limit(&mut self, now: Instant, limit: u64) {
        let wanted = if self.peer_requests { self.wanted } else { u64::MAX };
        if self.receive.raise_limit(limit, wanted) {
            self.acks.make_due(now);
        }
    }

    /// Returns what the peer has sent and wants to send, and the room for it.
    pub(crate) fn flow(&self) -> Flow {
        Flow {
            received: self.receive.received(),
            wanted: self.peer_requests.then_some(self.wanted),
            most: self.receive.room_until(),
        }
    }

    /// Handles the peer's first window; `None` if the peer is of an earlier version.
    fn on_first_window(&mut self, window: Option<u32>) {
        self.peer_requests = window.is_some();
        if let Some(window) = window {
            self.peer_window = FIRST_WINDOW.min(window.into());
            self.peer_grants = self.peer_window < FIRST_WINDOW;
        }
    }

    /// Returns whether a packet is due that requests a larger window from the peer.
    const fn is_request_due(&self) -> bool {
        self.is_blocked() && self.requested <= self.peer_window
    }

    /// Returns whether the window of a peer that grants tokens blocks bytes.
    const fn is_blocked(&self) -> bool {
        self.peer_grants && self.send.written() > self.peer_window
    }

    /// Copies bytes into the send buffer; returns how many, at most [`Pipe::room`].
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> usize {
        let room = self.room();
        self.send.write(parts, room)
    }

    /// Copies all bytes into the send buffer, even beyond its room, unless the connection ends: a started frame
    /// is not cut. The caller has checked before that there is room.
    #[cfg(feature = "session")]
    pub(crate) fn write_all(&mut self, parts: &[IoSlice<'_>]) {
        if self.closing.is_none() && self.ended.is_none() {
            self.send.write(parts, usize::MAX);
        }
    }

    /// Consumes `bytes` of what is readable, so that the peer may send more.
    pub fn consume(&mut self, bytes: usize) {
        let round_trip = self.loss.round_trip();
        self.receive.consume(self.now, bytes, round_trip);
        self.on_used();
        if self.receive.is_update_due() {
            self.acks.make_due(self.now);
        }
    }

    /// Closes the connection: sends all written bytes, then notifies the peer. Ends after a timeout in any case.
    pub fn close(&mut self, now: Instant) {
        self.now = now;
        if self.dialing.is_some() {
            self.ended.get_or_insert(Ended::Closed);
        }
        if self.closing.is_none() {
            let give_up = now.plus_nanos(CLOSE_TIMEOUT);
            self.closing = Some(Closing { give_up, is_due: true, is_acknowledged: false });
        }
    }

    /// Has the accept sent again, because the dialer has dialed again.
    pub(crate) fn repeat_accept(&mut self) {
        if let Some((_, is_due)) = &mut self.accept {
            *is_due = true;
        }
    }

    /// Has the peer pinged.
    pub fn ping(&mut self) {
        self.is_ping_due = true;
    }

    /// Returns how many bytes [`Pipe::write`] accepts now.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.closing.is_some() || self.ended.is_some() {
            return 0;
        }
        let wanted = 2 * self.window() as usize;
        let limit = wanted.max(FIRST_WINDOW as usize).min(DEFAULT_WINDOW as usize);
        let room = limit.saturating_sub(self.send.held_bytes());
        if self.peer_grants {
            // The peer grants tokens for the bytes of which it knows that they wait.
            return room;
        }
        room.min(self.most_unsent().saturating_sub(self.send.unsent_bytes()))
    }

    /// Returns the most bytes that are written ahead of those that were sent.
    fn most_unsent(&self) -> usize {
        MOST_UNSENT.max(self.window() as usize / 4)
    }

    /// Returns received bytes in order, as far as they are contiguous in memory; empty if there are none.
    #[must_use]
    pub fn readable(&self) -> &[u8] {
        self.receive.readable().next().unwrap_or_default()
    }

    /// Returns the number of received bytes in order.
    #[cfg(feature = "session")]
    pub(crate) const fn readable_bytes(&self) -> usize {
        self.receive.readable_bytes()
    }

    /// Passes the next `bytes` readable bytes to `each`, in parts, and consumes them.
    #[cfg(feature = "session")]
    pub(crate) fn take(&mut self, bytes: usize, mut each: impl FnMut(&[u8])) {
        let mut left = bytes;
        for part in self.receive.readable() {
            let part = &part[..part.len().min(left)];
            each(part);
            left -= part.len();
            if left == 0 {
                break;
            }
        }
        self.consume(bytes - left);
    }

    /// Returns whether the peer has answered.
    #[must_use]
    pub const fn is_established(&self) -> bool {
        self.dialing.is_none() && self.accept.is_none()
    }

    /// Returns the peer's own key, once the peer has proven that it has it. `None` if it has no such key, or
    /// this side has none, or before [`Pipe::is_established`].
    #[must_use]
    pub fn peer_key(&self) -> Option<PublicKey> {
        self.seal.as_ref().filter(|_| self.is_established())?.peer()
    }

    /// Returns why the connection has ended, if it has; bytes received before stay readable.
    #[must_use]
    pub const fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Returns whether the peer has been silent for a second although something is outstanding.
    #[must_use]
    pub fn is_suspected(&self, now: Instant) -> bool {
        let since = self.loss.oldest_at().map_or(now, |at| at.max(self.heard_at));
        now.nanos_since(since) >= SUSPECTED
    }

    /// Returns whether the peer has acknowledged everything that was written.
    #[must_use]
    pub const fn is_flushed(&self) -> bool {
        self.send.is_all_acknowledged()
    }

    /// Returns measurements and counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            round_trip: self.loss.round_trip(),
            congestion: self.law.name(),
            congestion_window: self.law.window(),
            in_flight: self.loss.in_flight(),
            mtu: self.mtu,
            bytes_written: self.send.written(),
            bytes_received: self.receive.in_order(),
            memory_bytes: self.send.memory_bytes() + self.receive.memory_bytes(),
            ..self.counted
        }
    }

    /// Returns when [`Pipe::handle_timeout`] must be called; `None` if only a datagram or the caller can cause
    /// anything.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.ended.is_some() {
            return None;
        }
        if let Some(dialing) = &self.dialing {
            let unconfirmed_end = self.unconfirmed_end.map_or(Instant::FAR_FUTURE, |end| end.at);
            return Some(dialing.at.min(dialing.give_up).min(unconfirmed_end));
        }
        let all = [
            self.loss.poll_timeout(),
            self.acks.poll_timeout(),
            self.discovery.poll_timeout(),
            self.paced_until,
            self.keepalive_at,
            self.trim_at,
            self.idle_at(),
            self.closing.map_or(Instant::FAR_FUTURE, |closing| closing.give_up),
            self.unconfirmed_end.map_or(Instant::FAR_FUTURE, |end| end.at),
        ];
        all.into_iter().min()
    }

    fn idle_at(&self) -> Instant {
        self.heard_at.plus_nanos(if self.accept.is_some() { CONFIRM } else { IDLE_TIMEOUT })
    }

    /// Returns the id under which this side receives.
    pub(crate) const fn local(&self) -> u64 {
        self.local
    }

    /// Returns the id under which the peer receives; 0 while dialing.
    pub(crate) const fn remote(&self) -> u64 {
        self.remote
    }

    /// Returns whether there is more to read or more room to write since the last call.
    pub(crate) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.has_progress)
    }
}
