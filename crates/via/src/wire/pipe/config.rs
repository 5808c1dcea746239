//! The configuration of connections, and how they end.

use std::fmt;
use std::sync::Arc;

use midplane_simhw::seal::{Key, SecretKey};
use thiserror::Error;

use super::congestion::{ControllerFactory, Cubic};
pub(crate) use super::reassembly::FIRST_WINDOW;
use super::sealing::Secrets;

/// Bytes of the largest datagram that is tried: a train of it and one of short ones cost a system call each.
const DEFAULT_MTU_LIMIT: usize = 65_000;
/// Bytes of the largest receive window, and of the send buffer: 10 Gb/s over 6 ms.
const DEFAULT_WINDOW: u64 = 8 << 20;
/// Nanoseconds of silence after which a peer counts as lost.
const DEFAULT_IDLE_TIMEOUT: u64 = 30_000_000_000;
/// Nanoseconds of silence after which a peer is asked for a sign of life: three such losses are no end.
const DEFAULT_KEEPALIVE: u64 = DEFAULT_IDLE_TIMEOUT / 3;
/// Nanoseconds that a dial waits for an answer.
const DEFAULT_DIAL_TIMEOUT: u64 = 10_000_000_000;
/// Nanoseconds that a close waits for the peer to have everything.
const DEFAULT_CLOSE_TIMEOUT: u64 = 5_000_000_000;

/// Configures the connections of an endpoint.
#[derive(Clone)]
pub struct Config {
    pub(crate) key: Option<Key>,
    pub(crate) own: Option<SecretKey>,
    pub(crate) mtu_limit: usize,
    pub(crate) most_window: u64,
    pub(crate) send_bytes: usize,
    pub(crate) idle_timeout: u64,
    pub(crate) keepalive: u64,
    pub(crate) dial_timeout: u64,
    pub(crate) close_timeout: u64,
    pub(crate) socket_bytes: u64,
    pub(crate) port_buffer: Option<u64>,
    pub(crate) congestion: ControllerFactory,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            key: None,
            own: None,
            mtu_limit: DEFAULT_MTU_LIMIT,
            most_window: DEFAULT_WINDOW,
            send_bytes: DEFAULT_WINDOW as usize,
            idle_timeout: DEFAULT_IDLE_TIMEOUT,
            keepalive: DEFAULT_KEEPALIVE,
            dial_timeout: DEFAULT_DIAL_TIMEOUT,
            close_timeout: DEFAULT_CLOSE_TIMEOUT,
            socket_bytes: u64::MAX,
            port_buffer: None,
            congestion: Arc::new(|mtu| Box::new(Cubic::new(mtu))),
        }
    }
}

impl Config {
    /// Seals every packet with a secret that all peers share; none by default.
    #[must_use]
    pub fn key(mut self, key: Option<Key>) -> Self {
        self.key = key;
        self
    }

    /// Proves to peers that this process has a key of its own, and has those that have one prove theirs: see
    /// [`Pipe::peer_key`](super::Pipe::peer_key). It needs a [key](Config::key) that all share; none by default.
    #[must_use]
    pub fn own_key(mut self, own: Option<SecretKey>) -> Self {
        self.own = own;
        self
    }

    /// Sets the bytes of the largest datagram that is tried, from 1,200 to 65,000; 65,000 by default.
    #[must_use]
    pub fn mtu_limit(mut self, bytes: usize) -> Self {
        self.mtu_limit = bytes.clamp(1_200, DEFAULT_MTU_LIMIT);
        self
    }

    /// Sets the bytes that a connection holds for its reader at most, from 256 KiB; 8 MiB by default.
    #[must_use]
    pub fn receive_window(mut self, bytes: u64) -> Self {
        self.most_window = bytes.max(FIRST_WINDOW);
        self
    }

