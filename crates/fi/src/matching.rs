//! Matches messages with receives: a tag of 64 bits with an ignore mask, and the source.
//!
//! A message matches the oldest posted receive whose pattern accepts it. A receive matches the oldest message that its
//! pattern accepts. Tagged messages never match receives without a tag, nor the other way round.

mod index;
mod multi;
mod posted;

use std::collections::VecDeque;
use std::ffi::c_int;

use slab::Slab;

use index::Index;
use posted::Posted;

use crate::abi::constants::ADDR_UNSPEC;
use crate::memory::Buffer;
pub(crate) use multi::Multi;

/// Most receives, or messages, that are searched linearly: up to this number, a search is as fast as a hash.
const FEW: usize = 16;
/// Most tables of unexpected messages, one for each set of ignored bits and sources.
const MAX_TABLES: usize = 8;

/// The two kinds of messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Plain,
    Tagged,
}

/// Selects the messages that a receive or a peek accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    pub(crate) kind: Kind,
    /// The only source that matches, or `ADDR_UNSPEC` for any.
    pub(crate) source: u64,
    pub(crate) tag: u64,
    /// Bits of the tag that may differ.
    pub(crate) ignore: u64,
}

impl Pattern {
    #[inline]
    const fn wants(&self, tag: u64, source: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0
            && (self.source == ADDR_UNSPEC || self.source == source)
    }
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub(crate) pattern: Pattern,
    pub(crate) buffer: Buffer,
    pub(crate) context: usize,
    pub(crate) reports: bool,
    /// The buffer for several messages to which this receive belongs.
    pub(crate) multi: Option<usize>,
}

/// The description of a message by its sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) kind: Kind,
    /// Number of the sender among the endpoint's peers.
    pub(crate) peer: usize,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) length: usize,
}

/// A message with the buffer that receives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matched {
    pub(crate) envelope: Envelope,
    pub(crate) buffer: Buffer,
    pub(crate) context: usize,
    pub(crate) reports: bool,
    pub(crate) multi: Option<usize>,
}

/// The bytes of an unexpected message, or the handle to request them.
#[derive(Debug)]
pub(crate) enum Body {
    /// In this process; `true` if all have arrived.
    Here(Vec<u8>, bool),
    /// At the sender, which sent an RTS with this handle.
    Announced(u64),
}

/// A message that arrived before its receive.
#[derive(Debug)]
pub(crate) struct Unexpected {
    pub(crate) envelope: Envelope,
    pub(crate) body: Body,
    /// The receive that gets the message when all of it has arrived.
    pub(crate) receiver: Option<Matched>,
    /// True if the message is dropped when all of it has arrived.
    pub(crate) is_discarded: bool,
    /// The order of arrival: the oldest message has the smallest stamp.
    stamp: u64,
    /// True while searches find the message.
    is_listed: bool,
    /// The context of the peek that has claimed the message.
    claim: Option<usize>,
}

/// The unexpected messages of one kind that searches find.
#[derive(Debug)]
struct Waiting {
    few: VecDeque<usize>,
    /// Number of messages in the index; while it is not 0, the list is empty.
    many: usize,
    index: Index,
}

/// The posted receives and the unexpected messages of an endpoint.
#[derive(Debug)]
pub(crate) struct Matching {
    posted: [Posted; 2],
    waiting: [Waiting; 2],
    /// Messages that a peek has claimed.
    claimed: Vec<usize>,
    kept: u64,
    /// Unexpected messages, including those whose receive waits for the rest of the bytes.
    pub(crate) messages: Slab<Unexpected>,
    pub(crate) multis: Slab<Multi>,
    /// Released buffers for several messages whose release no message's completion reports.
    pub(crate) released: Vec<Multi>,
    /// Bytes that a buffer for several messages must have left for the next one.
    pub(crate) least_multi: usize,
}

