//! Frames on the wire: one fixed header, read in place, and a payload after it.
//!
//! All integers are little-endian. Byte offsets of the header, version 1:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | magic, 0x4D |
//! | 1 | 1 | version |
//! | 2 | 1 | kind |
//! | 3 | 1 | extension |
//! | 4 | 2 | source node |
//! | 6 | 2 | destination node |
//! | 8 | 4 | incarnation of the source |
//! | 12 | 4 | incarnation of the destination as the source knows it, 0 if it does not |
//! | 16 | 2 | payload length in bytes |
//! | 18 | 2 | port |
//! | 20 | 4 | sequence |
//! | 24 | 4 | acknowledgement |
//! | 28 | 1 | flags |
//! | 29 | 1 | hop limit |
//! | 30 | 2 | reserved, 0 |
//! | 32 | 16 | two words of the extension |

use thiserror::Error;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::id::{ExtensionId, Incarnation, NodeId, PortId};
use crate::region::Payload;

/// First byte of every frame.
#[doc(hidden)]
pub const MAGIC: u8 = 0x4D;
/// Version of the header that this build uses.
#[doc(hidden)]
pub const VERSION: u8 = 1;
/// Bytes of the header: one ATM cell's payload.
pub const HEADER_BYTES: usize = 48;
/// Most bytes that a frame may carry after its header: header and payload fit an AAL5 packet of
/// 65,535 bytes and a UDP datagram of 65,507.
pub const MAX_PAYLOAD: usize = 65_400;
/// Default hop limit of a frame.
#[doc(hidden)]
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// The kind of a frame, as the firmware distinguishes them.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Kind {
    /// Unreliable bytes of an application or an extension.
    #[default]
    Data = 0,
    /// A control message with a sequence number; the receiver acknowledges it.
    Control = 1,
    /// An acknowledgement of control messages that carries no message itself.
    Acknowledge = 2,
    /// Reports that the sender runs in this incarnation, and requests the receiver's.
    Hello = 3,
    /// The answer to [`Kind::Hello`], and to a frame for a previous incarnation.
    Welcome = 4,
    /// A frame's header, returned by the switch at which its hop limit ended: see `Header::returned`.
    Returned = 5,
    /// A part of a frame that was too long for one datagram to its destination. Only NICs over UDP use it; they
    /// reassemble the frame before their firmware receives it.
    Piece = 6,
    /// Tests whether a datagram of this length arrives. Only NICs over UDP use it.
    Probe = 7,
    /// The answer to [`Kind::Probe`].
    Probed = 8,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Data,
        Self::Control,
        Self::Acknowledge,
        Self::Hello,
        Self::Welcome,
        Self::Returned,
        Self::Piece,
        Self::Probe,
        Self::Probed,
    ];
}

/// A frame's header; only valid ones exist. All fields of the default are zero except the hop limit, which is
/// 64.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// The kind of the frame.
    pub kind: Kind,
    /// The extension that receives the frame.
    pub extension: ExtensionId,
    /// The node that sent it.
    pub source: NodeId,
    /// The node that it is for.
    pub destination: NodeId,
    /// The incarnation of the source.
    pub incarnation: Incarnation,
    /// The incarnation of the destination that it is meant for; unknown means any.
    pub destination_incarnation: Incarnation,
    /// Bytes after the header, up to [`MAX_PAYLOAD`].
    pub length: u16,
    /// A port of the destination, or a value that the extension defines.
    pub port: PortId,
    /// Number within the sender's stream.
    pub sequence: u32,
    /// Sequence number that the sender acknowledges.
    pub acknowledgement: u32,
    /// Bits that the kind or the extension defines.
    pub flags: u8,
    /// Switches that the frame may still cross.
    pub hop_limit: u8,
    /// Two words that the extension defines.
    pub words: [u64; 2],
}

impl Default for Header {
    fn default() -> Self {
        Self {
            kind: Kind::Data,
            extension: ExtensionId::default(),
            source: NodeId::default(),
            destination: NodeId::default(),
            incarnation: Incarnation::default(),
            destination_incarnation: Incarnation::default(),
            length: 0,
            port: PortId::default(),
            sequence: 0,
            acknowledgement: 0,
            flags: 0,
            hop_limit: DEFAULT_HOP_LIMIT,
            words: [0; 2],
        }
    }
}

