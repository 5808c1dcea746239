//! One member's copy of a map of latest values, and the keys that each peer and each reader has yet to receive.
//!
//! Performs no I/O and reads no clock: the time is an argument, in microseconds of the caller's own clock, and never
//! goes back. After each `&mut self` call, wake the tasks for which [`Replica::has_due`] may have become true.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Time for which a removal is kept: 10 min, in microseconds. A member that was disconnected for longer, and still has
/// the entry, restores it.
pub(super) const TOMBSTONE: i64 = 600_000_000;
/// Most bytes of a key's encoding: 1 KiB.
pub(super) const MAX_KEY: usize = 1_024;
/// Most bytes of a value's encoding: 32 KiB.
pub(super) const MAX_VALUE: usize = 32 * 1_024;
/// Most keys of a map, including those removed recently: 65,536.
pub(super) const MAX_KEYS: usize = 65_536;
/// Most bytes of all keys and values of a map: 256 MiB.
pub(super) const MAX_BYTES: usize = 256 << 20;
/// Most keys and bytes of a map for this member's own writes.
const OWN: (usize, usize) = (MAX_KEYS, MAX_BYTES);
/// Most keys and bytes for updates from peers. Members drop a removal at different times, so one may have room for a
/// new key earlier than the others; an update that they refused would never be sent again.
const PEERS: (usize, usize) = (MAX_KEYS / 8 * 9, MAX_BYTES / 8 * 9);
/// Bytes of an update in addition to its key and value.
const OVERHEAD: usize = 48;
/// Most times that a write is renewed because an older write of a higher version arrived. The bound ends the renewals
/// if clocks disagree.
const RENEWALS: u8 = 8;
/// Most writes by which an update may be ahead of all that this member knows.
const MAX_STEP: u64 = 1 << 40;

/// Orders the writes of a key: the higher one wins everywhere.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct Version {
    /// Higher than all counters that the writer had seen.
    pub(super) counter: u64,
    pub(super) writer: u64,
}

/// An entry, as one member sends it to another.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Update {
    pub(super) key: Bytes,
    /// `None` if it was removed.
    pub(super) value: Option<Bytes>,
    pub(super) version: Version,
    /// Microseconds since its writer wrote it, without the time on the network.
    pub(super) age: u64,
}

impl Update {
    fn bytes(&self) -> usize {
        OVERHEAD + self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// The newest value of a key at this member.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Entry {
    pub(super) value: Option<Bytes>,
    pub(super) version: Version,
    /// When it was written, by this member's clock; never earlier than the actual write.
    pub(super) written: i64,
    renewals: u8,
}

/// An observer of the map's changes: a peer, or a reader of this process.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Observer {
    Peer(u64),
    Reader(u64),
}

/// The reason why a write is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Refused {
    Key,
    Value,
    Keys,
    Bytes,
}

/// One member's copy of a map.
#[derive(Debug)]
pub(super) struct Replica {
    id: u64,
    /// The highest counter seen.
    clock: u64,
    entries: BTreeMap<Bytes, Entry>,
    /// Removed entries, the oldest first.
    removed: BTreeSet<(i64, Bytes)>,
    bytes: usize,
    /// For each observer, the keys whose newest value it has not received. Only keys wait, no queue of values.
    due: BTreeMap<Observer, BTreeSet<Bytes>>,
    /// Number of peers' updates that were dropped as beyond the bounds.
    pub(super) refused: u64,
}

impl Replica {
    /// Creates an empty copy for the member with number `id`, which differs for each of its incarnations.
    pub(super) const fn new(id: u64) -> Self {
        Self {
            id,
            clock: 0,
            entries: BTreeMap::new(),
            removed: BTreeSet::new(),
            bytes: 0,
            due: BTreeMap::new(),
            refused: 0,
        }
    }

    /// Writes a value; replaces any value that this member has seen.
    pub(super) fn set(&mut self, now: i64, key: Bytes, value: Bytes) -> Result<(), Refused> {
        self.check(&key, Some(&value), OWN)?;
        self.write(now, key, Some(value));
        Ok(())
    }

    /// Removes a value; returns whether there was one.
    pub(super) fn remove(&mut self, now: i64, key: Bytes) -> bool {
        let is_there = self.entries.get(&key).is_some_and(|entry| entry.value.is_some());
        if is_there {
            self.write(now, key, None);
        }
        is_there
    }

    /// Handles an update from a peer.
    pub(super) fn handle(&mut self, now: i64, from: u64, update: Update) {
        let Update { key, value, version, age } = update;
        let peer = Observer::Peer(from);
        // Later versions than all writes can have made would leave none for this member's own.
        if version.counter > self.clock.saturating_add(MAX_STEP) {
            return;
        }
        self.clock = self.clock.max(version.counter);
        let written = now.saturating_sub(i64::try_from(age).unwrap_or(i64::MAX));
        if let Some(mine) = self.entries.get_mut(&key) {
            if version <= mine.version {
                // The peer has the same value as this member, or an older one.
                if let Some(due) = self.due.get_mut(&peer) {
                    if version == mine.version {
                        due.remove(&key)
                    } else {
                        due.insert(key)
                    };
                }
                return;
            }
            let is_older = written < mine.written;
            if mine.version.writer == self.id && is_older && mine.renewals > 0 {
                // This member wrote later, without knowledge of the peer's write: the later write must win.
                self.clock = self.clock.saturating_add(1);
                mine.version.counter = self.clock;
                mine.renewals -= 1;
                let due = self.due.iter_mut();
                for (_, due) in due.filter(|(observer, _)| matches!(observer, Observer::Peer(_))) {
                    due.insert(key.clone());
                }
                return;
            }
        }
        if self.check(&key, value.as_ref(), PEERS).is_err() {
            self.refused += 1;
            return;
        }
        self.mark(&key, Some(peer));
        self.put(key, Entry { value, version, written, renewals: 0 });
    }

