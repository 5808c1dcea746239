//! Reassembly of received bytes: the application reads them in order, and the window bounds what the peer
//! sends.

use std::collections::VecDeque;

use midplane_simhw::time::Instant;

use super::chunks::Chunks;
use super::ranges::Ranges;
use super::reserve::Reserve;
use crate::wire::buffer::Buffer;

/// The first window in bytes.
pub(crate) const FIRST_WINDOW: u64 = 256 << 10;

/// Most ranges of bytes behind gaps: as many as half of the packets of the largest window, if every second one is lost.
const MAX_LATER: usize = 4_096;

/// The peer's bytes exceed the window, or have too many gaps between them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Refused;

/// Least bytes in a receive buffer for which the buffer is kept rather than copied: half of it.
const LARGE: usize = 32 << 10;
/// Least bytes of a datagram that are kept so.
const LEAST_PIECE: usize = 512;

/// The bytes of one datagram in its buffer.
#[derive(Clone, Copy, Debug)]
struct Piece {
    offset: u64,
    start: usize,
    bytes: usize,
}

/// Bytes of datagrams, in order, in the buffer that they were received in together.
#[derive(Debug)]
struct Train {
    buffer: Buffer,
    pieces: Vec<Piece>,
    /// Pieces that were consumed.
    consumed: usize,
}

impl Train {
    fn new(buffer_bytes: usize) -> Self {
        Self { buffer: Buffer::new(buffer_bytes), pieces: Vec::new(), consumed: 0 }
    }

    /// Returns the pieces that were not consumed, each with its offset.
    fn rest(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let slice = |piece: &Piece| &self.buffer[piece.start..piece.start + piece.bytes];
        self.pieces[self.consumed..].iter().map(move |piece| (piece.offset, slice(piece)))
    }

    /// Counts the pieces before `offset` as consumed; returns whether all are.
    fn consume(&mut self, offset: u64) -> bool {
        let rest = &self.pieces[self.consumed..];
        let is_before = |piece: &&Piece| piece.offset + piece.bytes as u64 <= offset;
        self.consumed += rest.iter().take_while(is_before).count();
        self.consumed == self.pieces.len()
    }

    fn clear(mut self) -> Self {
        self.pieces.clear();
        self.consumed = 0;
        self
    }
}

/// Received bytes that the application has not consumed.
#[derive(Debug)]
pub(super) struct Reassembly {
    chunks: Chunks,
    /// Bytes that are kept in the buffers of their datagrams, in order; the chunks have none of them.
    trains: VecDeque<Train>,
    /// Pieces of the buffer that is being handled; [`Reassembly::end_buffer`] keeps or copies them.
    arriving: Vec<Piece>,
    spare: Reserve<Train>,
    consumed: u64,
    /// Every byte before it was received.
    in_order: u64,
    /// Received bytes behind a gap.
    later: Ranges,
    /// Bytes beyond the consumed ones that the peer may send.
    window: u64,
    most_window: u64,
    /// Largest offset that was advertised to the peer.
    advertised: u64,
    /// Offset beyond which nothing is advertised, whatever room there is; no limit if `u64::MAX`.
    limit: u64,
    /// True if the peer waits for the raised limit, or if the window must be sent again.
    is_update_wanted: bool,
    /// Bytes received, including those behind a gap.
    received: u64,
    /// When and at which offset the application began the current round trip of consumption.
    round_at: Instant,
    round_from: u64,
}

impl Reassembly {
    pub(super) fn new(most_window: u64) -> Self {
        let window = FIRST_WINDOW.min(most_window);
        Self {
            chunks: Chunks::default(),
            trains: VecDeque::new(),
            arriving: Vec::new(),
            spare: Reserve::default(),
            consumed: 0,
            in_order: 0,
            later: Ranges::default(),
            window,
            most_window,
            advertised: window,
            limit: u64::MAX,
            is_update_wanted: false,
            received: 0,
            round_at: Instant::ZERO,
            round_from: 0,
        }
    }