/// The reason why bytes do not parse as a frame.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum FrameError {
    /// The bytes are fewer than a header has.
    #[error("{0} bytes are fewer than a header has")]
    Truncated(usize),
    /// The first byte is not 0x4D.
    #[error("not a frame of this fabric")]
    Magic,
    /// The header has another version.
    #[error("header version {0}, not {VERSION}; run one version on all hosts")]
    Version(u8),
    /// The kind of frame is unknown.
    #[error("unknown kind of frame {0}")]
    Kind(u8),
    /// The header's length differs from that of the bytes after it, or reserved bits are set.
    #[error("the header's length or reserved bits are wrong")]
    Length,
}

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: u8,
    version: u8,
    kind: u8,
    extension: u8,
    source: U16,
    destination: U16,
    incarnation: U32,
    destination_incarnation: U32,
    length: U16,
    port: U16,
    sequence: U32,
    acknowledgement: U32,
    flags: u8,
    hop_limit: u8,
    reserved: U16,
    words: [U64; 2],
}

const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);

impl Header {
    /// Reads and checks the header of a whole frame, and returns it with the payload after it.
    ///
    /// # Errors
    /// [`FrameError`] if the bytes are not a valid frame.
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), FrameError> {
        let Some((header, payload)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return Err(FrameError::Truncated(frame.len()));
        };
        let header = Self::parse_alone(header)?;
        if usize::from(header.length) != payload.len() {
            return Err(FrameError::Length);
        }
        Ok((header, payload))
    }

    /// Reads and checks a header whose payload is stored elsewhere. The caller checks the payload's length.
    ///
    /// # Errors
    /// [`FrameError`] if the bytes are not a valid header.
    pub(crate) fn parse_alone(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let raw: Raw = zerocopy::transmute!(*bytes);
        if raw.magic != MAGIC {
            return Err(FrameError::Magic);
        }
        if raw.version != VERSION {
            return Err(FrameError::Version(raw.version));
        }
        let Some(&kind) = Kind::ALL.get(usize::from(raw.kind)) else {
            return Err(FrameError::Kind(raw.kind));
        };
        let length = raw.length.get();
        if usize::from(length) > MAX_PAYLOAD || raw.reserved.get() != 0 {
            return Err(FrameError::Length);
        }
        Ok(Self {
            kind,
            extension: ExtensionId(raw.extension),
            source: NodeId(raw.source.get()),
            destination: NodeId(raw.destination.get()),
            incarnation: Incarnation(raw.incarnation.get()),
            destination_incarnation: Incarnation(raw.destination_incarnation.get()),
            length,
            port: PortId(raw.port.get()),
            sequence: raw.sequence.get(),
            acknowledgement: raw.acknowledgement.get(),
            flags: raw.flags,
            hop_limit: raw.hop_limit,
            words: raw.words.map(U64::get),
        })
    }

    /// Returns the header's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER_BYTES] {
        let raw = Raw {
            magic: MAGIC,
            version: VERSION,
            kind: self.kind as u8,
            extension: self.extension.0,
            source: self.source.0.into(),
            destination: self.destination.0.into(),
            incarnation: self.incarnation.0.into(),
            destination_incarnation: self.destination_incarnation.0.into(),
            length: self.length.into(),
            port: self.port.0.into(),
            sequence: self.sequence.into(),
            acknowledgement: self.acknowledgement.into(),
            flags: self.flags,
            hop_limit: self.hop_limit,
            reserved: U16::ZERO,
            words: self.words.map(U64::new),
        };
        zerocopy::transmute!(raw)
    }

    /// Builds the frame that a switch returns to the sender when this frame's hop limit ends. The returned
    /// frame has this one's destination as its source, and no payload. `stamp` is the time, in nanoseconds of
    /// the switch's own clock, at which the whole frame had arrived; it becomes the second word. `None` for a
    /// frame that is itself a returned one.
    #[must_use]
    #[doc(hidden)]
    pub fn returned(&self, stamp: u64) -> Option<Self> {
        (self.kind != Kind::Returned).then_some(Self {
            kind: Kind::Returned,
            source: self.destination,
            destination: self.source,
            destination_incarnation: self.incarnation,
            length: 0,
            hop_limit: DEFAULT_HOP_LIMIT,
            words: [self.words[0], stamp],
            ..*self
        })
    }

    /// Returns whether the frame may overtake others on its NIC's line: it is a message between firmwares.
    #[must_use]
    #[doc(hidden)]
    pub const fn is_urgent(&self) -> bool {
        !matches!(self.kind, Kind::Data | Kind::Piece | Kind::Probe)
    }

    /// Returns the length of the whole frame in bytes.
    #[must_use]
    pub const fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.length as usize
    }
}

