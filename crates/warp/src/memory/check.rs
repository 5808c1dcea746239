//! Checks whether a history kept to a consistency level, from the writes and reads of each node.
//! The reads name the writes that they returned
//! (`read_origin`).

use std::collections::BTreeMap;

use midplane_simhw::id::NodeId;

use super::{Level, Location, Origin};

/// A write or a read by one node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A write, recorded when the node itself sees it.
    Write {
        /// The location.
        location: Location,
        /// The level and the number of the write.
        origin: Origin,
    },
    /// A read.
    Read {
        /// The location.
        location: Location,
        /// The write that it returned; `None` if there was no value yet.
        origin: Option<Origin>,
    },
}

/// The events of each node, in the node's order.
pub type History = BTreeMap<NodeId, Vec<Event>>;

/// An event that the level does not allow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Violation {
    /// The node that read or wrote.
    pub node: NodeId,
    /// Index of the event in the node's history.
    pub event: usize,
    /// The kind of violation.
    pub what: ViolationKind,
}

/// A kind of violation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ViolationKind {
    /// A read returned a write that was never made at that location.
    OutOfThinAir,
    /// A read returned an older write than the node had already seen.
    NotMonotonic,
    /// Two coherent writes have the same number, or one writer's numbers are not in its order.
    Misplaced,
}

/// The writes of a history: the numbers by level, writer and location, in rising order.
struct Writes(BTreeMap<(Level, NodeId, Location), Vec<u64>>);

impl Writes {
    fn of(history: &History) -> Self {
        let mut writes: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        for event in history.values().flatten() {
            if let Event::Write { location, origin } = event {
                let at = (origin.level, origin.writer, *location);
                writes.entry(at).or_default().push(origin.order);
            }
        }
        writes.values_mut().for_each(|orders| orders.sort_unstable());
        Self(writes)
    }

    fn has(&self, location: Location, origin: Origin) -> bool {
        let at = (origin.level, origin.writer, location);
        self.0.get(&at).is_some_and(|orders| orders.binary_search(&origin.order).is_ok())
    }

    /// Returns the last write of `writer` to `location` with a number of at most `seen`.
    fn last(&self, level: Level, writer: NodeId, location: Location, seen: u64) -> Option<u64> {
        let orders = self.0.get(&(level, writer, location))?;
        let count = orders.partition_point(|order| *order <= seen);
        orders[..count].last().copied()
    }

    fn writers(&self) -> impl Iterator<Item = NodeId> {
        let mut writers: Vec<NodeId> = self.0.keys().map(|(_, writer, _)| *writer).collect();
        writers.sort_unstable();
        writers.dedup();
        writers.into_iter()
    }
}

/// Checks a history against slow memory (Hutto and Ahamad 1990).
///
/// For each writer and location a reader never goes back, and a node sees its own writes at once.
///
/// # Errors
/// The first [`Violation`].
pub fn slow(history: &History) -> Result<(), Violation> {
    let writes = Writes::of(history);
    for (node, events) in history {
        let mut seen: BTreeMap<(NodeId, Location), u64> = BTreeMap::new();
        for (event, what) in each(events, Level::Slow) {
            let wrong = |what| Err(Violation { node: *node, event, what });
            let (location, Some(origin)) = what.of() else {
                let own = seen.contains_key(&(*node, what.of().0));
                if own { return wrong(ViolationKind::NotMonotonic) } else { continue }
            };
            if !writes.has(location, origin) {
                return wrong(ViolationKind::OutOfThinAir);
            }
            let seen = seen.entry((origin.writer, location)).or_default();
            if origin.order < *seen {
                return wrong(ViolationKind::NotMonotonic);
            }
            *seen = origin.order;
        }
    }
    Ok(())
}

/// Checks a history against PRAM (Lipton and Sandberg 1988).
///
/// Each reader sees each writer's PRAM writes, over all locations, in the order that they were made
/// in.
///
/// # Errors
/// The first [`Violation`].
pub fn pram(history: &History) -> Result<(), Violation> {
    let writes = Writes::of(history);
    for (node, events) in history {
        let mut seen: BTreeMap<NodeId, u64> = BTreeMap::new();
        for (event, what) in each(events, Level::Pram) {
            let wrong = |what| Err(Violation { node: *node, event, what });
            let (location, origin) = what.of();
            let Some(origin) = origin else {
                let is_there = |writer: NodeId| {
                    let seen = seen.get(&writer).copied().unwrap_or(0);
                    writes.last(Level::Pram, writer, location, seen).is_some()
                };
                if writes.writers().any(is_there) {
                    return wrong(ViolationKind::NotMonotonic);
                }
                continue;
            };
            if !writes.has(location, origin) {
                return wrong(ViolationKind::OutOfThinAir);
            }
            let seen = seen.entry(origin.writer).or_default();
            let last = writes.last(Level::Pram, origin.writer, location, *seen);
            if last.is_some_and(|last| origin.order < last) {
                return wrong(ViolationKind::NotMonotonic);
            }
            *seen = origin.order.max(*seen);
        }
    }
    Ok(())
}

/// Checks that a history's coherent writes have one total order.
///
/// Every number belongs to one write, each writer's numbers rise in its order, and no reader sees
/// an older state of a location than it has seen already.
///
/// # Errors
/// The first [`Violation`].
pub fn coherent(history: &History) -> Result<(), Violation> {
    let places = places(history)?;
    for (node, events) in history {
        let mut seen = 0;
        for (event, what) in each(events, Level::Coherent) {
            let wrong = |what| Err(Violation { node: *node, event, what });
            let (location, origin) = what.of();
            let last =
                places.range(..=seen).rev().find(|(_, (_, at))| *at == location).map(|(at, _)| *at);
            let Some(origin) = origin else {
                if last.is_some() {
                    return wrong(ViolationKind::NotMonotonic);
                }
                continue;
            };
            if places.get(&origin.order) != Some(&(origin.writer, location)) {
                return wrong(ViolationKind::OutOfThinAir);
            }
            if last.is_some_and(|last| origin.order < last) {
                return wrong(ViolationKind::NotMonotonic);
            }
            seen = seen.max(origin.order);
        }
    }
    Ok(())
}

/// Returns the coherent writes by number. Fails if two writes have the same number.
fn places(history: &History) -> Result<BTreeMap<u64, (NodeId, Location)>, Violation> {
    let mut places = BTreeMap::new();
    for (node, events) in history {
        let mut last = 0;
        for (event, what) in each(events, Level::Coherent) {
            let Event::Write { location, origin } = what else { continue };
            let is_taken = places.insert(origin.order, (*node, location)).is_some();
            if is_taken || origin.order <= last {
                return Err(Violation { node: *node, event, what: ViolationKind::Misplaced });
            }
            last = origin.order;
        }
    }
    Ok(places)
}

/// Returns the events that concern `level`, with their indexes.
fn each(events: &[Event], level: Level) -> impl Iterator<Item = (usize, Event)> {
    let concerns = move |event: &Event| event.of().1.is_none_or(|origin| origin.level == level);
    events.iter().copied().enumerate().filter(move |(_, event)| concerns(event))
}

impl Event {
    const fn of(&self) -> (Location, Option<Origin>) {
        match self {
            Self::Write { location, origin } => (*location, Some(*origin)),
            Self::Read { location, origin } => (*location, *origin),
        }
    }
}
