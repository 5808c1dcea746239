//! Frames that are longer than a datagram: the sending NIC cuts them, and the receiving one reassembles them.
//!
//! Each piece is a frame of its own, of kind [`Kind::Piece`]: routed, sealed and paced as any other. Its
//! sequence is the number of the cut frame. Its words give its position in that frame, header included:
//!
//! | word | bits | field |
//! |---|---|---|
//! | 0 | 0-31 | offset in bytes, a multiple of the stride |
//! | 0 | 32-63 | bytes of the whole frame |
//! | 1 | 0-31 | stride: bytes of each piece except the last |
//! | 1 | 32-63 | 0 |
//!
//! Losing a piece loses its frame, and the layers above send it again. Memory for incomplete frames is bounded
//! for each peer, and newer frames replace older ones, so that a flood of incomplete frames blocks nothing that
//! follows. IP's own reassembly would hold them for 30 s and refuse the rest.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::drops::DropCause;
use crate::frame::{Frame, HEADER_BYTES, Header, Kind, MAX_PAYLOAD};
use crate::id::{Incarnation, NodeId};
use crate::time::Instant;

/// Most incomplete frames of one peer. Pieces follow each other, so that more than two are incomplete only if
/// the network reorders them. Memory: 64 KiB each, per peer.
const INCOMPLETE: usize = 4;
/// Nanoseconds after which an incomplete frame accepts no more pieces: its number may be reused later.
const TIMEOUT: u64 = 1_000_000_000;
/// Least bytes of a piece, except the last.
const MIN_STRIDE: usize = 256;
/// Most pieces of a frame.
const MAX_PIECES: usize = (HEADER_BYTES + MAX_PAYLOAD).div_ceil(MIN_STRIDE);
const WORDS: usize = MAX_PIECES.div_ceil(64);

/// Cuts a frame of `bytes` with the header `header` and the number `number` into pieces for datagrams of at
/// most `datagram` bytes. Returns the header of each piece and its range of the frame.
pub(super) fn cut(
    header: &Header,
    number: u32,
    bytes: usize,
    datagram: usize,
) -> impl Iterator<Item = (Header, Range<usize>)> {
    let stride = datagram.saturating_sub(HEADER_BYTES).max(MIN_STRIDE);
    let like = Header {
        kind: Kind::Piece,
        source: header.source,
        destination: header.destination,
        incarnation: header.incarnation,
        sequence: number,
        hop_limit: header.hop_limit,
        ..Header::default()
    };
    (0..bytes).step_by(stride).map(move |begin| {
        let end = (begin + stride).min(bytes);
        let words = [(bytes as u64) << 32 | begin as u64, stride as u64];
        (Header { length: (end - begin) as u16, words, ..like }, begin..end)
    })
}

/// A checked piece's position in its frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Place {
    offset: usize,
    total: usize,
    stride: usize,
}

impl Place {
    fn read(header: &Header) -> Option<Self> {
        let low = |word: u64| (word & u64::from(u32::MAX)) as usize;
        let (offset, total) = (low(header.words[0]), (header.words[0] >> 32) as usize);
        let stride = low(header.words[1]);
        let fits = (HEADER_BYTES..=HEADER_BYTES + MAX_PAYLOAD).contains(&total)
            && (MIN_STRIDE..total).contains(&stride)
            && offset < total
            && offset.is_multiple_of(stride)
            && usize::from(header.length) == stride.min(total - offset)
            && header.words[1] >> 32 == 0;
        fits.then_some(Self { offset, total, stride })
    }

    const fn index(self) -> usize {
        self.offset / self.stride
    }

    const fn count(self) -> usize {
        self.total.div_ceil(self.stride)
    }
}

/// A frame with missing pieces.
#[derive(Debug)]
struct Partial {
    incarnation: Incarnation,
    number: u32,
    begun: Instant,
    total: usize,
    stride: usize,
    bytes: Vec<u8>,
    arrived: [u64; WORDS],
    missing: usize,
}

impl Partial {
    fn new(now: Instant, header: &Header, place: Place, mut bytes: Vec<u8>) -> Self {
        bytes.clear();
        bytes.resize(place.total, 0);
        Self {
            incarnation: header.incarnation,
            number: header.sequence,
            begun: now,
            total: place.total,
            stride: place.stride,
            bytes,
            arrived: [0; WORDS],
            missing: place.count(),
        }
    }

    /// Adds a piece; returns whether the frame is complete. A duplicate changes nothing.
    fn take(&mut self, place: Place, piece: &Frame<'_>) -> bool {
        let (word, bit) = (place.index() / 64, 1 << (place.index() % 64));
        if self.arrived[word] & bit == 0 {
            self.arrived[word] |= bit;
            self.missing -= 1;
            piece
                .payload
                .copy_to(&mut self.bytes[place.offset..place.offset + piece.payload.len()]);
        }
        self.missing == 0
    }
}

/// Reassembles the pieces that peers send.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    /// Incomplete frames of each peer, the oldest first.
    partial: BTreeMap<NodeId, VecDeque<Partial>>,
    /// Memory of a frame that was passed on.
    spare: Vec<u8>,
}

impl Joiner {
    /// Adds a piece from `piece.header.source`; returns the frame's bytes if it is complete. Counts in
    /// `given_up` each frame that is dropped as too old or for lack of space.
    ///
    /// # Errors
    /// [`DropCause::Malformed`] if the piece fits no valid frame.
    pub(super) fn take(
        &mut self,
        now: Instant,
        piece: &Frame<'_>,
        given_up: &mut u64,
    ) -> Result<Option<Vec<u8>>, DropCause> {
        let header = &piece.header;
        let place = Place::read(header).ok_or(DropCause::Malformed)?;
        let partial = self.partial.entry(header.source).or_default();
        let before = partial.len();
        partial.retain(|known| now.nanos_since(known.begun) <= TIMEOUT);
        *given_up += (before - partial.len()) as u64;
        let is_its = |known: &Partial| {
            (known.incarnation, known.number) == (header.incarnation, header.sequence)
        };
        let at = match partial.iter().position(is_its) {
            Some(at) => at,
            None => {
                if partial.len() == INCOMPLETE {
                    *given_up += 1;
                    self.spare = partial.pop_front().map(|known| known.bytes).unwrap_or_default();
                }
                let bytes = std::mem::take(&mut self.spare);
                partial.push_back(Partial::new(now, header, place, bytes));
                partial.len() - 1
            }
        };
        let known = &mut partial[at];
        if (known.total, known.stride) != (place.total, place.stride) {
            return Err(DropCause::Malformed);
        }
        let is_whole = known.take(place, piece);
        Ok(is_whole.then(|| partial.remove(at)).flatten().map(|known| known.bytes))
    }

    /// Keeps the memory of a frame for the next one.
    pub(super) fn recycle(&mut self, bytes: Vec<u8>) {
        self.spare = bytes;
    }
}

#[cfg(test)]
mod tests;