    /// Adds received bytes; returns whether the application has more to read. Bytes at `start` of a buffer may stay
    /// there: the caller then calls [`Reassembly::end_buffer`] before anything is read.
    pub(super) fn insert(
        &mut self,
        offset: u64,
        bytes: &[u8],
        start: Option<usize>,
    ) -> Result<bool, Refused> {
        let end = offset + bytes.len() as u64;
        if end > self.advertised {
            return Err(Refused);
        }
        if end <= self.in_order {
            return Ok(false);
        }
        let skipped = self.in_order.saturating_sub(offset);
        let (offset, bytes) = (offset + skipped, &bytes[skipped as usize..]);
        if offset > self.in_order {
            if self.later.len() >= MAX_LATER {
                return Err(Refused);
            }
            self.insert_later(offset, bytes);
            return Ok(false);
        }
        if self.later.is_empty() {
            match start.filter(|_| bytes.len() >= LEAST_PIECE) {
                Some(start) => {
                    let (start, bytes) = (start + skipped as usize, bytes.len());
                    self.arriving.push(Piece { offset, start, bytes });
                }
                None => self.chunks.write(offset, bytes),
            }
            self.received += end - offset;
            self.in_order = end;
            return Ok(true);
        }
        self.insert_later(offset, bytes);
        if let Some((_, end)) = self.later.pop_first() {
            self.in_order = end;
        }
        Ok(true)
    }

    /// Ends the inserts from a buffer. If it `may_keep` the buffer, and many of its bytes are in use, leaves another
    /// one in its place; else copies the bytes.
    pub(super) fn end_buffer(&mut self, buffer: &mut Buffer, may_keep: bool) {
        let bytes: usize = self.arriving.iter().map(|piece| piece.bytes).sum();
        if may_keep && bytes >= LARGE {
            let mut train = self.spare.take().unwrap_or_else(|| Train::new(buffer.len()));
            std::mem::swap(&mut train.buffer, buffer);
            std::mem::swap(&mut train.pieces, &mut self.arriving);
            self.trains.push_back(train);
        }
        for Piece { offset, start, bytes } in self.arriving.drain(..) {
            self.chunks.write(offset, &buffer[start..start + bytes]);
        }
    }

    /// Writes only missing bytes: those that were received once never change.
    fn insert_later(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        let mut missing = Ranges::default();
        missing.insert(offset, end);
        for (begin, until) in self.later.newest_first() {
            if until <= offset {
                break;
            }
            missing.remove(begin, until);
        }
        while let Some((from, to)) = missing.pop_first() {
            self.received += to - from;
            self.chunks.write(from, &bytes[(from - offset) as usize..(to - offset) as usize]);
        }
        self.later.insert(offset, end);
    }

    /// Returns the number of bytes that can be read.
    #[cfg(any(test, feature = "session"))]
    pub(super) const fn readable_bytes(&self) -> usize {
        (self.in_order - self.consumed) as usize
    }

    /// Returns the bytes that can be read, in parts that are contiguous in memory.
    pub(super) fn readable(&self) -> impl Iterator<Item = &[u8]> {
        let mut kept = self.trains.iter().flat_map(Train::rest).peekable();
        let (mut at, end) = (self.consumed, self.in_order);
        std::iter::from_fn(move || {
            let part = match kept.next_if(|(offset, _)| *offset <= at) {
                Some((offset, piece)) => &piece[(at - offset) as usize..],
                None => self.chunks.piece(at, kept.peek().map_or(end, |(offset, _)| *offset)),
            };
            at += part.len() as u64;
            (!part.is_empty()).then_some(part)
        })
    }

    /// Consumes `bytes` for the application. The window grows in two cases, in both of which it has limited the peer.
    /// Either the application consumes half of it within two round trips; or it has caught up while the peer had less
    /// than half of it left.
    pub(super) fn consume(&mut self, now: Instant, bytes: usize, round_trip: u64) {
        let bytes = (bytes as u64).min(self.in_order - self.consumed);
        if bytes == 0 {
            return;
        }
        self.consumed += bytes;
        self.chunks.release(self.consumed);
        while self.trains.front_mut().is_some_and(|train| train.consume(self.consumed)) {
            if let Some(read) = self.trains.pop_front() {
                self.spare.add(read.clear());
            }
        }
        if now.nanos_since(self.round_at) > 2 * round_trip {
            self.round_at = now;
            self.round_from = self.consumed - bytes;
        }
        let took_half = self.consumed - self.round_from >= self.window / 2;
        let has_caught_up = self.consumed == self.in_order;
        if took_half || (has_caught_up && self.advertised - self.in_order < self.window / 2) {
            self.window = (2 * self.window).min(self.most_window);
            self.round_at = now;
            self.round_from = self.consumed;
        }
    }

    /// Returns whether the window is to be sent to the peer: it has grown by a quarter, or the peer waits for it.
    pub(super) fn is_update_due(&self) -> bool {
        let more = self.offered().saturating_sub(self.advertised);
        self.is_update_wanted || more >= self.window / 4
    }

