//! Flows: queues by destination and extension, split into those ready to send and those held.

use std::collections::{BTreeMap, VecDeque};

use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::time::Instant;

use super::FlowId;
use super::outgoing::Outgoing;
use crate::planted::{self, Bug};

/// The key of a flow; flows to one node are adjacent in the order.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Key {
    pub(super) node: NodeId,
    pub(super) controlled: bool,
    pub(super) extension: ExtensionId,
    pub(super) flow: FlowId,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) key: Key,
    pub(super) waiting: VecDeque<Outgoing>,
    /// When its admission may be asked again; far in the future if only a change of an admission can release it.
    until: Instant,
}

/// All flows that are not empty. Emptied queues are kept for reuse.
#[derive(Debug, Default)]
pub(super) struct Flows {
    queues: Vec<Queue>,
    by_key: BTreeMap<Key, usize>,
    /// Ready flows, in turn.
    active: VecDeque<usize>,
    /// Flows held by an admission.
    held: Vec<usize>,
    free: Vec<usize>,
    /// True if an admission's state has changed: all held flows are checked again.
    must_recheck: bool,
}

impl Flows {
    pub(super) fn push(&mut self, key: Key, outgoing: Outgoing) {
        if let Some(&at) = self.by_key.get(&key) {
            self.queues[at].waiting.push_back(outgoing);
            return;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            let until = Instant::ZERO;
            self.queues.push(Queue { key, waiting: VecDeque::new(), until });
            self.queues.len() - 1
        });
        self.queues[at].key = key;
        self.queues[at].waiting.push_back(outgoing);
        self.by_key.insert(key, at);
        self.active.push_back(at);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    /// Notes that an admission's state has changed.
    pub(super) const fn recheck(&mut self) {
        self.must_recheck = true;
    }

    /// Moves held flows that may be asked again at `now` to the ready ones. Returns when the next of the others may.
    pub(super) fn wake(&mut self, now: Instant) -> Instant {
        let must_recheck = std::mem::take(&mut self.must_recheck);
        let mut next = Instant::FAR_FUTURE;
        let mut index = 0;
        while let Some(&at) = self.held.get(index) {
            let until = self.queues[at].until;
            if must_recheck || until <= now {
                self.held.remove(index);
                self.active.push_back(at);
            } else {
                next = next.min(until);
                index += 1;
            }
        }
        next
    }

    /// Returns the flow whose turn it is.
    pub(super) fn first(&self) -> Option<usize> {
        self.active.front().copied()
    }

    pub(super) fn queue(&mut self, at: usize) -> &mut Queue {
        &mut self.queues[at]
    }

    /// Ends the turn of the first flow, and removes it if it is empty.
    pub(super) fn rotate(&mut self) {
        let Some(at) = self.active.pop_front() else { return };
        if self.queues[at].waiting.is_empty() {
            self.by_key.remove(&self.queues[at].key);
            self.free.push(at);
        } else {
            self.active.push_back(at);
        }
    }

    /// Holds the first flow until `until`, or until an admission's state changes.
    pub(super) fn hold(&mut self, until: Instant) {
        if let Some(at) = self.active.pop_front() {
            self.queues[at].until = until;
            self.held.push(at);
        }
    }

    /// Iterates over the flows to a node, controlled or not, in the order of their keys.
    pub(super) fn to(&self, node: NodeId, controlled: bool) -> impl Iterator<Item = &Queue> {
        let key = |extension, flow| Key { node, controlled, extension, flow };
        let first = key(ExtensionId(0), FlowId(0));
        let last = key(ExtensionId(u8::MAX), FlowId(u16::MAX));
        self.by_key.range(first..=last).map(|(_, &at)| &self.queues[at])
    }

    /// Lets `visit` change every queue, then removes those that it has emptied.
    pub(super) fn change(&mut self, mut visit: impl FnMut(&mut Queue)) {
        for &at in self.by_key.values() {
            visit(&mut self.queues[at]);
        }
        let Self { queues, by_key, active, held, free, .. } = self;
        let is_live = |at: &usize| !queues[*at].waiting.is_empty();
        active.retain(|at| is_live(at) || planted::is(Bug::TurnSurvives));
        held.retain(is_live);
        by_key.retain(|_, at| {
            let live = is_live(at);
            if !live {
                free.push(*at);
            }
            live
        });
    }
}
