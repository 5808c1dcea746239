//! Registered memory: what a NIC may read and write, and how bytes get in and out of it.
//!
//! The words are atomic, so that two parties may touch a region at once: torn bytes are then the
//! worst that can happen. Nobody is ever handed a `&[u8]` into a region; bytes are copied.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::id::PortId;

/// Most bytes of one region.
pub const MAX_REGION: usize = 1 << 30;

/// Memory that an application and its NIC share.
#[derive(Debug)]
pub(crate) struct Memory {
    words: Box<[AtomicU64]>,
    bytes: usize,
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Self {
        let words = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        Self { words, bytes }
    }

    fn view(&self, offset: usize, length: usize) -> Option<Payload<'_>> {
        let end = offset.checked_add(length)?;
        (end <= self.bytes).then_some(Payload(Inner::Words { words: &self.words, offset, length }))
    }

    fn store(&self, offset: usize, from: Payload<'_>) -> Option<()> {
        let end = offset.checked_add(from.len())?;
        if end > self.bytes {
            return None;
        }
        match from.0 {
            Inner::Bytes(bytes) => store_bytes(&self.words, offset, bytes),
            Inner::Words { .. } => {
                let mut chunk = [0; 256];
                let mut done = 0;
                while done < from.len() {
                    let next = (done + chunk.len()).min(from.len());
                    let part = &mut chunk[..next - done];
                    from.slice(done..next).expect("within the payload").copy_to(part);
                    store_bytes(&self.words, offset + done, part);
                    done = next;
                }
            }
        }
        Some(())
    }
}

fn store_bytes(words: &[AtomicU64], offset: usize, mut bytes: &[u8]) {
    let mut index = offset / 8;
    let head = offset % 8;
    if head != 0 {
        let take = (8 - head).min(bytes.len());
        store_part(&words[index], head, &bytes[..take]);
        bytes = &bytes[take..];
        index += 1;
    }
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, chunk) in words[index..].iter().zip(whole) {
        word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        store_part(&words[index + whole.len()], 0, rest);
    }
}

/// Some bytes of one word; its other bytes may be another writer's.
fn store_part(word: &AtomicU64, at: usize, bytes: &[u8]) {
    let mut value = [0; 8];
    let mut mask = [0xFF; 8];
    value[at..at + bytes.len()].copy_from_slice(bytes);
    mask[at..at + bytes.len()].fill(0);
    let (value, mask) = (u64::from_le_bytes(value), u64::from_le_bytes(mask));
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(old & mask | value));
}

fn load_bytes(words: &[AtomicU64], offset: usize, mut out: &mut [u8]) {
    let mut index = offset / 8;
    let head = offset % 8;
    if head != 0 {
        let take = (8 - head).min(out.len());
        let word = words[index].load(Ordering::Relaxed).to_le_bytes();
        out[..take].copy_from_slice(&word[head..head + take]);
        out = &mut out[take..];
        index += 1;
    }
    let (whole, rest) = out.as_chunks_mut::<8>();
    for (word, chunk) in words[index..].iter().zip(whole.iter_mut()) {
        *chunk = word.load(Ordering::Relaxed).to_le_bytes();
    }
    if !rest.is_empty() {
        let word = words[index + whole.len()].load(Ordering::Relaxed).to_le_bytes();
        rest.copy_from_slice(&word[..rest.len()]);
    }
}

/// Bytes that another process may be writing at this moment: copied out, never borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a>(Inner<'a>);

