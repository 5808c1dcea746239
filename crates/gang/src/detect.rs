//! Detects from a consistent cut whether a job has terminated or is deadlocked, and why.
//!
//! Both properties are stable: if the cut has one of them, the job keeps it. Processes publish what they wait for
//! ([`Channel::wait_as`](crate::channel::Channel::wait_as)). A process that publishes nothing counts as computing.
//! Since it may wake the processes that wait for it, its job counts as neither terminated nor deadlocked. The cut
//! contains all messages in transit (SCore-D paper, section 4).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::channel::geometry::{ByteRing, FifoSize, Geometry};
use crate::context::{ChannelContext, NetworkContext};
use crate::names::Rank;
use crate::wait::WaitState;

/// The state of a job at a cut. States other than [`Verdict::Live`] last forever.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// At least one process can make progress, and no process is deadlocked.
    Live,
    /// All processes are idle, and no message will wake one.
    Terminated,
    /// Some processes wait for each other, or for processes that will never send again.
    Deadlocked(Deadlock),
}

/// Ranks that will never make progress.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Deadlock {
    /// Wait state of each of these ranks.
    pub waiting: BTreeMap<Rank, WaitState>,
    /// Ranks that wait for each other in a cycle: each for the next, and the last for the first. Empty if the ranks
    /// wait for ranks that have terminated.
    pub cycle: Vec<Rank>,
    /// Messages in transit to these ranks, which match none of the ranks' receives.
    pub unmatched: Vec<Unmatched>,
}

