//! Mermera's shared memory: every node has a copy of each location, and each write chooses its
//! consistency (Heddaya and Sinha 1993; Heddaya and Park 1994, section 5.1).
//!
//! | write | order that readers see | how it travels |
//! |---|---|---|
//! | `co_write` | total order of all nodes' coherent writes | by a sequencer and a majority |
//! | `pram_write` | FIFO order of each writer's PRAM writes | reliably, in order |
//! | `slow_write` | latest value: each writer's order at one location | when the gate is open |
//!
//! PRAM memory is by Lipton and Sandberg (1988), slow memory by Hutto and Ahamad (1990). Of slow
//! writes to one location, any but the last may be skipped; the last one arrives.
//!
//! A read is local and never waits. A node sees its own slow and PRAM writes at once. It sees its
//! coherent writes once they are committed. Levels may be mixed, also on one location. A slow write
//! does not replace a value that was written later (by Lamport's clock). If only slow writes are
//! made, and then stop, all copies therefore become equal.
//!
//! A node that restarts has lost its copy. Its clock begins beyond its former one, unless it had made
//! very many writes, or had received a write of a host whose wall clock is ahead. Then other nodes
//! ignore slow writes with clocks that it had reached before; their acknowledgements report that, and it
//! gives these writes later clocks.
//! When it sends its first frame, or answers after it was reported dead, the other nodes send it
//! their last slow writes again. It does not get values whose writers died or restarted until the
//! location is written again.

#[cfg(any(test, feature = "unstable"))]
pub mod check;
mod coherent;
pub mod extension;
mod log;
mod shared;
mod update;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_simhw::id::{Incarnation, NodeId};
use midplane_simhw::time::Instant;

use coherent::{Coherence, Coherent, Entry};
pub use log::MAX_LOCATIONS;
pub use shared::{AccessError, MemoryHandle, OpenMemoryError};
pub(crate) use update::{Fate, Update};

use crate::latest::{Ack, LatestSender};

/// The lowest bit of the incarnation in the first clock of a node. NICs' incarnations count 64 ms, so
/// that a node may make 500,000 writes a second.
const CLOCK_SHIFT: u32 = 31;

/// A location: an index into an array, or the hash of a name.
pub type Location = u32;

/// The consistency level of a write: the order in which nodes see it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// Latest value: nodes see one writer's writes to one location in its order, and may miss all
    /// but the last.
    Slow,
    /// FIFO order: nodes see all PRAM writes of one writer in its order.
    Pram,
    /// Total order: all nodes see all coherent writes in one order.
    Coherent,
}

/// The write that a read returned: its writer, its level and its number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Origin {
    /// Node that wrote the value.
    pub writer: NodeId,
    /// The level of the write.
    pub level: Level,
    /// Number of the write, from 1: among the writer's slow writes to this location, among its PRAM
    /// writes, or among the coherent writes of all nodes. The numbers of a writer that restarts
    /// begin again.
    pub order: u64,
}

#[derive(Clone, Debug)]
struct Cell<V> {
    value: V,
    clock: u64,
    origin: Origin,
}

/// One node's copy of the memory. A state machine: the caller polls it for updates to send.
#[derive(Debug)]
pub(crate) struct Memory<V> {
    me: NodeId,
    cells: BTreeMap<Location, Cell<V>>,
    /// The clock of the newest slow write seen of each writer and location; older ones are discarded.
    versions: BTreeMap<(NodeId, Location), u64>,
    /// The clock of the newest slow write of each writer before its last restart.
    former: BTreeMap<NodeId, u64>,
    /// The number of this node's last slow write to each location.
    written: BTreeMap<Location, u64>,
    /// This node's Lamport clock.
    clock: u64,
    pram_written: u64,
    /// The last slow writes for each other node, with their numbers.
    slow: BTreeMap<NodeId, LatestSender<Location, (u64, V)>>,
    coherent: Coherent<V>,
    outbox: VecDeque<(NodeId, Update<V>)>,
    /// Writes of peers that found no room.
    dropped: u64,
    /// Writes of this node for which a peer had no room.
    refused: u64,
}

