//! Whether a history kept a level: decided from what each node wrote and read, with the places that
//! the reads name ([`Memory::read_origin`](super::Memory::read_origin)).

use std::collections::BTreeMap;

use midplane_simhw::id::NodeId;

use super::{Level, Location, Origin};

/// What a node did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A write, once this node sees it.
    Write {
        /// Where.
        location: Location,
        /// At which level, and its place there.
        origin: Origin,
    },
    /// A read.
    Read {
        /// Where.
        location: Location,
        /// Whose write it returned; `None` where nothing was written yet.
        origin: Option<Origin>,
    },
}

/// What each node did, in its order.
pub type History = BTreeMap<NodeId, Vec<Event>>;

/// An event that a level does not allow: the node, and the event's place in its history.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Violation {
    /// The node that read or wrote.
    pub node: NodeId,
    /// Which of its events.
    pub event: usize,
    /// What is wrong.
    pub what: Wrong,
}

/// What a violation is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Wrong {
    /// A read returned what nobody wrote there.
    ThinAir,
    /// A read returned less than what the node had seen.
    WentBack,
    /// Two coherent writes have one place, or a writer's are out of its order.
    Misplaced,
}

/// The writes of a history: by writer and location, each level's places in rising order.
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

    /// The last write of `writer` to `location` whose place is at most `seen`.
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

/// Whether reads kept to slow memory: of one writer and location a reader never goes back, and its
/// own writes it sees at once (Hutto and Ahamad 1990).
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
                if own { return wrong(Wrong::WentBack) } else { continue }
            };
            if !writes.has(location, origin) {
                return wrong(Wrong::ThinAir);
            }
            let seen = seen.entry((origin.writer, location)).or_default();
            if origin.order < *seen {
                return wrong(Wrong::WentBack);
            }
            *seen = origin.order;
        }
    }
    Ok(())
}

/// Whether reads kept to PRAM: each reader sees each writer's PRAM writes, over all locations, in
/// the order that they were made in (Lipton and Sandberg 1988).
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
                    return wrong(Wrong::WentBack);
                }
                continue;
            };
            if !writes.has(location, origin) {
                return wrong(Wrong::ThinAir);
            }
            let seen = seen.entry(origin.writer).or_default();
            let last = writes.last(Level::Pram, origin.writer, location, *seen);
            if last.is_some_and(|last| origin.order < last) {
                return wrong(Wrong::WentBack);
            }
            *seen = origin.order.max(*seen);
        }
    }
    Ok(())
}

/// Whether coherent writes have one order: every place is one write's, each writer's rise in its
/// order, and no reader sees a location as it was before what it has seen already.
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
                    return wrong(Wrong::WentBack);
                }
                continue;
            };
            if places.get(&origin.order) != Some(&(origin.writer, location)) {
                return wrong(Wrong::ThinAir);
            }
            if last.is_some_and(|last| origin.order < last) {
                return wrong(Wrong::WentBack);
            }
            seen = seen.max(origin.order);
        }
    }
    Ok(())
}

/// Each place's write, where every place is one write's.
fn places(history: &History) -> Result<BTreeMap<u64, (NodeId, Location)>, Violation> {
    let mut places = BTreeMap::new();
    for (node, events) in history {
        let mut last = 0;
        for (event, what) in each(events, Level::Coherent) {
            let Event::Write { location, origin } = what else { continue };
            let is_taken = places.insert(origin.order, (*node, location)).is_some();
            if is_taken || origin.order <= last {
                return Err(Violation { node: *node, event, what: Wrong::Misplaced });
            }
            last = origin.order;
        }
    }
    Ok(places)
}

/// The events that concern `level`, with their places.
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