/// A message in transit that matches no receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unmatched {
    /// The sending rank.
    pub from: Rank,
    /// The receiving rank.
    pub to: Rank,
    /// The message's tag; `None` if it has none.
    pub tag: Option<u32>,
    /// The message's length, in bytes.
    pub length: usize,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(first) = self.cycle.first() {
            let names: Vec<String> = self.cycle.iter().map(Rank::to_string).collect();
            writeln!(f, "cycle: {} > {first}", names.join(" > "))?;
        }
        for (rank, state) in &self.waiting {
            match state {
                WaitState::Receive { from, tag } => {
                    let tag = tag.map_or_else(|| "any tag".to_owned(), |tag| format!("tag {tag}"));
                    let from =
                        from.map_or_else(|| "any rank".to_owned(), |from| format!("rank {from}"));
                    write!(f, "rank {rank} waits for {tag} from {from}")?;
                }
                WaitState::Send { to } => write!(f, "rank {rank} waits for room to send to {to}")?,
                WaitState::Message { from: Some(from) } => {
                    write!(f, "rank {rank} waits for rank {from}")?;
                }
                WaitState::Message { from: None } => write!(f, "rank {rank} waits for a message")?,
                other => write!(f, "rank {rank}: {other:?}")?,
            }
            for it in self.unmatched.iter().filter(|it| it.to == *rank) {
                let tag = it.tag.map_or_else(|| "no tag".to_owned(), |tag| format!("tag {tag}"));
                write!(f, "; {} has sent {tag}, {} bytes", it.from, it.length)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl NetworkContext {
    /// Returns whether the job has terminated or is deadlocked. A message's tag is its first four bytes, little-endian. A
    /// shorter message matches only receives of any tag.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict_without(&BTreeSet::new())
    }

    /// Returns whether the job has terminated or is deadlocked. The processes of the ranks `ended` have ended.
    pub(crate) fn verdict_without(&self, ended: &BTreeSet<Rank>) -> Verdict {
        let cut = Cut { context: self, ended };
        let stuck = cut.stuck();
        let is_waiting =
            |rank: &Rank| !matches!(cut.state(*rank), WaitState::Running | WaitState::Idle);
        let waiting: BTreeSet<Rank> = stuck.iter().copied().filter(is_waiting).collect();
        if !waiting.is_empty() {
            return Verdict::Deadlocked(cut.deadlock(&waiting));
        }
        match stuck.len() == self.ranks.len() {
            true => Verdict::Terminated,
            false => Verdict::Live,
        }
    }
}

impl ChannelContext {
    /// Returns whether the send FIFO has room for the longest message: the length of the next one is unknown.
    fn can_send(&self) -> bool {
        let Geometry { send, message, .. } = self.geometry;
        let mut ring = ByteRing::default();
        self.send.iter().for_each(|m| ring.take(m.position, m.length));
        self.send.len() < send.messages as usize && ring.place(send.bytes, message).is_some()
    }

    /// Returns whether the receive FIFO has room for a message of `length` bytes.
    fn can_receive(&self, length: u32) -> bool {
        let FifoSize { messages, bytes } = self.geometry.receive;
        let head = self.receive.first().map_or(self.receive_tail, |m| m.position);
        let ring = ByteRing { head, tail: self.receive_tail };
        self.receive.len() < messages as usize && ring.place(bytes, length).is_some()
    }
}

/// Returns a message's tag, if it has one.
fn leading_tag(message: &[u8]) -> Option<u32> {
    message.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

struct Cut<'a> {
    context: &'a NetworkContext,
    /// Ranks whose processes have ended: they send and consume nothing, but their NICs accept messages.
    ended: &'a BTreeSet<Rank>,
}

impl Cut<'_> {
    fn state(&self, rank: Rank) -> WaitState {
        match self.ended.contains(&rank) {
            true => WaitState::Idle,
            false => self.context.ranks[rank.index()].wait,
        }
    }

    /// Returns whether a rank can make progress by itself: it computes, or the cut contains what it waits for.
    fn is_fed(&self, rank: Rank) -> bool {
        if self.ended.contains(&rank) {
            return false;
        }
        let mut to_it = self.context.in_transit().filter(|message| message.to == rank);
        match self.state(rank) {
            WaitState::Running => true,
            WaitState::Idle | WaitState::Message { .. } => to_it.next().is_some(),
            WaitState::Receive { from, tag } => to_it.any(|message| {
                from.is_none_or(|from| from == message.from)
                    && tag.is_none_or(|tag| leading_tag(message.bytes) == Some(tag))
            }),
            WaitState::Send { to } if self.has_full_ring(rank, to) => self.consumes(to),
            WaitState::Send { .. } => {
                self.context.ranks[rank.index()].can_send()
                    || self.holders(rank).into_iter().any(|(to, length)| self.takes(to, length))
            }
        }
    }

    /// Returns the ranks that have not yet accepted messages of this rank, each with the length of the first one.
    fn holders(&self, rank: Rank) -> BTreeMap<Rank, u32> {
        let send = &self.context.ranks[rank.index()].send;
        // Of several messages to a rank, the first one remains.
        send.iter().rev().filter(|m| !m.taken).map(|m| (m.to, m.length)).collect()
    }

    /// Returns whether the ring between two ranks has no room for the longest message.
    fn has_full_ring(&self, from: Rank, to: Rank) -> bool {
        self.context.ranks.get(to.index()).is_some_and(|context| context.full.contains(&from))
    }

    /// Returns whether a rank's process consumes messages: it has not ended, and does not wait for room.
    fn consumes(&self, rank: Rank) -> bool {
        !self.ended.contains(&rank) && !matches!(self.state(rank), WaitState::Send { .. })
    }

    /// Returns whether a rank accepts a message: its receive FIFO has room, or its process consumes messages.
    fn takes(&self, rank: Rank, length: u32) -> bool {
        self.context.ranks[rank.index()].can_receive(length) || self.consumes(rank)
    }

    /// Returns the ranks of which any one may end this rank's wait.
    fn frees(&self, rank: Rank) -> Vec<Rank> {
        let others =
            || (0..self.context.ranks.len() as u16).map(Rank).filter(move |other| *other != rank);
        match self.state(rank) {
            _ if self.ended.contains(&rank) => Vec::new(),
            WaitState::Running => Vec::new(),
            WaitState::Idle | WaitState::Message { .. } | WaitState::Receive { from: None, .. } => {
                others().collect()
            }
            WaitState::Receive { from: Some(from), .. } => vec![from],
            WaitState::Send { to } if self.has_full_ring(rank, to) => vec![to],
            // A rank that accepts messages of this rank frees room in this rank's send FIFO.
            WaitState::Send { .. } => self.holders(rank).into_keys().collect(),
        }
    }

    /// Returns the ranks that will never make progress. Starts with the ranks that can't make progress by themselves.
    /// Removes those that a rank outside the set may free, until no more can be removed.
    fn stuck(&self) -> BTreeSet<Rank> {
        let all = (0..self.context.ranks.len() as u16).map(Rank);
        let mut stuck: BTreeSet<Rank> = all.filter(|rank| !self.is_fed(*rank)).collect();
        loop {
            let freed: Vec<Rank> = stuck
                .iter()
                .copied()
                .filter(|rank| self.frees(*rank).iter().any(|other| !stuck.contains(other)))
                .collect();
            if freed.is_empty() {
                return stuck;
            }
            stuck.retain(|rank| !freed.contains(rank));
        }
    }

    fn deadlock(&self, waiting: &BTreeSet<Rank>) -> Deadlock {
        let states = waiting.iter().map(|rank| (*rank, self.state(*rank)));
        let unmatched = self.context.in_transit().filter(|message| waiting.contains(&message.to));
        let unmatched = unmatched.map(|message| Unmatched {
            from: message.from,
            to: message.to,
            tag: leading_tag(message.bytes),
            length: message.bytes.len(),
        });
        Deadlock {
            waiting: states.collect(),
            cycle: self.cycle(waiting),
            unmatched: unmatched.collect(),
        }
    }

    /// Returns the ranks that this rank waits for, by its published state.
    fn waits_for(&self, rank: Rank) -> Vec<Rank> {
        match self.state(rank) {
            WaitState::Message { from: Some(from) } => vec![from],
            _ => self.frees(rank),
        }
    }

    /// Returns a cycle of waiting ranks, found by following the ranks' waits until a rank occurs twice.
    fn cycle(&self, waiting: &BTreeSet<Rank>) -> Vec<Rank> {
        for first in waiting {
            let mut path = vec![*first];
            let mut at = *first;
            while let Some(next) =
                self.waits_for(at).into_iter().find(|next| waiting.contains(next))
            {
                if let Some(begin) = path.iter().position(|rank| *rank == next) {
                    return path.split_off(begin);
                }
                path.push(next);
                at = next;
            }
        }
        Vec::new()
    }
}
