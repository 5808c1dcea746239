//! Copies into and out of segments a word at a time, for processors for which `copy` has no assembly.
//!
//! Every access to a segment is an atomic access to the aligned 8-byte word that contains a byte. Two
//! concurrent accesses of different sizes to the same bytes would be a data race, even if each is atomic. If a
//! copy writes only a part of a word, it updates the word by compare-and-exchange, so that concurrent writes to
//! the rest stay.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
const WORD: usize = size_of::<AtomicU64>();
/// Bytes that one step copies from one segment to another.
const CHUNK: usize = 64;

/// Copies bytes out of a segment.
///
/// # Safety
/// `from` must lie in a live segment that has at least as many bytes from there on as `to`.
pub(super) unsafe fn load(from: *const u8, to: &mut [u8]) {
    let skip = from.addr() % WORD;
    let (mut at, mut word, mut rest) = (skip, from.wrapping_sub(skip).cast::<AtomicU64>(), to);
    while !rest.is_empty() {
        // SAFETY: an aligned word of a segment, because segments begin and end at multiples of lines; every
        // access to it is of this kind.
        let bytes = unsafe { &*word }.load(Ordering::Relaxed).to_ne_bytes();
        let (part, left) = rest.split_at_mut(rest.len().min(WORD - at));
        part.copy_from_slice(&bytes[at..at + part.len()]);
        (at, word, rest) = (0, word.wrapping_add(1), left);
    }
}

/// Copies bytes into a segment.
///
/// # Safety
/// `to` must lie in a live segment that has at least as many bytes from there on as `from`.
pub(super) unsafe fn store(from: &[u8], to: *mut u8) {
    let skip = to.addr() % WORD;
    let (mut at, mut word, mut rest) = (skip, to.wrapping_sub(skip).cast::<AtomicU64>(), from);
    while !rest.is_empty() {
        // SAFETY: as in `load`.
        let shared = unsafe { &*word };
        let (part, left) = rest.split_at(rest.len().min(WORD - at));
        if let Ok(whole) = <[u8; WORD]>::try_from(part) {
            shared.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        } else {
            let merged = |old: u64| {
                let mut bytes = old.to_ne_bytes();
                bytes[at..at + part.len()].copy_from_slice(part);
                Some(u64::from_ne_bytes(bytes))
            };
            // This fails only if the closure returns `None`, which it never does.
            let _ = shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged);
        }
        (at, word, rest) = (0, word.wrapping_add(1), left);
    }
}

/// Copies bytes from one segment to another; whole words of the destination are written whole.
///
/// # Safety
/// Both ranges must lie in live segments.
pub(super) unsafe fn carry(from: *const u8, to: *mut u8, length: usize) {
    let mut done = 0;
    while done < length {
        let (from, to) = (from.wrapping_add(done), to.wrapping_add(done));
        let mut bytes = [0; CHUNK];
        // Ends at a word's end, unless it is the last part.
        let part = (CHUNK - to.addr() % WORD).min(length - done);
        // SAFETY: parts of the ranges for which the caller vouches.
        unsafe {
            load(from, &mut bytes[..part]);
            store(&bytes[..part], to);
        }
        done += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns words that stand for a segment.
    fn words(bytes: &[u8]) -> Vec<AtomicU64> {
        let words = bytes.as_chunks::<WORD>().0.iter();
        words.map(|word| AtomicU64::new(u64::from_ne_bytes(*word))).collect()
    }

    fn bytes(words: &[AtomicU64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    fn start(words: &[AtomicU64], at: usize) -> *mut u8 {
        words.as_ptr().cast::<u8>().wrapping_add(at).cast_mut()
    }

    proptest! {
        #[test]
        fn copies_change_their_range_only(
            content in proptest::collection::vec(any::<u8>(), 256..=256),
            from in 0_usize..64, to in 0_usize..64, length in 0_usize..192,
        ) {
            let source = words(&content);
            let mut out = vec![0; length];
            // SAFETY: 256 bytes that only this test uses.
            unsafe { load(start(&source, from), &mut out) };
            prop_assert_eq!(&out, &content[from..from + length]);
            let (stored, carried) = (words(&[7; 256]), words(&[7; 256]));
            // SAFETY: as above.
            unsafe {
                store(&out, start(&stored, to));
                carry(start(&source, from), start(&carried, to), length);
            }
            let mut expected = [7; 256];
            expected[to..to + length].copy_from_slice(&out);
            prop_assert_eq!(bytes(&stored), &expected[..]);
            prop_assert_eq!(bytes(&carried), &expected[..]);
        }
    }

    #[test]
    fn concurrent_writes_to_the_rest_of_a_word_stay() {
        let shared = words(&[0; 16]);
        std::thread::scope(|scope| {
            for (at, length) in [(0, 3), (3, 7), (10, 6)] {
                let shared = &shared;
                scope.spawn(move || {
                    for value in 0..=255_u8 {
                        // SAFETY: within the 16 bytes.
                        unsafe { store(&vec![value; length], start(shared, at)) };
                        let mut seen = vec![0; length];
                        // SAFETY: as above.
                        unsafe { load(start(shared, at), &mut seen) };
                        assert!(seen.iter().all(|byte| *byte == value), "{seen:?}");
                    }
                });
            }
        });
    }
}
