//! One direction between two processes: a ring of frames in shared memory.
//!
//! A frame takes a slot of two cache lines. The first line has the sequence number, the header, and a payload of up
//! to 8 bytes. The second line has a payload of up to 64 bytes. A longer payload lies in an area of the MTU's size,
//! of which the direction has a second ring.
//!
//! The producer writes the payload and the header first, and the sequence number last, with release order. The
//! consumer polls that word, and therefore sees a whole frame or none. A producer that is killed at any instruction
//! leaves no half frame. The caller defines the header, and passes the payload's length on both sides.

use std::sync::Arc;

use crate::frame::HEADER_BYTES;
use crate::region::Payload;
use crate::segment::{LINE, Line, Segment, View};
use crate::sync::Ordering;

/// Words of a header.
const HEADER_WORDS: usize = HEADER_BYTES / 8;
/// Bytes of a slot.
const SLOT: usize = 2 * LINE;
/// The word of a slot's first line that has the payload of a shortest frame.
const INLINE_WORD: usize = 7;
/// Most bytes of a payload in that word.
const INLINE_BYTES: usize = 8;
/// Bytes before the slots: a line with the count of released slots, and a line with the park flags.
const HEAD: usize = 2 * LINE;

/// The size of a direction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shape {
    /// Frames that may be in flight; a power of two.
    pub(super) slots: usize,
    /// Frames of more than 64 bytes that may be in flight; a power of two.
    pub(super) areas: usize,
    /// Most bytes of a payload.
    pub(super) mtu: usize,
}

impl Shape {
    const fn area_bytes(self) -> usize {
        self.mtu.next_multiple_of(LINE)
    }

    /// Returns the bytes of memory of one direction.
    pub(super) const fn lane_bytes(self) -> usize {
        HEAD + self.slots * SLOT + self.areas * self.area_bytes()
    }
}

/// The position of a direction in its segment.
#[derive(Clone, Debug)]
struct Place {
    segment: Arc<Segment>,
    offset: usize,
    shape: Shape,
}

impl Place {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "below the count of slots")]
    const fn slot(&self, number: u64) -> usize {
        let index = number as usize & (self.shape.slots - 1);
        self.offset + HEAD + index * SLOT
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "below the count of areas")]
    const fn area(&self, number: u64) -> usize {
        let index = number as usize & (self.shape.areas - 1);
        self.offset + HEAD + self.shape.slots * SLOT + index * self.shape.area_bytes()
    }

    /// Returns the offset of a payload of `length` bytes. It uses area number `area` if it fits in no slot.
    #[inline]
    const fn payload(&self, slot: usize, area: u64, length: usize) -> usize {
        if length <= INLINE_BYTES {
            slot + INLINE_WORD * 8
        } else if length <= LINE {
            slot + LINE
        } else {
            self.area(area)
        }
    }

    #[inline]
    fn returned(&self) -> &Line {
        self.segment.line(self.offset)
    }

    /// Word 0: the consumer has parked. Word 1: the producer waits for slots.
    #[inline]
    fn parked(&self) -> &Line {
        self.segment.line(self.offset + LINE)
    }
}

const CONSUMER: usize = 0;
const PRODUCER: usize = 1;

/// Takes the park flag of a side: returns true once for each park.
#[inline]
fn takes(parked: &Line, side: usize) -> bool {
    let word = &parked[side];
    word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::Relaxed) != 0
}

/// The error of a direction that has no space for a frame now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Full;

/// The producer's end of a direction.
#[derive(Debug)]
pub(super) struct Sender {
    place: Place,
    /// Count of published frames.
    published: u64,
    /// Count of written frames, published or not.
    staged: u64,
    /// Count of areas that the published frames have used.
    areas_published: u64,
    areas_staged: u64,
    /// Counts of slots and areas that the consumer has released.
    returned: u64,
    areas_returned: u64,
    /// For each slot, the value of `areas_staged` after its frame was staged.
    marks: Box<[u64]>,
}

/// The consumer's end of a direction.
#[derive(Debug)]
pub(super) struct Receiver {
    place: Place,
    next: u64,
    areas: u64,
    returned: u64,
    areas_returned: u64,
}

/// The position of a payload in the direction's segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) offset: usize,
    pub(super) length: usize,
}

