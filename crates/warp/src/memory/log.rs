//! The log of coherent writes, without the writes that later ones have replaced.

use std::collections::BTreeMap;

use midplane_simhw::id::NodeId;

use super::Location;
use super::coherent::Entry;

/// The most writes in one part of a log. A part fits into one update of the extension.
pub(super) const PART: usize = 32;

/// The most writes of a log that a node accepts from another.
pub(super) const MOST: usize = 65_536;
/// The most locations that take coherent writes: a log stays within its bound even while several writers add locations
/// at once. Slow and PRAM writes add locations only while fewer have a value. A node refuses its own writes beyond that,
/// and does not take those of peers; their acknowledgements report that.
pub const MAX_LOCATIONS: usize = MOST / 2;

/// The number of writes in a log at which the sequencer stops placing writes to new locations. Writers
/// add none beyond [`MAX_LOCATIONS`], so only a faulty one requests such places. The rest of [`MOST`] is
/// for writes that are not applied yet.
const FULL: usize = MOST / 8 * 5;

/// Writes with their places, in rising order.
pub(super) type Places<V> = Vec<(u64, Entry<V>)>;

/// Coherent writes by place.
///
/// A write leaves the log if two later writes were applied: one to the same location, and one by
/// the same writer. The log therefore keeps at most one applied write for each location and one for
/// each writer, plus the writes that are not applied yet.
#[derive(Debug)]
pub(super) struct Log<V> {
    writes: BTreeMap<u64, Entry<V>>,
    /// The last committed place.
    committed: u64,
    /// The last applied place.
    applied: u64,
    /// The place of the last applied write to each location, and by each writer.
    last_at: BTreeMap<Location, u64>,
    last_by: BTreeMap<NodeId, u64>,
}

impl<V: Clone> Log<V> {
    pub(super) const fn new() -> Self {
        Self {
            writes: BTreeMap::new(),
            committed: 0,
            applied: 0,
            last_at: BTreeMap::new(),
            last_by: BTreeMap::new(),
        }
    }

    /// Returns the last place. It stays in the log, since no later write replaces it.
    pub(super) fn end(&self) -> u64 {
        self.writes.last_key_value().map_or(0, |(place, _)| *place)
    }

    /// Returns true if `location` has an applied write, or fewer than [`MAX_LOCATIONS`] locations have one.
    pub(super) fn takes(&self, location: Location) -> bool {
        self.last_at.len() < MAX_LOCATIONS || self.last_at.contains_key(&location)
    }

    /// Returns true if the sequencer may place a write to `location`.
    pub(super) fn has_room(&self, location: Location) -> bool {
        self.writes.len() < FULL || self.last_at.contains_key(&location)
    }

    pub(super) const fn committed(&self) -> u64 {
        self.committed
    }

    /// Appends a write and returns its place; `None` if a peer has used up the numbers, or sends more writes
    /// than any log has.
    pub(super) fn push(&mut self, entry: Entry<V>) -> Option<u64> {
        if self.writes.len() >= 2 * MOST {
            return None;
        }
        let place = self.end().checked_add(1)?;
        self.writes.insert(place, entry);
        Some(place)
    }

    /// Commits the writes up to `place`.
    pub(super) fn commit(&mut self, place: u64) {
        self.committed = self.committed.max(place.min(self.end()));
    }

    /// Returns the next committed write to apply.
    pub(super) fn poll(&mut self) -> Option<(u64, Entry<V>)> {
        if self.applied >= self.committed {
            return None;
        }
        let mut due = self.writes.range(self.applied + 1..=self.committed);
        let Some((place, entry)) = due.next().map(|(place, entry)| (*place, entry.clone())) else {
            self.applied = self.committed;
            return None;
        };
        self.applied = place;
        self.replace(place, entry.location, entry.writer);
        Some((place, entry))
    }

    /// Adopts the log of another node, which has committed the writes up to `committed`.
    ///
    /// That log may lack writes up to there. They are therefore committed at once, so that no read
    /// falls between a missing write and its replacement.
    pub(super) fn adopt(&mut self, writes: Places<V>, committed: u64) {
        self.writes = writes.into_iter().collect();
        self.commit(committed);
        self.last_at.clear();
        self.last_by.clear();
        let applied = self.writes.range(..=self.applied);
        let applied: Vec<_> =
            applied.map(|(place, entry)| (*place, entry.location, entry.writer)).collect();
        for (place, location, writer) in applied {
            self.replace(place, location, writer);
        }
    }

    /// Returns the ticket of each writer's last write.
    pub(super) fn tickets(&self) -> BTreeMap<NodeId, u64> {
        self.writes.values().map(|entry| (entry.writer, entry.ticket)).collect()
    }

    /// Returns the writes with their places.
    pub(super) fn places(&self) -> Places<V> {
        self.writes.iter().map(|(place, entry)| (*place, entry.clone())).collect()
    }

    /// Returns the number of writes in the log.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Notes an applied write, and removes the writes that it replaces.
    fn replace(&mut self, place: u64, location: Location, writer: NodeId) {
        let older = [self.last_at.insert(location, place), self.last_by.insert(writer, place)];
        for older in older.into_iter().flatten() {
            let Some(entry) = self.writes.get(&older) else { continue };
            let is_last = self.last_at.get(&entry.location) == Some(&older)
                || self.last_by.get(&entry.writer) == Some(&older);
            if !is_last {
                self.writes.remove(&older);
            }
        }
    }
}