    /// Has the window sent to the peer again, since the packet that carried it was lost.
    pub(super) const fn repeat_update(&mut self) {
        self.is_update_wanted = true;
    }

    /// Limits what the peer may send to `first`, and then to what [`Reassembly::raise_limit`] sets.
    pub(super) const fn limit(&mut self, first: u64) {
        (self.limit, self.advertised) = (first, first);
    }

    /// Raises the limit to one that the peer presumes without a notification.
    pub(super) fn presume(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
        self.advertised = self.advertised.max(limit);
    }

    /// Raises the limit; returns whether the peer, which wants to send up to `wanted`, waits for that.
    pub(super) fn raise_limit(&mut self, limit: u64, wanted: u64) -> bool {
        self.limit = self.limit.max(limit);
        self.is_update_wanted |= wanted.min(self.offered()) > self.advertised;
        self.is_update_wanted
    }

    /// Returns whether the peer may send only up to granted limits.
    pub(super) const fn is_limited(&self) -> bool {
        self.limit != u64::MAX
    }

    /// Returns the offset up to which there is room for the peer's bytes.
    pub(super) const fn room_until(&self) -> u64 {
        self.consumed + self.window
    }

    fn offered(&self) -> u64 {
        self.room_until().min(self.limit)
    }

    /// Returns the bytes received, including those behind a gap.
    pub(super) const fn received(&self) -> u64 {
        self.received
    }

    /// Returns the offset up to which the peer may send.
    pub(super) const fn advertised(&self) -> u64 {
        self.advertised
    }

    /// Returns the window to advertise, and records it as advertised.
    pub(super) fn advertise(&mut self) -> u64 {
        self.is_update_wanted = false;
        self.advertised = self.advertised.max(self.offered());
        self.advertised
    }

    pub(super) const fn in_order(&self) -> u64 {
        self.in_order
    }

    /// Returns whether bytes are missing before some that were received.
    pub(super) fn has_gap(&self) -> bool {
        !self.later.is_empty()
    }

