//! The limits of an engine, and its behaviour when they are reached.

use std::time::Duration;

use super::flows::Limits;
#[cfg(doc)]
use crate::message::carrier::Carrier;

/// The treatment of an eager message when its receiver's memory for unexpected messages is full.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum WhenFull {
    /// The sender sends an RTS; the message's bytes stay with it until the receive is posted. If there is no
    /// room for the RTS either, the message waits as with [`WhenFull::Wait`].
    #[default]
    Rendezvous,
    /// The message waits at the sender until a receive asks for it. So do later messages of its context to
    /// that process.
    Wait,
    /// The send fails with [`Failure::Refused`](crate::message::request::Failure::Refused). Ready sends, whose receive
    /// is posted, wait as with [`WhenFull::Wait`]; so do the messages of an agreement.
    Refuse,
}

/// Default limit of eager messages in bytes over the shared memory of one host. At this length, two copies without a
/// handshake cost as much as one copy and a round trip.
#[doc(hidden)]
pub const DEFAULT_EAGER: usize = 8192;
/// Limit of eager messages in bytes that suits sockets: a handshake over sockets takes two wake-ups, and copying
/// this much costs less than one.
pub const SOCKET_EAGER: usize = 512 * 1024;
/// Bytes that one more copy moves in a nanosecond.
const COPIED_PER_NANO: u64 = 16;

/// Returns the length in bytes at which one more copy takes as long as the two packets of a handshake.
pub(super) fn planned_eager(latency: Duration) -> usize {
    let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    usize::try_from(nanos.saturating_mul(2 * COPIED_PER_NANO)).unwrap_or(usize::MAX)
}
/// Default bytes of unexpected messages that each sender may have here: 4,096 messages of up to 192 bytes, or
/// some 128 of the largest eager ones.
const DEFAULT_WINDOW: usize = 1 << 20;
/// Default bytes of unexpected messages that all senders together may have here.
const DEFAULT_TOTAL: usize = 1 << 30;
/// Divisor of the window: the messages of one stream may occupy 1/8 of it, those of one tag in a context where no receive
/// has a wildcard tag; and those of one context all but 1/8. One message of the largest eager size always may.
const STREAM_PART: usize = 8;
/// Bytes that an unexpected message counts in addition to its own: about the size of its bookkeeping.
#[doc(hidden)]
pub const ENTRY: usize = 64;
/// Default number of packets that one call of `advance` receives before it sends.
const DEFAULT_BATCH: usize = 64;

/// Most unanswered withdrawals of one process to another: further ones wait at their sender. A process that sends
/// more violates the protocol.
pub(super) const MAX_WITHDRAWALS: usize = 64;

/// The limits of an engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    pub(super) eager: Option<usize>,
    pub(super) window: usize,
    pub(super) total: usize,
    pub(super) when_full: WhenFull,
    pub(super) batch: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            eager: None,
            window: DEFAULT_WINDOW,
            total: DEFAULT_TOTAL,
            when_full: WhenFull::default(),
            batch: DEFAULT_BATCH,
        }
    }
}

impl Config {
    /// Sets the most bytes of an eager message; a packet of the carrier limits it further. Default: to each process,
    /// the length at which one more copy takes as long as a handshake, by its [latency](Carrier::latency): 8 KiB
    /// in memory, a whole packet over streams.
    #[must_use]
    pub const fn eager(mut self, bytes: usize) -> Self {
        self.eager = Some(bytes);
        self
    }

    /// Sets the bytes of unexpected messages that each process may have here, at least 256. Each
    /// message counts 64 bytes, and an eager one also its bytes. Messages beyond this limit wait at their senders.
    /// Default: 1 MiB.
    #[must_use]
    pub const fn window(mut self, bytes: usize) -> Self {
        self.window = if bytes < 4 * ENTRY { 4 * ENTRY } else { bytes };
        self
    }

    /// Sets the bytes of unexpected messages that all processes together may have here. With many processes,
    /// each window is cut accordingly. Default: 1 GiB.
    #[must_use]
    pub const fn total(mut self, bytes: usize) -> Self {
        self.total = bytes;
        self
    }

    /// Returns the limits of a class, if eager messages have up to `eager` bytes.
    pub(super) fn limits(&self, eager: usize) -> Limits {
        let (least, window) = (ENTRY + eager, self.window);
        let word = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let stream = (window / STREAM_PART).max(least).min(window);
        Limits { context: word((window - stream).max(least)), stream: word(stream) }
    }

    /// Sets what this process does when a receiver's memory for unexpected messages is full.
    #[must_use]
    pub const fn when_full(mut self, policy: WhenFull) -> Self {
        self.when_full = policy;
        self
    }

    /// Sets how many packets a call of `advance` receives before it sends, at least 1. Default: 64.
    #[must_use]
    pub const fn batch(mut self, packets: usize) -> Self {
        self.batch = if packets == 0 { 1 } else { packets };
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eager_messages_are_as_long_as_a_handshake_allows() {
        assert_eq!(planned_eager(Duration::from_nanos(256)), DEFAULT_EAGER);
        assert_eq!(planned_eager(Duration::from_micros(16)), 512_000);
        assert_eq!(planned_eager(Duration::MAX), usize::MAX);
    }
}
