//! One direction between two processes: a ring of records in shared memory, each of up to a quarter of the
//! ring.
//!
//! A record begins at a cache line. Its first word contains the length of its payload and a flag that says that
//! it is published. Two words of the caller follow, then the payload. The producer first writes the payload,
//! the caller's words, and a zero in the line behind the record. It then writes the first word with release
//! order. The consumer polls that word, and therefore sees a whole record or none. A producer that is killed at
//! any instruction leaves no half record.
//!
//! The consumer returns bytes by a count that only grows. A side that parks sets a flag, and the other side
//! takes the flag when it has something for it: each park costs at most one wake-up.

use std::io::IoSlice;
use std::sync::Arc;

use tokio::io::ReadBuf;

use crate::segment::{LINE, Line, Segment, View};
use crate::sync::{Ordering, fence};

/// Words of a record that the sender defines.
const WORDS: usize = 2;
/// Bytes of a record before its payload.
const HEAD: usize = (1 + WORDS) * 8;
/// Lines before the records: returned bytes, park flags, the producer's processor.
const LINES: usize = 3 * LINE;
/// Flag in a first word: the record is published.
const PUBLISHED: u64 = 1 << 63;
/// Least bytes of a ring.
pub(crate) const MIN_CAPACITY: usize = 4_096;

/// Returns the bytes of memory that a ring of `capacity` takes.
pub(crate) const fn ring_bytes(capacity: usize) -> usize {
    LINES + capacity
}

/// Returns the bytes that a record with a payload of `length` takes.
const fn record_bytes(length: usize) -> usize {
    (HEAD + length).next_multiple_of(LINE)
}

/// The position of a ring in its segment.
#[derive(Clone, Debug)]
struct Place {
    segment: Arc<Segment>,
    offset: usize,
    /// Bytes of the records; a power of two.
    capacity: usize,
}

impl Place {
    #[expect(clippy::cast_possible_truncation, reason = "below the capacity")]
    const fn index(&self, at: u64) -> usize {
        at as usize & (self.capacity - 1)
    }

    fn line(&self, at: u64) -> &Line {
        self.segment.line(self.offset + LINES + self.index(at))
    }

    fn returned(&self) -> &Line {
        self.segment.line(self.offset)
    }

    /// Word 0: the consumer has parked. Word 1: the producer waits for space.
    fn parked(&self) -> &Line {
        self.segment.line(self.offset + LINE)
    }

    /// Word 0: the processor on which the producer's process ran last, plus 1; 0 until the producer publishes
    /// it.
    fn processor(&self) -> &Line {
        self.segment.line(self.offset + 2 * LINE)
    }

    /// Splits `length` bytes at `at` at the end of the ring. Returns the first part's offset in the segment,
    /// and its length.
    fn parts(&self, at: u64, length: usize) -> (usize, usize) {
        let index = self.index(at);
        (self.offset + LINES + index, length.min(self.capacity - index))
    }

    fn store(&self, at: u64, from: View<'_>) {
        let (start, first) = self.parts(at, from.len());
        let parts = from.slice(0..first).zip(from.slice(first..from.len()));
        let (head, rest) = parts.expect("the first part is at most all");
        self.segment.store(start, head).expect("within the ring");
        self.segment.store(self.offset + LINES, rest).expect("within the ring");
    }

    fn load(&self, at: u64, out: &mut [u8]) {
        let (start, first) = self.parts(at, out.len());
        let (head, rest) = out.split_at_mut(first);
        let view = |offset, length| self.segment.view(offset, length).expect("within the ring");
        view(start, head.len()).copy_to(head);
        view(self.offset + LINES, rest.len()).copy_to(rest);
    }

    fn append(&self, at: u64, length: usize, out: &mut ReadBuf<'_>) {
        let (start, first) = self.parts(at, length);
        let view = |offset, length| self.segment.view(offset, length).expect("within the ring");
        view(start, first).append_to(out);
        view(self.offset + LINES, length - first).append_to(out);
    }
}

