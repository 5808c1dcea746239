//! The header of a message's packets: six words, and two handles if an answer is expected.

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
    /// A process, by its number among all processes that an engine reaches; from 0.
    Peer
);
number!(
    /// A label that the sender puts on a message and a receiver can match; any 32 bits.
    Tag
);
number!(
    /// A communicator's own space of tags: messages of one context never match in another.
    Context
);

/// The tag with which a process notifies the others of a communicator that it left a collective operation before
/// its end, or, in the context of recovery, that it has revoked the communicator. Collective operations and
/// recovery use the tags below it.
pub(super) const LEFT: Tag = Tag(1 << 31);

impl Context {
    /// Returns whether it is a context of collective operations.
    pub(super) const fn is_collective(self) -> bool {
        self.0 % 4 == 1
    }

    /// Returns the context in which the processes of the same communicator recover from losses.
    pub(super) const fn recovery(self) -> Self {
        Self(self.0 - self.0 % 4 + 2)
    }

    /// Returns whether it is a context of recovery.
    pub(super) const fn is_recovery(self) -> bool {
        self.0 % 4 == 2
    }
}

/// Bytes of an envelope that expects no answer.
#[doc(hidden)]
pub const PLAIN: usize = 24;
/// Most bytes of an envelope: with both handles.
#[doc(hidden)]
pub const LONGEST: usize = 40;

/// The kind of a packet. In brackets, the flags of LAM's envelopes with the same meaning.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Kind {
    /// A whole message; its bytes follow (`TINY`, `SHORT`).
    Eager = 1,
    /// Request to send (RTS): the bytes of this message stay with the sender until the CTS (`LONG`).
    Rts = 2,
    /// Clear to send (CTS): the message has matched; the sender may send `length` bytes of it.
    Cts = 3,
    /// Data: a part of a message after its CTS; parts are sent in order (`2ND`).
    Data = 4,
    /// A synchronous message has matched its receive (`ACK`).
    Acknowledge = 5,
    /// Flow control. `to`, as a number: bytes of this packet's sender's window that its receiver may use,
    /// counted from the start. `from`: bytes of the window that one context may occupy (low 32 bits), and one
    /// tag of a context (high 32 bits). The payload lists what is free again, 12 bytes each: context, tag,
    /// bytes.
    Credit = 6,
    /// Asks the receiver to return a message that has not matched.
    Withdraw = 7,
    /// Answers a [`Kind::Withdraw`]; marked as granted if the message was returned.
    Withdrawn = 8,
    /// A message waits at its sender, because the receiver has no room for its RTS. The receiver stores only its key,
    /// unless a receive waits for it.
    Hint = 9,
    /// Asks for the first message that waits at its sender, with this context and tag; with any tag if
    /// `length` is 1. `from` is the receive, or 0 for a probe.
    Seek = 10,
    /// Answers a [`Kind::Seek`]. If marked as granted, `from` and the key identify the message. Bit 0 of
    /// `sequence`: more such messages wait; bit 1: any messages wait.
    Sought = 11,
    /// Ends a search. If marked as granted, the receiver holds the message for a matched probe; otherwise the
    /// message waits at its sender as before.
    Settle = 12,
    /// A control packet of `Wires`, which choose the carrier of a process's packets. Engines
    /// never receive it.
    Wire = 13,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Eager,
        Self::Rts,
        Self::Cts,
        Self::Data,
        Self::Acknowledge,
        Self::Credit,
        Self::Withdraw,
        Self::Withdrawn,
        Self::Hint,
        Self::Seek,
        Self::Sought,
        Self::Settle,
        Self::Wire,
    ];

    fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    /// Returns whether such packets are matched, and so are numbered in the sender's order.
    #[must_use]
    pub(crate) const fn is_matched(self) -> bool {
        matches!(self, Self::Eager | Self::Rts)
    }
}

/// Marks of a packet: any of four bits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Marks(u8);

