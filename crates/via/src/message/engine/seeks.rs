//! Questions of a receiver to a sender: hints that found no receive, and searches for the messages that wait
//! at their sender.
//!
//! All messages of a context that are stored here were sent before those that wait at their sender, so a
//! receive searches here first. If it finds none and the sender has sent a matching hint, it asks the sender.
//! Receives ask one after another, in the order in which they were posted. Until the answer arrives, no receive
//! takes a hinted message of that sender: the answer may be that message, or an earlier one.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::envelope::{Context, Tag};
use crate::message::matching::{Key, Pattern, PostedId};
use crate::message::request::Request;

/// Keys of one sender's hints that are stored; if there are more, every pattern counts as matching.
const KEYS: usize = 64;

/// Keys of hints that found no receive: they show whether asking their sender may find a message.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    keys: BTreeSet<(Context, Tag)>,
    /// True if there were more keys than are stored.
    any: bool,
}

impl Forgotten {
    pub(super) fn add(&mut self, key: Key) {
        self.any |= !self.keys.contains(&(key.context, key.tag)) && self.keys.len() >= KEYS;
        if !self.any {
            self.keys.insert((key.context, key.tag));
        }
    }

    pub(super) fn accepts(&self, pattern: &Pattern) -> bool {
        self.any || self.range(pattern).next().is_some()
    }

    /// Forgets the keys of a pattern for which the sender has no more messages.
    pub(super) fn remove(&mut self, pattern: &Pattern) {
        let gone: Vec<_> = self.range(pattern).collect();
        gone.iter().for_each(|key| {
            self.keys.remove(key);
        });
    }

    fn range(&self, pattern: &Pattern) -> impl Iterator<Item = (Context, Tag)> + '_ {
        let context = pattern.context;
        let (first, last) = pattern.tag.map_or((Tag(0), Tag(u32::MAX)), |tag| (tag, tag));
        self.keys.range((context, first)..=(context, last)).copied()
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty() && !self.any
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The receive or probe for which a sender is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seeker {
    pub(super) pattern: Pattern,
    /// The receive, with the stamp of its posting; `None` for a probe.
    pub(super) receive: Option<(u64, Request)>,
}

/// A message that waits at its sender and is reserved for this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) key: Key,
    /// The handle of the sender's request.
    pub(super) sender: u64,
    pub(super) length: u32,
    /// True if the message is the first one of its context, not only of its tag.
    pub(super) any_tag: bool,
}

impl Offer {
    /// Returns whether this is its sender's first message that matches a pattern.
    pub(super) fn is_first_of(&self, pattern: &Pattern) -> bool {
        pattern.accepts(self.key) && (self.any_tag || pattern.tag.is_some())
    }
}

/// The state of this process's questions to one sender.
#[derive(Debug, Default)]
pub(super) struct Seeks {
    pub(super) forgotten: Forgotten,
    /// The question that is open.
    pub(super) asking: Option<Seeker>,
    /// Receives that have yet to ask, by the stamp of their posting.
    pub(super) queue: BTreeMap<u64, Request>,
    /// True if a hint that matched a receive was stored since the question was asked.
    pub(super) missed: bool,
    /// The message that a probe has found.
    pub(super) found: Option<Offer>,
}

impl Seeks {
    /// Returns whether a posted receive has yet to ask, or waits for its answer.
    pub(super) fn is_unsettled(&self, posted: PostedId) -> bool {
        let stamp = posted.stamp();
        let asks = self.asking.and_then(|seeker| seeker.receive);
        self.queue.contains_key(&stamp) || asks.is_some_and(|(at, _)| at == stamp)
    }

    /// Returns whether no message is known to wait at the sender.
    pub(super) fn is_quiet(&self) -> bool {
        self.forgotten.is_empty()
            && self.asking.is_none()
            && self.queue.is_empty()
            && self.found.is_none()
    }
}
