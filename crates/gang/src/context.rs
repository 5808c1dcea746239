//! Everything that the network knows of one job at one consistent cut.
//!
//! Ranks only: no host, no port, no address stands in it, so that it may be restored anywhere.

mod difference;
mod file;
mod text;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::channel::geometry::Geometry;
use crate::names::{Epoch, JobId, Rank};
use crate::wait::WaitState;

pub use difference::Difference;
pub use file::{FORMAT, ReadError};
pub(crate) use file::{seal, unseal};

/// The channel contexts of all ranks of a job, saved after all were steady.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct NetworkContext {
    /// Which job it was.
    pub job: JobId,
    /// The epoch that ended with this cut.
    pub epoch: Epoch,
    /// One of each rank, in order.
    pub ranks: Vec<ChannelContext>,
}

/// One rank's channel.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ChannelContext {
    /// The rank.
    pub rank: Rank,
    /// The sizes of its FIFOs.
    pub geometry: Geometry,
    /// Messages that it ever sent and that are no longer in the send FIFO.
    pub freed: u64,
    /// Messages that it ever consumed.
    pub consumed: u64,
    /// Where in the receive FIFO the next message is looked for room.
    pub receive_tail: u64,
    /// What it and its peers know of each other, by rank; who is not there was never spoken to.
    pub peers: Vec<PeerState>,
    /// The send FIFO, oldest first.
    pub send: Vec<SentMessage>,
    /// The receive FIFO, oldest first.
    pub receive: Vec<ReceivedMessage>,
    /// What its process said that it waits for.
    pub wait: WaitState,
}

/// What a rank and one peer know of each other: numbers of messages modulo 2^32.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct PeerState {
    /// The peer.
    pub rank: Rank,
    /// The first message to it that it has not taken.
    pub acked: u32,
    /// The number of the next message to it.
    pub next: u32,
    /// The next message from it to take.
    pub expected: u32,
    /// Times in a row that it refused the first.
    pub refusals: u32,
}

/// A message in a send FIFO.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct SentMessage {
    /// Whom it is for.
    pub to: Rank,
    /// Where it lies in the FIFO.
    pub position: u64,
    /// Its bytes, as many.
    pub length: u32,
    /// Its receiver has it; its room waits for older messages'.
    pub taken: bool,
    /// Its bytes; none if it is taken.
    #[serde(with = "text")]
    pub bytes: Bytes,
}

/// A message in a receive FIFO.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct ReceivedMessage {
    /// Who sent it.
    pub from: Rank,
    /// Where it lies in the FIFO.
    pub position: u64,
    /// Its bytes.
    #[serde(with = "text")]
    pub bytes: Bytes,
}

/// Where a message of the cut is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Where {
    /// In the send FIFO of the rank that sent it.
    SendFifo,
    /// In the receive FIFO of the rank that it is for.
    ReceiveFifo,
}

/// A message that was sent and not consumed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InTransit<'a> {
    /// Who sent it.
    pub from: Rank,
    /// Whom it is for.
    pub to: Rank,
    /// Where it is.
    pub place: Where,
    /// Its bytes.
    pub bytes: &'a Bytes,
}

/// Why a context is no consistent cut.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Violation {
    /// A rank is missing, doubled, or out of order.
    #[error("place {index} holds rank {found}: the ranks are not 0 to {last}")]
    Ranks {
        /// Where in the list.
        index: usize,
        /// What is there.
        found: Rank,
        /// The last that there should be.
        last: usize,
    },
    /// The two ends of a channel count differently.
    #[error(
        "rank {from} says that rank {to} has taken all before {acked}, rank {to} before {expected}"
    )]
    Counts {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// What the sender says.
        acked: u32,
        /// What the receiver says.
        expected: u32,
    },
    /// A rank's own numbers contradict its FIFOs.
    #[error("rank {rank}: {what}")]
    Rank {
        /// The rank.
        rank: Rank,
        /// What is wrong.
        what: &'static str,
    },
}

impl ChannelContext {
    /// A rank that has not begun.
    #[must_use]
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
            wait: WaitState::Running,
        }
    }

    /// Messages that the rank ever sent.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.freed + self.send.len() as u64
    }

    /// Messages that the rank ever received.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.consumed + self.receive.len() as u64
    }

    /// Bytes of the messages in its FIFOs.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let sent: usize = self.send.iter().map(|m| m.bytes.len()).sum();
        sent + self.receive.iter().map(|m| m.bytes.len()).sum::<usize>()
    }

    /// The messages to a peer that it has not taken, with their numbers among all that were sent.
    pub fn unacked(&self, peer: Rank) -> impl Iterator<Item = (u64, &SentMessage)> {
        (self.freed..).zip(&self.send).filter(move |(_, m)| m.to == peer && !m.taken)
    }

    /// What it knows of a peer; nothing, if they never spoke.
    #[must_use]
    pub fn peer(&self, rank: Rank) -> PeerState {
        let none = PeerState { rank, acked: 0, next: 0, expected: 0, refusals: 0 };
        self.peers.iter().find(|peer| peer.rank == rank).copied().unwrap_or(none)
    }

    /// Checks the rank's numbers against its FIFOs.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn validate(&self) -> Result<(), Violation> {
        let wrong = |what| Err(Violation::Rank { rank: self.rank, what });
        let Geometry { send, receive, message } = self.geometry;
        if self.geometry.check().is_err() {
            return wrong("its FIFOs have impossible sizes");
        }
        let fits = |position: u64, length: usize, size: u32| {
            let size = u64::from(size);
            length <= message as usize && position % size + length as u64 <= size
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
                return wrong("a message is for a peer that is not known");
            }
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
        // What has no bytes takes no room, wherever it lies.
        let sent = self.send.iter().filter(|m| m.length > 0).map(|m| m.position);
        let received = self.receive.iter().filter(|m| !m.bytes.is_empty()).map(|m| m.position);
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
                return wrong("a peer's numbers are not those of the messages for it");
            }
        }
        Ok(())
    }
}

impl NetworkContext {
    /// Checks that this is a consistent cut: both ends of each channel have counted the same, so no
    /// message is lost or will be taken twice, and every rank's numbers are those of its FIFOs.
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
            for peer in &channel.peers {
                let Some(other) = self.ranks.get(peer.rank.index()) else {
                    return Err(Violation::Rank { rank: channel.rank, what: "a peer is no rank" });
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

    /// All messages that were sent and not consumed.
    pub fn in_transit(&self) -> impl Iterator<Item = InTransit<'_>> {
        self.ranks.iter().flat_map(|channel| {
            let to = channel.rank;
            let received = channel.receive.iter().map(move |m| InTransit {
                from: m.from,
                to,
                place: Where::ReceiveFifo,
                bytes: &m.bytes,
            });
            let sent = channel.send.iter().filter(|m| !m.taken).map(move |m| InTransit {
                from: to,
                to: m.to,
                place: Where::SendFifo,
                bytes: &m.bytes,
            });
            received.chain(sent)
        })
    }

    /// Bytes of all messages in transit.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.in_transit().map(|message| message.bytes.len()).sum()
    }
}