/// A slow write that a node has not acknowledged: the node, the location and the version.
pub(crate) type Awaited = (NodeId, Location, u64);

impl<V: Clone> Memory<V> {
    /// Creates the memory of node `me`. `nodes` are all that share it, with `me` among them;
    /// feedback takes `delay`.
    ///
    /// # Panics
    /// If `me` is not among the nodes.
    #[must_use]
    pub(crate) fn new(me: NodeId, nodes: &[NodeId], delay: Duration) -> Self {
        assert!(nodes.contains(&me), "the node itself is one of the nodes that share the memory");
        let others = nodes.iter().filter(|node| **node != me);
        Self {
            me,
            cells: BTreeMap::new(),
            versions: BTreeMap::new(),
            former: BTreeMap::new(),
            written: BTreeMap::new(),
            clock: 0,
            pram_written: 0,
            slow: others.map(|node| (*node, LatestSender::new(delay))).collect(),
            coherent: Coherent::new(me, nodes),
            outbox: VecDeque::new(),
            dropped: 0,
            refused: 0,
        }
    }

    /// Begins the Lamport clock beyond those of former incarnations of this node, unless these made
    /// more than 32,768 writes in each 64 ms, which a NIC's incarnation counts, or received a write of
    /// a host whose wall clock is ahead.
    pub(crate) fn begin_clock(&mut self, incarnation: Incarnation) {
        self.clock = u64::from(incarnation.0) << CLOCK_SHIFT;
    }

    /// Returns true if `location` takes slow and PRAM writes: it has a value, or fewer than
    /// [`MAX_LOCATIONS`] locations have one. Ask before a write.
    #[must_use]
    pub(crate) fn takes(&self, location: Location) -> bool {
        self.cells.len() < MAX_LOCATIONS || self.cells.contains_key(&location)
    }

    /// Returns how many slow and PRAM writes of peers were dropped, because they were to new
    /// locations beyond [`MAX_LOCATIONS`].
    #[must_use]
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Writes the latest value: readers see this writer's values of this location in order. Any but
    /// the last may be skipped. Never waits.
    pub(crate) fn slow_write(&mut self, now: Instant, location: Location, value: V) {
        let order = self.written.entry(location).or_default();
        *order += 1;
        let order = *order;
        self.stamp(now, location, order, value);
    }

    /// Gives the last slow write to a location the next clock, and queues it for all other nodes.
    fn stamp(&mut self, now: Instant, location: Location, order: u64, value: V) {
        let clock = self.tick();
        for slots in self.slow.values_mut() {
            slots.write(now, location, clock, (order, value.clone()));
        }
        let origin = Origin { writer: self.me, level: Level::Slow, order };
        self.cells.insert(location, Cell { value, clock, origin });
    }

    /// Writes in FIFO order: all nodes see this writer's PRAM writes in the order of the calls.
    /// Never waits.
    pub(crate) fn pram_write(&mut self, location: Location, value: V) {
        let clock = self.tick();
        self.pram_written += 1;
        for node in self.slow.keys().filter(|node| !self.coherent.has_lost(**node)) {
            let (order, value) = (self.pram_written, value.clone());
            let update = Update::Pram { location, order, clock, value };
            self.outbox.push_back((*node, update));
        }
        let origin = Origin { writer: self.me, level: Level::Pram, order: self.pram_written };
        self.cells.insert(location, Cell { value, clock, origin });
    }

    /// Writes in total order: all nodes see all coherent writes in one order. Returns a ticket for
    /// `is_done`.
    ///
    /// A writer that waits for each write before its next read has sequential consistency.
    pub(crate) fn co_write(&mut self, location: Location, value: V) -> u64 {
        let ticket = self.coherent.write(location, value);
        self.apply_committed();
        ticket
    }

