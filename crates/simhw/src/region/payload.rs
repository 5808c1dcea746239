//! How bytes get in and out of memory that two parties may touch at once.
//!
//! The words are atomic: torn bytes are then the worst that can happen. Nobody is ever handed a
//! `&[u8]` into such memory; bytes are copied.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

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

    pub(crate) const fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn view(&self, offset: usize, length: usize) -> Option<Payload<'_>> {
        let end = offset.checked_add(length)?;
        (end <= self.bytes).then_some(Payload(Inner::Words { words: &self.words, offset, length }))
    }

    pub(crate) fn store(&self, offset: usize, from: Payload<'_>) -> Option<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
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
