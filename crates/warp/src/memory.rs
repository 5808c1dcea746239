//! Mermera's memory: locations that every node has a copy of, and writes that are as coherent as
//! each needs to be (Heddaya and Sinha 1993; Heddaya and Park 1994, section 5.1).
//!
//! | write | what readers may rely on | how it travels |
//! |---|---|---|
//! | [`Memory::co_write`] | all nodes see all of them in one order | ordered by a sequencer, committed by a majority |
//! | [`Memory::pram_write`] | all see one writer's in its order (Lipton and Sandberg 1988) | reliably, in order |
//! | [`Memory::slow_write`] | all see one writer's to one location in its order, and the last arrives (Hutto and Ahamad 1990) | when the gate is open, latest value only |
//!
//! A read is local and never waits. A node sees its own slow and PRAM writes at once, its coherent
//! ones when they have their place. Levels may be mixed, also on one location; a slow write then
//! gives way to what its reader has that was written later (by Lamport's clock), so that when slow
//! writes alone are made, and stop, all copies end up alike.

pub mod check;
mod coherent;
pub mod extension;
mod shared;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::time::Instant;
use serde::{Deserialize, Serialize};

use coherent::Coherent;
pub use coherent::{Coherence, Entry};
pub use shared::{AccessError, OpenMemoryError, Shared};

use crate::slots::{Ack, Copy, Slots};

/// A location: an index into an array, or the hash of a name.
pub type Location = u32;

/// Which order writes of a level are seen in.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Level {
    /// Each location's writes by one writer, in its order.
    Slow,
    /// All writes of one writer, in its order.
    Pram,
    /// All writes, in one order for all nodes.
    Coherent,
}

/// Who wrote what a read returned, and its place among that writer's writes of that level.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Origin {
    /// The writer.
    pub writer: NodeId,
    /// The level that it was written at.
    pub level: Level,
    /// From 1: among the writer's slow writes to this location, its PRAM writes, or all coherent
    /// ones of all nodes.
    pub order: u64,
}

/// What one node's memory sends to another's.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Update<V> {
    /// A slow write; may be lost.
    Slow {
        /// Where.
        location: Location,
        /// Its place among the writer's to this location.
        version: u64,
        /// Its place among all copies sent, for the acknowledgement.
        number: u64,
        /// The writer's clock.
        clock: u64,
        /// What.
        value: V,
    },
    /// What has been read of slow writes; may be lost.
    SlowAck(Ack<Location>),
    /// A PRAM write; must arrive once and in order.
    Pram {
        /// Where.
        location: Location,
        /// The writer's clock.
        clock: u64,
        /// What.
        value: V,
    },
    /// Of the one order of coherent writes; must arrive once and in order.
    Coherent(Coherence<V>),
}

impl<V> Update<V> {
    /// Whether it must arrive once and in order, as nicvm's control messages do; others may be lost,
    /// and are sent when the gate is open.
    #[must_use]
    pub const fn is_reliable(&self) -> bool {
        matches!(self, Self::Pram { .. } | Self::Coherent(_))
    }
}

#[derive(Clone, Debug)]
struct Cell<V> {
    value: V,
    clock: u64,
    origin: Origin,
}

/// One node's copy of the memory. A state machine: what it wants sent is polled from it.
#[derive(Debug)]
pub struct Memory<V> {
    me: NodeId,
    cells: BTreeMap<Location, Cell<V>>,
    /// The writer's slow versions that are here, by location: those below are stale.
    versions: BTreeMap<(NodeId, Location), u64>,
    /// Lamport's clock.
    clock: u64,
    pram_written: u64,
    pram_seen: BTreeMap<NodeId, u64>,
    slow: BTreeMap<NodeId, Slots<Location, (u64, V)>>,
    coherent: Coherent<V>,
    outbox: VecDeque<(NodeId, Update<V>)>,
}

