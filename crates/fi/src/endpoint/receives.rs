//! Receives: posting, matching with unexpected messages, peeking, cancelling, and their completions.

use std::ffi::c_int;

use super::{Domain, Endpoint, Requested, State};
use crate::abi::constants::{
    ADDR_UNSPEC, CLAIM, DISCARD, ECANCELED, ENOMSG, ETRUNC, MSG, MULTI_RECV, RECV, REMOTE_CQ_DATA,
    TAGGED,
};
use crate::completion::{Class, Completions, Entry};
use crate::matching::{
    Body, Envelope, Kind as Tagging, Matched, Multi, Pattern, Receive, Unexpected,
};
use crate::peer::{ENTRY, Link};
use crate::record::{Head, Kind};

/// Returns the flags of a received message.
const fn flags_of(kind: Tagging) -> u64 {
    match kind {
        Tagging::Tagged => RECV | TAGGED,
        Tagging::Plain => RECV | MSG,
    }
}

/// Returns the completion of a receive that no message has matched.
const fn failed(receive: &Receive, error: c_int) -> Entry {
    let Receive { pattern, context, multi, .. } = *receive;
    let multi_flag = if multi.is_some() { MULTI_RECV } else { 0 };
    let entry = Entry::of(context, flags_of(pattern.kind) | multi_flag);
    Entry { tag: pattern.tag, ..entry.failed(error) }
}

impl Endpoint {
    /// Posts a receive. `is_multi` is true if its buffer is for several messages. If the receive accepts only messages
    /// from a lost peer and none has arrived, it fails.
    #[inline]
    pub(crate) fn post_receive(
        &mut self,
        mut receive: Receive,
        is_multi: bool,
        domain: &mut Domain<'_>,
    ) {
        let state = &mut self.state;
        if !state.is_directed {
            receive.pattern.source = ADDR_UNSPEC;
        }
        if is_multi {
            let multi = Multi::new(receive.buffer, receive.context);
            receive.multi = Some(state.matching.multis.insert(multi));
        }
        while let Some(key) = state.find(&receive.pattern) {
            let envelope = state.matching.messages[key].envelope;
            let (matched, stays) = state.matching.give(&receive, envelope);
            if let Some(matched) = matched {
                state.hand_over(key, matched, domain.out);
            }
            if !stays {
                state.release_multis(domain.out);
                return;
            }
        }
        match state.loss_of(receive.pattern.source) {
            Some(code) => state.fail_posted(&receive, code, domain.out),
            None => state.matching.post(receive),
        }
    }

    /// Searches for a message that matches a pattern, and completes with its description. The message stays, unless
    /// `flags` claim or discard it.
    pub(crate) fn peek(
        &mut self,
        mut pattern: Pattern,
        flags: u64,
        context: usize,
        domain: &mut Domain<'_>,
    ) {
        let state = &mut self.state;
        if !state.is_directed {
            pattern.source = ADDR_UNSPEC;
        }
        let entry = Entry::of(context, flags_of(pattern.kind));
        let Some(key) = state.find(&pattern) else {
            let entry = Entry { tag: pattern.tag, ..entry }.failed(ENOMSG);
            return state.bindings.notify(domain.out, Class::Receive, entry);
        };
        let entry = state.describe(&state.matching.messages[key].envelope, entry);
        if flags & DISCARD != 0 {
            state.discard(key);
        } else if flags & CLAIM != 0 {
            state.matching.claim(key, context);
        }
        state.bindings.notify(domain.out, Class::Receive, entry);
    }

    /// Receives or discards the message that a peek has claimed with the same context. Returns whether there is such a
    /// message.
    pub(crate) fn receive_claimed(
        &mut self,
        receive: &Receive,
        flags: u64,
        domain: &mut Domain<'_>,
    ) -> bool {
        let (state, kind) = (&mut self.state, receive.pattern.kind);
        let Some(key) = state.matching.claimed(kind, receive.context) else { return false };
        let envelope = state.matching.messages[key].envelope;
        if flags & DISCARD != 0 {
            state.discard(key);
            let entry = state.describe(&envelope, Entry::of(receive.context, flags_of(kind)));
            state.bindings.complete(domain.out, Class::Receive, receive.reports, entry);
        } else {
            let Receive { buffer, context, reports, .. } = *receive;
            let matched = Matched { envelope, buffer, context, reports, multi: None };
            state.hand_over(key, matched, domain.out);
        }
        true
    }

    /// Cancels the receive that was posted with a context, if no message has matched it; it completes with an error.
    pub(crate) fn cancel(&mut self, context: usize, domain: &mut Domain<'_>) {
        if let Some(receive) = self.state.matching.cancel(context) {
            self.state.fail_posted(&receive, ECANCELED, domain.out);
        }
    }
}

impl State {
    /// Returns the key of the oldest message that matches a pattern.
    fn find(&mut self, pattern: &Pattern) -> Option<usize> {
        let mut pattern = *pattern;
        if pattern.source != ADDR_UNSPEC {
            pattern.source = self.peer_from(pattern.source)? as u64;
        }
        self.matching.find(&pattern)
    }

    /// Returns the peer whose messages have this source.
    fn peer_from(&self, source: u64) -> Option<usize> {
        let route = self.routes.get(usize::try_from(source).ok()?)?.as_ref()?;
        route.1.filter(|peer| self.source(*peer) == source)
    }

    /// Returns the error of the peer with this source, if no more messages arrive from the peer.
    fn loss_of(&self, source: u64) -> Option<c_int> {
        let peer = &self.peers[self.peer_from(source)?];
        match peer.link {
            Link::Lost(code) if peer.pairs == 0 => Some(code),
            _ => None,
        }
    }

