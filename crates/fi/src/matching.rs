//! Matches messages with receives: a tag of 64 bits with an ignore mask, and the source.
//!
//! A message matches the oldest posted receive that wants it, and a receive the oldest message that it wants. Tagged
//! messages and those without a tag never match each other's receives.

mod multi;

use std::collections::VecDeque;

use slab::Slab;

use crate::abi::constants::ADDR_UNSPEC;
use crate::memory::Buffer;
pub(crate) use multi::Multi;

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
    /// The buffer for several messages that this receive is of.
    pub(crate) multi: Option<usize>,
}

/// The description of a message, as its sender gave it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) kind: Kind,
    /// Number of the sender among the endpoint's peers.
    pub(crate) peer: usize,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) length: usize,
}

/// A message with the place where it is received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matched {
    pub(crate) envelope: Envelope,
    pub(crate) buffer: Buffer,
    pub(crate) context: usize,
    pub(crate) reports: bool,
    pub(crate) multi: Option<usize>,
}

/// Stores or names the bytes of an unexpected message.
#[derive(Debug)]
pub(crate) enum Body {
    /// Here; `true` if all have arrived.
    Here(Vec<u8>, bool),
    /// With the sender, under its handle.
    Announced(u64),
}

/// A message that arrived before its receive.
#[derive(Debug)]
pub(crate) struct Unexpected {
    pub(crate) envelope: Envelope,
    pub(crate) body: Body,
    /// The receive that gets the message once all of it has arrived.
    pub(crate) receiver: Option<Matched>,
    /// True if no receive gets it.
    pub(crate) is_discarded: bool,
    /// The context of the peek that has claimed the message.
    claim: Option<usize>,
}

/// The posted receives and the unexpected messages of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Matching {
    posted: [VecDeque<Receive>; 2],
    unexpected: [VecDeque<usize>; 2],
    /// Unexpected messages, and those whose receive waits for the rest of them.
    pub(crate) messages: Slab<Unexpected>,
    pub(crate) multis: Slab<Multi>,
    /// Buffers for several messages that were released without a last message.
    pub(crate) released: Vec<Multi>,
    /// Bytes that a buffer for several messages must have left for the next one.
    pub(crate) least_multi: usize,
}

impl Matching {
    pub(crate) fn new(least_multi: usize) -> Self {
        Self { least_multi, ..Self::default() }
    }

    pub(crate) fn post(&mut self, receive: Receive) {
        self.posted[receive.pattern.kind as usize].push_back(receive);
    }

    /// Takes the oldest receive that wants a message from `source`, or a part of its buffer.
    #[inline]
    pub(crate) fn arrive(&mut self, envelope: Envelope, source: u64) -> Option<Matched> {
        let queue = envelope.kind as usize;
        let mut at = 0;
        while let Some(receive) = self.posted[queue].get(at) {
            if !receive.pattern.wants(envelope.tag, source) {
                at += 1;
                continue;
            }
            let receive = *receive;
            let (matched, stays) = self.give(&receive, envelope);
            if !stays {
                self.posted[queue].remove(at);
            }
            if matched.is_some() {
                return matched;
            }
        }
        None
    }

    /// Gives a message to a receive that wants it. Returns `None` if it does not fit into what is left of a buffer for
    /// several, and whether the receive wants more.
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

    /// Releases a buffer for several messages if none is left in it.
    fn release(&mut self, key: usize) {
        if self.multis[key].is_released() {
            let multi = self.multis.remove(key);
            self.released.push(multi);
        }
    }

    /// Ends a message's use of a buffer for several. Returns whether it was the last.
    pub(crate) fn leave(&mut self, key: usize) -> bool {
        let is_last = self.multis[key].leave();
        if is_last {
            self.multis.remove(key);
        }
        is_last
    }

    /// Keeps a message that no receive wants; returns its key.
    pub(crate) fn keep(&mut self, envelope: Envelope, body: Body) -> usize {
        let message =
            Unexpected { envelope, body, receiver: None, is_discarded: false, claim: None };
        let key = self.messages.insert(message);
        self.unexpected[envelope.kind as usize].push_back(key);
        key
    }

    /// Returns the key of the oldest unexpected message that a pattern wants and no peek has claimed.
    pub(crate) fn find(&self, pattern: &Pattern, source: impl Fn(usize) -> u64) -> Option<usize> {
        self.unexpected[pattern.kind as usize].iter().copied().find(|key| {
            let Unexpected { envelope, claim, .. } = &self.messages[*key];
            claim.is_none() && pattern.wants(envelope.tag, source(envelope.peer))
        })
    }

    /// Reserves an unexpected message for the receive that names the same context.
    pub(crate) fn claim(&mut self, key: usize, context: usize) {
        self.messages[key].claim = Some(context);
    }

    /// Returns the key of the message that was claimed with a context.
    pub(crate) fn claimed(&self, kind: Kind, context: usize) -> Option<usize> {
        let is_it = |key: &usize| self.messages[*key].claim == Some(context);
        self.unexpected[kind as usize].iter().copied().find(is_it)
    }

    /// Takes a message out of the order of the unexpected ones; it stays under its key.
    pub(crate) fn unlist(&mut self, key: usize) {
        let queue = &mut self.unexpected[self.messages[key].envelope.kind as usize];
        if let Some(at) = queue.iter().position(|listed| *listed == key) {
            queue.remove(at);
        }
    }

    /// Takes back the receive that was posted with a context.
    pub(crate) fn cancel(&mut self, context: usize) -> Option<Receive> {
        let receive = self.posted.iter_mut().find_map(|queue| {
            let at = queue.iter().position(|receive| receive.context == context)?;
            queue.remove(at)
        })?;
        if let Some(key) = receive.multi {
            self.retire(key);
        }
        Some(receive)
    }

    /// Ends a buffer for several messages whose receive is not posted any more.
    fn retire(&mut self, key: usize) {
        if self.multis[key].retire() {
            self.multis.remove(key);
        }
    }

    /// Takes all receives that only messages from `source` match.
    pub(crate) fn take_posted_of(&mut self, source: u64) -> Vec<Receive> {
        let mut taken = Vec::new();
        for queue in &mut self.posted {
            queue.retain(|receive| {
                let is_of = source != ADDR_UNSPEC && receive.pattern.source == source;
                if is_of {
                    taken.push(*receive);
                }
                !is_of
            });
        }
        taken.iter().filter_map(|receive| receive.multi).for_each(|key| self.retire(key));
        taken
    }

    /// Removes the messages of a peer that has not sent all of them. Returns the receives that wait for them.
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

#[cfg(test)]
mod tests;
