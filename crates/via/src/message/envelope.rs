//! What travels before a message's bytes: six words, and two handles where an answer is expected.

use std::fmt;

use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A process, by its number among all that a lower layer reaches; from 0.
    Peer
);
number!(
    /// What a sender writes on a message and a receiver asks for; any 32 bits.
    Tag
);
number!(
    /// A communicator's own space of tags: what is sent in one context is never seen in another.
    Context
);

/// The tag of what a process sends to all others of a communicator when it leaves a collective operation before
/// that has ended. Collective operations have those below it.
pub(super) const LEFT: Tag = Tag(1 << 31);

impl Context {
    /// Whether it is one of what collective operations send.
    pub(super) const fn is_collective(self) -> bool {
        self.0 % 2 == 1
    }
}

/// Bytes of an envelope that expects no answer.
pub const PLAIN: usize = 24;
/// Most bytes of an envelope: with both handles.
pub const LONGEST: usize = 40;

/// What a packet is. In brackets, the flags of LAM's envelopes that say the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Kind {
    /// A whole message; its bytes follow (`TINY`, `SHORT`).
    Eager = 1,
    /// A message is there to be had; its bytes stay with the sender (`LONG`).
    Announce = 2,
    /// The announced message has its receive: send as many bytes as `length` says.
    Clear = 3,
    /// A part of a message that was cleared, after the parts before it (`2ND`).
    Chunk = 4,
    /// A synchronous message has met its receive (`ACK`).
    Acknowledge = 5,
    /// What the sender of this has room for altogether: the handle `to`, as a number; `from`: what
    /// messages of a context may take of it (32 bits), and those of a context and a tag. The payload
    /// says what is free again since, 12 bytes each: context, tag, bytes.
    Credit = 6,
    /// Take back a message that no receive has met.
    Withdraw = 7,
    /// The answer: marked [`Marks::GRANTED`] where the message was taken back.
    Withdrawn = 8,
    /// A message waits with its sender. The receiver has no room for its announcement, and keeps
    /// nothing of it unless a receive waits for it.
    Hint = 9,
    /// The receive `from`, or a probe if that is 0, asks for the first message that waits with its
    /// sender, of this context and tag; of any tag if `length` is 1.
    Seek = 10,
    /// The answer: marked [`Marks::GRANTED`], the message `from` and its key. Bit 0 of `sequence`
    /// says that more such messages wait, bit 1 that any do.
    Sought = 11,
    /// What becomes of a message that was sought: marked [`Marks::GRANTED`], the receiver holds its
    /// announcement; else it waits with its sender as before.
    Settle = 12,
}

impl Kind {
    const ALL: [Self; 12] = [
        Self::Eager,
        Self::Announce,
        Self::Clear,
        Self::Chunk,
        Self::Acknowledge,
        Self::Credit,
        Self::Withdraw,
        Self::Withdrawn,
        Self::Hint,
        Self::Seek,
        Self::Sought,
        Self::Settle,
    ];

    fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    /// Whether such a packet takes part in matching, and so has its place in the sender's order.
    #[must_use]
    pub const fn is_matched(self) -> bool {
        matches!(self, Self::Eager | Self::Announce)
    }
}

/// More about a packet: any of four bits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Marks(u8);

impl Marks {
    /// Nothing special.
    pub const NONE: Self = Self(0);
    /// The sender waits until the message meets its receive.
    pub const SYNCHRONOUS: Self = Self(1);
    /// The sender says that the receive is posted.
    pub const READY: Self = Self(2);
    /// The sender has copied the message and goes on.
    pub const BUFFERED: Self = Self(4);
    /// What was asked for is done.
    pub const GRANTED: Self = Self(8);

    /// These and `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The six words (length, tag, flags, process, context, sequence) of LAM's envelopes, and handles.
///
/// All words are little-endian, 32 bits. The flags hold the kind in their lowest byte and the marks
/// above it. The handles `to` and `from` (64 bits each) follow unless the packet is
/// [plain](Envelope::is_plain).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Envelope {
    /// Bytes of the message, or of what follows; what it says of other kinds stands with them.
    pub length: u32,
    /// The message's tag.
    pub tag: Tag,
    /// What this packet is.
    pub kind: Kind,
    /// More about it.
    pub marks: Marks,
    /// The process that sent it.
    pub source: Peer,
    /// The message's context.
    pub context: Context,
    /// Which of the matched packets from its sender to its receiver this is, modulo 2^32.
    pub sequence: u32,
    /// The addressee's own name for what this is about; 0 where there is none.
    pub to: u64,
    /// The sender's own name for what this is about; 0 where there is none.
    pub from: u64,
}

