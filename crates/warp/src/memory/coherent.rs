//! One order of coherent writes, by a sequencer that may die.
//!
//! Viewstamped replication (Oki and Liskov 1988; Liskov and Cowling 2012) on links that deliver once
//! and in order. The sequencer of a view gives each write its number; a write is committed, and
//! seen, when a majority of all nodes has it. When the sequencer is reported dead the next node
//! takes over: it asks all for what they have, and goes on from the newest when a majority has
//! answered. A minority that is cut off commits nothing. A node that was reported dead does not come
//! back with its memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use midplane_simhw::id::NodeId;
use serde::{Deserialize, Serialize};

use super::Location;

/// A write, from its request to its place.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Entry<V> {
    /// Who wrote.
    pub writer: NodeId,
    /// Its number among the writer's coherent writes, from 1.
    pub ticket: u64,
    /// Where.
    pub location: Location,
    /// What.
    pub value: V,
}

/// What nodes tell each other of the order.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Coherence<V> {
    /// To the sequencer: give it a place.
    Request(Entry<V>),
    /// From the sequencer: the write of this place, and how many are committed.
    Place {
        /// The sequencer's view.
        view: u64,
        /// From 1.
        place: u64,
        /// The write.
        entry: Entry<V>,
        /// Places that are committed.
        committed: u64,
    },
    /// To the sequencer: all up to this place are here.
    Have {
        /// The view.
        view: u64,
        /// The last place.
        place: u64,
    },
    /// From the sequencer: all up to this place are committed.
    Committed {
        /// The view.
        view: u64,
        /// The last place.
        place: u64,
    },
    /// From the sequencer of a new view: what is there? To the sequencer of the present one: is it
    /// there?
    Ask {
        /// The view.
        view: u64,
    },
    /// To the sequencer of a new view: all that is here.
    Known {
        /// The new view.
        view: u64,
        /// The last view whose order this is.
        of_view: u64,
        /// The writes, from place 1.
        log: Vec<Entry<V>>,
    },
    /// From the sequencer of a new view: this is the order so far.
    View {
        /// The new view.
        view: u64,
        /// The writes, from place 1.
        log: Vec<Entry<V>>,
    },
}

#[derive(Debug)]
pub(super) struct Coherent<V> {
    me: NodeId,
    nodes: Vec<NodeId>,
    lost: BTreeSet<NodeId>,
    view: u64,
    /// The last view whose sequencer has said what the order is.
    of_view: u64,
    log: Vec<Entry<V>>,
    committed: u64,
    polled: u64,
    /// The sequencer's: up to which place each node has the order.
    have: BTreeMap<NodeId, u64>,
    /// The sequencer's: each writer's last write that has a place.
    placed: BTreeMap<NodeId, u64>,
    /// The new sequencer's: what the nodes of its view have told.
    known: BTreeMap<NodeId, (u64, Vec<Entry<V>>)>,
    /// This node's writes that have no place yet, and how many it has made.
    pending: VecDeque<Entry<V>>,
    written: u64,
    done: u64,
    out: VecDeque<(NodeId, Coherence<V>)>,
}

impl<V: Clone> Coherent<V> {
    pub(super) fn new(me: NodeId, nodes: &[NodeId]) -> Self {
        let mut nodes = nodes.to_vec();
        nodes.sort_unstable();
        nodes.dedup();
        Self {
            me,
            nodes,
            lost: BTreeSet::new(),
            view: 0,
            of_view: 0,
            log: Vec::new(),
            committed: 0,
            polled: 0,
            have: BTreeMap::new(),
            placed: BTreeMap::new(),
            known: BTreeMap::new(),
            pending: VecDeque::new(),
            written: 0,
            done: 0,
            out: VecDeque::new(),
        }
    }

    pub(super) fn write(&mut self, location: Location, value: V) -> u64 {
        self.written += 1;
        let entry = Entry { writer: self.me, ticket: self.written, location, value };
        self.pending.push_back(entry.clone());
        self.request(entry);
        self.written
    }

