//! The words of this node that were changed within the last millisecond: memory may not have them yet.

use std::collections::{BTreeMap, VecDeque};

use midplane_simhw::id::PortId;
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::Instant;

use super::{REMEMBERED, WORDS};

/// The place of a word: its port, its region's slot and generation, and its offset there.
type Key = (PortId, u16, u32, u32);

const fn key(region: &RegionRef, at: u32) -> Key {
    (region.port, region.slot, region.generation, at)
}

#[derive(Clone, Copy, Debug)]
struct Word {
    value: u64,
    until: Instant,
}

/// The remembered words: at most [`WORDS`] changes.
#[derive(Debug)]
pub(super) struct RecentWords {
    words: BTreeMap<Key, Word>,
    /// The changes in order, each with the instant at which it is forgotten.
    changes: VecDeque<(Instant, Key)>,
}

impl RecentWords {
    pub(super) const fn new() -> Self {
        Self { words: BTreeMap::new(), changes: VecDeque::new() }
    }

    /// Returns the value of the word at `at` bytes of a region, if it was changed recently.
    pub(super) fn get(&self, now: Instant, region: RegionRef, at: u32) -> Option<u64> {
        let word = self.words.get(&key(&region, region.offset + at))?;
        (now < word.until).then_some(word.value)
    }

    /// Forgets the changes that have reached memory. Returns whether `words` more can be remembered.
    pub(super) fn has_room(&mut self, now: Instant, words: usize) -> bool {
        while let Some((_, key)) = self.changes.front().copied().filter(|(until, _)| *until <= now)
        {
            self.changes.pop_front();
            // A later change of the same word has an entry of its own.
            if self.words.get(&key).is_some_and(|word| word.until <= now) {
                self.words.remove(&key);
            }
        }
        self.changes.len() + words <= WORDS
    }

    /// Remembers the word at `at` bytes of a region, if it lies at a multiple of eight. The caller has made sure that
    /// there [is room](Self::has_room).
    pub(super) fn remember(&mut self, now: Instant, region: RegionRef, at: u32, value: u64) {
        if region.offset.wrapping_add(at).is_multiple_of(8) {
            let (key, until) = (key(&region, region.offset + at), now + REMEMBERED);
            self.words.insert(key, Word { value, until });
            self.changes.push_back((until, key));
        }
    }

    /// Applies a write of `bytes` at the start of a region to the remembered words that it overlaps.
    pub(super) fn overwrite(&mut self, region: RegionRef, bytes: Payload<'_>) {
        let start = region.offset;
        let end = start.saturating_add(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        let words = key(&region, start & !7)..key(&region, end);
        for ((.., at), word) in self.words.range_mut(words) {
            let (first, last) = (start.max(*at), end.min(at.saturating_add(8)));
            let mut value = word.value.to_le_bytes();
            if let Some(part) = bytes.slice((first - start) as usize..(last - start) as usize) {
                part.copy_to(&mut value[(first - at) as usize..(last - at) as usize]);
            }
            word.value = u64::from_le_bytes(value);
        }
    }

    /// Forgets the words of a closed port.
    pub(super) fn forget(&mut self, port: PortId) {
        self.words.retain(|(of, ..), _| *of != port);
        self.changes.retain(|(_, (of, ..))| *of != port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_forgotten_a_millisecond_after_its_last_change_and_takes_no_room_then() {
        let mut words = RecentWords::new();
        let region = RegionRef { length: 8, ..RegionRef::default() };
        let at = |micros: u64| Instant::from_nanos(micros * 1_000);
        for change in 0..WORDS as u64 {
            assert!(words.has_room(at(change / 100), 1));
            words.remember(at(change / 100), region, 0, change);
        }
        let last = WORDS as u64 / 100;
        assert!(!words.has_room(at(last), 1));
        assert_eq!(words.get(at(last), region, 0), Some(WORDS as u64 - 1));
        // The first hundred changes are over, the word's last change is not.
        assert!(words.has_room(at(1_000), 100) && !words.has_room(at(1_000), 101));
        assert_eq!(words.get(at(1_000), region, 0), Some(WORDS as u64 - 1));
        assert!(words.has_room(at(1_000 + last), WORDS));
        assert_eq!(words.get(at(1_000 + last), region, 0), None);
        assert!(words.words.is_empty() && words.changes.is_empty());
    }
}