    /// Drops removals that are old enough.
    pub(super) fn expire(&mut self, now: i64) {
        while let Some((written, key)) = self.removed.first().cloned() {
            if now.saturating_sub(written) < TOMBSTONE {
                break;
            }
            self.removed.pop_first();
            self.bytes -= key.len();
            self.entries.remove(&key);
        }
    }

    /// Adds a peer or a reader as an observer. If `all` is true, it receives all present entries.
    pub(super) fn join(&mut self, observer: Observer, all: bool) {
        let keys = if all { self.entries.keys().cloned().collect() } else { BTreeSet::new() };
        self.due.insert(observer, keys);
    }

    /// Removes an observer.
    pub(super) fn leave(&mut self, observer: Observer) {
        self.due.remove(&observer);
    }

    /// Takes the newest values of keys that an observer has not received: at most `room` bytes, but at least one value.
    ///
    /// A value is chosen only now: this is the conditional send of the Warp paper (section 4.2), whose condition is the
    /// peer's last acknowledgement. Until it arrives, later values replace earlier ones, and nothing queues.
    pub(super) fn take(&mut self, now: i64, observer: Observer, room: usize) -> Vec<Update> {
        let mut updates: Vec<Update> = Vec::new();
        let mut left = room;
        let Some(due) = self.due.get_mut(&observer) else { return updates };
        while let Some(key) = due.pop_first() {
            let (value, version, written) = match self.entries.get(&key) {
                Some(entry) => (entry.value.clone(), entry.version, entry.written),
                // A removal that has expired meanwhile is reported to readers, and need not be sent.
                None if matches!(observer, Observer::Reader(_)) => {
                    (None, Version { counter: 0, writer: 0 }, now.saturating_sub(TOMBSTONE))
                }
                None => continue,
            };
            let age = u64::try_from(now.saturating_sub(written)).unwrap_or(0);
            let update = Update { key, value, version, age };
            if update.bytes() > left && !updates.is_empty() {
                due.insert(update.key);
                break;
            }
            left = left.saturating_sub(update.bytes());
            updates.push(update);
        }
        updates
    }

    /// Returns whether an observer has entries to receive; `None` if there is no such observer.
    pub(super) fn has_due(&self, observer: Observer) -> Option<bool> {
        self.due.get(&observer).map(|due| !due.is_empty())
    }

    /// Returns whether a peer has entries that were not sent to it.
    pub(super) fn is_behind(&self) -> bool {
        let mut due = self.due.iter();
        due.any(|(observer, due)| matches!(observer, Observer::Peer(_)) && !due.is_empty())
    }

    /// Returns a key's entry, unless it was removed.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| entry.value.is_some())
    }

    /// Returns all entries that were not removed, in the order of the keys' bytes.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&Bytes, &Entry)> {
        self.entries.iter().filter(|(_, entry)| entry.value.is_some())
    }

    fn write(&mut self, now: i64, key: Bytes, value: Option<Bytes>) {
        self.clock = self.clock.saturating_add(1);
        let version = Version { counter: self.clock, writer: self.id };
        self.mark(&key, None);
        self.put(key, Entry { value, version, written: now, renewals: RENEWALS });
    }

    fn check(
        &self,
        key: &Bytes,
        value: Option<&Bytes>,
        (most_keys, most_bytes): (usize, usize),
    ) -> Result<(), Refused> {
        let length = value.map_or(0, Bytes::len);
        let before = self.entries.get(key);
        let held = before.and_then(|entry| entry.value.as_ref()).map_or(0, Bytes::len);
        let more = if before.is_some() { length } else { length + key.len() };
        if key.len() > MAX_KEY {
            Err(Refused::Key)
        } else if length > MAX_VALUE {
            Err(Refused::Value)
        } else if before.is_none() && self.entries.len() >= most_keys {
            Err(Refused::Keys)
        } else if more > held && self.bytes - held + more > most_bytes {
            Err(Refused::Bytes)
        } else {
            Ok(())
        }
    }

    fn put(&mut self, key: Bytes, entry: Entry) {
        let written = entry.written;
        let is_removed = entry.value.is_none();
        self.bytes += entry.value.as_ref().map_or(0, Bytes::len);
        match self.entries.insert(key.clone(), entry) {
            None => self.bytes += key.len(),
            Some(before) => match before.value {
                Some(value) => self.bytes -= value.len(),
                None => drop(self.removed.remove(&(before.written, key.clone()))),
            },
        }
        if is_removed {
            self.removed.insert((written, key));
        }
    }

    /// Marks a key's new value as due for all observers except one.
    fn mark(&mut self, key: &Bytes, but: Option<Observer>) {
        for (observer, due) in &mut self.due {
            if but == Some(*observer) {
                due.remove(key);
            } else {
                due.insert(key.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
