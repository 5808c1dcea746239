//! Finds the oldest of many receives or messages by a hash of tag and source.
//!
//! Patterns that ignore the same bits of a tag, and either all or no sources, share a table. Programs use a few of
//! these.

use std::collections::BTreeMap;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::Pattern;
use crate::abi::constants::ADDR_UNSPEC;

/// A source, or `ADDR_UNSPEC` for any, and the compared bits of a tag.
type Name = (u64, u64);

/// Keys by name and, for one name, by age.
#[derive(Debug)]
struct Table {
    ignore: u64,
    is_any: bool,
    queues: HashMap<Name, BTreeMap<u64, usize>, FixedState>,
}

/// Tables of keys. Each key has a stamp: the oldest has the smallest.
#[derive(Debug)]
pub(super) struct Index {
    tables: Vec<Table>,
    hasher: FixedState,
}

impl Table {
    fn is_of(&self, pattern: &Pattern) -> bool {
        self.ignore == pattern.ignore && self.is_any == (pattern.source == ADDR_UNSPEC)
    }

    const fn name(&self, tag: u64, source: u64) -> Name {
        (if self.is_any { ADDR_UNSPEC } else { source }, tag & !self.ignore)
    }

    fn add(&mut self, tag: u64, source: u64, (stamp, key): (u64, usize)) {
        self.queues.entry(self.name(tag, source)).or_default().insert(stamp, key);
    }

    fn remove(&mut self, tag: u64, source: u64, stamp: u64) {
        let name = self.name(tag, source);
        if let Some(queue) = self.queues.get_mut(&name) {
            queue.remove(&stamp);
            if queue.is_empty() {
                self.queues.remove(&name);
            }
        }
    }

    fn oldest(&self, tag: u64, source: u64) -> Option<(u64, usize)> {
        let (stamp, key) = self.queues.get(&self.name(tag, source))?.first_key_value()?;
        Some((*stamp, *key))
    }
}

impl Index {
    /// Creates an empty index. The seed prevents peers from choosing tags with equal hashes.
    pub(super) const fn new(seed: u64) -> Self {
        Self { tables: Vec::new(), hasher: FixedState::with_seed(seed) }
    }

    /// Adds a key under the pattern itself.
    pub(super) fn add_pattern(&mut self, pattern: &Pattern, entry: (u64, usize)) {
        if !self.has(pattern) {
            self.open(pattern, std::iter::empty());
        }
        if let Some(table) = self.tables.iter_mut().find(|table| table.is_of(pattern)) {
            table.add(pattern.tag, pattern.source, entry);
        }
    }

    /// Removes a key that was added under a pattern.
    pub(super) fn remove_pattern(&mut self, pattern: &Pattern, stamp: u64) {
        if let Some(table) = self.tables.iter_mut().find(|table| table.is_of(pattern)) {
            table.remove(pattern.tag, pattern.source, stamp);
        }
        self.tables.retain(|table| !table.queues.is_empty());
    }

    /// Returns the oldest key whose pattern accepts a message.
    pub(super) fn oldest_wanting(&self, tag: u64, source: u64) -> Option<usize> {
        let oldest = self.tables.iter().filter_map(|table| table.oldest(tag, source)).min();
        oldest.map(|(_, key)| key)
    }

    /// Opens a table for patterns like `pattern`, with messages: their tags, sources, stamps and keys.
    pub(super) fn open(
        &mut self,
        pattern: &Pattern,
        messages: impl Iterator<Item = (u64, u64, (u64, usize))>,
    ) {
        let mut table = Table {
            ignore: pattern.ignore,
            is_any: pattern.source == ADDR_UNSPEC,
            queues: HashMap::with_hasher(self.hasher.clone()),
        };
        messages.for_each(|(tag, source, entry)| table.add(tag, source, entry));
        self.tables.push(table);
    }

    /// Adds a message to all tables.
    pub(super) fn add_message(&mut self, tag: u64, source: u64, entry: (u64, usize)) {
        self.tables.iter_mut().for_each(|table| table.add(tag, source, entry));
    }

    /// Removes a message from all tables.
    pub(super) fn remove_message(&mut self, tag: u64, source: u64, stamp: u64) {
        self.tables.iter_mut().for_each(|table| table.remove(tag, source, stamp));
    }

    /// Returns the oldest message that a pattern accepts, if the pattern has a table.
    pub(super) fn oldest_wanted(&self, pattern: &Pattern) -> Option<usize> {
        let table = self.tables.iter().find(|table| table.is_of(pattern))?;
        table.oldest(pattern.tag, pattern.source).map(|(_, key)| key)
    }

    /// Returns whether there is a table for patterns like this one.
    pub(super) fn has(&self, pattern: &Pattern) -> bool {
        self.tables.iter().any(|table| table.is_of(pattern))
    }

    pub(super) const fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Drops all tables.
    pub(super) fn clear(&mut self) {
        self.tables.clear();
    }
}
