//! Gossip: messages between the endpoints of a cluster that belong to no connection.
//!
//! No I/O and no clock here.
//!
//! A message is sent in pieces, one per datagram of at most 1,200 bytes, so that IP fragments none of them. If
//! a piece is lost, its message is lost, and no other. Nothing is sent again: gossip repeats itself soon.
//!
//! # Seals
//!
//! With a key, each piece is sealed by XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03, the AEAD of RFC 8439
//! with a nonce of 192 bits). HMAC-BLAKE2s derives the key from the cluster's. The nonce is 16 random bytes of
//! the sender's *run*, drawn when it starts, and a counter of its datagrams: no nonce repeats. The cluster's
//! name is associated data.
//!
//! A receiver accepts a datagram once. It has a sliding window of numbers for each run, as IPsec has (RFC 4303,
//! section 3.4.3). The seal covers the sender's clock, which must be within 60 s of the receiver's. A
//! window is kept that long; after that, a recorded datagram is too old.
//!
//! # Bounds
//!
//! Three queues are bounded: received messages, messages to send, and messages with missing pieces. A full
//! queue drops its oldest message, and counts it.

mod joining;
mod piece;
mod senders;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::SocketAddr;

use midplane_simhw::seal::Key;
use midplane_simhw::time::Instant;

use joining::Joining;
use piece::{MAX_PIECES, PIECE_BYTES, Seal, Stamp};
use senders::Senders;

/// Most bytes of a message: 65,536.
pub const MAX_MESSAGE: usize = 64 << 10;
/// Milliseconds by which the clocks of two hosts may differ, with a key: 60,000.
const MAX_SKEW: u64 = 60_000;
/// Most messages that wait to be taken, and most that wait to be sent.
const MAX_WAITING: usize = 64;

const _: () = assert!(MAX_MESSAGE.div_ceil(PIECE_BYTES) <= MAX_PIECES);

/// Counters of an endpoint's gossip.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Messages that were cut into pieces and queued.
    pub sent: u64,
    /// Messages of which every piece was received.
    pub received: u64,
    /// Messages that were dropped: too many waited, or a piece is missing.
    pub dropped: u64,
    /// Datagrams that were malformed, repeated, or of another key or cluster.
    pub refused: u64,
    /// Datagrams of this key whose sender's clock differs by more than 60 s.
    pub skewed: u64,
}

/// A message that waits to be sent.
#[derive(Debug)]
struct Departure {
    to: SocketAddr,
    datagrams: VecDeque<Vec<u8>>,
}

/// The gossip of one endpoint.
#[derive(Debug)]
pub struct Gossip {
    seal: Seal,
    run: [u8; 16],
    /// The number of the next datagram.
    next: u64,
    /// The time of day: milliseconds since 1970 at an instant.
    time: (Instant, u64),
    senders: Senders,
    joining: Joining,
    inbox: VecDeque<(SocketAddr, Vec<u8>)>,
    outbox: VecDeque<Departure>,
    counters: Counters,
}

impl Gossip {
    /// Makes the gossip of a cluster. The caller draws `run` at random, and calls [`Gossip::set_time`] before
    /// anything else.
    pub(crate) fn new(key: Option<&Key>, cluster: &str, run: [u8; 16]) -> Self {
        Self {
            seal: Seal::new(key, cluster),
            run,
            next: 0,
            time: (Instant::ZERO, 0),
            senders: Senders::default(),
            joining: Joining::default(),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Sets the time of day, in milliseconds since 1970. Call it from time to time, since the system's clock
    /// may be set.
    pub fn set_time(&mut self, now: Instant, millis: u64) {
        self.time = (now, millis);
    }

    fn millis(&self, now: Instant) -> u64 {
        self.time.1.saturating_add(now.nanos_since(self.time.0) / 1_000_000)
    }

    /// Queues a message; returns `false` if it has no bytes, or more than [`MAX_MESSAGE`].
    pub fn send(&mut self, now: Instant, to: SocketAddr, message: &[u8]) -> bool {
        if message.is_empty() || message.len() > MAX_MESSAGE {
            return false;
        }
        if self.outbox.len() >= MAX_WAITING {
            self.outbox.pop_front();
            self.counters.dropped += 1;
        }
        let millis = self.millis(now);
        let pieces = message.chunks(PIECE_BYTES);
        let last = (pieces.len() - 1) as u8;
        let datagrams = pieces.zip(0..).map(|(bytes, index)| {
            let stamp = Stamp { run: self.run, number: self.next };
            self.next += 1;
            self.seal.emit(stamp, millis, (index, last), bytes)
        });
        let datagrams = datagrams.collect();
        self.outbox.push_back(Departure { to, datagrams });
        self.counters.sent += 1;
        true
    }

    /// Handles a datagram of gossip. It may come from any sender.
    pub(crate) fn handle_datagram(&mut self, now: Instant, from: SocketAddr, datagram: &mut [u8]) {
        let stamp = Stamp::read(datagram).filter(|stamp| self.is_new(*stamp));
        let piece = stamp.and_then(|stamp| Some((stamp, self.seal.open(stamp, datagram)?)));
        let Some((stamp, piece)) = piece else {
            self.counters.refused += 1;
            return;
        };
        if self.seal.is_sealed() {
            let millis = self.millis(now);
            if millis.abs_diff(piece.millis) > MAX_SKEW {
                self.counters.skewed += 1;
                return;
            }
            if !self.senders.accept(millis, stamp, piece.millis) {
                self.counters.refused += 1;
                return;
            }
        }
        let (joined, dropped) = self.joining.add(from, stamp, piece);
        self.counters.dropped += u64::from(dropped);
        if let Some(message) = joined {
            self.counters.received += 1;
            if self.inbox.len() >= MAX_WAITING {
                self.inbox.pop_front();
                self.counters.dropped += 1;
            }
            self.inbox.push_back((from, message));
        }
    }

    /// Returns whether a datagram was not received before; always true without a seal.
    fn is_new(&self, stamp: Stamp) -> bool {
        !self.seal.is_sealed() || self.senders.is_new(stamp)
    }

    /// Returns the next datagram.
    pub(crate) fn poll_transmit(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        let departure = self.outbox.front_mut()?;
        let to = departure.to;
        let datagram = departure.datagrams.pop_front()?;
        if departure.datagrams.is_empty() {
            self.outbox.pop_front();
        }
        Some((to, datagram))
    }

    /// Takes the next message, with its sender's address.
    #[must_use]
    pub fn poll_message(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        self.inbox.pop_front()
    }

    /// Returns whether a message waits to be taken.
    #[cfg(feature = "session")]
    #[must_use]
    pub(crate) fn has_message(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Returns the counters of gossip.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }
}
