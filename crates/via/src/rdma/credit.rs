//! Send credit: the free part of the other side's area, and the receive descriptors that are left there.

/// Descriptors that data never takes: one for a credit request, one for a reply.
const RESERVED: u64 = 2;

/// The place of a packet in the area, and its immediate data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Place {
    pub(super) offset: usize,
    /// Bytes of the packet; negative if the packet starts again at the area's start.
    pub(super) immediate: i32,
}

/// The sender's view of an area. Counters only grow, and are compared by their differences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    area: u64,
    /// Bytes of the area used so far, skipped ones included; modulo the area, this is `WritePointer`.
    written: u64,
    write_pointer: u64,
    /// Bytes that the receiver has read (`RDMAmaxread`).
    freed: u64,
    /// Descriptors that were consumed, and those that the receiver has posted.
    consumed: u64,
    posted: u64,
}

/// The area's front is one part of this many. If each packet is read at once, the front suffices; the rest is for
/// bursts.
const FRONT: u64 = 8;
/// The alignment of packets in the area, in bytes.
const ALIGNMENT: u64 = 8;

impl Credit {
    pub(super) const fn new(area: usize, descriptors: u16) -> Self {
        Self {
            area: area as u64,
            written: 0,
            write_pointer: 0,
            freed: 0,
            consumed: 0,
            posted: descriptors as u64,
        }
    }

    /// Handles counters that the receiver has published; ignores impossible ones.
    pub(super) const fn on_published(&mut self, freed: u64, posted: u64) {
        if freed > self.freed && freed <= self.written {
            self.freed = freed;
        }
        if posted > self.posted && posted <= self.consumed + 65_536 {
            self.posted = posted;
        }
    }

    /// Returns the number of descriptors that the receiver has posted, as far as is known.
    pub(super) const fn posted(&self) -> u64 {
        self.posted
    }

    /// Returns how many of the receiver's descriptors are left for data (`descLeft`).
    pub(super) const fn descriptors_left(&self) -> u64 {
        (self.posted - self.consumed).saturating_sub(RESERVED)
    }

    /// Takes room for a packet of `bytes`; returns `None` while there is none.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Place> {
        let bytes = bytes as u64;
        let padded = bytes.next_multiple_of(ALIGNMENT);
        let begins_again = self.write_pointer + padded > self.area || self.returns_early(padded);
        let skipped = if begins_again { self.area - self.write_pointer } else { 0 };
        let maximum = self.area - (self.written - self.freed);
        if self.descriptors_left() == 0 || skipped + padded > maximum {
            return None;
        }
        let offset = if begins_again { 0 } else { self.write_pointer };
        self.written += skipped + padded;
        self.write_pointer = offset + padded;
        self.consumed += 1;
        let length = bytes as i32;
        Some(Place {
            offset: offset as usize,
            immediate: if begins_again { -length } else { length },
        })
    }

    /// Returns the room that was taken since `before`.
    pub(super) const fn put_back(&mut self, before: &Self) {
        self.written = before.written;
        self.write_pointer = before.write_pointer;
        self.consumed = before.consumed;
    }

    /// Returns whether the write pointer is past the area's front, the part that stays in the caches.
    pub(super) const fn is_past_front(&self) -> bool {
        self.write_pointer >= self.area / FRONT
    }

    /// Returns whether to start again early at the area's start: all packets were read, and the skipped rest leaves
    /// room.
    const fn returns_early(&self, padded: u64) -> bool {
        self.freed == self.written && self.is_past_front() && padded <= self.write_pointer
    }

    /// Returns whether a descriptor is left for a request or a reply.
    pub(super) const fn has_reserved(&self) -> bool {
        self.posted > self.consumed
    }

    /// Counts the descriptor of a request or a reply.
    pub(super) const fn take_reserved(&mut self) {
        self.consumed += 1;
    }
}

/// The receiver's view of its area.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    area: u64,
    read_pointer: u64,
    /// Bytes read so far, skipped ones included, and how many of them were published.
    pub(super) freed: u64,
    published_freed: u64,
    /// Descriptors posted so far, and how many of them were published.
    pub(super) posted: u64,
    published_posted: u64,
}

impl Reader {
    pub(super) const fn new(area: usize, descriptors: u16) -> Self {
        let posted = descriptors as u64;
        Self {
            area: area as u64,
            read_pointer: 0,
            freed: 0,
            published_freed: 0,
            posted,
            published_posted: posted,
        }
    }

