//! Total order of coherent writes, by a sequencer that may fail.
//!
//! Viewstamped replication (Oki and Liskov 1988; Liskov and Cowling 2012) on links that deliver
//! once and in order. The sequencer of a view gives each write its number, its place. A write is
//! committed, and visible, when a majority of all nodes has it. If the sequencer is reported dead,
//! the next node takes over: it asks all nodes for their logs, and continues from the newest when a
//! majority has answered. A minority that is cut off commits nothing. A node that was reported dead
//! does not return with its memory.
//!
//! A log keeps only the applied writes that no later ones have replaced, so its length does not
//! depend on the number of writes made. It is transferred in parts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use midplane_simhw::id::NodeId;
use serde::{Deserialize, Serialize};

use super::Location;
use super::log::{Log, MOST, PART, Places};

/// A coherent write.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Entry<V> {
    /// Node that made the write.
    pub(crate) writer: NodeId,
    /// Number of the write among the writer's coherent writes, from 1.
    pub(crate) ticket: u64,
    /// The location.
    pub(crate) location: Location,
    /// The value.
    pub(crate) value: V,
}

/// A message of the ordering protocol.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) enum Coherence<V> {
    /// To the sequencer: requests a place for a write.
    Request(Entry<V>),
    /// From the sequencer: the write of a place, and the number of committed places.
    Place {
        /// The sequencer's view.
        view: u64,
        /// The place, from 1.
        place: u64,
        /// The write.
        entry: Entry<V>,
        /// Number of committed places.
        committed: u64,
    },
    /// To the sequencer: this node has all writes up to a place.
    Have {
        /// The view.
        view: u64,
        /// The last place that the node has.
        place: u64,
    },
    /// From the sequencer: all writes up to a place are committed.
    Committed {
        /// The view.
        view: u64,
        /// The last committed place.
        place: u64,
    },
    /// From the sequencer of a new view: requests a node's log. Of the receiver's present view or an
    /// earlier one: has no effect, but its delivery fails if that node is dead.
    Ask {
        /// The view.
        view: u64,
    },
    /// To the sequencer of a new view: a part of the sender's log.
    Known {
        /// The new view.
        view: u64,
        /// The last view whose sequencer confirmed this log.
        of_view: u64,
        /// Number of places that the sender knows to be committed.
        committed: u64,
        /// Writes with their places, in rising order.
        log: Vec<(u64, Entry<V>)>,
        /// True if another part follows.
        more: bool,
    },
    /// From the sequencer of a new view: a part of the order so far.
    View {
        /// The new view.
        view: u64,
        /// Number of committed places.
        committed: u64,
        /// Writes with their places, in rising order.
        log: Vec<(u64, Entry<V>)>,
        /// True if another part follows.
        more: bool,
    },
    /// The answer to a node that was reported dead: its messages are ignored.
    Excluded,
}

/// The log that a node has sent to a new sequencer.
#[derive(Clone, Debug)]
struct Known<V> {
    of_view: u64,
    committed: u64,
    log: Places<V>,
}

