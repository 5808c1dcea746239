//! The configuration of connections, and how they end.

use std::fmt;

use midplane_simhw::seal::{Key, SecretKey};
use thiserror::Error;

use super::congestion::{Congestion, ControllerFactory};
pub(crate) use super::reassembly::FIRST_WINDOW;
use super::sealing::Secrets;

/// Default limit of a datagram's bytes. A system call sends one datagram of this size or a train of short ones
/// at the same cost.
const DEFAULT_MTU_LIMIT: usize = 65_000;
/// Most bytes that a connection stores until they are acknowledged, and default bytes of the largest receive window:
/// 10 Gb/s over 6 ms.
pub(super) const DEFAULT_WINDOW: u64 = 8 << 20;
/// Nanoseconds of silence after which a peer counts as lost.
pub(super) const IDLE_TIMEOUT: u64 = 30_000_000_000;
/// Default nanoseconds of silence after which a peer is pinged: a connection survives the loss of two pings in
/// a row.
const DEFAULT_KEEPALIVE: u64 = IDLE_TIMEOUT / 3;
/// Default nanoseconds that a dial waits for an answer.
const DEFAULT_DIAL_TIMEOUT: u64 = 10_000_000_000;
/// Nanoseconds that a close waits for the peer to acknowledge everything.
pub(super) const CLOSE_TIMEOUT: u64 = 5_000_000_000;

/// Configures the connections of an endpoint.
#[derive(Clone)]
pub struct Config {
    pub(crate) key: Option<Key>,
    pub(crate) own: Option<SecretKey>,
    pub(crate) mtu_limit: usize,
    pub(crate) most_window: u64,
    pub(crate) keepalive: u64,
    pub(crate) dial_timeout: u64,
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
            keepalive: DEFAULT_KEEPALIVE,
            dial_timeout: DEFAULT_DIAL_TIMEOUT,
            socket_bytes: u64::MAX,
            port_buffer: None,
            congestion: Congestion::default().factory(),
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

    /// Sets this process's own key, with which it proves its identity to peers; peers with a key of their own
    /// must prove theirs: see [`Pipe::peer_key`](super::Pipe::peer_key). Needs a [key](Config::key) that all
    /// peers share. None by default.
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

    /// Sets the most bytes that a connection stores for its reader, from 256 KiB; 8 MiB by default.
    #[must_use]
    pub fn receive_window(mut self, bytes: u64) -> Self {
        self.most_window = bytes.max(FIRST_WINDOW);
        self
    }

    /// Sets the nanoseconds of silence after which a peer is pinged; 10 s by default. The exit of a silent peer is
    /// detected that much later; each ping costs two datagrams.
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

    /// Sets the bytes of the system's receive buffer: peers on the same host keep no more in flight.
    #[must_use]
    pub fn socket_bytes(mut self, bytes: u64) -> Self {
        self.socket_bytes = bytes;
        self
    }

    /// Has the peers of all connections take turns, so that together they never have more in flight than fits
    /// the buffer of a switch port before this endpoint. `bytes` is the size of that buffer, at least 8 KiB.
    /// Off by default. The peers need no configuration.
    ///
    /// At most half of the buffer arrives in each round trip.
    #[must_use]
    pub fn receive_tokens(mut self, bytes: u64) -> Self {
        self.port_buffer = Some(bytes);
        self
    }

    /// Sets the congestion control, for example [`Congestion::factory`]; Cubic by default.
    #[must_use]
    pub fn congestion(mut self, factory: ControllerFactory) -> Self {
        self.congestion = factory;
        self
    }
}

impl Config {
    /// Returns the secrets of handshakes, if connections are sealed.
    pub(crate) fn secrets(&self) -> Option<Secrets<'_>> {
        Some(Secrets::new(self.key.as_ref()?, self.own.as_ref()))
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
    /// This side has closed it, and the peer has received everything.
    #[error("closed")]
    Closed,
    /// This side has closed it, and the peer has not confirmed in time that it has received everything.
    #[error("closed before the peer had received everything")]
    CloseTimedOut,
    /// The peer has closed it; every byte that it wrote can be read.
    #[error("closed by the peer")]
    ClosedByPeer,
    /// The peer was silent for the idle timeout.
    #[error("the peer is silent")]
    Lost,
    /// The network reports that no process receives at the peer's address.
    #[error("no process receives at the peer's address; is the peer running?")]
    Unreachable,
    /// The peer did not answer the dial.
    #[error("no answer; is the peer running, and UDP not blocked?")]
    NoAnswer,
    /// The peer does not know the connection: its process was restarted.
    #[error("the peer was restarted")]
    Restarted,
    /// The peer refused the dial.
    #[error("refused: {0}")]
    Refused(RefuseReason),
    /// The peer has another key, or one side has none.
    #[error(
        "the keys of the two nodes do not fit, or one has none: give all nodes of a cluster the same key file"
    )]
    KeyMismatch,
    /// The peer speaks another version.
    #[error("the peer speaks version {0}")]
    Version(u8),
}

/// Why a peer refused a dial.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum RefuseReason {
    /// The peer has as many connections as it accepts.
    #[error("the peer has as many connections as it accepts")]
    Full,
    /// The peer gave a reason that this version does not know.
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
    /// Smoothed round-trip time in nanoseconds.
    pub round_trip: u64,
    /// Bytes that may be in flight.
    pub congestion_window: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Bytes of the largest datagram.
    pub mtu: usize,
    /// Datagrams sent.
    pub packets_sent: u64,
    /// Valid datagrams received from the peer.
    pub packets_received: u64,
    /// Packets found lost.
    pub packets_lost: u64,
    /// Bytes of the pipe sent again.
    pub bytes_retransmitted: u64,
    /// The name of the congestion control.
    pub congestion: &'static str,
    /// Bytes of the pipe written by the application.
    pub bytes_written: u64,
    /// Bytes of the pipe received in order.
    pub bytes_received: u64,
    /// Datagrams dropped: malformed, forged, or received before.
    pub dropped: u64,
    /// Bytes of memory for data of both directions.
    pub memory_bytes: usize,
}