    /// Returns true if `location` takes coherent writes: [`MAX_LOCATIONS`] locations do, those that
    /// are written first. Ask before `co_write`: the log that a new sequencer needs is
    /// bounded by it.
    #[must_use]
    pub(crate) fn takes_coherent(&self, location: Location) -> bool {
        self.coherent.takes(location)
    }

    /// Returns true if the coherent write of `ticket` is committed and visible here.
    #[must_use]
    pub(crate) fn is_done(&self, ticket: u64) -> bool {
        self.coherent.is_done(ticket)
    }

    /// Returns true if a coherent write of this node waits for the sequencer, which is another
    /// node. While it does, call `call_sequencer` now and then.
    #[must_use]
    pub(crate) fn waits_for_place(&self) -> bool {
        self.coherent.waits()
    }

    /// Sends the sequencer a reliable message without effect. If the sequencer has died, the failed
    /// delivery reveals it, even if it had acknowledged every earlier message.
    pub(crate) fn call_sequencer(&mut self) {
        self.coherent.call();
        self.apply_committed();
    }

    /// Returns the value at `location` in this node's copy; `None` before the first visible write.
    #[cfg(test)]
    pub(crate) fn read(&self, location: Location) -> Option<&V> {
        self.cells.get(&location).map(|cell| &cell.value)
    }

    /// Returns the value at `location`, and the write that made it.
    #[must_use]
    pub(crate) fn read_origin(&self, location: Location) -> Option<(&V, Origin)> {
        self.cells.get(&location).map(|cell| (&cell.value, cell.origin))
    }

    /// Returns the last slow write to a location, as a flush would await it of a node.
    #[cfg(test)]
    pub(crate) fn slow_version(&self, node: NodeId, location: Location) -> Awaited {
        (node, location, self.slow[&node].version(&location).expect("it was written"))
    }

    /// Returns the next reliable update or acknowledgement to send. Send all of them.
    #[must_use]
    pub(crate) fn poll_send(&mut self) -> Option<(NodeId, Update<V>)> {
        self.outbox.pop_front()
    }

    /// Returns the slow write to `destination` that has waited longest, if one is due. This is a
    /// conditional send: call it only while the gate is open.
    #[must_use]
    pub(crate) fn poll_slow(&mut self, now: Instant, destination: NodeId) -> Option<Update<V>> {
        let copy = self.slow.get_mut(&destination)?.poll_send(now)?;
        Some(Update::of(&copy))
    }

    /// Returns the slow write that has waited longest, if it is due at half of all other nodes or
    /// more, as one copy for all of them. Like `poll_slow`, which has the remaining
    /// writes, this is a conditional send.
    #[must_use]
    pub(crate) fn poll_slow_to_all(&mut self, now: Instant) -> Option<Update<V>> {
        let mut live = self.slow.values_mut().filter(|slots| !slots.is_lost());
        let location = live.find_map(|slots| slots.poll_key(now).copied())?;
        let due = self.slow.values().filter(|slots| slots.is_due(now, &location)).count();
        let live = self.slow.values().filter(|slots| !slots.is_lost()).count();
        if 2 * due < live {
            return None;
        }
        let number = self.slow.values().map(LatestSender::next_number).max()?;
        let mut update = None;
        for slots in self.slow.values_mut().filter(|slots| !slots.is_lost()) {
            slots.number_from(number);
            update = slots.send(now, &location).map(|copy| Update::of(&copy)).or(update);
        }
        update
    }

    /// Returns when the next slow write to `destination` is due.
    #[must_use]
    pub(crate) fn poll_timeout(&self, destination: NodeId) -> Option<Instant> {
        self.slow.get(&destination)?.poll_timeout()
    }

