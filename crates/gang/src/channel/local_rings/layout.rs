//! The layout of the rings of one job on one host in their memory.

use serde::{Deserialize, Serialize};

use crate::names::Rank;

/// Size of a word.
pub(crate) const WORD: usize = 8;
/// Size of a cache line.
const LINE: usize = 64;
/// Bytes of a ring's head, which precedes its messages.
pub(crate) const HEAD: usize = 3 * LINE;
/// Most ranks of a host that have rings, because each pair needs one.
const MOST_RANKS: usize = 64;
/// Most bytes of the rings of all pairs together, unless the minimum of each pair needs more.
const ALL_BYTES: usize = 64 << 20;
/// Most bytes of a ring.
const MOST_BYTES: usize = 256 << 10;
/// Least number of messages of the longest length for which a ring has room.
const LEAST_MESSAGES: usize = 4;
/// Most bytes of all rings: those of the largest region.
const MOST_MEMORY: usize = 1 << 30;

/// Returns the bytes that a message needs in a ring.
pub(crate) const fn message_bytes(length: usize) -> usize {
    WORD + length.next_multiple_of(WORD)
}

/// The place of one ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    /// Offset of the ring's head.
    pub(crate) head: usize,
    /// Bytes for messages, a multiple of 8.
    pub(crate) bytes: u64,
}

impl Place {
    /// Returns the offset of a position in the memory.
    pub(crate) const fn byte(&self, position: u64) -> usize {
        self.head + HEAD + (position % self.bytes) as usize
    }

    /// Returns the number of bytes between a position and the end of the ring's memory.
    pub(crate) const fn to_end(self, position: u64) -> u64 {
        self.bytes - position % self.bytes
    }
}

/// The ranks of a job on one host, and the sizes of their rings.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Layout {
    /// The ranks, in order.
    ranks: Vec<Rank>,
    /// Bytes of the ring of each pair; 0 if there are no rings of pairs.
    pair_bytes: u32,
    /// The longest message, in bytes.
    longest: u32,
    /// Bytes of each rank's past.
    past_bytes: Vec<u32>,
}

impl Layout {
    /// Plans the rings of these ranks, each with the bytes that its past needs. Returns `None` if no rings are needed,
    /// or if they need more memory than a region has.
    pub(crate) fn plan(
        longest: u32,
        ranks: impl IntoIterator<Item = (Rank, usize)>,
        with_pairs: bool,
    ) -> Option<Self> {
        let (ranks, past): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        let least = LEAST_MESSAGES * message_bytes(longest as usize);
        let pairs = (ranks.len() * ranks.len()).max(1);
        let most = least.max((ALL_BYTES / pairs).min(MOST_BYTES)).next_multiple_of(LINE);
        let has_pairs = with_pairs && (2..=MOST_RANKS).contains(&ranks.len());
        let past_bytes = past.iter().map(|bytes| u32::try_from(bytes.next_multiple_of(LINE)).ok());
        let past_bytes = past_bytes.collect::<Option<_>>()?;
        let pair_bytes = if has_pairs { u32::try_from(most).ok()? } else { 0 };
        let layout = Self { ranks, pair_bytes, longest, past_bytes };
        layout.check().then_some(layout)
    }

    /// Returns whether a layout is valid and needs memory. Another process may have sent it.
    pub(crate) fn check(&self) -> bool {
        let Self { ranks, pair_bytes, longest, past_bytes } = self;
        let least = 2 * message_bytes(*longest as usize);
        ranks.is_sorted_by(|a, b| a < b)
            && ranks.len() == past_bytes.len()
            && past_bytes
                .iter()
                .chain([pair_bytes])
                .all(|bytes| (*bytes as usize).is_multiple_of(LINE))
            && (*pair_bytes == 0 || (*pair_bytes as usize >= least && ranks.len() <= MOST_RANKS))
            && (*pair_bytes > 0 || past_bytes.iter().any(|bytes| *bytes > 0))
            && self.bytes() <= MOST_MEMORY
    }

    /// Returns the ranks, in order.
    pub(crate) fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Returns the longest message, in bytes.
    pub(crate) const fn longest(&self) -> u32 {
        self.longest
    }

    /// Returns whether each pair has a ring.
    pub(crate) const fn has_pairs(&self) -> bool {
        self.pair_bytes > 0
    }

    /// Returns a rank's index in the order.
    pub(crate) fn index(&self, rank: Rank) -> Option<usize> {
        self.ranks.binary_search(&rank).ok()
    }

    /// Returns the size of the whole memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.past_at(self.ranks.len())
    }

    /// Returns the offset of the word that is odd while a rank's process is parked.
    pub(crate) fn parked(&self, rank: Rank) -> Option<usize> {
        Some(self.index(rank)? * LINE)
    }

    /// Returns the place of the ring between two ranks.
    ///
    /// # Panics
    /// If one of them is on another host.
    pub(crate) fn pair(&self, from: Rank, to: Rank) -> Place {
        let at = |rank| self.index(rank).expect("the rank is on this host");
        let pair = at(from) * self.ranks.len() + at(to);
        let head = self.ranks.len() * LINE + pair * self.ring(self.pair_bytes);
        Place { head, bytes: self.pair_bytes.into() }
    }

    /// Returns the place of a rank's past, if it has one.
    pub(crate) fn past(&self, rank: Rank) -> Option<Place> {
        let at = self.index(rank)?;
        let bytes = self.past_bytes[at];
        (bytes > 0).then(|| Place { head: self.past_at(at), bytes: bytes.into() })
    }

    /// Returns the bytes of a ring including its head; 0 for a ring without messages.
    const fn ring(&self, bytes: u32) -> usize {
        if bytes == 0 { 0 } else { HEAD + bytes as usize }
    }

    /// Returns the offset of the past of the rank with this index.
    fn past_at(&self, index: usize) -> usize {
        let pairs = self.ranks.len() * self.ranks.len();
        let begin = self.ranks.len() * LINE + pairs * self.ring(self.pair_bytes);
        let before = self.past_bytes[..index].iter().map(|bytes| self.ring(*bytes));
        begin + before.sum::<usize>()
    }
}
