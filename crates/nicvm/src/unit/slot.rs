//! The state that a unit keeps for each extension.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::port::Command;
use midplane_simhw::time::Instant;

use crate::control::Body;
use crate::extension::{Epoch, Extension};
use crate::heap::Heap;

/// Control messages that may wait for a version that does not run yet, counted over all extensions.
const PARKED: usize = 8_192;

/// Those of one peer among them, so that no peer takes the room of the others.
const PARKED_OF_PEER: usize = 1_024;

/// Time for which they wait: longer than any change of an extension takes.
const PARKED_FOR: Duration = Duration::from_secs(30);

/// Counts the handler calls of one extension, by kind.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct ExtensionCounters {
    /// Calls of `on_command`.
    pub commands: u64,
    /// Calls of `on_control`.
    pub controls: u64,
    /// Calls of `on_data`.
    pub frames: u64,
    /// Calls of `on_timeout`.
    pub timeouts: u64,
    /// All other calls: initialisation, and events of peers, ports, the scheduler and the unit.
    pub others: u64,
    /// Handlers that panicked.
    pub traps: u64,
}

/// The kind of handler that is called.
#[derive(Clone, Copy, Debug)]
pub(super) enum Handler {
    Command,
    Control,
    Frame,
    Timeout,
    Other,
}

/// A replaced version: it handles control messages of its own version until `until`.
pub(super) struct Former {
    pub(super) extension: Box<dyn Extension>,
    pub(super) epoch: Epoch,
    pub(super) until: Instant,
    pub(super) heap: Heap,
}

/// One extension of a unit.
pub(super) struct Slot {
    pub(super) extension: Box<dyn Extension>,
    pub(super) epoch: Epoch,
    /// True if it panicked, refused its configuration, or was deactivated.
    pub(super) is_down: bool,
    pub(super) former: Option<Former>,
    pub(super) heap: Heap,
}

impl Slot {
    pub(super) fn new(extension: Box<dyn Extension>, epoch: Epoch, heap: Heap) -> Self {
        Self { extension, epoch, is_down: false, former: None, heap }
    }
}

impl ExtensionCounters {
    pub(super) const fn count(&mut self, handler: Handler) {
        let counter = match handler {
            Handler::Command => &mut self.commands,
            Handler::Control => &mut self.controls,
            Handler::Frame => &mut self.frames,
            Handler::Timeout => &mut self.timeouts,
            Handler::Other => &mut self.others,
        };
        *counter += 1;
    }
}

/// Returns the commands that an extension holds when it is taken down. An extension that has panicked may panic here
/// too; then the list is empty.
pub(super) fn held_by(extension: &mut dyn Extension) -> Vec<Command> {
    catch_unwind(AssertUnwindSafe(|| extension.outstanding_commands())).unwrap_or_default()
}

/// A control message for a version that does not run here yet.
pub(super) struct Parked {
    pub(super) number: ExtensionId,
    pub(super) epoch: Epoch,
    pub(super) from: NodeId,
    pub(super) body: Body,
    pub(super) since: Instant,
}

/// The control messages that wait for versions that do not run here yet, oldest first.
#[derive(Default)]
pub(super) struct ParkedMessages {
    queue: VecDeque<Parked>,
    /// The number of messages of each peer that has any.
    of_peer: BTreeMap<NodeId, usize>,
}

impl ParkedMessages {
    /// Returns whether one more message of a peer may wait.
    pub(super) fn has_room(&self, from: NodeId) -> bool {
        let of_peer = self.of_peer.get(&from).copied().unwrap_or(0);
        self.queue.len() < PARKED && of_peer < PARKED_OF_PEER
    }

    pub(super) fn push(&mut self, parked: Parked) {
        *self.of_peer.entry(parked.from).or_default() += 1;
        self.queue.push_back(parked);
    }

    /// Drops the messages that have waited too long. Returns how many those are.
    pub(super) fn expire(&mut self, now: Instant) -> u64 {
        let mut dropped = 0;
        while let Some(from) =
            self.queue.front().filter(|it| it.since + PARKED_FOR <= now).map(|it| it.from)
        {
            self.uncount(from);
            self.queue.pop_front();
            dropped += 1;
        }
        dropped
    }

    /// Drops the messages of a peer.
    pub(super) fn forget_peer(&mut self, node: NodeId) {
        if self.of_peer.remove(&node).is_some() {
            self.queue.retain(|parked| parked.from != node);
        }
    }

    /// Takes out the messages parked for this version or an earlier one, in order.
    pub(super) fn take(&mut self, number: ExtensionId, epoch: Epoch) -> VecDeque<Parked> {
        let is_due = |it: &Parked| it.number == number && !it.epoch.is_newer_than(epoch);
        let (due, others) = std::mem::take(&mut self.queue).into_iter().partition(is_due);
        self.queue = others;
        let due: VecDeque<Parked> = due;
        due.iter().for_each(|parked| self.uncount(parked.from));
        due
    }

    fn uncount(&mut self, from: NodeId) {
        if let Some(count) = self.of_peer.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.of_peer.remove(&from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_leaves_room_for_the_parked_messages_of_others() {
        let mut parked = ParkedMessages::default();
        let (greedy, modest) = (NodeId(1), NodeId(2));
        let (number, epoch, since) = (ExtensionId(9), Epoch(2), Instant::ZERO);
        let body = Body::new(b"x").unwrap();
        while parked.has_room(greedy) {
            parked.push(Parked { number, epoch, from: greedy, body, since });
        }
        assert_eq!(parked.queue.len(), PARKED_OF_PEER);
        assert!(parked.has_room(modest));
        parked.push(Parked { number, epoch, from: modest, body, since: Instant::from_nanos(1) });
        assert_eq!(parked.expire(since + PARKED_FOR), PARKED_OF_PEER as u64);
        assert!(parked.has_room(greedy));
        assert_eq!(parked.take(number, epoch).len(), 1);
        assert!(parked.of_peer.is_empty());
    }
}