impl Marks {
    /// The empty set of marks.
    pub const NONE: Self = Self(0);
    /// The sender waits until the message has matched its receive.
    pub(crate) const SYNCHRONOUS: Self = Self(1);
    /// The sender promises that the receive is posted.
    pub const READY: Self = Self(2);
    /// The sender has copied the message; its send is already complete.
    pub(crate) const BUFFERED: Self = Self(4);
    /// The request that this packet answers was granted.
    pub(crate) const GRANTED: Self = Self(8);

    /// Returns the union of both sets of marks.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// An envelope: the six words of LAM's (length, tag, flags, process, context, sequence), and two handles.
///
/// All words are little-endian, 32 bits. The flags hold the kind in their lowest byte and the marks above it.
/// The handles `to` and `from` (64 bits each) follow unless the packet is [plain](Envelope::is_plain).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Envelope {
    /// Bytes of the message or of the payload; [`Kind`] documents other meanings.
    pub length: u32,
    /// The message's tag.
    pub tag: Tag,
    /// The packet's kind.
    pub kind: Kind,
    /// The packet's marks.
    pub marks: Marks,
    /// The process that sent it.
    pub source: Peer,
    /// The message's context.
    pub context: Context,
    /// The number of this packet among the matched ones from its sender to its receiver, modulo 2^32.
    pub sequence: u32,
    /// The request at the packet's receiver that it concerns, as a handle; 0 if none.
    pub to: u64,
    /// The request at the packet's sender that it concerns, as a handle; 0 if none.
    pub from: u64,
}

/// The bytes are no valid envelope.
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
    /// Returns whether no handles follow: an eager message that expects no answer.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        matches!(self.kind, Kind::Eager) && !self.marks.contains(Marks::SYNCHRONOUS)
    }

    /// Returns its size in bytes: 24 or 40.
    #[must_use]
    pub const fn size(&self) -> usize {
        if self.is_plain() { PLAIN } else { LONGEST }
    }

    /// Packs all but the sender into words of 64 bits: length and tag, the flags, context and sequence, both
    /// handles. For carriers that know the sender.
    #[must_use]
    pub fn words(&self) -> [u64; 5] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let flags = self.kind as u64 | u64::from(self.marks.0) << 8;
        let about = pair(self.length, self.tag.0);
        [about, flags, pair(self.context.0, self.sequence), self.to, self.from]
    }

    /// Unpacks words that `source` has sent.
    ///
    /// # Errors
    /// [`Malformed`] if they contain an unknown kind or unknown flags.
    #[cfg(any(target_os = "linux", test))]
    pub(crate) fn of_words(source: Peer, words: [u64; 5]) -> Result<Self, Malformed> {
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

    /// Writes it to the start of `out`; returns its size in bytes.
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

    /// Reads one from the start of `bytes`; the payload follows after [`size`](Self::size) bytes.
    ///
    /// # Errors
    /// [`Malformed`] if there are too few bytes, or an unknown kind or unknown flags.
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
    fn the_encoding_of_an_envelope_is_stable() {
        let envelope = Envelope {
            length: 0x0102,
            tag: Tag(3),
            kind: Kind::Rts,
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
        fn any_words_are_refused_or_packed_again_unchanged(
            mut words: [u64; 5], kind in 0_u64..16, marks in 0_u64..20,
        ) {
            words[1] = kind | marks << 8;
            match Envelope::of_words(Peer(3), words) {
                Ok(envelope) => prop_assert_eq!((envelope.words(), envelope.source), (words, Peer(3))),
                Err(Malformed) => prop_assert!(!(1..=13).contains(&kind) || marks > 15),
            }
        }

        #[test]
        fn any_bytes_are_refused_or_emitted_again_unchanged(
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
                prop_assert!(bytes.len() < LONGEST || !(1..=13).contains(&kind) || marks > 15);
            }
        }
    }
}