const CONSUMER: usize = 0;
const PRODUCER: usize = 1;

/// Takes the park flag of a side: returns true once for each park.
fn takes(parked: &Line, side: usize) -> bool {
    let word = &parked[side];
    word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::Relaxed) != 0
}

/// The producer's end of a ring.
#[derive(Debug)]
#[doc(hidden)]
pub struct RingSender {
    place: Place,
    /// Byte of the direction at which the next record begins.
    tail: u64,
    returned: u64,
}

/// The consumer's end of a ring.
#[derive(Debug)]
#[doc(hidden)]
pub struct RingReceiver {
    place: Place,
    next: u64,
    returned: u64,
}

/// A published record, without its payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct Record {
    /// The words that the sender passed with it.
    pub words: [u64; 2],
    /// Bytes of the payload.
    pub length: usize,
}

/// The error of a ring into which the peer has written an invalid record; it cannot be read further.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct Corrupt;

/// Creates both ends of a ring of `capacity` bytes, a power of two, at `offset` of a zeroed segment.
pub(crate) fn ring(
    segment: &Arc<Segment>,
    offset: usize,
    capacity: usize,
) -> (RingSender, RingReceiver) {
    debug_assert!(capacity.is_power_of_two() && capacity >= MIN_CAPACITY);
    let place = Place { segment: Arc::clone(segment), offset, capacity };
    (
        RingSender { place: place.clone(), tail: 0, returned: 0 },
        RingReceiver { place, next: 0, returned: 0 },
    )
}

impl RingSender {
    /// Returns the longest payload that a record may have; its record takes a quarter of the ring.
    #[must_use]
    pub const fn most(&self) -> usize {
        self.place.capacity / 4 - HEAD
    }

    /// Returns the bytes of payload that [`RingSender::push`] accepts now; `None` if there is no space for a
    /// record.
    #[must_use]
    pub fn room(&mut self) -> Option<usize> {
        let most = self.most();
        if self.free() < record_bytes(most) + LINE {
            self.see_returned();
        }
        self.free().checked_sub(HEAD.next_multiple_of(LINE) + LINE)?;
        Some((self.free() - LINE - HEAD).min(most))
    }

    /// Returns the free bytes, headers of records included.
    #[must_use]
    pub fn free_bytes(&mut self) -> usize {
        self.see_returned();
        self.free()
    }

    /// Returns the number of bytes known to be free.
    #[expect(clippy::cast_possible_truncation, reason = "at most the capacity")]
    const fn free(&self) -> usize {
        self.place.capacity - (self.tail - self.returned) as usize
    }

    fn see_returned(&mut self) {
        let returned = self.place.returned()[0].load(Ordering::Acquire);
        // The other side may write any count: one that it cannot have reached is ignored.
        if returned > self.returned && returned <= self.tail && returned.is_multiple_of(LINE as u64)
        {
            self.returned = returned;
        }
    }

    /// Publishes a record whose payload is the concatenation of `parts`.
    ///
    /// # Panics
    /// If the parts are longer than [`RingSender::room`] returned.
    pub fn push(&mut self, words: [u64; 2], parts: &[IoSlice<'_>]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = record_bytes(length);
        assert!(bytes + LINE <= self.free(), "the ring has no space for {length} bytes");
        let next = self.tail + bytes as u64;
        self.place.line(next)[0].store(0, Ordering::Relaxed);
        let mut at = self.tail + HEAD as u64;
        for part in parts {
            self.place.store(at, View::from(&**part));
            at += part.len() as u64;
        }
        let line = self.place.line(self.tail);
        for (word, value) in line[1..].iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        line[0].store(length as u64 | PUBLISHED, Ordering::Release);
        self.tail = next;
    }

    /// Returns whether the consumer has parked and must be woken now; true once for each park. Call it after
    /// the last of a batch of records.
    #[must_use]
    pub fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        takes(self.place.parked(), CONSUMER)
    }