    pub(super) const fn is_done(&self, ticket: u64) -> bool {
        ticket <= self.done
    }

    /// Whether a write of this node waits for another node to give it a place.
    pub(super) fn waits(&self) -> bool {
        !self.pending.is_empty() && self.sequencer(self.view) != self.me
    }

    /// Says something to the sequencer that changes nothing: one that took requests and died is found
    /// out only by who still has something to tell it.
    pub(super) fn call(&mut self) {
        let view = self.view;
        self.out.push_back((self.sequencer(view), Coherence::Ask { view }));
    }

    pub(super) fn poll_committed(&mut self) -> Option<(u64, Entry<V>)> {
        if self.polled >= self.committed {
            return None;
        }
        let entry = self.log.get(usize::try_from(self.polled).ok()?)?.clone();
        self.polled += 1;
        if entry.writer == self.me {
            self.done = self.done.max(entry.ticket);
            self.pending.retain(|pending| pending.ticket > entry.ticket);
        }
        Some((self.polled, entry))
    }

    pub(super) fn poll_send(&mut self) -> Option<(NodeId, Coherence<V>)> {
        self.out.pop_front()
    }

    /// Whether `node` is one of those that share the order.
    pub(super) fn has_member(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    pub(super) fn handle(&mut self, from: NodeId, message: Coherence<V>) {
        // A node that was given up and speaks again has lost what it had: its word makes no majority.
        if self.lost.contains(&from) {
            return;
        }
        match message {
            Coherence::Request(entry) => {
                if self.is_sequencer() {
                    self.place(entry);
                }
            }
            Coherence::Place { view, place, entry, committed } => {
                if view == self.view && self.of_view == view && place == self.end() + 1 {
                    self.log.push(entry);
                    self.commit(committed);
                    self.out.push_back((from, Coherence::Have { view, place }));
                }
            }
            Coherence::Have { view, place } => {
                if view == self.view && self.is_sequencer() {
                    let have = self.have.entry(from).or_default();
                    *have = place.min(self.log.len() as u64).max(*have);
                    self.count();
                }
            }
            Coherence::Committed { view, place } => {
                if view == self.view && self.of_view == view {
                    self.commit(place);
                }
            }
            Coherence::Known { view, of_view, log } => {
                self.look_at(view);
                if view == self.view && self.of_view < view {
                    self.known.insert(from, (of_view, log));
                    self.take_over();
                }
            }
            Coherence::Ask { view } => self.look_at(view),
            Coherence::View { view, log } => self.follow(from, view, log),
        }
    }

    /// A node is dead: if it was the sequencer of this view, the next one is asked.
    pub(super) fn on_lost(&mut self, node: NodeId) {
        self.lost.insert(node);
        self.have.remove(&node);
        self.out.retain(|(to, _)| *to != node);
        let mut views = (0..self.nodes.len() as u64).map(|step| self.view.saturating_add(step));
        let next = views.find(|view| !self.lost.contains(&self.sequencer(*view)));
        if let Some(view) = next {
            self.look_at(view);
        }
    }

    /// Enters a later view: its sequencer is told what is here.
    fn look_at(&mut self, view: u64) {
        if view <= self.view {
            return;
        }
        self.view = view;
        self.known.clear();
        self.have.clear();
        let (of_view, log) = (self.of_view, self.log.clone());
        let next = self.sequencer(view);
        if next == self.me {
            self.known.insert(self.me, (of_view, log));
            for node in self.others() {
                self.out.push_back((node, Coherence::Ask { view }));
            }
            self.take_over();
        } else {
            self.out.push_back((next, Coherence::Known { view, of_view, log }));
        }
    }

    /// A majority has told the new sequencer what it has: the newest order is the order. What was
    /// committed is in it, since a majority had it and no two majorities are strangers.
    fn take_over(&mut self) {
        if self.known.len() < self.majority() || self.sequencer(self.view) != self.me {
            return;
        }
        let newest = self.known.values().max_by_key(|(of_view, log)| (*of_view, log.len()));
        self.log = newest.map(|(_, log)| log.clone()).unwrap_or_default();
        self.of_view = self.view;
        self.have.clear();
        self.placed = self.log.iter().map(|entry| (entry.writer, entry.ticket)).collect();
        for node in self.others() {
            let message = Coherence::View { view: self.view, log: self.log.clone() };
            self.out.push_back((node, message));
        }
        self.count();
        self.repeat();
    }

    /// The sequencer of a new view has said what the order is.
    fn follow(&mut self, from: NodeId, view: u64, log: Vec<Entry<V>>) {
        if view < self.view || from != self.sequencer(view) || self.of_view == view {
            return;
        }
        self.view = view;
        self.of_view = view;
        self.log = log;
        self.known.clear();
        self.out.push_back((from, Coherence::Have { view, place: self.end() }));
        self.repeat();
    }

    /// Asks again for places of this node's writes; the sequencer knows those that have one.
    fn repeat(&mut self) {
        let pending: Vec<Entry<V>> = self.pending.iter().cloned().collect();
        pending.into_iter().for_each(|entry| self.request(entry));
    }

    fn request(&mut self, entry: Entry<V>) {
        if self.of_view < self.view {
            // It is asked for when the view has a sequencer.
            return;
        }
        if self.is_sequencer() {
            self.place(entry);
        } else {
            self.out.push_back((self.sequencer(self.view), Coherence::Request(entry)));
        }
    }

    fn place(&mut self, entry: Entry<V>) {
        // A writer's requests come in its order, so that one number tells which have a place.
        let placed = self.placed.entry(entry.writer).or_default();
        if entry.ticket <= *placed {
            return;
        }
        *placed = entry.ticket;
        self.log.push(entry.clone());
        let (view, place, committed) = (self.view, self.end(), self.committed);
        for node in self.others() {
            let entry = entry.clone();
            self.out.push_back((node, Coherence::Place { view, place, entry, committed }));
        }
        self.count();
    }

    /// Commits what a majority has.
    fn count(&mut self) {
        let mut places: Vec<u64> = self.have.values().copied().collect();
        places.push(self.end());
        places.sort_unstable_by(|a, b| b.cmp(a));
        let Some(place) = places.get(self.majority() - 1).copied() else { return };
        if place > self.committed {
            self.commit(place);
            let view = self.view;
            for node in self.others() {
                self.out.push_back((node, Coherence::Committed { view, place }));
            }
        }
    }

    /// The place of this node's write, if it has one.
    #[cfg(test)]
    pub(super) fn place_of(&self, ticket: u64) -> Option<u64> {
        let is_it = |entry: &Entry<V>| entry.writer == self.me && entry.ticket == ticket;
        self.log.iter().position(is_it).map(|at| at as u64 + 1)
    }

    /// The committed writes, in their order.
    #[cfg(test)]
    pub(super) fn order(&self) -> Vec<(NodeId, u64)> {
        let committed = &self.log[..usize::try_from(self.committed).unwrap()];
        committed.iter().map(|entry| (entry.writer, entry.ticket)).collect()
    }

    fn commit(&mut self, place: u64) {
        self.committed = self.committed.max(place.min(self.end()));
    }

    const fn end(&self) -> u64 {
        self.log.len() as u64
    }

    const fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    fn sequencer(&self, view: u64) -> NodeId {
        let place = view % self.nodes.len() as u64;
        self.nodes[usize::try_from(place).expect("less than the nodes are")]
    }

    fn is_sequencer(&self) -> bool {
        self.sequencer(self.view) == self.me && self.of_view == self.view
    }

    fn others(&self) -> Vec<NodeId> {
        let lives = |node: &&NodeId| **node != self.me && !self.lost.contains(node);
        self.nodes.iter().filter(lives).copied().collect()
    }
}