    /// Sets the bytes that a connection holds at most until they are acknowledged; 8 MiB by default.
    #[must_use]
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_bytes = bytes.max(1);
        self
    }

    /// Sets the nanoseconds of silence after which a peer counts as lost; 30 s by default.
    #[must_use]
    pub fn idle_timeout(mut self, nanos: u64) -> Self {
        self.idle_timeout = nanos;
        self
    }

    /// Sets the nanoseconds of silence after which a peer is asked for a sign of life; 10 s by default. A process that
    /// ended is noticed that much later, at a cost of two datagrams each time.
    #[must_use]
    pub fn keepalive(mut self, nanos: u64) -> Self {
        self.keepalive = nanos;
        self
    }

    /// Sets the nanoseconds that a dial waits for an answer; 10 s by default.
    #[must_use]
    pub fn dial_timeout(mut self, nanos: u64) -> Self {
        self.dial_timeout = nanos;
        self
    }

    /// Sets the nanoseconds that a close waits for the peer to have everything; 5 s by default.
    #[must_use]
    pub fn close_timeout(mut self, nanos: u64) -> Self {
        self.close_timeout = nanos;
        self
    }

    /// Sets the bytes of the system's receive buffer: peers of the same host keep no more in flight.
    #[must_use]
    pub fn socket_bytes(mut self, bytes: u64) -> Self {
        self.socket_bytes = bytes;
        self
    }

    /// Has the peers of all connections take turns, so that they never overflow a port before this endpoint whose buffer has
    /// `bytes`, at least 8 KiB: what they have in flight together fits in. Off by default. The peers need no configuration.
    ///
    /// No more than half of the buffer arrives in each round trip.
    #[must_use]
    pub fn receive_tokens(mut self, bytes: u64) -> Self {
        self.port_buffer = Some(bytes);
        self
    }

    /// Sets the law of congestion control; Cubic by default.
    #[must_use]
    pub fn congestion(mut self, factory: ControllerFactory) -> Self {
        self.congestion = factory;
        self
    }
}

impl Config {
    /// Returns the secrets of handshakes, if connections are sealed.
    pub(crate) fn secrets(&self) -> Option<Secrets<'_>> {
        Some(Secrets { key: self.key.as_ref()?, own: self.own.as_ref() })
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("mtu_limit", &self.mtu_limit).finish_non_exhaustive()
    }
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Ended {
    /// This side has closed it, and the peer has everything.
    #[error("closed")]
    Closed,
    /// This side has closed it, and the peer has not confirmed in time that it has everything.
    #[error("closed before the peer had everything")]
    CloseTimedOut,
    /// The peer has closed it; every byte that it wrote can be read.
    #[error("closed by the peer")]
    ClosedByPeer,
    /// The peer was silent for the idle timeout.
    #[error("the peer is silent")]
    Lost,
    /// The network reports that no process receives at the peer's address.
    #[error("nobody receives at the peer's address; is the peer running?")]
    Unreachable,
    /// No answer to a dial.
    #[error("no answer; is the peer running, and UDP not blocked?")]
    NoAnswer,
    /// The peer does not know the connection: its process was restarted.
    #[error("the peer was restarted")]
    Restarted,
    /// The peer has refused the dial.
    #[error("refused: {0}")]
    Refused(RefuseReason),
    /// The peer has another key, or one side has none.
    #[error(
        "the keys of the two nodes do not fit, or one has none: give all nodes of a cluster the same key file"
    )]
    KeyDoesNotFit,
    /// The peer speaks another version.
    #[error("the peer speaks version {0}")]
    Version(u8),
}

/// Why a peer refuses a dial.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum RefuseReason {
    /// It has as many connections as it may.
    #[error("the peer has as many connections as it may")]
    Full,
    /// It gives no reason that this version knows.
    #[error("reason {0}")]
    Other(u8),
}

/// Numbers of reasons in refusals.
pub(crate) mod reason {
    pub(crate) const FULL: u8 = 1;
    pub(crate) const VERSION: u8 = 2;
    pub(crate) const KEY: u8 = 3;
}

/// Measurements and counters of a connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stats {
    /// Nanoseconds of a round trip, smoothed.
    pub round_trip: u64,
    /// Bytes that may be in flight.
    pub congestion_window: u64,
    /// Bytes that are.
    pub in_flight: u64,
    /// Bytes of the largest datagram.
    pub mtu: usize,
    /// Datagrams sent and received.
    pub packets_sent: u64,
    /// Datagrams received that were the peer's.
    pub packets_received: u64,
    /// Packets found lost.
    pub packets_lost: u64,
    /// Bytes of the pipe sent again.
    pub bytes_sent_again: u64,
    /// Bytes of the pipe written by the application.
    pub bytes_written: u64,
    /// Bytes of the pipe received in order.
    pub bytes_received: u64,
    /// Datagrams dropped: malformed, forged, or received before.
    pub dropped: u64,
    /// Bytes of memory for data of both directions.
    pub memory_bytes: usize,
}