/// A received frame: a checked copy of its header, and the payload to copy out.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The header, read once and checked.
    pub header: Header,
    /// The payload, as long as the header says.
    pub payload: Payload<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_header()(
            kind in 0_usize..9, extension: u8, source: u16, destination: u16, incarnation: u32,
            destination_incarnation: u32, length in 0_u16..200, port: u16, sequence: u32,
            acknowledgement: u32, flags: u8, hop_limit: u8, words: [u64; 2],
        ) -> Header {
            Header {
                kind: Kind::ALL[kind],
                extension: ExtensionId(extension),
                source: NodeId(source),
                destination: NodeId(destination),
                incarnation: Incarnation(incarnation),
                destination_incarnation: Incarnation(destination_incarnation),
                length, port: PortId(port), sequence, acknowledgement, flags, hop_limit, words,
            }
        }
    }

    proptest! {
        #[test]
        fn an_emitted_header_parses_to_itself(header in any_header()) {
            let mut bytes = header.emit().to_vec();
            bytes.resize(header.frame_bytes(), 7);
            let (parsed, payload) = Header::parse(&bytes).unwrap();
            prop_assert_eq!(parsed, header);
            prop_assert_eq!(payload.len(), usize::from(header.length));
        }

        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok((header, payload)) = Header::parse(&bytes) {
                prop_assert_eq!(&header.emit()[..], &bytes[..HEADER_BYTES]);
                prop_assert_eq!(payload, &bytes[HEADER_BYTES..]);
            }
        }

        #[test]
        fn a_frame_cut_or_grown_by_any_byte_is_refused(header in any_header(), cut in 1_usize..48) {
            let mut bytes = header.emit().to_vec();
            bytes.resize(header.frame_bytes(), 0);
            let short = &bytes[..bytes.len() - cut.min(bytes.len())];
            prop_assert!(Header::parse(short).is_err());
            bytes.push(0);
            prop_assert_eq!(Header::parse(&bytes), Err(FrameError::Length));
        }
    }

    #[test]
    fn the_bytes_of_a_header_are_frozen() {
        let header = Header {
            kind: Kind::Control,
            extension: ExtensionId(3),
            source: NodeId(0x0102),
            destination: NodeId(0x0304),
            incarnation: Incarnation(0x0506_0708),
            destination_incarnation: Incarnation(0x090A_0B0C),
            length: 0,
            port: PortId(0x0D0E),
            sequence: 0x0F10_1112,
            acknowledgement: 0x1314_1516,
            flags: 0x17,
            hop_limit: 0x18,
            words: [0x191A_1B1C_1D1E_1F20, 0x2122_2324_2526_2728],
        };
        let expected = [
            0x4D, 1, 1, 3, 2, 1, 4, 3, 8, 7, 6, 5, 0xC, 0xB, 0xA, 9, 0, 0, 0xE, 0xD, 0x12, 0x11,
            0x10, 0xF, 0x16, 0x15, 0x14, 0x13, 0x17, 0x18, 0, 0, 0x20, 0x1F, 0x1E, 0x1D, 0x1C,
            0x1B, 0x1A, 0x19, 0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,
        ];
        assert_eq!(header.emit(), expected);
    }
}
