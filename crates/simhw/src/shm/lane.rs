//! One direction between two NICs: frames in slots of two cache lines, longer ones in areas beside.
//!
//! A slot's first line has the sequence number, the header, and the payload's bytes where they are
//! at most eight; its second line has those of up to 64. What is longer lies in the next of the
//! direction's areas. The far lines are written first and the sequence number last, with release, so
//! that the consumer, which polls that word, sees a whole frame or none, and a producer that is
//! killed at any instruction leaves no half of one. A header is copied out once, and is what whoever
//! uses the lane makes of it; the payload's length is whatever it says.

use std::sync::Arc;

use crate::frame::HEADER_BYTES;
use crate::region::Payload;
use crate::segment::{LINE, Line, Segment, View};
use crate::sync::Ordering;

/// Words of a header.
const HEADER_WORDS: usize = HEADER_BYTES / 8;
/// Bytes of a slot.
const SLOT: usize = 2 * LINE;
/// The word of a slot's first line that has the payload of a very short frame.
const NEAR_WORD: usize = 7;
/// Most bytes of a payload in that word.
const NEAR_BYTES: usize = 8;
/// Lines before the slots: the count of slots given back, and whether the consumer sleeps.
const HEAD: usize = 2 * LINE;

/// How large a direction is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shape {
    /// Frames that may be under way; a power of two.
    pub(super) slots: usize,
    /// Frames with more than 64 bytes that may be under way; a power of two.
    pub(super) areas: usize,
    /// Most bytes of a payload.
    pub(super) mtu: usize,
}

impl Shape {
    const fn area_bytes(self) -> usize {
        self.mtu.next_multiple_of(LINE)
    }

    /// Bytes of one direction.
    pub(super) const fn lane_bytes(self) -> usize {
        HEAD + self.slots * SLOT + self.areas * self.area_bytes()
    }
}

/// Where a direction lies in its segment.
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

    /// Where a payload of `length` lies; the number of its area is that of the areas before it.
    #[inline]
    const fn payload(&self, slot: usize, area: u64, length: usize) -> usize {
        if length <= NEAR_BYTES {
            slot + NEAR_WORD * 8
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

    /// Word 0: the consumer sleeps. Word 1: the producer waits for slots.
    #[inline]
    fn sleepers(&self) -> &Line {
        self.segment.line(self.offset + LINE)
    }
}

const CONSUMER: usize = 0;
const PRODUCER: usize = 1;

/// Whether that side has gone to sleep; it is told once.
#[inline]
fn takes(sleepers: &Line, side: usize) -> bool {
    let word = &sleepers[side];
    word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::Relaxed) != 0
}

/// The direction has no room for a frame now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Full;

/// The sending end.
#[derive(Debug)]
pub(super) struct Sender {
    place: Place,
    /// Frames that are published.
    published: u64,
    /// Frames that are written, published or not.
    staged: u64,
    /// Areas that they have taken.
    areas_published: u64,
    areas_staged: u64,
    /// Slots and areas that have come back.
    returned: u64,
    areas_returned: u64,
    /// For each slot, the areas that had been taken once it was written.
    marks: Box<[u64]>,
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct Receiver {
    place: Place,
    next: u64,
    areas: u64,
    returned: u64,
    areas_returned: u64,
}

/// Where a payload lies in the direction's segment.
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

    /// Writes one frame that nobody sees before [`Sender::publish`].
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