/// The bytes are no envelope.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("the bytes are no envelope")]
pub struct Malformed;

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Words {
    length: U32,
    tag: U32,
    flags: U32,
    source: U32,
    context: U32,
    sequence: U32,
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Handles {
    to: U64,
    from: U64,
}

impl Envelope {
    /// Whether no handles follow: an eager message that expects no answer.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        matches!(self.kind, Kind::Eager) && !self.marks.contains(Marks::SYNCHRONOUS)
    }

    /// Bytes that it takes: [`PLAIN`] or [`LONGEST`].
    #[must_use]
    pub const fn size(&self) -> usize {
        if self.is_plain() { PLAIN } else { LONGEST }
    }

    /// All of it but the sender, in words of 64 bits: length and tag, the flags, context and sequence,
    /// both handles. For carriers that know who sends.
    #[must_use]
    pub fn words(&self) -> [u64; 5] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let flags = self.kind as u64 | u64::from(self.marks.0) << 8;
        let about = pair(self.length, self.tag.0);
        [about, flags, pair(self.context.0, self.sequence), self.to, self.from]
    }

    /// What these words of `source` say.
    ///
    /// # Errors
    /// [`Malformed`] if they have flags that nobody sets.
    pub fn of_words(source: Peer, words: [u64; 5]) -> Result<Self, Malformed> {
        let [about, flags, place, to, from] = words;
        let (kind, marks) = (flags & 0xFF, flags >> 8);
        if marks & !0xF != 0 {
            return Err(Malformed);
        }
        Ok(Self {
            length: about as u32,
            tag: Tag((about >> 32) as u32),
            kind: Kind::of(kind as u32).ok_or(Malformed)?,
            marks: Marks(marks as u8),
            source,
            context: Context(place as u32),
            sequence: (place >> 32) as u32,
            to,
            from,
        })
    }

    /// Writes it to the start of `out`; returns its size.
    #[must_use]
    pub fn emit(&self, out: &mut [u8; LONGEST]) -> usize {
        let words = Words {
            length: self.length.into(),
            tag: self.tag.0.into(),
            flags: (u32::from(self.kind as u8) | u32::from(self.marks.0) << 8).into(),
            source: self.source.0.into(),
            context: self.context.0.into(),
            sequence: self.sequence.into(),
        };
        out[..PLAIN].copy_from_slice(words.as_bytes());
        if !self.is_plain() {
            let handles = Handles { to: self.to.into(), from: self.from.into() };
            out[PLAIN..].copy_from_slice(handles.as_bytes());
        }
        self.size()
    }

    /// Reads one from the start of `bytes`; its size tells where the payload begins.
    ///
    /// # Errors
    /// [`Malformed`] if there are too few bytes, or flags that nobody sets.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (words, rest) = Words::ref_from_prefix(bytes).map_err(|_| Malformed)?;
        let [kind, marks, 0, 0] = words.flags.get().to_le_bytes() else { return Err(Malformed) };
        let kind = Kind::of(kind.into()).ok_or(Malformed)?;
        if marks & 0xF0 != 0 {
            return Err(Malformed);
        }
        let mut envelope = Self {
            length: words.length.get(),
            tag: Tag(words.tag.get()),
            kind,
            marks: Marks(marks),
            source: Peer(words.source.get()),
            context: Context(words.context.get()),
            sequence: words.sequence.get(),
            to: 0,
            from: 0,
        };
        if !envelope.is_plain() {
            let (handles, _) = Handles::ref_from_prefix(rest).map_err(|_| Malformed)?;
            (envelope.to, envelope.from) = (handles.to.get(), handles.from.get());
        }
        Ok(envelope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_of_an_envelope_are_frozen() {
        let envelope = Envelope {
            length: 0x0102,
            tag: Tag(3),
            kind: Kind::Announce,
            marks: Marks::SYNCHRONOUS.and(Marks::BUFFERED),
            source: Peer(4),
            context: Context(5),
            sequence: 6,
            to: 7,
            from: 8,
        };
        let mut bytes = [0xEE; LONGEST];
        assert_eq!(envelope.emit(&mut bytes), LONGEST);
        #[rustfmt::skip]
        let expected = [
            2, 1, 0, 0,  3, 0, 0, 0,  2, 5, 0, 0,  4, 0, 0, 0,  5, 0, 0, 0,  6, 0, 0, 0,
            7, 0, 0, 0, 0, 0, 0, 0,  8, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(bytes, expected);
    }

    proptest! {
        #[test]
        fn any_words_are_refused_or_give_themselves_back(
            mut words: [u64; 5], kind in 0_u64..16, marks in 0_u64..20,
        ) {
            words[1] = kind | marks << 8;
            match Envelope::of_words(Peer(3), words) {
                Ok(envelope) => prop_assert_eq!((envelope.words(), envelope.source), (words, Peer(3))),
                Err(Malformed) => prop_assert!(!(1..=12).contains(&kind) || marks > 15),
            }
        }

        #[test]
        fn any_bytes_are_refused_or_give_themselves_back(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..64), kind in 0_u8..16, marks in 0_u8..20,
        ) {
            if let Some(flags) = bytes.get_mut(8..12) {
                flags.copy_from_slice(&[kind, marks, 0, 0]);
            }
            if let Ok(envelope) = Envelope::parse(&bytes) {
                let mut out = [0; LONGEST];
                let size = envelope.emit(&mut out);
                prop_assert_eq!(&out[..size], &bytes[..size]);
            } else {
                prop_assert!(bytes.len() < LONGEST || !(1..=12).contains(&kind) || marks > 15);
            }
        }
    }
}