    fn describe(&self, envelope: &Envelope, entry: Entry) -> Entry {
        let data_flag = if envelope.data.is_some() { REMOTE_CQ_DATA } else { 0 };
        Entry {
            flags: entry.flags | data_flag,
            length: envelope.length,
            data: envelope.data.unwrap_or(0),
            tag: envelope.tag,
            source: self.source(envelope.peer),
            ..entry
        }
    }

    /// Returns bytes of a peer's window to that peer.
    #[inline]
    pub(super) fn free(&mut self, peer: usize, bytes: usize) {
        if self.peers[peer].free(bytes) {
            self.list(peer);
        }
    }

    /// Requests a rendezvous message from its sender, up to the size of its receive's buffer.
    pub(super) fn ask(&mut self, handle: u64, matched: Matched) {
        let length = matched.envelope.length.min(matched.buffer.len());
        self.ask_for(handle, matched.envelope.peer, length, Requested::Receive(matched));
    }

    fn ask_for(&mut self, handle: u64, peer: usize, length: usize, requested: Requested) {
        let receiver = self.requested.insert((peer, requested)) as u64;
        let head = Head::new(Kind::Cts, 0, length, handle).with(receiver);
        self.peers[peer].control.push_back(head);
        self.list(peer);
    }

    /// Passes an unexpected message to a receive.
    fn hand_over(&mut self, key: usize, matched: Matched, out: &mut Completions) {
        self.matching.unlist(key);
        match self.matching.messages[key].body {
            Body::Here(_, true) => {
                self.matching.messages[key].receiver = Some(matched);
                self.complete_unexpected(key, out);
            }
            Body::Here(_, false) => self.matching.messages[key].receiver = Some(matched),
            Body::Announced(handle) => {
                self.matching.messages.remove(key);
                self.peers[matched.envelope.peer].announced -= 1;
                self.ask(handle, matched);
            }
        }
    }

    /// Drops an unexpected message.
    fn discard(&mut self, key: usize) {
        self.matching.unlist(key);
        let Unexpected { envelope, ref mut body, ref mut is_discarded, .. } =
            self.matching.messages[key];
        match *body {
            Body::Here(_, false) => *is_discarded = true,
            Body::Here(_, true) => {
                self.matching.messages.remove(key);
                self.vacate(&envelope);
            }
            Body::Announced(handle) => {
                self.matching.messages.remove(key);
                self.peers[envelope.peer].announced -= 1;
                self.ask_for(handle, envelope.peer, 0, Requested::Discard);
            }
        }
    }

    fn vacate(&mut self, envelope: &Envelope) {
        let bytes = envelope.length + ENTRY;
        self.peers[envelope.peer].occupied -= bytes;
        self.free(envelope.peer, bytes);
    }

    /// Handles an unexpected message that is complete: it stays, or completes the receive that waits for it.
    pub(super) fn complete_unexpected(&mut self, key: usize, out: &mut Completions) {
        let Some(message) = self.matching.messages.get_mut(key) else { return };
        if let Body::Here(_, is_complete) = &mut message.body {
            *is_complete = true;
        }
        if message.receiver.is_none() && !message.is_discarded {
            return;
        }
        let Unexpected { envelope, body, receiver, .. } = self.matching.messages.remove(key);
        self.vacate(&envelope);
        if let (Some(matched), Body::Here(bytes, _)) = (receiver, body) {
            let length = bytes.len().min(matched.buffer.len());
            matched.buffer.fill(0, length, |at, part| {
                part.copy_from_slice(&bytes[at..at + part.len()]);
            });
            self.deliver(&matched, out);
        }
    }

    /// Completes the receive of a message whose bytes are in the receive's buffer.
    #[inline]
    pub(super) fn deliver(&mut self, matched: &Matched, out: &mut Completions) {
        let entry = self.entry_of(matched);
        // The release of a buffer for several messages is reported in any case.
        let reports = matched.reports || entry.flags & MULTI_RECV != 0;
        self.bindings.complete(out, Class::Receive, reports, entry);
        self.release_multis(out);
    }

    /// Completes the receive of a message that will never be complete.
    pub(super) fn fail_receive(&mut self, matched: &Matched, error: i32, out: &mut Completions) {
        let entry = Entry { length: 0, excess: 0, ..self.entry_of(matched) };
        self.bindings.complete(out, Class::Receive, true, entry.failed(error));
        self.release_multis(out);
    }

    /// Ends a posted receive with an error; if messages use its buffer, it completes after the last of them.
    pub(super) fn fail_posted(&mut self, receive: &Receive, error: i32, out: &mut Completions) {
        if self.matching.fail(receive, error) {
            self.bindings.complete(out, Class::Receive, true, failed(receive, error));
        }
    }

    #[inline]
    fn entry_of(&mut self, matched: &Matched) -> Entry {
        let Matched { envelope, buffer, context, multi, .. } = matched;
        let mut entry = self.describe(envelope, Entry::of(*context, flags_of(envelope.kind)));
        if multi.is_some_and(|multi| self.matching.leave(multi)) {
            entry.flags |= MULTI_RECV;
        }
        entry.buffer = buffer.address();
        if envelope.length > buffer.len() {
            entry.excess = envelope.length - buffer.len();
            entry.length = buffer.len();
            entry.error = ETRUNC;
        }
        entry
    }

    /// Completes the buffers for several messages whose release no message's completion has reported.
    #[inline]
    pub(super) fn release_multis(&mut self, out: &mut Completions) {
        for multi in self.matching.released.drain(..) {
            if let Some((receive, error)) = &multi.failed {
                self.bindings.complete(out, Class::Receive, true, failed(receive, *error));
            } else {
                let entry = Entry::of(multi.context, MULTI_RECV);
                self.bindings.notify(out, Class::Receive, entry);
            }
        }
    }
}
