//! Records between endpoints: their kinds and words.
//!
//! The first word of a record has its kind in the low byte, flags in the next byte, and a length above. The second word
//! has a tag, a key or a handle. Up to two more words are at the beginning of the payload. If the length is greater
//! than the rest of the payload, the record begins a stream. [`Kind::More`] records of the same sender continue it, and
//! no other stream comes in between.

/// The kind of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// A tagged message. Second word: its tag; then its data, if it has any.
    Tagged,
    /// A message without a tag; otherwise as `Tagged`.
    Plain,
    /// The RTS of a tagged message. Second word: its tag; then the sender's handle, and data if it has any.
    TaggedRts,
    /// The RTS of a message without a tag; otherwise as `TaggedRts`.
    PlainRts,
    /// Requests a message by CTS. Second word: the sender's handle; then the receiver's. Length: the requested bytes.
    Cts,
    /// The bytes that a `Cts`, a `Read` or an `Atomic` has requested. Second word: the requester's handle.
    Data,
    /// The next bytes of a stream.
    More,
    /// Ends a stream of `Data` that its sender cannot continue. Second word: the error.
    Cut,
    /// Writes to a region. Second word: its key; then the address, and data if it has any.
    Write,
    /// Requests bytes of a region. Second word: its key; then the address and the requester's handle.
    Read,
    /// Changes elements of a region atomically. Second word: its key; then the address and an [`AtomicWord`]. Always
    /// one record.
    Atomic,
    /// Confirms the oldest streams with [`CONFIRM`]. Second word: their number.
    Ack,
    /// Refuses the oldest stream with [`CONFIRM`]. Second word: the error.
    Nack,
    /// Fails a `Read`, or an `Atomic` that fetches. Second word: its handle. Length: the error.
    ReadFailed,
    /// Returns bytes of the window for eager messages.
    Credit,
}

impl Kind {
    const ALL: [Self; 15] = [
        Self::Tagged,
        Self::Plain,
        Self::TaggedRts,
        Self::PlainRts,
        Self::Cts,
        Self::Data,
        Self::More,
        Self::Cut,
        Self::Write,
        Self::Read,
        Self::Atomic,
        Self::Ack,
        Self::Nack,
        Self::ReadFailed,
        Self::Credit,
    ];
}

/// Flag: the message, or the write, has data of 8 bytes for the receiver's completion queue.
pub(crate) const HAS_DATA: u64 = 1 << 8;
/// Flag: the receiver confirms the stream when it has all of it.
pub(crate) const CONFIRM: u64 = 1 << 9;
/// Flag: the requester needs the previous values, and no confirmation.
pub(crate) const FETCH: u64 = 1 << 10;
/// The greatest length that a record can have.
pub(crate) const MAX_LENGTH: usize = 1 << 40;
/// Position of the length in the first word.
const SHIFT: u32 = 16;

/// The head of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Head {
    /// Kind, flags and length; then tag, key or handle.
    pub(crate) words: [u64; 2],
    /// Words at the beginning of the payload; the first `count` are used.
    pub(crate) prefix: [u64; 2],
    pub(crate) count: usize,
}

impl Head {
    pub(crate) const fn new(kind: Kind, flags: u64, length: usize, second: u64) -> Self {
        let first = kind as u64 | flags | (length as u64) << SHIFT;
        Self { words: [first, second], prefix: [0; 2], count: 0 }
    }

    /// Appends a word to the beginning of the payload.
    pub(crate) const fn with(mut self, word: u64) -> Self {
        self.prefix[self.count] = word;
        self.count += 1;
        self
    }

    /// Returns whether the record answers an operation of the peer.
    pub(crate) fn is_answer(&self) -> bool {
        use Kind::{Ack, Cut, Nack, ReadFailed};
        parse(self.words[0]).is_some_and(|(kind, ..)| matches!(kind, Ack | Cut | Nack | ReadFailed))
    }

    /// Returns the bytes of the payload that the words occupy.
    pub(crate) const fn prefix_bytes(&self) -> usize {
        self.count * 8
    }
}

/// An atomic operation: libfabric's numbers of the operation and the type, the number of elements, and the requester's
/// handle if the operation fetches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct AtomicWord {
    pub(crate) operation: u8,
    pub(crate) datatype: u8,
    pub(crate) count: u16,
    pub(crate) handle: u32,
}

impl AtomicWord {
    pub(crate) const fn of(word: u64) -> Self {
        let [operation, datatype, low, high, rest @ ..] = word.to_le_bytes();
        let (count, handle) = (u16::from_le_bytes([low, high]), u32::from_le_bytes(rest));
        Self { operation, datatype, count, handle }
    }

    pub(crate) const fn word(self) -> u64 {
        let Self { operation, datatype, count, handle } = self;
        operation as u64 | (datatype as u64) << 8 | (count as u64) << 16 | (handle as u64) << 32
    }
}

/// Parses a first word: kind, flags and length; `None` if the kind or the length is invalid.
#[inline]
pub(crate) fn parse(word: u64) -> Option<(Kind, u64, usize)> {
    let kind = *Kind::ALL.get((word & 0xff) as usize)?;
    let length = (word >> SHIFT) as usize;
    (length <= MAX_LENGTH).then_some((kind, word & 0xff00, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_indexed_by_their_numbers() {
        for kind in Kind::ALL {
            let head = Head::new(kind, HAS_DATA, 5, 7);
            assert_eq!(parse(head.words[0]), Some((kind, HAS_DATA, 5)));
        }
        assert_eq!(parse(Kind::ALL.len() as u64), None);
    }

    #[test]
    fn a_word_of_an_atomic_operation_is_read_as_it_was_written() {
        let word = AtomicWord { operation: 1, datatype: 0xfe, count: 0x1234, handle: u32::MAX - 1 };
        assert_eq!(AtomicWord::of(word.word()), word);
    }
}
