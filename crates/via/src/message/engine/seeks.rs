//! What a receiver asks a sender for: messages that wait there, and that it was told of in vain.
//!
//! All messages of a context that are here were sent before those that wait with their sender, so
//! a receive looks here first. If it finds nothing, and its sender has hinted at such a message, it
//! asks, one receive after another in the order in which they were posted. Until the answer has come,
//! no receive takes a message that the sender hints at: the answer may be that message, or an earlier
//! one.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::envelope::{Context, Tag};
use crate::message::matching::{Key, Pattern, PostedId};
use crate::message::request::Request;

/// Keys of one sender's hints that are remembered one by one; more are remembered as any.
const KEYS: usize = 64;

/// Hints that found no receive: whether asking their sender may be of use.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    keys: BTreeSet<(Context, Tag)>,
    /// There were more than are remembered.
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

    /// The sender has no more messages that this pattern asks for.
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

/// Who asks a sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seeker {
    pub(super) pattern: Pattern,
    /// The receive that asks, and when it was posted; `None` for a probe.
    pub(super) receive: Option<(u64, Request)>,
}

/// A message that waits with its sender and is reserved for this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) key: Key,
    /// The sender's request.
    pub(super) sender: u64,
    pub(super) length: u32,
    /// It is the first of its context, not only of its tag.
    pub(super) any_tag: bool,
}

impl Offer {
    /// Whether this is the first message of its sender that a pattern asks for.
    pub(super) fn is_first_of(&self, pattern: &Pattern) -> bool {
        pattern.accepts(self.key) && (self.any_tag || pattern.tag.is_some())
    }
}

/// What this process asks one sender.
#[derive(Debug, Default)]
pub(super) struct Seeks {
    pub(super) forgotten: Forgotten,
    /// The question that is open.
    pub(super) asking: Option<Seeker>,
    /// Receives that will ask, by when they were posted.
    pub(super) queue: BTreeMap<u64, Request>,
    /// A hint that a receive waits for was passed over since the question was asked.
    pub(super) missed: bool,
    /// What a probe has found.
    pub(super) found: Option<Offer>,
}

impl Seeks {
    /// Whether a posted receive still has to ask, or waits for its answer.
    pub(super) fn is_unsettled(&self, posted: PostedId) -> bool {
        let stamp = posted.stamp();
        let asks = self.asking.and_then(|seeker| seeker.receive);
        self.queue.contains_key(&stamp) || asks.is_some_and(|(at, _)| at == stamp)
    }

    /// Whether nothing is known of messages that wait there.
    pub(super) fn is_quiet(&self) -> bool {
        self.forgotten.is_empty()
            && self.asking.is_none()
            && self.queue.is_empty()
            && self.found.is_none()
    }
}
