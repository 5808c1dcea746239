//! Reassembly of received bytes: the application reads them in order, and the window bounds what the peer
//! sends.

use std::collections::VecDeque;

use midplane_simhw::time::Instant;

use super::chunks::Chunks;
use super::ranges::Ranges;
use crate::wire::buffer::Buffer;

/// The first window in bytes.
pub(crate) const FIRST_WINDOW: u64 = 256 << 10;

/// Most ranges of bytes behind gaps: as many as half of the packets of the largest window, if every second one is lost.
const MAX_LATER: usize = 4_096;

/// The peer's bytes exceed the window, or have too many gaps between them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Refused;

/// Least bytes of a datagram whose buffer is kept rather than copied: half of a buffer's.
const LARGE: usize = 32 << 10;
/// Most free buffers kept while the pipe is busy, 4 MiB.
const SPARE_BUFFERS: usize = 64;

/// Bytes of one datagram, in the buffer that it was received in.
#[derive(Debug)]
struct Piece {
    offset: u64,
    /// The whole buffer; empty until [`Reassembly::take_buffer`] provides it.
    buffer: Buffer,
    start: usize,
    bytes: usize,
}

impl Piece {
    const fn end(&self) -> u64 {
        self.offset + self.bytes as u64
    }
}

/// Received bytes that the application has not consumed.
#[derive(Debug)]
pub(super) struct Reassembly {
    chunks: Chunks,
    /// Bytes that are kept in the buffers of their datagrams, in order; the chunks have none of them.
    pieces: VecDeque<Piece>,
    spare: Vec<Buffer>,
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
            pieces: VecDeque::new(),
            spare: Vec::new(),
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

    /// Adds received bytes; returns whether the application has more to read. With `may_keep`, many bytes are not
    /// copied: the caller then calls [`Reassembly::take_buffer`].
    pub(super) fn insert(
        &mut self,
        offset: u64,
        bytes: &[u8],
        may_keep: bool,
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
            if may_keep && bytes.len() >= LARGE {
                let (buffer, bytes) = (Buffer::default(), bytes.len());
                self.pieces.push_back(Piece { offset, buffer, start: 0, bytes });
            } else {
                self.chunks.write(offset, bytes);
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

    /// Takes the buffer of the datagram that was inserted last, of `length` bytes, if it was not copied; leaves
    /// another one.
    pub(super) fn take_buffer(&mut self, buffer: &mut Buffer, length: usize) {
        let Some(piece) = self.pieces.back_mut().filter(|piece| piece.buffer.is_empty()) else {
            return;
        };
        piece.start = length - piece.bytes;
        let spare = self.spare.pop().unwrap_or_else(|| Buffer::new(buffer.len()));
        piece.buffer = std::mem::replace(buffer, spare);
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

    /// Returns bytes in order that are contiguous in memory.
    pub(super) fn readable(&self) -> &[u8] {
        match self.pieces.front() {
            Some(piece) if piece.offset <= self.consumed => {
                let read = (self.consumed - piece.offset) as usize;
                &piece.buffer[piece.start..piece.start + piece.bytes][read..]
            }
            next => {
                let end = next.map_or(self.in_order, |piece| piece.offset);
                self.chunks.piece(self.consumed, end)
            }
        }
    }

    /// Consumes `bytes` for the application. The window grows in two cases, in both of which it has limited the peer.
    /// Either the application consumes half of it within two round trips; or it has caught up while the peer had less
    /// than half of it left.
    pub(super) fn consume(&mut self, now: Instant, bytes: usize, round_trip: u64) {
        let bytes = (bytes as u64).min(self.in_order - self.consumed);
        self.consumed += bytes;
        self.chunks.release(self.consumed);
        while self.pieces.front().is_some_and(|piece| piece.end() <= self.consumed) {
            let read = self.pieces.pop_front().filter(|_| self.spare.len() < SPARE_BUFFERS);
            self.spare.extend(read.map(|piece| piece.buffer));
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

    pub(super) fn trim(&mut self) {
        self.chunks.trim(self.consumed == self.in_order && self.later.is_empty());
        self.spare = Vec::new();
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let pieces = self.pieces.iter().map(|piece| &piece.buffer);
        let buffers = pieces.chain(&self.spare).map(|buffer| buffer.len());
        self.chunks.memory_bytes() + buffers.sum::<usize>()
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
            pieces in prop_oneof![
                proptest::collection::vec((0_u64..2_000, 0_u64..300), 1..120),
                proptest::collection::vec((0_u64..190_000, 20_000_u64..65_000), 1..20),
            ],
        ) {
            let mut reassembly = Reassembly::new(FIRST_WINDOW);
            let mut buffer = Buffer::new(1 << 16);
            let mut received = Ranges::default();
            let mut read = Vec::new();
            for (from, length) in pieces {
                let mut piece = bytes(from, from + length);
                // Received bytes are not overwritten by different ones.
                for (at, byte) in piece.iter_mut().enumerate() {
                    if received.contains(from + at as u64) {
                        *byte ^= 0xff;
                    }
                }
                // Its offset in a datagram, and the bytes of that datagram.
                let (start, datagram) = (20, 20 + piece.len());
                buffer[start..datagram].copy_from_slice(&piece);
                reassembly.insert(from, &piece, from % 3 > 0).unwrap();
                reassembly.take_buffer(&mut buffer, datagram);
                received.insert(from, from + length);
                let readable = reassembly.readable().len() / 2;
                read.extend_from_slice(&reassembly.readable()[..readable]);
                reassembly.consume(Instant::ZERO, readable, 1);
            }
            while let readable @ [_, ..] = reassembly.readable() {
                let count = readable.len();
                read.extend_from_slice(readable);
                reassembly.consume(Instant::ZERO, count, 1);
            }
            let expected = received.first().filter(|range| range.0 == 0).map_or(0, |range| range.1);
            prop_assert_eq!(read, bytes(0, expected));
        }
    }

    #[test]
    fn more_gaps_than_losses_make_are_refused() {
        let mut reassembly = Reassembly::new(1 << 20);
        let gaps = (0..).map(|at| FIRST_WINDOW - 1 - 2 * at);
        let accepted = gaps.take_while(|at| reassembly.insert(*at, &[1], false).is_ok()).count();
        assert_eq!(accepted, MAX_LATER);
        // The bytes that are missing are received, and the refused ones later.
        assert_eq!(reassembly.insert(0, &vec![1; FIRST_WINDOW as usize], false), Ok(true));
        assert_eq!(reassembly.in_order(), FIRST_WINDOW);
    }

    #[test]
    fn bytes_past_the_window_are_refused_and_it_grows_with_a_busy_reader() {
        let mut reassembly = Reassembly::new(1 << 20);
        assert_eq!(reassembly.insert(FIRST_WINDOW - 1, &[1, 2], false), Err(Refused));
        let mut offset = 0;
        for millisecond in 0..40 {
            let window = reassembly.advertise();
            let piece = vec![0; (window - offset).min(100_000) as usize];
            assert_eq!(reassembly.insert(offset, &piece, false), Ok(true));
            offset += piece.len() as u64;
            while !reassembly.readable().is_empty() {
                let now = Instant::from_nanos(millisecond * 1_000_000);
                reassembly.consume(now, reassembly.readable().len(), 10_000_000);
            }
        }
        assert_eq!(reassembly.advertise() - offset, 1 << 20);
        assert!(reassembly.memory_bytes() <= 6 * (64 << 10));
    }
}