#[derive(Clone, Copy, Debug)]
enum Inner<'a> {
    Bytes(&'a [u8]),
    Words { words: &'a [AtomicU64], offset: usize, length: usize },
}

impl<'a> Payload<'a> {
    /// No bytes.
    pub const EMPTY: Self = Self(Inner::Bytes(&[]));

    /// Number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            Inner::Bytes(bytes) => bytes.len(),
            Inner::Words { length, .. } => length,
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of the bytes; `None` where the range passes their end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        Some(Self(match self.0 {
            Inner::Bytes(bytes) => Inner::Bytes(&bytes[range]),
            Inner::Words { words, offset, .. } => {
                Inner::Words { words, offset: offset + range.start, length: range.len() }
            }
        }))
    }

    /// Copies the bytes out, as many as both have; returns how many.
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let length = self.len().min(out.len());
        match self.0 {
            Inner::Bytes(bytes) => out[..length].copy_from_slice(&bytes[..length]),
            Inner::Words { words, offset, .. } => load_bytes(words, offset, &mut out[..length]),
        }
        length
    }

    /// The bytes, copied.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(&mut bytes);
        bytes
    }

    /// The bytes themselves, where nobody else can be writing them.
    pub(crate) const fn as_bytes(&self) -> Option<&'a [u8]> {
        match self.0 {
            Inner::Bytes(bytes) => Some(bytes),
            Inner::Words { .. } => None,
        }
    }
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Inner::Bytes(bytes))
    }
}

/// Names a range of a registered region to the NIC: 16 bytes, checked at every use.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct RegionRef {
    /// The port that registered the region.
    pub port: PortId,
    /// Which of the port's regions.
    pub slot: u16,
    /// Which use of the slot: a handle of an earlier one is refused.
    pub generation: u32,
    /// First byte of the range, from the region's start.
    pub offset: u32,
    /// Bytes of the range.
    pub length: u32,
}

impl RegionRef {
    /// A part of this range; `None` where it passes the end.
    #[must_use]
    pub fn part(&self, offset: u32, length: u32) -> Option<Self> {
        (offset.checked_add(length)? <= self.length).then(|| Self {
            offset: self.offset + offset,
            length,
            ..*self
        })
    }
}

/// Why a [`RegionRef`] names nothing that may be touched.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum RegionError {
    /// Never registered, or deregistered since.
    #[error("no such region: never registered, or the handle is stale")]
    Stale,
    /// Past the region's end.
    #[error("the range passes the end of its region of {bytes} bytes")]
    OutOfRange {
        /// Bytes of the region.
        bytes: usize,
    },
    /// The memory is not there for the NIC now: its pages were unpinned (a fault).
    #[error("the memory is not resident")]
    NotResident,
    /// The transfer failed (a fault).
    #[error("the bus reported an error")]
    Bus,
}

/// One port's regions, as its NIC knows them.
#[derive(Debug, Default)]
pub(crate) struct RegionTable {
    slots: Vec<Option<(u32, Arc<Memory>)>>,
}

impl RegionTable {
    pub(crate) fn insert(&mut self, slot: u16, generation: u32, memory: Arc<Memory>) {
        let slot = usize::from(slot);
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some((generation, memory));
    }

    pub(crate) fn remove(&mut self, slot: u16, generation: u32) {
        if let Some(entry) = self.slots.get_mut(usize::from(slot))
            && entry.as_ref().is_some_and(|(live, _)| *live == generation)
        {
            *entry = None;
        }
    }

    fn memory(&self, at: RegionRef) -> Result<&Memory, RegionError> {
        match self.slots.get(usize::from(at.slot)) {
            Some(Some((generation, memory))) if *generation == at.generation => Ok(memory),
            _ => Err(RegionError::Stale),
        }
    }

    pub(crate) fn read(&self, at: RegionRef) -> Result<Payload<'_>, RegionError> {
        let memory = self.memory(at)?;
        memory
            .view(at.offset as usize, at.length as usize)
            .ok_or(RegionError::OutOfRange { bytes: memory.bytes })
    }

    /// Whether `from` would fit at the start of the range.
    pub(crate) fn check(&self, at: RegionRef, bytes: usize) -> Result<(), RegionError> {
        let range = self.read(at)?;
        if bytes > range.len() {
            return Err(RegionError::OutOfRange { bytes: range.len() });
        }
        Ok(())
    }

    pub(crate) fn write(&self, at: RegionRef, from: Payload<'_>) -> Result<(), RegionError> {
        self.check(at, from.len())?;
        let memory = self.memory(at)?;
        memory
            .store(at.offset as usize, from)
            .ok_or(RegionError::OutOfRange { bytes: memory.bytes })
    }
}

