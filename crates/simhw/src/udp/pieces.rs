//! Frames that are longer than a datagram: cut by the sending NIC, joined by the receiving one.
//!
//! Each piece is a frame of its own, of kind [`Kind::Piece`]: routed, sealed and paced as any other. Its
//! sequence is the number of the cut frame; its words say where in that frame, header counted, it belongs:
//!
//! | word | bits | field |
//! |---|---|---|
//! | 0 | 0-31 | offset in bytes, a multiple of the stride |
//! | 0 | 32-63 | bytes of the whole frame |
//! | 1 | 0-31 | stride: bytes of each piece but the last |
//! | 1 | 32-63 | 0 |
//!
//! A lost piece loses its frame, as a lost frame is lost: whoever needs it whole sends it again. What is
//! incomplete is bounded for each peer and gives way to what is newer, so that a flood of halves costs nothing
//! that comes after it; IP's own reassembly would keep them for half a minute and refuse the rest.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::drops::DropCause;
use crate::frame::{Frame, HEADER_BYTES, Header, Kind, MAX_PAYLOAD};
use crate::id::{Incarnation, NodeId};
use crate::time::Instant;

/// Frames of one peer that may be incomplete at a time: pieces follow each other, so that more than two
/// are so only where the network changes their order. Memory: 64 KiB each, a peer.
const INCOMPLETE: usize = 4;
/// Nanoseconds after which an incomplete frame takes no piece any more: numbers come again, if late.
const PATIENCE: u64 = 1_000_000_000;
/// Least bytes of a piece but the last.
const LEAST_STRIDE: usize = 256;
/// Most pieces of a frame.
const MOST_PIECES: usize = (HEADER_BYTES + MAX_PAYLOAD).div_ceil(LEAST_STRIDE);
const WORDS: usize = MOST_PIECES.div_ceil(64);

/// The pieces of a frame of `bytes` that has the header `header` and the number `number`, for datagrams of
/// at most `datagram` bytes: the header of each, and what of the frame it carries.
pub(super) fn cut(
    header: &Header,
    number: u32,
    bytes: usize,
    datagram: usize,
) -> impl Iterator<Item = (Header, Range<usize>)> {
    let stride = datagram.saturating_sub(HEADER_BYTES).max(LEAST_STRIDE);
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

/// A checked piece's place in its frame.
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
            && (LEAST_STRIDE..total).contains(&stride)
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

/// A frame of which pieces are missing.
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

    /// Takes a piece in; whether the frame is whole now. One that is here already changes nothing.
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

/// Joins the pieces that peers send.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    /// Of each peer, the oldest first.
    partial: BTreeMap<NodeId, VecDeque<Partial>>,
    /// Memory of a frame that was handed on.
    spare: Vec<u8>,
}

impl Joiner {
    /// Takes in a piece from `piece.header.source`; the frame's bytes if it was the last one missing. Counts
    /// in `given_up` each frame that gives way to this one.
    ///
    /// # Errors
    /// [`DropCause::Malformed`] if the piece belongs to no frame that there could be.
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
        partial.retain(|known| now.nanos_since(known.begun) <= PATIENCE);
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

    /// Takes back the memory of a frame.
    pub(super) fn recycle(&mut self, bytes: Vec<u8>) {
        self.spare = bytes;
    }
}

#[cfg(test)]
mod tests;