impl Sender {
    pub(super) fn new(segment: Arc<Segment>, offset: usize, shape: Shape) -> Self {
        Self {
            place: Place { segment, offset, shape },
            published: 0,
            staged: 0,
            areas_published: 0,
            areas_staged: 0,
            returned: 0,
            areas_returned: 0,
            marks: vec![0; shape.slots].into(),
        }
    }

    /// Writes one frame, which the consumer does not see before [`Sender::publish`].
    #[inline]
    pub(super) fn stage(
        &mut self,
        header: &[u8; HEADER_BYTES],
        payload: View<'_>,
    ) -> Result<(), Full> {
        let (words, _) = header.as_chunks::<8>();
        let words = std::array::from_fn(|at| u64::from_le_bytes(words[at]));
        self.stage_parts(words, payload.len(), std::iter::once(payload))
    }

    /// Stages a frame with a header of words, and a payload of `length` bytes that is gathered from `parts`.
    #[inline]
    pub(super) fn stage_parts<'a>(
        &mut self,
        header: [u64; HEADER_WORDS],
        length: usize,
        parts: impl Iterator<Item = View<'a>>,
    ) -> Result<(), Full> {
        self.ensure_room(length > LINE)?;
        let slot = self.place.slot(self.staged);
        let at = self.place.payload(slot, self.areas_staged, length);
        let line = self.place.segment.line(slot);
        if length > INLINE_BYTES {
            let mut at = at;
            for part in parts {
                self.place.segment.store(at, part).expect("at most the MTU");
                at += part.len();
            }
        } else if length > 0 {
            let (mut inline, mut filled) = ([0; INLINE_BYTES], 0);
            for part in parts {
                filled += part.copy_to(&mut inline[filled..]);
            }
            line[INLINE_WORD].store(u64::from_le_bytes(inline), Ordering::Relaxed);
        }
        for (word, value) in line[1..].iter().zip(header) {
            word.store(value, Ordering::Relaxed);
        }
        self.areas_staged += u64::from(length > LINE);
        let slots = self.marks.len() as u64;
        #[expect(clippy::cast_possible_truncation, reason = "below the count of slots")]
        let mark = (self.staged & (slots - 1)) as usize;
        self.marks[mark] = self.areas_staged;
        self.staged += 1;
        Ok(())
    }

    /// Returns whether a frame with a payload of `length` bytes can be staged now.
    pub(super) fn has_room_for(&mut self, length: usize) -> bool {
        self.ensure_room(length > LINE).is_ok()
    }

    /// Requests one wake-up when the consumer releases slots. A fence and another attempt must follow.
    pub(super) fn await_room(&self) {
        self.place.parked()[PRODUCER].store(1, Ordering::Relaxed);
    }

    /// Checks that there is a slot for the next frame, and an area if it needs one.
    #[inline]
    fn ensure_room(&mut self, needs_area: bool) -> Result<(), Full> {
        if self.has_room(needs_area) {
            return Ok(());
        }
        let returned = self.place.returned()[0].load(Ordering::Acquire);
        // The other side may write any count: one that it cannot have reached is ignored.
        let newly_returned = returned.wrapping_sub(self.returned);
        if newly_returned == 0 || newly_returned > self.published - self.returned {
            return Err(Full);
        }
        let slots = self.marks.len() as u64;
        #[expect(clippy::cast_possible_truncation, reason = "below the count of slots")]
        let last = ((returned - 1) & (slots - 1)) as usize;
        self.returned = returned;
        self.areas_returned = self.marks[last];
        if self.has_room(needs_area) { Ok(()) } else { Err(Full) }
    }

    #[inline]
    const fn has_room(&self, needs_area: bool) -> bool {
        self.staged - self.returned < self.place.shape.slots as u64
            && (!needs_area
                || self.areas_staged - self.areas_returned < self.place.shape.areas as u64)
    }

    /// Publishes all staged frames, the oldest last: the consumer sees all of them or none.
    #[inline]
    pub(super) fn publish(&mut self) {
        for number in (self.published..self.staged).rev() {
            let line = self.place.segment.line(self.place.slot(number));
            line[0].store(number + 1, Ordering::Release);
        }
        self.published = self.staged;
        self.areas_published = self.areas_staged;
    }

    /// Discards the staged frames.
    pub(super) const fn abort(&mut self) {
        self.staged = self.published;
        self.areas_staged = self.areas_published;
    }

    /// Returns whether the consumer has parked and must be woken now; true once for each park. A fence must lie
    /// between publishing and this call.
    #[inline]
    pub(super) fn takes_wake(&self) -> bool {
        takes(self.place.parked(), CONSUMER)
    }

    /// Returns the count of published frames that the consumer is not known to have released.
    #[cfg(test)]
    const fn in_flight(&self) -> u64 {
        self.published - self.returned
    }
}