    /// Processes an update that arrived. Ignores it if `from` does not share the memory or is this
    /// node itself.
    pub(crate) fn handle_update(&mut self, now: Instant, from: NodeId, update: Update<V>) {
        if from == self.me || !self.coherent.has_member(from) {
            return;
        }
        match update {
            Update::Slow { location, order, number, clock, value } => {
                let origin = Origin { writer: from, level: Level::Slow, order };
                let (version, fate) = self.on_slow(location, clock, value, origin);
                let ack = Ack { key: location, version, number };
                self.outbox.push_back((from, Update::SlowAck { ack, fate }));
            }
            Update::SlowAck { ack, fate } => self.on_ack(now, from, &ack, fate),
            Update::Pram { location, .. } if !self.takes(location) => {
                self.dropped += 1;
                let ack = Ack { key: location, version: 0, number: u64::MAX };
                self.outbox.push_back((from, Update::SlowAck { ack, fate: Fate::Refused }));
            }
            Update::Pram { location, order, clock, value } => {
                let origin = Origin { writer: from, level: Level::Pram, order };
                self.apply(location, clock, value, origin);
            }
            Update::Coherent(message) => {
                self.coherent.handle(from, message);
                self.apply_committed();
            }
        }
    }

    /// Handles the loss of a node: no write waits for it any more. If it was the sequencer of
    /// coherent writes, another node takes over, as long as a majority of all nodes lives.
    pub(crate) fn on_peer_lost(&mut self, now: Instant, node: NodeId) {
        if let Some(slots) = self.slow.get_mut(&node) {
            slots.begin_anew(now, true);
        }
        self.outbox.retain(|(to, _)| *to != node);
        self.coherent.on_lost(node);
        self.apply_committed();
    }

    /// Handles a sign of life of a node. If it `has_restarted`, its former incarnation is lost. If it was
    /// lost, it gets this node's last slow values anew.
    pub(crate) fn on_peer_seen(&mut self, now: Instant, node: NodeId, has_restarted: bool) {
        if has_restarted {
            self.on_peer_lost(now, node);
            let its = self.versions.range((node, Location::MIN)..=(node, Location::MAX));
            let newest = its.map(|(_, clock)| *clock).max();
            self.former.extend(newest.map(|newest| (node, newest)));
        }
        if let Some(slots) = self.slow.get_mut(&node).filter(|slots| slots.is_lost()) {
            slots.begin_anew(now, false);
        }
    }

    /// Returns the slow writes whose last value is not acknowledged, for each node that is not lost.
    #[must_use]
    pub(crate) fn unacknowledged(&self) -> Vec<Awaited> {
        let slots = self.slow.iter();
        let waiting = slots.flat_map(|(node, slots)| {
            slots.unacknowledged().map(|(location, version, _)| (*node, *location, version))
        });
        waiting.collect()
    }

    /// Returns true if a slow write or a later one is acknowledged, or its node is lost.
    #[must_use]
    pub(crate) fn is_acknowledged(&self, (node, location, version): Awaited) -> bool {
        self.slow.get(&node).is_none_or(|slots| slots.has_acknowledged(&location, version))
    }

    /// Sends a reliable message without effect to each node of which slow writes await
    /// acknowledgements, and none has arrived since the last call. If the node has died, the failed
    /// delivery reveals it. Leaves out nodes that are not `known`: they may not have started yet.
    pub(crate) fn call_silent(&mut self, known: impl Fn(NodeId) -> bool) {
        for (node, slots) in &mut self.slow {
            if slots.is_silent() && known(*node) {
                let nothing = Update::Coherent(Coherence::Ask { view: 0 });
                self.outbox.push_back((*node, nothing));
            }
        }
    }

    /// Advances the Lamport clock for the next write and returns it. Its lowest 16 bits are this
    /// node's number, so that no two nodes' writes have the same clock. If a peer has set it to its
    /// end, it stays there.
    const fn tick(&mut self) -> u64 {
        self.clock = (self.clock | u16::MAX as u64).saturating_add(1) | self.me.0 as u64;
        self.clock
    }

