//! What a consistent cut says of a job: that it has terminated, or that it is deadlocked, and why.
//!
//! Both are stable: what is true of the cut stays true. Processes say what they wait for
//! ([`Channel::wait_as`](crate::channel::Channel::wait_as)); one that says nothing counts as one that computes, and those
//! that wait for it may go on, so its job is found neither terminated nor deadlocked. The cut has all messages; there is no third place for anything to hide (SCore-D
//! paper, section 4).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::context::NetworkContext;
use crate::names::Rank;
use crate::wait::WaitState;

/// Reads the tag of a job's messages.
pub trait Tags {
    /// A message's tag; `None` if it has none: such a message meets only receives of any tag.
    fn tag(&self, message: &[u8]) -> Option<u32>;
}

/// Messages have no tags.
#[derive(Clone, Copy, Debug, Default)]
pub struct Untagged;

impl Tags for Untagged {
    fn tag(&self, _: &[u8]) -> Option<u32> {
        None
    }
}

/// A message's first four bytes, little-endian, are its tag.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeadingTag;

impl Tags for LeadingTag {
    fn tag(&self, message: &[u8]) -> Option<u32> {
        message.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }
}

/// What is true of a cut, and of everything after it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Something can go on.
    Live,
    /// Nobody does anything, and no message will make anybody.
    Terminated,
    /// These ranks wait for each other, or for those that have nothing more to send.
    Deadlocked(Deadlock),
}

/// Ranks that will never go on.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Deadlock {
    /// Who waits for what.
    pub waiting: BTreeMap<Rank, WaitState>,
    /// Ranks of which each waits for the next, and the last for the first; none, if they wait for
    /// ranks that have terminated.
    pub cycle: Vec<Rank>,
    /// Messages for these ranks that meet none of their receives: from, to, tag, bytes.
    pub unmatched: Vec<Unmatched>,
}

/// A message that is there and meets no receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unmatched {
    /// Who sent it.
    pub from: Rank,
    /// Whom it is for.
    pub to: Rank,
    /// Its tag.
    pub tag: Option<u32>,
    /// Its bytes, how many.
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
                        from.map_or_else(|| "anyone".to_owned(), |from| format!("rank {from}"));
                    write!(f, "rank {rank} waits for {tag} from {from}")?;
                }
                WaitState::Send { to } => write!(f, "rank {rank} waits for room to send to {to}")?,
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
    /// What is true of this cut and of everything after it.
    #[must_use]
    pub fn verdict(&self, tags: &impl Tags) -> Verdict {
        let cut = Cut::new(self, tags);
        let stuck = cut.stuck();
        let is_waiting = |rank: &Rank| {
            let state = cut.states[rank.index()];
            matches!(state, WaitState::Receive { .. } | WaitState::Send { .. })
        };
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

struct Cut<'a, T> {
    context: &'a NetworkContext,
    tags: &'a T,
    states: Vec<WaitState>,
}

impl<'a, T: Tags> Cut<'a, T> {
    fn new(context: &'a NetworkContext, tags: &'a T) -> Self {
        let states = context.ranks.iter().map(|channel| channel.wait).collect();
        Self { context, tags, states }
    }

    /// Whether a message that is there already lets a rank go on.
    fn is_fed(&self, rank: Rank) -> bool {
        let mut to_it = self.context.in_transit().filter(|message| message.to == rank);
        match self.states[rank.index()] {
            WaitState::Running => true,
            WaitState::Idle => to_it.next().is_some(),
            WaitState::Receive { from, tag } => to_it.any(|message| {
                from.is_none_or(|from| from == message.from)
                    && tag.is_none_or(|tag| self.tags.tag(message.bytes) == Some(tag))
            }),
            WaitState::Send { .. } => {
                let channel = &self.context.ranks[rank.index()];
                let room = channel.send.len() < channel.geometry.send.messages as usize;
                let bytes: usize = channel.send.iter().map(|m| m.length as usize).sum();
                let most = channel.geometry.send.bytes as usize;
                // Room for the longest message, whatever its length is.
                let has_room = room && bytes + channel.geometry.message as usize <= most;
                has_room || self.holders(rank).iter().any(|holder| self.takes(*holder))
            }
        }
    }

    /// Ranks that have messages of this one to take.
    fn holders(&self, rank: Rank) -> BTreeSet<Rank> {
        let send = &self.context.ranks[rank.index()].send;
        send.iter().filter(|m| !m.taken).map(|m| m.to).collect()
    }

    /// Whether a rank takes messages as it is: its NIC has room for them, or it makes some.
    fn takes(&self, rank: Rank) -> bool {
        let channel = &self.context.ranks[rank.index()];
        let room = channel.receive.len() < channel.geometry.receive.messages as usize;
        let bytes: usize = channel.receive.iter().map(|m| m.bytes.len()).sum();
        let most = channel.geometry.receive.bytes as usize;
        let has_room = room && bytes + channel.geometry.message as usize <= most;
        has_room || !matches!(self.states[rank.index()], WaitState::Send { .. })
    }

    /// Whom a rank waits for: any of them may free it.
    fn frees(&self, rank: Rank) -> Vec<Rank> {
        let others = || (0..self.states.len() as u16).map(Rank).filter(move |other| *other != rank);
        match self.states[rank.index()] {
            WaitState::Running => Vec::new(),
            WaitState::Idle | WaitState::Receive { from: None, .. } => others().collect(),
            WaitState::Receive { from: Some(from), .. } => vec![from],
            // Whoever has messages of this rank to take makes room by taking them.
            WaitState::Send { .. } => self.holders(rank).into_iter().collect(),
        }
    }

    /// Ranks that will never go on: what remains when those that can, and those whom they may free,
    /// are taken away again and again.
    fn stuck(&self) -> BTreeSet<Rank> {
        let all = (0..self.states.len() as u16).map(Rank);
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
        let states = waiting.iter().map(|rank| (*rank, self.states[rank.index()]));
        let unmatched = self.context.in_transit().filter(|message| waiting.contains(&message.to));
        let unmatched = unmatched.map(|message| Unmatched {
            from: message.from,
            to: message.to,
            tag: self.tags.tag(message.bytes),
            length: message.bytes.len(),
        });
        Deadlock {
            waiting: states.collect(),
            cycle: self.cycle(waiting),
            unmatched: unmatched.collect(),
        }
    }

    /// Follows who waits for whom until a rank comes twice.
    fn cycle(&self, waiting: &BTreeSet<Rank>) -> Vec<Rank> {
        for first in waiting {
            let mut path = vec![*first];
            let mut at = *first;
            while let Some(next) = self.frees(at).into_iter().find(|next| waiting.contains(next)) {
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