impl Matching {
    /// Creates the state of an endpoint; `seed` is for hashes.
    pub(crate) const fn new(least_multi: usize, seed: u64) -> Self {
        Self {
            posted: [Posted::new(seed), Posted::new(seed)],
            waiting: [Waiting::new(seed), Waiting::new(seed)],
            claimed: Vec::new(),
            kept: 0,
            messages: Slab::new(),
            multis: Slab::new(),
            released: Vec::new(),
            least_multi,
        }
    }

    pub(crate) fn post(&mut self, receive: Receive) {
        self.posted[receive.pattern.kind as usize].push(receive);
    }

    /// Takes the oldest receive that accepts a message from `source`, or the next part of its buffer.
    #[inline]
    pub(crate) fn arrive(&mut self, envelope: Envelope, source: u64) -> Option<Matched> {
        let queue = envelope.kind as usize;
        while let Some((place, receive)) = self.posted[queue].find(envelope.tag, source) {
            let (matched, stays) = self.give(&receive, envelope);
            if !stays {
                self.posted[queue].remove(place);
            }
            if matched.is_some() {
                return matched;
            }
        }
        None
    }

    /// Passes a message to a receive that accepts it. Returns `None` if the message does not fit into the rest of a
    /// buffer for several. Also returns whether the receive accepts more messages.
    #[inline]
    pub(crate) fn give(
        &mut self,
        receive: &Receive,
        envelope: Envelope,
    ) -> (Option<Matched>, bool) {
        let Receive { buffer, context, reports, multi, .. } = *receive;
        let matched = Matched { envelope, buffer, context, reports, multi };
        let Some(key) = multi else { return (Some(matched), false) };
        let (part, is_retired) = self.multis[key].take(envelope.length, self.least_multi);
        if is_retired {
            self.release(key);
        }
        (part.map(|buffer| Matched { buffer, ..matched }), !is_retired)
    }

    /// Releases a buffer for several messages if no message in it is incomplete.
    fn release(&mut self, key: usize) {
        if self.multis[key].is_released() {
            let multi = self.multis.remove(key);
            self.released.push(multi);
        }
    }

    /// Ends a message's use of a buffer for several. Returns whether this releases the buffer, and the message's
    /// completion reports that. The release of a failed receive's buffer has a completion of its own.
    pub(crate) fn leave(&mut self, key: usize) -> bool {
        if !self.multis[key].leave() {
            return false;
        }
        let multi = self.multis.remove(key);
        let is_failed = multi.failed.is_some();
        if is_failed {
            self.released.push(multi);
        }
        !is_failed
    }

    /// Adds an unexpected message; returns its key.
    pub(crate) fn keep(&mut self, envelope: Envelope, body: Body) -> usize {
        self.kept += 1;
        let key = self.messages.insert(Unexpected {
            envelope,
            body,
            receiver: None,
            is_discarded: false,
            stamp: self.kept,
            is_listed: true,
            claim: None,
        });
        self.waiting[envelope.kind as usize].push(key, &self.messages);
        key
    }

    /// Returns the key of the oldest unexpected message that a pattern accepts and no peek has claimed. The pattern's
    /// source is the number of a peer.
    pub(crate) fn find(&mut self, pattern: &Pattern) -> Option<usize> {
        self.waiting[pattern.kind as usize].find(pattern, &self.messages)
    }

    /// Reserves an unexpected message for the receive that names the same context.
    pub(crate) fn claim(&mut self, key: usize, context: usize) {
        self.unlist(key);
        self.messages[key].claim = Some(context);
        self.claimed.push(key);
    }

    /// Returns the key of the message that was claimed with a context.
    pub(crate) fn claimed(&self, kind: Kind, context: usize) -> Option<usize> {
        self.claimed.iter().copied().find(|key| {
            let Unexpected { envelope, claim, .. } = &self.messages[*key];
            *claim == Some(context) && envelope.kind == kind
        })
    }