    /// Applies a slow write if it is new. Returns the version to acknowledge, and the write's fate.
    fn on_slow(&mut self, location: Location, clock: u64, value: V, origin: Origin) -> (u64, Fate) {
        if self.former.get(&origin.writer).is_some_and(|former| clock <= *former) {
            return (0, Fate::Repeated(self.clock));
        }
        if !self.takes(location) {
            self.dropped += 1;
            return (clock, Fate::Refused);
        }
        let seen = self.versions.entry((origin.writer, location)).or_default();
        if clock <= *seen {
            return (*seen, Fate::Shown);
        }
        *seen = clock;
        self.clock = self.clock.max(clock);
        let is_later = |cell: &Cell<V>| (clock, origin.writer) > (cell.clock, cell.origin.writer);
        if !self.cells.get(&location).is_none_or(is_later) {
            return (clock, Fate::Older(self.clock));
        }
        self.apply(location, clock, value, origin);
        (clock, Fate::Shown)
    }

    /// Handles the acknowledgement of a slow write.
    fn on_ack(&mut self, now: Instant, from: NodeId, ack: &Ack<Location>, fate: Fate) {
        let Some(slots) = self.slow.get_mut(&from) else { return };
        let is_new = slots.handle_ack(now, ack);
        match fate {
            Fate::Shown => {}
            // The next write here is later than the value that is shown there.
            Fate::Older(clock) => self.clock = self.clock.max(clock),
            Fate::Repeated(clock) => {
                self.clock = self.clock.max(clock);
                self.stamp_again(now, from, ack, clock);
            }
            // Version 0 is that of a PRAM write, which has no other acknowledgement.
            Fate::Refused => self.refused += u64::from(is_new || ack.version == 0),
        }
    }

    /// Gives a later clock to a slow write that a node ignores: its clock is not beyond `clock`, which
    /// this node had reached before its restart. If another value has replaced it here since, that
    /// node need not get it.
    fn stamp_again(&mut self, now: Instant, node: NodeId, ack: &Ack<Location>, clock: u64) {
        let location = ack.key;
        let Some(slots) = self.slow.get(&node) else { return };
        let ignored = slots.unacknowledged_of(&location).filter(|(version, _)| *version <= clock);
        let Some((version, (order, value))) = ignored.map(|(at, value)| (at, value.clone())) else {
            return;
        };
        let is_last = self.cells.get(&location).is_none_or(|cell| match cell.origin {
            Origin { writer, level: Level::Slow, order: shown } if writer == self.me => {
                shown == order
            }
            // The other node made it before it received this node's write.
            Origin { writer, level: Level::Slow, .. } => {
                self.slow.get(&writer).is_some_and(|its| !its.has_acknowledged(&location, version))
            }
            _ => false,
        });
        if is_last {
            self.stamp(now, location, order, value);
        } else if let Some(slots) = self.slow.get_mut(&node) {
            slots.handle_ack(now, &Ack { version, ..*ack });
        }
    }

    /// Returns how many slow and PRAM writes of this node found no room at a peer.
    pub(crate) const fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns true if the other nodes ignore this node's coherent writes: they have reported it
    /// dead, or it has restarted.
    pub(crate) fn is_excluded(&self) -> bool {
        self.coherent.is_excluded()
    }

    /// Requests no place any more for coherent writes of this node that have none.
    pub(crate) fn give_up_coherent(&mut self) {
        self.coherent.give_up();
    }

    fn apply(&mut self, location: Location, clock: u64, value: V, origin: Origin) {
        self.clock = self.clock.max(clock);
        self.cells.insert(location, Cell { value, clock, origin });
    }

    /// Applies committed coherent writes, and queues the messages of the ordering protocol.
    fn apply_committed(&mut self) {
        while let Some((order, entry)) = self.coherent.poll_committed() {
            let Entry { writer, location, value, .. } = entry;
            self.tick();
            let origin = Origin { writer, level: Level::Coherent, order };
            self.apply(location, self.clock, value, origin);
        }
        while let Some((to, message)) = self.coherent.poll_send() {
            self.outbox.push_back((to, Update::Coherent(message)));
        }
    }
}

#[cfg(test)]
mod tests;