impl<V: Clone> Memory<V> {
    /// The memory of node `me` among `nodes`, itself included; feedback takes `delay`.
    ///
    /// # Panics
    /// If `me` is not among the nodes.
    #[must_use]
    pub fn new(me: NodeId, nodes: &[NodeId], delay: Duration) -> Self {
        assert!(nodes.contains(&me), "a node has a copy of its own memory");
        let others = nodes.iter().filter(|node| **node != me);
        Self {
            me,
            cells: BTreeMap::new(),
            versions: BTreeMap::new(),
            clock: 0,
            pram_written: 0,
            pram_seen: BTreeMap::new(),
            slow: others.map(|node| (*node, Slots::new(delay))).collect(),
            coherent: Coherent::new(me, nodes),
            outbox: VecDeque::new(),
        }
    }

    /// Writes so that this writer's values of this location are seen in order, and the last of them
    /// everywhere; in between any may be skipped. Never waits.
    pub fn slow_write(&mut self, now: Instant, location: Location, value: V) {
        let clock = self.tick();
        let mut version = self.versions.get(&(self.me, location)).map_or(1, |last| last + 1);
        for slots in self.slow.values_mut() {
            version = slots.write(now, location, (clock, value.clone()));
        }
        self.versions.insert((self.me, location), version);
        let origin = Origin { writer: self.me, level: Level::Slow, order: version };
        self.cells.insert(location, Cell { value, clock, origin });
    }

    /// Writes so that all nodes see this writer's PRAM writes in the order that they were made in.
    pub fn pram_write(&mut self, location: Location, value: V) {
        let clock = self.tick();
        self.pram_written += 1;
        for node in self.slow.keys() {
            let update = Update::Pram { location, clock, value: value.clone() };
            self.outbox.push_back((*node, update));
        }
        let origin = Origin { writer: self.me, level: Level::Pram, order: self.pram_written };
        self.cells.insert(location, Cell { value, clock, origin });
    }

    /// Writes in the one order of all coherent writes; returns the ticket by which
    /// [`Memory::is_done`] tells when it has its place and this node sees it. A writer that waits
    /// for each before it reads on has sequential consistency.
    pub fn co_write(&mut self, location: Location, value: V) -> u64 {
        let ticket = self.coherent.write(location, value);
        self.settle();
        ticket
    }

    /// Whether a coherent write has its place and is seen here.
    #[must_use]
    pub fn is_done(&self, ticket: u64) -> bool {
        self.coherent.is_done(ticket)
    }

    /// Whether a coherent write waits for the node that gives it its place. While it does, call
    /// [`Memory::call_sequencer`] now and then.
    #[must_use]
    pub fn waits_for_place(&self) -> bool {
        self.coherent.waits()
    }

    /// Sends the node that gives coherent writes their places something that must arrive, so that its
    /// death is noticed even where it had acknowledged all that it was sent.
    pub fn call_sequencer(&mut self) {
        self.coherent.call();
        self.settle();
    }

    /// The value at `location` in this node's copy; `None` before the first write that is seen.
    #[must_use]
    pub fn read(&self, location: Location) -> Option<&V> {
        self.cells.get(&location).map(|cell| &cell.value)
    }

    /// The value at `location`, and whose it is.
    #[must_use]
    pub fn read_origin(&self, location: Location) -> Option<(&V, Origin)> {
        self.cells.get(&location).map(|cell| (&cell.value, cell.origin))
    }

    /// What must arrive once and in order, and acknowledgements: send all of it.
    #[must_use]
    pub fn poll_send(&mut self) -> Option<(NodeId, Update<V>)> {
        self.outbox.pop_front()
    }

    /// The slow write to `destination` that has waited longest, if one is due: a conditional send,
    /// so ask only while the gate is open.
    #[must_use]
    pub fn poll_slow(&mut self, now: Instant, destination: NodeId) -> Option<Update<V>> {
        let copy = self.slow.get_mut(&destination)?.poll_send(now)?;
        let (clock, value) = copy.value.clone();
        let (location, version, number) = (*copy.key, copy.version, copy.number);
        Some(Update::Slow { location, version, number, clock, value })
    }

