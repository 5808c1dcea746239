//! The clear header of a sealed body: its sender, its receiver, and the session that opens it.

use thiserror::Error;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::TAG_BYTES;
use crate::id::NodeId;

/// First byte of every envelope.
pub(super) const MAGIC: u8 = 0x53;
const VERSION: u8 = 1;
/// Bytes of an envelope.
pub(crate) const ENVELOPE_BYTES: usize = 24;

/// The kind of the body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
#[doc(hidden)]
pub enum EnvelopeKind {
    /// A sealed frame. An empty one only proves that its sender has the session's keys.
    Frame = 0,
    /// The first message of a handshake.
    Begin = 1,
    /// The second and last message of a handshake.
    Answer = 2,
}

/// The clear part of a sealed datagram; only valid ones exist.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct Envelope {
    /// The kind of the body.
    pub kind: EnvelopeKind,
    /// Switches that the datagram may still cross.
    pub hop_limit: u8,
    /// The node that sent it.
    pub source: NodeId,
    /// The node that it is for.
    pub destination: NodeId,
    /// The receiver's number of the session; in [`EnvelopeKind::Begin`], the key's number.
    pub session: u32,
    /// True if the datagram may overtake others.
    pub urgent: bool,
    /// The counter under which the body is sealed; 0 in a handshake.
    pub counter: u64,
}

/// The reason why bytes do not parse as an envelope and a body.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
#[doc(hidden)]
pub enum EnvelopeError {
    /// The bytes are too few for an envelope and a tag.
    #[error("{0} bytes are fewer than a sealed frame has")]
    Truncated(usize),
    /// The first byte is not that of a sealed frame.
    #[error("not a sealed frame")]
    Magic,
    /// The envelope has another version.
    #[error("seal version {0}, not {VERSION}")]
    Version(u8),
    /// A field has an invalid value, or reserved bits are set.
    #[error("a field of the envelope is invalid")]
    Field,
}

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: u8,
    version: u8,
    kind: u8,
    hop_limit: u8,
    source: U16,
    destination: U16,
    session: U32,
    urgent: u8,
    reserved: [u8; 3],
    counter: U64,
}

const _: () = assert!(size_of::<Raw>() == ENVELOPE_BYTES);

impl Envelope {
    /// Reads and checks an envelope, and returns it with the body after it.
    ///
    /// # Errors
    /// [`EnvelopeError`] if the envelope is invalid.
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), EnvelopeError> {
        let truncated = EnvelopeError::Truncated(datagram.len());
        let (raw, body) = Raw::read_from_prefix(datagram).map_err(|_| truncated)?;
        if raw.magic != MAGIC {
            return Err(EnvelopeError::Magic);
        }
        if raw.version != VERSION {
            return Err(EnvelopeError::Version(raw.version));
        }
        if body.len() < TAG_BYTES {
            return Err(truncated);
        }
        let kind = match raw.kind {
            0 => EnvelopeKind::Frame,
            1 => EnvelopeKind::Begin,
            2 => EnvelopeKind::Answer,
            _ => return Err(EnvelopeError::Field),
        };
        let counter = raw.counter.get();
        let in_handshake = kind != EnvelopeKind::Frame;
        if raw.urgent > 1 || raw.reserved != [0; 3] || (in_handshake && counter != 0) {
            return Err(EnvelopeError::Field);
        }
        let envelope = Self {
            kind,
            hop_limit: raw.hop_limit,
            source: NodeId(raw.source.get()),
            destination: NodeId(raw.destination.get()),
            session: raw.session.get(),
            urgent: raw.urgent == 1,
            counter,
        };
        Ok((envelope, body))
    }

    /// Returns the envelope's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; ENVELOPE_BYTES] {
        let raw = Raw {
            magic: MAGIC,
            version: VERSION,
            kind: self.kind as u8,
            hop_limit: self.hop_limit,
            source: self.source.0.into(),
            destination: self.destination.0.into(),
            session: self.session.into(),
            urgent: self.urgent.into(),
            reserved: [0; 3],
            counter: self.counter.into(),
        };
        zerocopy::transmute!(raw)
    }
}