    /// Hides a message from searches; it stays under its key.
    pub(crate) fn unlist(&mut self, key: usize) {
        let message = &mut self.messages[key];
        if message.claim.take().is_some() {
            self.claimed.retain(|claimed| *claimed != key);
        }
        if std::mem::take(&mut message.is_listed) {
            self.waiting[message.envelope.kind as usize].remove(key, message);
        }
    }

    /// Removes the receive that was posted with this context.
    pub(crate) fn cancel(&mut self, context: usize) -> Option<Receive> {
        self.posted.iter_mut().find_map(|posted| posted.cancel(context))
    }

    /// Ends a receive with an error; it is no longer posted. Returns whether it completes now. If messages still use its
    /// buffer, it completes after the last of them.
    pub(crate) fn fail(&mut self, receive: &Receive, error: c_int) -> bool {
        let Some(key) = receive.multi else { return true };
        let is_released = self.multis[key].retire(*receive, error);
        if is_released {
            self.multis.remove(key);
        }
        is_released
    }

    /// Takes all receives that match only messages from `source`.
    pub(crate) fn take_posted_of(&mut self, source: u64) -> Vec<Receive> {
        self.posted.iter_mut().flat_map(|posted| posted.take_of(source)).collect()
    }

    /// Removes the incomplete messages of a peer. Returns the receives that wait for them.
    pub(crate) fn take_incomplete_of(&mut self, peer: usize) -> Vec<Matched> {
        let is_incomplete = |message: &Unexpected| {
            message.envelope.peer == peer && !matches!(message.body, Body::Here(_, true))
        };
        let keys: Vec<_> = self
            .messages
            .iter()
            .filter(|(_, message)| is_incomplete(message))
            .map(|(key, _)| key)
            .collect();
        let mut waiting = Vec::new();
        for key in keys {
            self.unlist(key);
            waiting.extend(self.messages.remove(key).receiver);
        }
        waiting
    }
}

impl Waiting {
    const fn new(seed: u64) -> Self {
        Self { few: VecDeque::new(), many: 0, index: Index::new(seed) }
    }

    fn push(&mut self, key: usize, messages: &Slab<Unexpected>) {
        if self.many == 0 && self.few.len() < FEW {
            return self.few.push_back(key);
        }
        self.many += self.few.len() + 1;
        // Tables are opened by searches only.
        self.few.clear();
        let Unexpected { envelope, stamp, .. } = &messages[key];
        self.index.add_message(envelope.tag, envelope.peer as u64, (*stamp, key));
    }

    #[inline]
    fn find(&mut self, pattern: &Pattern, messages: &Slab<Unexpected>) -> Option<usize> {
        let wants = |message: &Unexpected| {
            pattern.wants(message.envelope.tag, message.envelope.peer as u64)
        };
        if self.many == 0 {
            return self.few.iter().copied().find(|key| wants(&messages[*key]));
        }
        let is_listed =
            |message: &Unexpected| message.is_listed && message.envelope.kind == pattern.kind;
        let listed = messages.iter().filter(|(_, message)| is_listed(message));
        if !self.index.has(pattern) {
            if self.index.tables() == MAX_TABLES {
                let wanted = listed.filter(|(_, message)| wants(message));
                return wanted.min_by_key(|(_, message)| message.stamp).map(|(key, _)| key);
            }
            let entries = listed.map(|(key, Unexpected { envelope, stamp, .. })| {
                (envelope.tag, envelope.peer as u64, (*stamp, key))
            });
            self.index.open(pattern, entries);
        }
        self.index.oldest_wanted(pattern)
    }

    fn remove(&mut self, key: usize, message: &Unexpected) {
        if self.many == 0 {
            if let Some(at) = self.few.iter().position(|listed| *listed == key) {
                self.few.remove(at);
            }
            return;
        }
        let Unexpected { envelope, stamp, .. } = message;
        self.index.remove_message(envelope.tag, envelope.peer as u64, *stamp);
        self.many -= 1;
        if self.many == 0 {
            self.index.clear();
        }
    }
}

#[cfg(test)]
mod tests;
