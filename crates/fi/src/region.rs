//! Registered memory that peers may read and write, by key.

use std::collections::BTreeMap;

use crate::completion::Class;
use crate::memory::Buffer;

/// A registered region.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) buffer: Buffer,
    /// The address of the region's first byte, as peers state it.
    pub(crate) base: u64,
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
    /// The counters of peers' reads and writes.
    pub(crate) counters: [Option<usize>; 2],
}

/// The regions of a domain by their keys.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_key: BTreeMap<u64, Region>,
    last: u64,
}

impl Regions {
    /// Adds a region under `key`, or under one that the domain chooses; `None` if the key is in use.
    pub(crate) fn add(&mut self, key: Option<u64>, region: Region) -> Option<u64> {
        let key = key.unwrap_or_else(|| {
            // Keys count up, so that a peer's stale key names no later region.
            self.last += 1;
            self.last
        });
        if self.by_key.contains_key(&key) {
            return None;
        }
        self.by_key.insert(key, region);
        Some(key)
    }

    pub(crate) fn remove(&mut self, key: u64) {
        self.by_key.remove(&key);
    }

    /// Sets the counter of peers' operations of a class on a region. Without it, only endpoints count them.
    pub(crate) fn bind(&mut self, key: u64, class: Class, counter: usize) {
        if let (Some(region), Some(at)) = (self.by_key.get_mut(&key), counter_of(class)) {
            region.counters[at] = Some(counter);
        }
    }

    /// Returns the counter that is bound to a region for a class of operations.
    pub(crate) fn counter(&self, key: u64, class: Class) -> Option<usize> {
        self.by_key.get(&key)?.counters[counter_of(class)?]
    }

    /// Returns whether a counter is bound to a region.
    pub(crate) fn has_counter(&self, counter: usize) -> bool {
        self.by_key.values().any(|region| region.counters.contains(&Some(counter)))
    }

    /// Returns the bytes at `address` that a peer may write.
    pub(crate) fn writable(&self, key: u64, address: u64, length: usize) -> Option<Buffer> {
        self.by_key.get(&key).filter(|region| region.is_writable)?.range(address, length)
    }

    /// Returns the bytes at `address` that a peer may read.
    pub(crate) fn readable(&self, key: u64, address: u64, length: usize) -> Option<Buffer> {
        self.by_key.get(&key).filter(|region| region.is_readable)?.range(address, length)
    }
}

const fn counter_of(class: Class) -> Option<usize> {
    match class {
        Class::RemoteRead => Some(0),
        Class::RemoteWrite => Some(1),
        _ => None,
    }
}

impl Region {
    fn range(&self, address: u64, length: usize) -> Option<Buffer> {
        let offset = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let end = offset.checked_add(length)?;
        (end <= self.buffer.len()).then(|| self.buffer.slice(offset, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_a_region_or_against_its_rights_is_reached() {
        let bytes = [1_u8, 2, 3, 4];
        // SAFETY: the array outlives the regions, which are only read.
        #[expect(unsafe_code, reason = "lends an array")]
        let buffer = unsafe { Buffer::new(bytes.as_ptr() as usize, 4) };
        let counters = [None; 2];
        let region =
            || Region { buffer, base: 100, is_readable: true, is_writable: false, counters };
        let mut regions = Regions::default();
        let key = regions.add(None, region()).unwrap();
        assert_eq!(regions.add(Some(key), region()), None);
        assert_eq!(regions.readable(key, 101, 3).unwrap().to_vec(), [2, 3, 4]);
        for (address, length) in [(99, 1), (100, 5), (104, 1), (101, usize::MAX), (u64::MAX, 1)] {
            assert!(regions.readable(key, address, length).is_none());
        }
        assert!(regions.writable(key, 100, 1).is_none());
        assert!(regions.readable(key + 1, 100, 1).is_none());
        regions.remove(key);
        assert!(regions.readable(key, 100, 1).is_none());
    }
}