    pub(super) fn trim(&mut self, is_idle: bool) {
        self.chunks.trim(is_idle, self.consumed == self.in_order && self.later.is_empty());
        self.spare.trim(is_idle);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let trains = self.trains.iter().chain(self.spare.iter());
        self.chunks.memory_bytes() + trains.map(|train| train.buffer.len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the bytes of the stream from one offset to another.
    fn bytes(from: u64, to: u64) -> Vec<u8> {
        (from..to).map(|offset| (offset * 7 / 5) as u8).collect()
    }

    proptest! {
        #[test]
        fn pieces_in_any_order_are_read_in_order_and_never_change(
            // For each buffer: where it begins, relative to the bytes in order; the bytes of a piece, the number of
            // pieces, and the distance between two in percent of their bytes.
            buffers in proptest::collection::vec(
                (
                    prop_oneof![4 => Just(0_i64), 2 => -2_000_i64..0, 1 => 1_i64..20_000],
                    prop_oneof![
                        (0_u64..300, 1_u64..3, 50_u64..150),
                        (20_000_u64..65_000, Just(1), Just(100)),
                        (400_u64..1_440, 1_u64..44, prop_oneof![4 => Just(100_u64), 1 => 95_u64..103]),
                    ],
                    any::<bool>(),
                    any::<prop::sample::Index>(),
                ),
                1..40,
            ),
        ) {
            let mut reassembly = Reassembly::new(FIRST_WINDOW);
            let mut buffer = Buffer::new(1 << 16);
            let mut received = Ranges::default();
            let mut read = Vec::new();
            for (at, (length, pieces, percent), may_keep, part) in buffers {
                let first = reassembly.in_order().saturating_add_signed(at);
                let (window, mut start) = (reassembly.advertise(), 20);
                for index in 0..pieces {
                    let from = first + index * length * percent / 100;
                    if from + length > window {
                        break;
                    }
                    let mut piece = bytes(from, from + length);
                    // Received bytes are not overwritten by different ones.
                    for (at, byte) in piece.iter_mut().enumerate() {
                        if received.contains(from + at as u64) {
                            *byte ^= 0xff;
                        }
                    }
                    buffer[start..start + piece.len()].copy_from_slice(&piece);
                    let may_stay = index % 7 < 6;
                    reassembly.insert(from, &piece, may_stay.then_some(start)).unwrap();
                    received.insert(from, from + length);
                    start += piece.len() + 20;
                }
                reassembly.end_buffer(&mut buffer, may_keep);
                let readable: Vec<u8> = reassembly.readable().flatten().copied().collect();
                let count = part.index(readable.len() + 1);
                read.extend_from_slice(&readable[..count]);
                reassembly.consume(Instant::ZERO, count, 1);
            }
            let rest: Vec<u8> = reassembly.readable().flatten().copied().collect();
            prop_assert_eq!(rest.len(), reassembly.readable_bytes());
            read.extend(rest);
            let expected = received.first().filter(|range| range.0 == 0).map_or(0, |range| range.1);
            prop_assert_eq!(read, bytes(0, expected));
        }
    }

    #[test]
    fn long_datagrams_of_a_full_buffer_are_read_where_they_were_received() {
        let mut reassembly = Reassembly::new(FIRST_WINDOW);
        let mut buffer = Buffer::new(1 << 16);
        let memory = buffer.as_ptr();
        let mut offset = 0;
        for index in 0..44_u64 {
            let (start, length) =
                (24 + 1_450 * index as usize, if index == 20 { 100 } else { 1_400 });
            let piece = bytes(offset, offset + length);
            buffer[start..start + piece.len()].copy_from_slice(&piece);
            assert_eq!(reassembly.insert(offset, &piece, Some(start)), Ok(true));
            offset += length;
        }
        reassembly.end_buffer(&mut buffer, true);
        assert_ne!(buffer.as_ptr(), memory, "another buffer is in its place");
        let parts: Vec<&[u8]> = reassembly.readable().collect();
        assert_eq!(parts.len(), 44);
        let is_kept = |part: &[u8]| {
            (memory.addr()..memory.addr() + (1 << 16)).contains(&part.as_ptr().addr())
        };
        assert_eq!(parts.iter().filter(|part| is_kept(part)).count(), 43, "all but the short one");
        assert_eq!(parts.concat(), bytes(0, offset));
        reassembly.consume(Instant::ZERO, 2_000, 1);
        assert_eq!(reassembly.readable().next().map(<[u8]>::to_vec), Some(bytes(2_000, 2_800)));
        reassembly.consume(Instant::ZERO, reassembly.readable_bytes(), 1);
        assert_eq!(reassembly.readable().next(), None);
    }

    /// Regression: each search for bytes that found none doubled the window.
    #[test]
    fn a_reader_that_finds_nothing_does_not_widen_the_window() {
        let mut reassembly = Reassembly::new(8 << 20);
        reassembly.insert(0, &vec![1; 200_000], None).unwrap();
        reassembly.consume(Instant::ZERO, 200_000, 1_000_000);
        for _ in 0..10 {
            reassembly.consume(Instant::ZERO, 0, 1_000_000);
        }
        assert_eq!(reassembly.room_until(), 200_000 + 2 * FIRST_WINDOW);
    }

    #[test]
    fn more_gaps_than_losses_make_are_refused() {
        let mut reassembly = Reassembly::new(1 << 20);
        let gaps = (0..).map(|at| FIRST_WINDOW - 1 - 2 * at);
        let accepted = gaps.take_while(|at| reassembly.insert(*at, &[1], None).is_ok()).count();
        assert_eq!(accepted, MAX_LATER);
        // The bytes that are missing are received, and the refused ones later.
        assert_eq!(reassembly.insert(0, &vec![1; FIRST_WINDOW as usize], None), Ok(true));
        assert_eq!(reassembly.in_order(), FIRST_WINDOW);
    }

    #[test]
    fn bytes_past_the_window_are_refused_and_it_grows_with_a_busy_reader() {
        let mut reassembly = Reassembly::new(1 << 20);
        assert_eq!(reassembly.insert(FIRST_WINDOW - 1, &[1, 2], None), Err(Refused));
        let mut offset = 0;
        for millisecond in 0..40 {
            let window = reassembly.advertise();
            let piece = vec![0; (window - offset).min(100_000) as usize];
            assert_eq!(reassembly.insert(offset, &piece, None), Ok(true));
            offset += piece.len() as u64;
            let now = Instant::from_nanos(millisecond * 1_000_000);
            reassembly.consume(now, reassembly.readable_bytes(), 10_000_000);
        }
        assert_eq!(reassembly.advertise() - offset, 1 << 20);
        assert!(reassembly.memory_bytes() <= 6 * (64 << 10));
    }
}