    /// Returns the offset and length of the packet with this immediate data, and the bytes that reading it frees.
    /// Returns `None` if no writer that follows the protocol sends such data.
    pub(super) fn locate(&mut self, immediate: i32) -> Option<(usize, usize, u64)> {
        let bytes = u64::from(immediate.unsigned_abs());
        let padded = bytes.next_multiple_of(ALIGNMENT);
        let skipped = if immediate < 0 { self.area - self.read_pointer } else { 0 };
        let offset = if immediate < 0 { 0 } else { self.read_pointer };
        if bytes == 0 || offset + padded > self.area {
            return None;
        }
        self.read_pointer = offset + padded;
        Some((offset as usize, bytes as usize, skipped + padded))
    }

    /// Returns whether an eighth of the area is free and not published.
    pub(super) const fn is_due(&self) -> bool {
        self.freed - self.published_freed >= self.area / FRONT
    }

    /// Returns whether the sender may be low on descriptors: a quarter of `descriptors` is not published.
    pub(super) const fn may_be_low(&self, descriptors: u16) -> bool {
        self.posted - self.published_posted >= descriptors as u64 / 4
    }

    /// Returns whether a low-water request of a sender that knew of `posted` descriptors is unanswered.
    pub(super) const fn is_unanswered(&self, posted: u64) -> bool {
        posted == self.published_posted
    }

    pub(super) const fn on_published(&mut self) {
        self.published_freed = self.freed;
        self.published_posted = self.posted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Checks for any order of sends and reads: no unread packet is overwritten, and no sender waits for ever.
        #[test]
        fn unread_packets_are_never_overwritten(
            steps in proptest::collection::vec((1_usize..1024, 0_u8..4), 1..400),
        ) {
            const AREA: usize = 4096;
            let (mut credit, mut reader) = (Credit::new(AREA, 16), Reader::new(AREA, 16));
            let mut under_way = VecDeque::new();
            let mut unread: VecDeque<(usize, usize)> = VecDeque::new();
            let mut refused_empty = 0;
            for (bytes, action) in steps {
                if action > 1 {
                    if let Some(place) = credit.take(bytes) {
                        for (at, length) in &unread {
                            let apart = place.offset + bytes <= *at || at + length <= place.offset;
                            prop_assert!(apart, "{place:?} over {at} + {length}");
                        }
                        unread.push_back((place.offset, bytes));
                        under_way.push_back(place);
                    } else if unread.is_empty() {
                        refused_empty += 1;
                    }
                } else if let Some(place) = under_way.pop_front() {
                    let (at, length, frees) = reader.locate(place.immediate).unwrap();
                    prop_assert_eq!(unread.pop_front(), Some((at, length)));
                    reader.posted += 1;
                    reader.freed += frees;
                    let is_low = reader.may_be_low(16) && reader.is_unanswered(credit.posted());
                    if action == 1 || reader.is_due() || is_low || under_way.is_empty() {
                        credit.on_published(reader.freed, reader.posted);
                        reader.on_published();
                    }
                }
            }
            // Once all packets were read and their room published, any packet fits.
            prop_assert_eq!(refused_empty, 0);
        }

        /// If each packet is read before the next one is sent, only the front is used.
        #[test]
        fn packets_read_at_once_stay_in_the_front(
            packets in proptest::collection::vec(1_usize..512, 100),
        ) {
            const AREA: usize = 8192;
            let (mut credit, mut reader) = (Credit::new(AREA, 16), Reader::new(AREA, 16));
            for bytes in packets {
                let place = credit.take(bytes).unwrap();
                prop_assert!(place.offset < AREA / FRONT as usize, "{place:?}");
                let (at, length, frees) = reader.locate(place.immediate).unwrap();
                prop_assert_eq!((at, length), (place.offset, bytes));
                reader.posted += 1;
                reader.freed += frees;
                credit.on_published(reader.freed, reader.posted);
            }
        }

        #[test]
        fn impossible_counters_and_immediate_data_are_ignored(
            numbers: Vec<(u64, u64)>, immediates: Vec<i32>,
        ) {
            let (mut credit, mut reader) = (Credit::new(4096, 16), Reader::new(4096, 16));
            for (freed, posted) in numbers {
                credit.on_published(freed, posted);
                if let Some(place) = credit.take(100) {
                    prop_assert!(place.offset + 100 <= 4096);
                }
            }
            for immediate in immediates {
                if let Some((at, length, _)) = reader.locate(immediate) {
                    prop_assert!(at + length <= 4096);
                }
            }
        }
    }
}