    /// The same with a header that is words, and a payload of `length` bytes that is gathered from `parts`.
    #[inline]
    pub(super) fn stage_parts<'a>(
        &mut self,
        header: [u64; HEADER_WORDS],
        length: usize,
        parts: impl Iterator<Item = View<'a>>,
    ) -> Result<(), Full> {
        self.make_room(length > LINE)?;
        let slot = self.place.slot(self.staged);
        let at = self.place.payload(slot, self.areas_staged, length);
        let line = self.place.segment.line(slot);
        if length > NEAR_BYTES {
            let mut at = at;
            for part in parts {
                self.place.segment.store(at, part).expect("at most the MTU");
                at += part.len();
            }
        } else if length > 0 {
            let (mut near, mut filled) = ([0; NEAR_BYTES], 0);
            for part in parts {
                filled += part.copy_to(&mut near[filled..]);
            }
            line[NEAR_WORD].store(u64::from_le_bytes(near), Ordering::Relaxed);
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

    /// Whether a frame of `length` bytes would be taken now.
    pub(super) fn has_room_for(&mut self, length: usize) -> bool {
        self.make_room(length > LINE).is_ok()
    }

    /// The consumer wakes this side when slots come back, once. A fence and another look must follow.
    pub(super) fn await_room(&self) {
        self.place.sleepers()[PRODUCER].store(1, Ordering::Relaxed);
    }

    /// Whether the next frame has a slot, and an area if it needs one.
    #[inline]
    fn make_room(&mut self, needs_area: bool) -> Result<(), Full> {
        if self.has_room(needs_area) {
            return Ok(());
        }
        let returned = self.place.returned()[0].load(Ordering::Acquire);
        // The other side may write anything: what it can't have taken, it has not.
        let came_back = returned.wrapping_sub(self.returned);
        if came_back == 0 || came_back > self.published - self.returned {
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

    /// Publishes all that is staged, the oldest last: the consumer sees all of it or nothing.
    #[inline]
    pub(super) fn publish(&mut self) {
        for number in (self.published..self.staged).rev() {
            let line = self.place.segment.line(self.place.slot(number));
            line[0].store(number + 1, Ordering::Release);
        }
        self.published = self.staged;
        self.areas_published = self.areas_staged;
    }

    /// What is staged never was.
    pub(super) const fn abort(&mut self) {
        self.staged = self.published;
        self.areas_staged = self.areas_published;
    }

    /// Whether the consumer went to sleep and has to be woken; it is told once. A fence must lie
    /// between publishing and this.
    #[inline]
    pub(super) fn takes_wake(&self) -> bool {
        takes(self.place.sleepers(), CONSUMER)
    }

    /// Frames that have been published, and the consumer has not been known to take.
    #[cfg(all(test, not(midplane_loom)))]
    const fn under_way(&self) -> u64 {
        self.published - self.returned
    }
}

impl Receiver {
    pub(super) const fn new(segment: Arc<Segment>, offset: usize, shape: Shape) -> Self {
        let place = Place { segment, offset, shape };
        Self { place, next: 0, areas: 0, returned: 0, areas_returned: 0 }
    }

    /// Whether a frame is published.
    #[inline]
    pub(super) fn has_frame(&self) -> bool {
        let slot = self.place.slot(self.next);
        // The second line is fetched while nothing hurries, and is there when the frame comes.
        let _ = self.place.segment.line(slot + LINE)[0].load(Ordering::Relaxed);
        self.place.segment.line(slot)[0].load(Ordering::Acquire) == self.next + 1
    }

    /// The header of the next frame, which [`Receiver::has_frame`] has seen.
    #[inline]
    pub(super) fn header(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let (words, _) = bytes.as_chunks_mut::<8>();
        for (value, word) in words.iter_mut().zip(self.words()) {
            *value = word.to_le_bytes();
        }
        bytes
    }

    /// The same as words.
    #[inline]
    pub(super) fn words(&self) -> [u64; HEADER_WORDS] {
        let line = self.place.segment.line(self.place.slot(self.next));
        std::array::from_fn(|at| line[1 + at].load(Ordering::Relaxed))
    }

    /// Where the payload of the next frame lies, if it has `length` bytes; `None` if the direction
    /// carries none so long.
    #[inline]
    pub(super) fn extent(&self, length: usize) -> Option<Extent> {
        let slot = self.place.slot(self.next);
        let offset = self.place.payload(slot, self.areas, length);
        (length <= self.place.shape.mtu).then_some(Extent { offset, length })
    }

    /// A payload that was not [given back](Receiver::give_back) yet.
    #[inline]
    pub(super) fn payload(&self, extent: Extent) -> Payload<'_> {
        let view = self.place.segment.view(extent.offset, extent.length);
        Payload::from(view.expect("its area is as long as the MTU"))
    }

    /// The frame, with a payload of `length` bytes, is done with: its slot may be used again. Whether
    /// the producer can see that now.
    #[inline]
    pub(super) fn give_back(&mut self, length: usize) -> bool {
        self.next += 1;
        self.areas += u64::from(length > LINE);
        let shape = self.place.shape;
        let tells = self.next - self.returned >= (shape.slots as u64).div_ceil(4)
            || self.areas - self.areas_returned >= (shape.areas as u64).div_ceil(4);
        if tells {
            self.returned = self.next;
            self.areas_returned = self.areas;
            self.place.returned()[0].store(self.next, Ordering::Release);
        }
        tells
    }

    /// Whether the producer waits for slots and has to be woken; it is told once. A fence must lie
    /// between giving back and this.
    #[inline]
    pub(super) fn takes_wake(&self) -> bool {
        takes(self.place.sleepers(), PRODUCER)
    }

    /// From now on the producer wakes this side when it publishes. A fence and another look must
    /// follow.
    pub(super) fn fall_asleep(&self) {
        let asleep = &self.place.sleepers()[CONSUMER];
        if asleep.load(Ordering::Relaxed) == 0 {
            asleep.store(1, Ordering::Relaxed);
        }
    }

    /// The producer need not wake this side.
    pub(super) fn stay_awake(&self) {
        self.place.sleepers()[CONSUMER].store(0, Ordering::Relaxed);
    }

    /// Frames that it can hold.
    #[inline]
    pub(super) const fn slots(&self) -> usize {
        self.place.shape.slots
    }

    /// The segment that payloads lie in.
    pub(super) const fn segment(&self) -> &Arc<Segment> {
        &self.place.segment
    }
}

#[cfg(all(test, not(midplane_loom)))]
#[path = "lane/tests.rs"]
mod tests;