    /// Returns whether the consumer has parked and was not woken since.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.place.parked()[CONSUMER].load(Ordering::Relaxed) != 0
    }

    /// Requests a wake-up from the consumer once there is space. Check [`RingSender::room`] again afterwards.
    pub fn await_room(&self) {
        self.place.parked()[PRODUCER].store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Publishes the processor on which this process runs.
    pub fn publish_processor(&self, processor: usize) {
        let word = &self.place.processor()[0];
        let value = processor as u64 + 1;
        if word.load(Ordering::Relaxed) != value {
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl RingReceiver {
    /// Returns the next record, if one is published.
    ///
    /// # Errors
    /// [`Corrupt`] if the peer has written an invalid record.
    pub fn peek(&self) -> Result<Option<Record>, Corrupt> {
        let line = self.place.line(self.next);
        let first = line[0].load(Ordering::Acquire);
        if first & PUBLISHED == 0 {
            return Ok(None);
        }
        let length = usize::try_from(first & !PUBLISHED).map_err(|_| Corrupt)?;
        if length > self.place.capacity / 4 - HEAD {
            return Err(Corrupt);
        }
        let words = std::array::from_fn(|at| line[1 + at].load(Ordering::Relaxed));
        Ok(Some(Record { words, length }))
    }

    /// Copies bytes of the payload of the [next](RingReceiver::peek) record, from `offset` on.
    ///
    /// # Panics
    /// If they exceed the ring.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= self.place.capacity, "a record is shorter than its ring");
        self.place.load(self.next + (HEAD + offset) as u64, out);
    }

    /// Appends `length` bytes of the payload of the [next](RingReceiver::peek) record, from `offset` on, to
    /// `out`, as far as they fit.
    ///
    /// # Panics
    /// If they exceed the ring.
    pub fn append(&self, offset: usize, length: usize, out: &mut ReadBuf<'_>) {
        assert!(offset + length <= self.place.capacity, "a record is shorter than its ring");
        self.place.append(self.next + (HEAD + offset) as u64, length, out);
    }

    /// Releases the next record, `record`. Returns whether the producer waits for space and must be woken now.
    #[must_use]
    pub fn advance(&mut self, record: Record) -> bool {
        self.next += record_bytes(record.length) as u64;
        if self.next - self.returned < self.place.capacity as u64 / 8 {
            return false;
        }
        self.return_room()
    }

    /// Returns all read bytes to the producer. Returns whether the producer waits for space and must be woken
    /// now.
    fn return_room(&mut self) -> bool {
        self.returned = self.next;
        self.place.returned()[0].store(self.next, Ordering::Release);
        fence(Ordering::SeqCst);
        takes(self.place.parked(), PRODUCER)
    }

    /// Parks: returns all read bytes, and requests a wake-up at the next record. Check [`RingReceiver::peek`]
    /// again afterwards. Returns whether the producer waits for space and must be woken now.
    #[must_use]
    pub fn park(&mut self) -> bool {
        self.place.parked()[CONSUMER].store(1, Ordering::Relaxed);
        if self.returned == self.next {
            fence(Ordering::SeqCst);
            return false;
        }
        self.return_room()
    }

    /// Withdraws the request for a wake-up.
    pub fn unpark(&self) {
        let word = &self.place.parked()[CONSUMER];
        if word.load(Ordering::Relaxed) != 0 {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the processor on which the peer's process ran last, if the peer has published it.
    #[must_use]
    pub fn processor(&self) -> Option<usize> {
        let word = self.place.processor()[0].load(Ordering::Relaxed);
        usize::try_from(word).ok()?.checked_sub(1)
    }
}

#[cfg(all(test, not(midplane_models)))]
#[path = "byte_ring/tests.rs"]
mod tests;