/// An application's own registered memory. Dropping it deregisters it; the NIC keeps the memory
/// itself alive for as long as it may still write to it.
#[derive(Debug)]
pub struct Region {
    pub(crate) memory: Arc<Memory>,
    pub(crate) whole: RegionRef,
    pub(crate) registrar: Arc<crate::port::Registrar>,
}

impl Region {
    /// Bytes of the region.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.memory.bytes
    }

    /// The whole region, as a NIC knows it.
    #[must_use]
    pub const fn whole(&self) -> RegionRef {
        self.whole
    }

    /// A range of the region, as a NIC knows it; `None` where it passes the end.
    #[must_use]
    pub fn range(&self, offset: usize, length: usize) -> Option<RegionRef> {
        self.whole.part(u32::try_from(offset).ok()?, u32::try_from(length).ok()?)
    }

    /// Copies `bytes` into the region at `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if they would pass its end; nothing is written then.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.memory
            .store(offset, Payload::from(bytes))
            .ok_or(RegionError::OutOfRange { bytes: self.len() })
    }

    /// Copies bytes from `offset` on out of the region, filling `out`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if there are not that many; `out` is untouched then.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), RegionError> {
        let view = self
            .memory
            .view(offset, out.len())
            .ok_or(RegionError::OutOfRange { bytes: self.len() })?;
        view.copy_to(out);
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.registrar.deregister(self.whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(bytes: usize) -> (RegionTable, RegionRef) {
        let mut table = RegionTable::default();
        table.insert(3, 7, Arc::new(Memory::new(bytes)));
        let whole =
            RegionRef { port: PortId(0), slot: 3, generation: 7, offset: 0, length: bytes as u32 };
        (table, whole)
    }

    #[test]
    fn a_stale_handle_is_refused() {
        let (mut table, whole) = table(64);
        assert!(table.read(whole).is_ok());
        let other = RegionRef { generation: 6, ..whole };
        assert_eq!(table.read(other).unwrap_err(), RegionError::Stale);
        table.remove(3, 6);
        assert!(table.read(whole).is_ok());
        table.remove(3, 7);
        assert_eq!(table.read(whole).unwrap_err(), RegionError::Stale);
    }

    proptest! {
        #[test]
        fn writes_land_where_they_are_aimed_and_nowhere_else(
            size in 1_usize..200,
            writes in proptest::collection::vec(
                (0_u32..220, proptest::collection::vec(any::<u8>(), 0..40), any::<bool>()), 1..20),
        ) {
            let (table, whole) = table(size);
            let mut shadow = vec![0; size];
            for (offset, bytes, through_words) in writes {
                let at = RegionRef { offset, length: bytes.len() as u32, ..whole };
                let scratch = Memory::new(64);
                scratch.store(5, Payload::from(&bytes[..])).unwrap();
                let from = if through_words {
                    scratch.view(5, bytes.len()).unwrap()
                } else {
                    Payload::from(&bytes[..])
                };
                let fits = offset as usize + bytes.len() <= size;
                prop_assert_eq!(table.write(at, from).is_ok(), fits);
                if fits {
                    shadow[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                prop_assert_eq!(&table.read(whole).unwrap().to_vec(), &shadow);
            }
        }

        #[test]
        fn parts_of_a_payload_are_its_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..100), a in 0_usize..110, b in 0_usize..110,
        ) {
            let memory = Memory::new(128);
            memory.store(3, Payload::from(&bytes[..])).unwrap();
            let payload = memory.view(3, bytes.len()).unwrap();
            let part = payload.slice(a..b).map(|part| part.to_vec());
            prop_assert_eq!(part, bytes.get(a..b).map(<[u8]>::to_vec));
        }
    }
}
