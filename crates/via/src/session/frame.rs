//! Frames of a session: the messages of one process to the other on their wire.
//!
//! A frame is two words and a payload. The first word has the kind in its lowest byte, flags in the next, and
//! the stream's number in its upper half; the meaning of the second word depends on the kind.

/// Most bytes of a frame on a ring: short enough that the peer reads one while the next is written.
pub(super) const PIECE: usize = 32 * 1024;
/// Most bytes of the payload of a frame that is not data.
pub(super) const MAX_CONTROL: usize = 8 * 1024;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Describes the sender; the application defines the payload.
    Hello = 1,
    /// Opens a stream to the service that the payload names; the value is the credit of the stream.
    Open = 2,
    /// Accepts a stream; the value is its credit.
    Accepted = 3,
    /// Bytes of a stream.
    Data = 4,
    /// Raises the credit of a stream: the value is the number of bytes, from the first on, that may be sent.
    Credit = 5,
    /// The sender would write more than its credit allows; or it has sent much, and would write more than its wire takes.
    Blocked = 6,
    /// Ends a stream in both directions; the value is a [`Reason`].
    Reset = 7,
    /// The sender reads no more of a stream.
    Stop = 8,
    /// The sender opens and accepts no more streams.
    Goodbye = 9,
}

/// The flag of a [`Kind::Data`] frame after which its direction has no more bytes. If the stream has a connection of its own,
/// the value is the number of bytes sent over both.
pub(super) const FIN: u8 = 1;

impl Kind {
    const ALL: [Self; 9] = [
        Self::Hello,
        Self::Open,
        Self::Accepted,
        Self::Data,
        Self::Credit,
        Self::Blocked,
        Self::Reset,
        Self::Stop,
        Self::Goodbye,
    ];
}

/// The next frame, and how much of its payload has not been read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) words: [u64; 2],
    /// Bytes of its payload.
    pub(super) length: usize,
    /// Bytes of its payload that have not been read.
    pub(super) left: usize,
}

/// The decoded words of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) value: u64,
}

impl Header {
    pub(super) const fn new(kind: Kind, stream: u32, value: u64) -> Self {
        Self { kind, flags: 0, stream, value }
    }

    pub(super) fn words(self) -> [u64; 2] {
        let low = u64::from(self.kind as u8) | u64::from(self.flags) << 8;
        [low | u64::from(self.stream) << 32, self.value]
    }

    /// Decodes the words of a frame; returns `None` if they violate the protocol.
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    pub(super) fn parse([first, value]: [u64; 2]) -> Option<Self> {
        let kind = *Kind::ALL.get((first as u8).checked_sub(1)? as usize)?;
        let flags = (first >> 8) as u8;
        let fits = flags == 0 || (flags == FIN && kind == Kind::Data);
        if !fits || (first >> 16) as u16 != 0 {
            return None;
        }
        Some(Self { kind, flags, stream: (first >> 32) as u32, value })
    }
}

/// Why a stream was reset.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u64)]
pub(super) enum Reason {
    /// The process has dropped or reset the stream.
    Dropped = 0,
    /// The node offers no such service.
    NoService = 1,
    /// Too many streams wait to be accepted, or are open.
    TooMany = 2,
}

impl Reason {
    pub(super) const fn of(value: u64) -> Self {
        match value {
            1 => Self::NoService,
            2 => Self::TooMany,
            _ => Self::Dropped,
        }
    }
}

/// Explains changed golden bytes to the reader of a failed test.
#[cfg(test)]
pub(super) const CHANGED: &str =
    "bytes on the wire have changed: bump the version, and keep reading the old one";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_are_one_frame_or_none(first: u64, value: u64, kind in 0_u64..14, stream: u32) {
            for first in [first, kind | u64::from(stream) << 32, kind | 1 << 8] {
                if let Some(header) = Header::parse([first, value]) {
                    prop_assert_eq!(header.words(), [first, value]);
                }
            }
        }
    }

    #[test]
    fn the_words_of_each_kind_never_change() {
        let golden: [(Kind, u64); 9] = [
            (Kind::Hello, 0x0000_0007_0000_0001),
            (Kind::Open, 0x0000_0007_0000_0002),
            (Kind::Accepted, 0x0000_0007_0000_0003),
            (Kind::Data, 0x0000_0007_0000_0004),
            (Kind::Credit, 0x0000_0007_0000_0005),
            (Kind::Blocked, 0x0000_0007_0000_0006),
            (Kind::Reset, 0x0000_0007_0000_0007),
            (Kind::Stop, 0x0000_0007_0000_0008),
            (Kind::Goodbye, 0x0000_0007_0000_0009),
        ];
        for ((kind, first), all) in golden.into_iter().zip(Kind::ALL) {
            assert_eq!(kind, all, "{CHANGED}");
            let header = Header::new(kind, 7, 0x0102_0304_0506_0708);
            assert_eq!(header.words(), [first, 0x0102_0304_0506_0708], "{CHANGED}");
            assert_eq!(Header::parse(header.words()), Some(header), "{CHANGED}");
        }
        let last = Header { flags: FIN, ..Header::new(Kind::Data, 7, 0) };
        assert_eq!(last.words(), [0x0000_0007_0000_0104, 0], "{CHANGED}");
        let reasons = [Reason::Dropped, Reason::NoService, Reason::TooMany];
        assert_eq!(reasons.map(|reason| reason as u64), [0, 1, 2], "{CHANGED}");
    }

    #[test]
    fn each_kind_survives() {
        for kind in Kind::ALL {
            let header = Header::new(kind, 9, 1 << 40);
            assert_eq!(Header::parse(header.words()), Some(header));
        }
    }
}