    /// The slow write that has waited longest, where it is due at half of all other nodes or more:
    /// one copy for all of them. A conditional send, as [`Memory::poll_slow`] is, which has the rest.
    #[must_use]
    pub fn poll_slow_to_all(&mut self, now: Instant) -> Option<Update<V>> {
        let mut first = self.slow.values_mut().filter_map(|slots| slots.poll_key(now).copied());
        let location = first.next()?;
        let due = self.slow.values().filter(|slots| slots.is_due(now, &location)).count();
        if 2 * due < self.slow.len() {
            return None;
        }
        let number = self.slow.values().map(Slots::next_number).max()?;
        let mut update = None;
        for slots in self.slow.values_mut() {
            slots.number_from(number);
            if let Some(Copy { version, value: (clock, value), .. }) = slots.send(now, &location) {
                let (clock, value) = (*clock, value.clone());
                update = Some(Update::Slow { location, version, number, clock, value });
            }
        }
        update
    }

    /// When a slow write to `destination` will be due.
    #[must_use]
    pub fn poll_timeout(&self, destination: NodeId) -> Option<Instant> {
        self.slow.get(&destination)?.poll_timeout()
    }

    /// An update has arrived. One of a node that does not share the memory changes nothing, nor does
    /// one that claims to be this node's own.
    pub fn handle_update(&mut self, now: Instant, from: NodeId, update: Update<V>) {
        if from == self.me || !self.coherent.has_member(from) {
            return;
        }
        match update {
            Update::Slow { location, version, number, clock, value } => {
                self.on_slow(from, (location, version, clock), value);
                let seen = self.versions.get(&(from, location)).copied().unwrap_or(version);
                let ack = Ack { key: location, version: seen, number };
                self.outbox.push_back((from, Update::SlowAck(ack)));
            }
            Update::SlowAck(ack) => {
                if let Some(slots) = self.slow.get_mut(&from) {
                    slots.handle_ack(now, &ack);
                }
            }
            Update::Pram { location, clock, value } => {
                let order = self.pram_seen.entry(from).or_default();
                *order += 1;
                let origin = Origin { writer: from, level: Level::Pram, order: *order };
                self.see(location, clock, value, origin);
            }
            Update::Coherent(message) => {
                self.coherent.handle(from, message);
                self.settle();
            }
        }
    }

    /// A node has died, as far as its peers can tell: it is waited for no more, and if it was the
    /// sequencer of coherent writes another takes over, as long as a majority of all nodes lives.
    pub fn on_peer_lost(&mut self, node: NodeId) {
        self.slow.remove(&node);
        self.outbox.retain(|(to, _)| *to != node);
        self.coherent.on_lost(node);
        self.settle();
    }

    /// Slow writes whose last value some node is not known to have.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.slow.values().map(Slots::unacknowledged).sum()
    }

    /// The time of the next write here. A clock that a peer has set to its end stands still.
    const fn tick(&mut self) -> u64 {
        self.clock = self.clock.saturating_add(1);
        self.clock
    }

    fn on_slow(&mut self, from: NodeId, write: (Location, u64, u64), value: V) {
        let (location, version, clock) = write;
        let seen = self.versions.entry((from, location)).or_default();
        if version <= *seen {
            return;
        }
        *seen = version;
        let origin = Origin { writer: from, level: Level::Slow, order: version };
        let is_later = |cell: &Cell<V>| (clock, from) > (cell.clock, cell.origin.writer);
        if self.cells.get(&location).is_none_or(is_later) {
            self.see(location, clock, value, origin);
        }
        self.clock = self.clock.max(clock);
    }

    fn see(&mut self, location: Location, clock: u64, value: V, origin: Origin) {
        self.clock = self.clock.max(clock);
        self.cells.insert(location, Cell { value, clock, origin });
    }

    /// What has its place among the coherent writes is seen, and what the order needs goes out.
    fn settle(&mut self) {
        while let Some((order, entry)) = self.coherent.poll_committed() {
            let Entry { writer, location, value, .. } = entry;
            self.tick();
            let origin = Origin { writer, level: Level::Coherent, order };
            self.see(location, self.clock, value, origin);
        }
        while let Some((to, message)) = self.coherent.poll_send() {
            self.outbox.push_back((to, Update::Coherent(message)));
        }
    }
}

#[cfg(test)]
mod tests;