impl Receiver {
    pub(super) const fn new(segment: Arc<Segment>, offset: usize, shape: Shape) -> Self {
        let place = Place { segment, offset, shape };
        Self { place, next: 0, areas: 0, returned: 0, areas_returned: 0 }
    }

    /// Returns whether the next frame is published.
    #[inline]
    pub(super) fn has_frame(&self) -> bool {
        let slot = self.place.slot(self.next);
        // Fetches the second line while the consumer is idle, so that it is in the cache when a frame arrives.
        let _ = self.place.segment.line(slot + LINE)[0].load(Ordering::Relaxed);
        self.place.segment.line(slot)[0].load(Ordering::Acquire) == self.next + 1
    }

    /// Returns the header of the next frame. Call it after [`Receiver::has_frame`] has returned true.
    #[inline]
    pub(super) fn header(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let (words, _) = bytes.as_chunks_mut::<8>();
        for (value, word) in words.iter_mut().zip(self.words()) {
            *value = word.to_le_bytes();
        }
        bytes
    }

    /// Returns the header of the next frame as words.
    #[inline]
    pub(super) fn words(&self) -> [u64; HEADER_WORDS] {
        let line = self.place.segment.line(self.place.slot(self.next));
        std::array::from_fn(|at| line[1 + at].load(Ordering::Relaxed))
    }

    /// Returns the position of the next frame's payload of `length` bytes; `None` if that exceeds the MTU.
    #[inline]
    pub(super) fn extent(&self, length: usize) -> Option<Extent> {
        let slot = self.place.slot(self.next);
        let offset = self.place.payload(slot, self.areas, length);
        (length <= self.place.shape.mtu).then_some(Extent { offset, length })
    }

    /// Returns a payload whose frame is not [released](Receiver::release) yet.
    #[inline]
    pub(super) fn payload(&self, extent: Extent) -> Payload<'_> {
        let view = self.place.segment.view(extent.offset, extent.length);
        Payload::from(view.expect("its area is as long as the MTU"))
    }

    /// Releases the next frame, which has a payload of `length` bytes. The producer sees released slots in batches:
    /// returns whether it sees this one now.
    #[inline]
    pub(super) fn release(&mut self, length: usize) -> bool {
        self.next += 1;
        self.areas += u64::from(length > LINE);
        let shape = self.place.shape;
        let publishes = self.next - self.returned >= (shape.slots as u64).div_ceil(4)
            || self.areas - self.areas_returned >= (shape.areas as u64).div_ceil(4);
        if publishes {
            self.returned = self.next;
            self.areas_returned = self.areas;
            self.place.returned()[0].store(self.next, Ordering::Release);
        }
        publishes
    }

    /// Returns whether the producer waits for slots and must be woken now; true once for each wait. A fence must lie
    /// between the release and this call.
    #[inline]
    pub(super) fn takes_wake(&self) -> bool {
        takes(self.place.parked(), PRODUCER)
    }

    /// Requests one wake-up at the next published frame. A fence and another poll must follow.
    pub(super) fn arm_wakeup(&self) {
        let flag = &self.place.parked()[CONSUMER];
        if flag.load(Ordering::Relaxed) == 0 {
            flag.store(1, Ordering::Relaxed);
        }
    }

    /// Withdraws the request for a wake-up.
    pub(super) fn disarm_wakeup(&self) {
        self.place.parked()[CONSUMER].store(0, Ordering::Relaxed);
    }

    /// Returns the number of slots.
    #[inline]
    pub(super) const fn slots(&self) -> usize {
        self.place.shape.slots
    }

    /// Returns the segment that contains the payloads.
    pub(super) const fn segment(&self) -> &Arc<Segment> {
        &self.place.segment
    }
}

#[cfg(all(test, not(midplane_models)))]
#[path = "lane/tests.rs"]
mod tests;
