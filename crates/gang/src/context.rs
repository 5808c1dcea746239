//! The saved state of one job's channels, at a consistent cut.
//!
//! It names only ranks, and no hosts, ports or addresses, so it can be restored on other hosts.

use bytes::Bytes;
use midplane_simhw::wire::{self, WireError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use crate::channel::command::PeerState;
use crate::channel::geometry::Geometry;
use crate::names::{Epoch, JobId, Rank};
use crate::wait::WaitState;

/// The channel contexts of all ranks of a job, saved while all channels were quiescent.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct NetworkContext {
    /// The job's number.
    pub job: JobId,
    /// The epoch that ended with this cut.
    pub epoch: Epoch,
    /// One context per rank, in order.
    pub ranks: Vec<ChannelContext>,
}

/// The saved state of one rank's channel.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ChannelContext {
    /// The rank.
    pub rank: Rank,
    /// The sizes of the channel's FIFOs.
    pub geometry: Geometry,
    /// Number of messages ever sent that have left the send FIFO.
    pub freed: u64,
    /// Number of messages ever consumed.
    pub consumed: u64,
    /// Position in the receive FIFO where the search for the next message's space begins.
    pub receive_tail: u64,
    /// Protocol state with each peer, by rank. Peers without any messages are missing.
    pub peers: Vec<PeerState>,
    /// Messages in the send FIFO, oldest first.
    pub send: Vec<SentMessage>,
    /// Messages in the receive FIFO, oldest first.
    pub receive: Vec<ReceivedMessage>,
    /// Messages in the rings from ranks of the same host or, in a context for a restored rank, in its past. Messages
    /// of one sender are in order.
    pub local: Vec<LocalMessage>,
    /// Ranks whose ring to this rank has no room for the longest message.
    pub full: Vec<Rank>,
    /// The wait state that the process has published.
    pub wait: WaitState,
}

/// A message in a ring between two ranks of one host.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct LocalMessage {
    /// The sending rank.
    pub from: Rank,
    /// The message's bytes.
    pub bytes: Bytes,
}

/// A message in a send FIFO.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct SentMessage {
    /// The receiving rank.
    pub to: Rank,
    /// The message's position in the FIFO.
    pub position: u64,
    /// The message's length, in bytes.
    pub length: u32,
    /// True if the receiver has accepted the message. Its space is freed after that of older messages.
    pub taken: bool,
    /// The message's bytes; empty if it is accepted.
    pub bytes: Bytes,
}

/// A message in a receive FIFO.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ReceivedMessage {
    /// The sending rank.
    pub from: Rank,
    /// The message's position in the FIFO.
    pub position: u64,
    /// The message's bytes.
    pub bytes: Bytes,
}

/// Location of a message of the cut.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[doc(hidden)]
pub enum MessageLocation {
    /// In its sender's send FIFO.
    SendFifo,
    /// In its receiver's receive FIFO.
    ReceiveFifo,
    /// In a ring between ranks of one host.
    Ring,
}

/// A message that was sent and not consumed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct InTransit<'a> {
    /// The sending rank.
    pub from: Rank,
    /// The receiving rank.
    pub to: Rank,
    /// Location of the message.
    pub place: MessageLocation,
    /// The message's bytes.
    pub bytes: &'a Bytes,
}

/// Inconsistencies of a context.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Violation {
    /// A rank is missing, duplicated, or out of order.
    #[error("place {index} holds rank {found}: the ranks are not 0 to {last}")]
    Ranks {
        /// Index in the list of ranks.
        index: usize,
        /// The rank at that index.
        found: Rank,
        /// The expected last rank.
        last: usize,
    },
    /// Sender and receiver disagree about the accepted messages.
    #[error(
        "rank {from} counts all messages before {acked} as accepted by rank {to}, rank {to} all before {expected}"
    )]
    Counts {
        /// The sending rank.
        from: Rank,
        /// The receiving rank.
        to: Rank,
        /// Sequence number of the sender's first unaccepted message.
        acked: u32,
        /// Sequence number of the message that the receiver expects next.
        expected: u32,
    },
    /// A rank's numbers contradict its FIFOs.
    #[error("rank {rank}: {what}")]
    Rank {
        /// The rank.
        rank: Rank,
        /// The contradiction.
        what: &'static str,
    },
}