#[derive(Debug)]
pub(super) struct Coherent<V> {
    me: NodeId,
    nodes: Vec<NodeId>,
    lost: BTreeSet<NodeId>,
    /// The nodes that ignore this one.
    excluding: BTreeSet<NodeId>,
    /// The lost nodes that were told that they are ignored.
    told: BTreeSet<NodeId>,
    view: u64,
    /// The last view whose sequencer has sent its order.
    of_view: u64,
    log: Log<V>,
    /// At the sequencer: the last place that each node has.
    have: BTreeMap<NodeId, u64>,
    /// At the sequencer: the ticket of each writer's last write that has a place.
    placed: BTreeMap<NodeId, u64>,
    /// At a new sequencer: the logs that nodes have sent for its view.
    known: BTreeMap<NodeId, Known<V>>,
    /// The received parts of a log and its view, by sender; `None` once it is complete, or too long.
    parts: BTreeMap<NodeId, (u64, Option<Places<V>>)>,
    /// This node's writes that are not committed yet, and the number of all its writes.
    pending: VecDeque<Entry<V>>,
    written: u64,
    done: u64,
    out: VecDeque<(NodeId, Coherence<V>)>,
    /// The places that were applied here, with their writers and tickets.
    #[cfg(test)]
    pub(super) applied: Vec<(u64, NodeId, u64)>,
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
            excluding: BTreeSet::new(),
            told: BTreeSet::new(),
            view: 0,
            of_view: 0,
            log: Log::new(),
            have: BTreeMap::new(),
            placed: BTreeMap::new(),
            known: BTreeMap::new(),
            parts: BTreeMap::new(),
            pending: VecDeque::new(),
            written: 0,
            done: 0,
            out: VecDeque::new(),
            #[cfg(test)]
            applied: Vec::new(),
        }
    }

    pub(super) fn write(&mut self, location: Location, value: V) -> u64 {
        self.written += 1;
        let entry = Entry { writer: self.me, ticket: self.written, location, value };
        self.pending.push_back(entry.clone());
        self.request(entry);
        self.written
    }

    /// Returns true if the log has room for writes to `location`.
    pub(super) fn takes(&self, location: Location) -> bool {
        self.log.takes(location)
    }

    pub(super) const fn is_done(&self, ticket: u64) -> bool {
        ticket <= self.done
    }

    /// Returns true if a write of this node waits for another node as its sequencer.
    pub(super) fn waits(&self) -> bool {
        !self.pending.is_empty() && self.sequencer(self.view) != self.me
    }

    /// Sends the sequencer a message without effect. If a sequencer dies after it took requests,
    /// only a node that still sends to it notices.
    pub(super) fn call(&mut self) {
        let view = self.view;
        self.out.push_back((self.sequencer(view), Coherence::Ask { view }));
    }

    pub(super) fn poll_committed(&mut self) -> Option<(u64, Entry<V>)> {
        let (place, entry) = self.log.poll()?;
        if entry.writer == self.me {
            self.done = self.done.max(entry.ticket);
            self.pending.retain(|pending| pending.ticket > entry.ticket);
        }
        #[cfg(test)]
        self.applied.push((place, entry.writer, entry.ticket));
        Some((place, entry))
    }

    pub(super) fn poll_send(&mut self) -> Option<(NodeId, Coherence<V>)> {
        self.out.pop_front()
    }

    /// Returns true if `node` is one of the nodes that share the order.
    pub(super) fn has_member(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    /// Returns true if this node's writes can't be committed: its sequencer ignores it, or it and too
    /// many others ignore each other.
    pub(super) fn is_excluded(&self) -> bool {
        let left = self.nodes.len() - self.excluding.union(&self.lost).count();
        self.excluding.contains(&self.sequencer(self.view)) || left < self.majority()
    }

    /// Drops this node's writes that are not committed. One that has a place may still be.
    pub(super) fn give_up(&mut self) {
        self.pending.clear();
    }

    /// Returns true if `node` was reported lost at some time.
    pub(super) fn has_lost(&self, node: NodeId) -> bool {
        self.lost.contains(&node)
    }

    pub(super) fn handle(&mut self, from: NodeId, message: Coherence<V>) {
        // Ignores a node that was reported lost: it may have lost its log, so it must not count for
        // a majority.
        if self.lost.contains(&from) {
            if matches!(message, Coherence::Excluded) {
                self.excluding.insert(from);
            } else if self.told.insert(from) {
                self.out.push_back((from, Coherence::Excluded));
            }
            return;
        }
        match message {
            Coherence::Request(entry) => {
                // A node requests places for its own writes only.
                if entry.writer == from && self.is_sequencer() {
                    self.place(entry);
                }
            }
            Coherence::Place { view, place, entry, committed } => {
                let is_next = self.log.end().checked_add(1) == Some(place);
                if self.follows(from, view) && is_next && self.log.push(entry).is_some() {
                    self.log.commit(committed);
                    self.out.push_back((from, Coherence::Have { view, place }));
                }
            }
            Coherence::Have { view, place } => {
                if view == self.view && self.is_sequencer() {
                    let have = self.have.entry(from).or_default();
                    *have = place.min(self.log.end()).max(*have);
                    self.commit_majority();
                }
            }
            Coherence::Committed { view, place } => {
                if self.follows(from, view) {
                    self.log.commit(place);
                }
            }
            Coherence::Known { view, of_view, committed, log, more } => {
                self.enter_view(view);
                if view == self.view
                    && self.of_view < view
                    && let Some(log) = self.join(from, view, log, more)
                {
                    self.known.insert(from, Known { of_view, committed, log });
                    self.take_over();
                }
            }
            Coherence::Ask { view } => self.enter_view(view),
            Coherence::Excluded => {
                self.excluding.insert(from);
            }
            Coherence::View { view, committed, log, more } => {
                let is_new = view >= self.view && self.of_view != view;
                if is_new
                    && from == self.sequencer(view)
                    && let Some(log) = self.join(from, view, log, more)
                {
                    self.follow(from, view, log, committed);
                }
            }
        }
    }

    /// Handles the loss of a node. If it was the sequencer of this view, enters the next view.
    pub(super) fn on_lost(&mut self, node: NodeId) {
        self.lost.insert(node);
        // After a restart, it does not know.
        self.told.remove(&node);
        self.have.remove(&node);
        self.parts.remove(&node);
        self.out.retain(|(to, _)| *to != node);
        let mut views = (0..self.nodes.len() as u64).map(|step| self.view.saturating_add(step));
        let next = views.find(|view| !self.lost.contains(&self.sequencer(*view)));
        if let Some(view) = next {
            self.enter_view(view);
        }
    }

    /// Enters a later view and sends this node's log to its sequencer.
    fn enter_view(&mut self, view: u64) {
        if view <= self.view {
            return;
        }
        self.view = view;
        self.known.clear();
        self.have.clear();
        let (of_view, committed, log) = (self.of_view, self.log.committed(), self.log.places());
        let next = self.sequencer(view);
        if next == self.me {
            self.known.insert(self.me, Known { of_view, committed, log });
            for node in self.others() {
                self.out.push_back((node, Coherence::Ask { view }));
            }
            self.take_over();
        } else {
            let known = |log, more| Coherence::Known { view, of_view, committed, log, more };
            self.send_log(next, &log, known);
        }
    }

    /// Takes over as the sequencer of a new view, once a majority has sent its logs. The newest log
    /// becomes the order. It contains every committed write, since any two majorities share a node.
    fn take_over(&mut self) {
        if self.known.len() < self.majority() || self.sequencer(self.view) != self.me {
            return;
        }
        let length = |known: &Known<V>| known.log.last().map(|(place, _)| *place);
        let newest = self.known.values().max_by_key(|known| (known.of_view, length(known)));
        let Some(Known { committed, log, .. }) = newest.cloned() else { return };
        self.log.adopt(log, committed);
        self.of_view = self.view;
        self.have.clear();
        self.known.clear();
        self.parts.clear();
        self.placed = self.log.tickets();
        let (view, committed, log) = (self.view, self.log.committed(), self.log.places());
        for node in self.others() {
            let part = |log, more| Coherence::View { view, committed, log, more };
            self.send_log(node, &log, part);
        }
        self.commit_majority();
        self.repeat();
    }

    /// Adopts the order of a new view's sequencer.
    fn follow(&mut self, from: NodeId, view: u64, log: Places<V>, committed: u64) {
        self.view = view;
        self.of_view = view;
        self.log.adopt(log, committed);
        self.known.clear();
        self.parts.clear();
        self.out.push_back((from, Coherence::Have { view, place: self.log.end() }));
        self.repeat();
    }

    /// Sends a log in parts, each of which fits into one update.
    fn send_log(
        &mut self,
        to: NodeId,
        log: &[(u64, Entry<V>)],
        message: impl Fn(Places<V>, bool) -> Coherence<V>,
    ) {
        let mut rest = log;
        loop {
            let (part, after) = rest.split_at(rest.len().min(PART));
            self.out.push_back((to, message(part.to_vec(), !after.is_empty())));
            rest = after;
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Adds a part to the log that `from` sends for `view`. Returns the log after the last part.
    ///
    /// Ignores the rest of a log of more than [`MOST`] writes.
    fn join(&mut self, from: NodeId, view: u64, part: Places<V>, more: bool) -> Option<Places<V>> {
        let received = self.parts.entry(from).or_insert((view, Some(Vec::new())));
        if received.0 != view {
            *received = (view, Some(Vec::new()));
        }
        let log = received.1.as_mut()?;
        if log.len() + part.len() > MOST {
            received.1 = None;
            return None;
        }
        log.extend(part);
        if more { None } else { received.1.take() }
    }

    /// Requests places for this node's pending writes again. The sequencer ignores those that have
    /// one.
    fn repeat(&mut self) {
        let pending: Vec<Entry<V>> = self.pending.iter().cloned().collect();
        pending.into_iter().for_each(|entry| self.request(entry));
    }

    fn request(&mut self, entry: Entry<V>) {
        if self.of_view < self.view {
            // `repeat` requests it when the view has a sequencer.
            return;
        }
        if self.is_sequencer() {
            self.place(entry);
        } else {
            self.out.push_back((self.sequencer(self.view), Coherence::Request(entry)));
        }
    }

    fn place(&mut self, entry: Entry<V>) {
        // A writer's requests arrive in its order, so the last ticket shows which of them have a
        // place.
        let placed = self.placed.entry(entry.writer).or_default();
        if entry.ticket <= *placed {
            return;
        }
        let has_room = self.log.has_room(entry.location);
        let place = if has_room { self.log.push(entry.clone()) } else { None };
        let Some(place) = place else {
            // In this view the writer's later writes get no place either, or they would pass this one.
            *placed = u64::MAX;
            return;
        };
        *placed = entry.ticket;
        let (view, committed) = (self.view, self.log.committed());
        for node in self.others() {
            let entry = entry.clone();
            self.out.push_back((node, Coherence::Place { view, place, entry, committed }));
        }
        self.commit_majority();
    }

    /// Commits the writes that a majority has.
    fn commit_majority(&mut self) {
        let mut places: Vec<u64> = self.have.values().copied().collect();
        places.push(self.log.end());
        places.sort_unstable_by(|a, b| b.cmp(a));
        let Some(place) = places.get(self.majority() - 1).copied() else { return };
        if place > self.log.committed() {
            self.log.commit(place);
            let view = self.view;
            for node in self.others() {
                self.out.push_back((node, Coherence::Committed { view, place }));
            }
        }
    }

    /// Returns the last place of the log.
    #[cfg(test)]
    pub(super) fn end(&self) -> u64 {
        self.log.end()
    }

    /// Returns the most writes received of an incomplete log.
    #[cfg(test)]
    pub(super) fn parts_len(&self) -> usize {
        self.parts.values().flat_map(|(_, log)| log).map(Vec::len).max().unwrap_or(0)
    }

    /// Returns the number of writes in the log.
    #[cfg(test)]
    pub(super) fn log_len(&self) -> usize {
        self.log.len()
    }

    const fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    fn sequencer(&self, view: u64) -> NodeId {
        let place = view % self.nodes.len() as u64;
        self.nodes[usize::try_from(place).expect("the place is below the number of nodes")]
    }

    fn is_sequencer(&self) -> bool {
        self.sequencer(self.view) == self.me && self.of_view == self.view
    }

    /// Returns true if this node has the order of `view`, and `from` is its sequencer.
    fn follows(&self, from: NodeId, view: u64) -> bool {
        view == self.view && self.of_view == view && from == self.sequencer(view)
    }

    fn others(&self) -> Vec<NodeId> {
        let lives = |node: &&NodeId| **node != self.me && !self.lost.contains(node);
        self.nodes.iter().filter(lives).copied().collect()
    }
}