/// Errors of decoding a context.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The bytes can't be decoded.
    #[error(transparent)]
    Bytes(#[from] WireError),
    /// The context is not a consistent cut.
    #[error("the context contradicts itself: {0}")]
    Inconsistent(#[from] Violation),
}

impl ChannelContext {
    /// Creates the context of a rank that has not started.
    #[must_use]
    #[doc(hidden)]
    pub const fn fresh(rank: Rank, geometry: Geometry) -> Self {
        Self {
            rank,
            geometry,
            freed: 0,
            consumed: 0,
            receive_tail: 0,
            peers: Vec::new(),
            send: Vec::new(),
            receive: Vec::new(),
            local: Vec::new(),
            full: Vec::new(),
            wait: WaitState::Running,
        }
    }

    /// Returns the number of messages ever sent.
    #[must_use]
    #[doc(hidden)]
    pub const fn sent(&self) -> u64 {
        self.freed + self.send.len() as u64
    }

    /// Returns the number of messages ever received.
    #[must_use]
    #[doc(hidden)]
    pub const fn received(&self) -> u64 {
        self.consumed + self.receive.len() as u64
    }

    /// Returns the bytes of all messages in the channel's FIFOs and rings.
    #[must_use]
    #[doc(hidden)]
    pub fn bytes(&self) -> usize {
        let sent: usize = self.send.iter().map(|m| m.bytes.len()).sum();
        let received: usize = self.receive.iter().map(|m| m.bytes.len()).sum();
        sent + received + self.local.iter().map(|m| m.bytes.len()).sum::<usize>()
    }

    /// Returns the messages that a peer has not accepted, with their numbers among all messages sent.
    pub(crate) fn unacked(&self, peer: Rank) -> impl Iterator<Item = (u64, &SentMessage)> {
        (self.freed..).zip(&self.send).filter(move |(_, m)| m.to == peer && !m.taken)
    }

    /// Returns the protocol state with a peer; all zero if no messages were exchanged.
    #[must_use]
    #[doc(hidden)]
    pub fn peer(&self, rank: Rank) -> PeerState {
        let none = PeerState { rank, acked: 0, next: 0, expected: 0, refusals: 0 };
        self.peers.iter().find(|peer| peer.rank == rank).copied().unwrap_or(none)
    }

    /// Checks that the rank's numbers agree with its FIFOs.
    ///
    /// # Errors
    /// The first [`Violation`].
    #[doc(hidden)]
    pub fn validate(&self) -> Result<(), Violation> {
        let wrong = |what| Err(Violation::Rank { rank: self.rank, what });
        let Geometry { send, receive, message } = self.geometry;
        if self.geometry.check().is_err() {
            return wrong("its FIFOs have invalid sizes");
        }
        let fits = |position: u64, length: usize, size: u32| {
            let size = u64::from(size);
            let is_within = position % size + length as u64 <= size;
            // A rank writes its positions: sums of them must not overflow.
            length <= message as usize && is_within && position <= u64::MAX / 2
        };
        if self.send.len() > send.messages as usize
            || self.receive.len() > receive.messages as usize
        {
            return wrong("a FIFO holds more messages than it has room for");
        }
        for m in &self.send {
            let bytes = if m.taken { 0 } else { m.length as usize };
            if !fits(m.position, m.length as usize, send.bytes) || m.bytes.len() != bytes {
                return wrong("a message lies outside its send FIFO");
            }
            if !m.taken && !self.peers.iter().any(|peer| peer.rank == m.to) {
                return wrong("a message is for a peer that is not listed");
            }
        }
        if self.local.iter().any(|m| m.bytes.len() > message as usize) {
            return wrong("a message in a ring is longer than the longest");
        }
        if self.receive.iter().any(|m| !fits(m.position, m.bytes.len(), receive.bytes)) {
            return wrong("a message lies outside its receive FIFO");
        }
        let span = |positions: &mut dyn Iterator<Item = u64>, tail: Option<u64>, size: u32| {
            let mut all: Vec<u64> = positions.collect();
            all.extend(tail);
            let spread = all.last().zip(all.first()).map_or(0, |(l, f)| l.wrapping_sub(*f));
            all.is_sorted() && spread <= u64::from(size)
        };
        // Empty messages occupy no space, so their positions don't matter.
        let sent = self.send.iter().filter(|m| m.length > 0).map(|m| m.position);
        let received = self.receive.iter().filter(|m| !m.bytes.is_empty()).map(|m| m.position);
        if self.receive_tail > u64::MAX / 2 {
            return wrong("the end of its receive FIFO is no position that a NIC writes");
        }
        if !span(&mut { sent }, None, send.bytes)
            || !span(&mut { received }, Some(self.receive_tail), receive.bytes)
        {
            return wrong("messages of a FIFO overlap");
        }
        if !self.peers.is_sorted_by(|a, b| a.rank < b.rank) {
            return wrong("its peers are not in order");
        }
        for peer in &self.peers {
            let waiting = self.unacked(peer.rank).count() as u32;
            if peer.next.wrapping_sub(peer.acked) != waiting {
                return wrong("a peer's numbers contradict the messages for it");
            }
        }
        Ok(())
    }
}

impl NetworkContext {
    /// Checks that this is a consistent cut. Sender and receiver of each pair must have the same counts, so that no
    /// message is lost or accepted twice. Each rank's numbers must agree with its FIFOs.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn validate(&self) -> Result<(), Violation> {
        let last = self.ranks.len().saturating_sub(1);
        for (index, channel) in self.ranks.iter().enumerate() {
            if channel.rank.index() != index {
                return Err(Violation::Ranks { index, found: channel.rank, last });
            }
            channel.validate()?;
            let near = channel.local.iter().map(|m| m.from).chain(channel.full.iter().copied());
            if near.into_iter().any(|rank| rank.index() > last) {
                let what = "a ring is of no rank of the job";
                return Err(Violation::Rank { rank: channel.rank, what });
            }
            for peer in &channel.peers {
                let Some(other) = self.ranks.get(peer.rank.index()) else {
                    return Err(Violation::Rank {
                        rank: channel.rank,
                        what: "a peer is not a rank of the job",
                    });
                };
                let back = other.peer(channel.rank);
                let sides = [
                    (channel.rank, peer.rank, peer.acked, back.expected),
                    (peer.rank, channel.rank, back.acked, peer.expected),
                ];
                for (from, to, acked, expected) in sides {
                    if acked != expected {
                        return Err(Violation::Counts { from, to, acked, expected });
                    }
                }
            }
        }
        Ok(())
    }

    /// Encodes the context as bytes, without a checksum.
    ///
    /// # Errors
    /// [`WireError::TooLong`] beyond 1 GiB.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WireError> {
        wire::encode_long(self)
    }

    /// Reads the bytes of [`NetworkContext::to_bytes`], and checks the context.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ReadError> {
        let context: Self = wire::decode_long(bytes)?;
        context.validate()?;
        Ok(context)
    }

    /// Returns all messages that were sent and not consumed.
    #[doc(hidden)]
    pub fn in_transit(&self) -> impl Iterator<Item = InTransit<'_>> {
        self.ranks.iter().flat_map(|channel| {
            let to = channel.rank;
            let received = channel.receive.iter().map(move |m| InTransit {
                from: m.from,
                to,
                place: MessageLocation::ReceiveFifo,
                bytes: &m.bytes,
            });
            let sent = channel.send.iter().filter(|m| !m.taken).map(move |m| InTransit {
                from: to,
                to: m.to,
                place: MessageLocation::SendFifo,
                bytes: &m.bytes,
            });
            let local = channel.local.iter().map(move |m| InTransit {
                from: m.from,
                to,
                place: MessageLocation::Ring,
                bytes: &m.bytes,
            });
            received.chain(local).chain(sent)
        })
    }

    /// Returns the contexts from which new processes of the ranks start. Messages in transit to a rank are in its
    /// past, those of one sender in order; otherwise the ranks have exchanged nothing.
    #[must_use]
    #[doc(hidden)]
    pub fn starts(&self) -> Vec<ChannelContext> {
        let fresh = |it: &ChannelContext| ChannelContext::fresh(it.rank, it.geometry);
        let mut starts: Vec<ChannelContext> = self.ranks.iter().map(fresh).collect();
        // Messages that have left a sender's FIFO are older than those in it. A pair of ranks uses either rings or
        // FIFOs.
        let places =
            [MessageLocation::ReceiveFifo, MessageLocation::Ring, MessageLocation::SendFifo];
        for place in places {
            for InTransit { from, to, bytes, .. } in
                self.in_transit().filter(|it| it.place == place)
            {
                let message = LocalMessage { from, bytes: bytes.clone() };
                starts[to.index()].local.push(message);
            }
        }
        starts
    }

    /// Returns the bytes of all messages in transit.
    #[must_use]
    #[doc(hidden)]
    pub fn bytes(&self) -> usize {
        self.in_transit().map(|message| message.bytes.len()).sum()
    }
}
