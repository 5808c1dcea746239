//! Contexts as bytes and as text.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `MPNC` |
//! | 4 | 2 | format, little-endian |
//! | 6 | 2 | 0 |
//! | 8 | 4 | CRC-32 of the body |
//! | 12 | 8 | bytes of the body |
//! | 20 | | the body, in the encoding of `midplane_simhw::wire` |

use midplane_simhw::wire::{self, WireError};
use thiserror::Error;

use super::{NetworkContext, Violation};

/// The format that this build writes, and the only one that it reads.
pub const FORMAT: u16 = 1;
const MAGIC: [u8; 4] = *b"MPNC";
const HEAD: usize = 20;

/// Why bytes or text are no context.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It begins with something else.
    #[error("byte 0: no context of this kind begins so")]
    Foreign,
    /// It was written by another version.
    #[error("byte 4: format {found}; this build reads format {FORMAT}")]
    Format {
        /// The file's.
        found: u16,
    },
    /// It ends too early or too late.
    #[error("byte {there}: it ends here, and should end after {expected} bytes")]
    Length {
        /// Bytes that there are.
        there: u64,
        /// Bytes that there should be.
        expected: u64,
    },
    /// It was changed since it was written.
    #[error("byte 8: the checksum is {expected:08x}, that of the bytes from 20 on is {found:08x}")]
    Checksum {
        /// What the file says.
        expected: u32,
        /// What its bytes give.
        found: u32,
    },
    /// The body is no context.
    #[error("byte {HEAD}: {0}")]
    Body(WireError),
    /// The text is no context.
    #[error("no context in JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It is no consistent cut.
    #[error("the context contradicts itself: {0}")]
    Inconsistent(#[from] Violation),
    /// It is no consistent cut of a job's interfaces.
    #[error("the context contradicts itself: {0}")]
    Interfaces(#[from] midplane_via::context::Violation),
}

/// A context's bytes with their head before them.
pub(crate) fn seal(magic: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + body.len());
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&crc32fast::hash(body).to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// The bytes behind a head that is right.
pub(crate) fn unseal(magic: [u8; 4], bytes: &[u8]) -> Result<&[u8], ReadError> {
    let there = bytes.len() as u64;
    if !bytes.starts_with(&magic[..bytes.len().min(4)]) {
        return Err(ReadError::Foreign);
    }
    let Some((head, body)) = bytes.split_first_chunk::<HEAD>() else {
        return Err(ReadError::Length { there, expected: HEAD as u64 });
    };
    let [_, _, _, _, f0, f1, z0, z1, c0, c1, c2, c3, length @ ..] = *head;
    let found = u16::from_le_bytes([f0, f1]);
    if found != FORMAT || (z0, z1) != (0, 0) {
        return Err(ReadError::Format { found });
    }
    let expected = u64::from_le_bytes(length).saturating_add(HEAD as u64);
    if expected != there {
        return Err(ReadError::Length { there, expected });
    }
    let (expected, found) = (u32::from_le_bytes([c0, c1, c2, c3]), crc32fast::hash(body));
    if expected != found {
        return Err(ReadError::Checksum { expected, found });
    }
    Ok(body)
}

impl NetworkContext {
    /// As bytes, to be kept.
    ///
    /// # Errors
    /// [`WireError::TooLong`] beyond a gigabyte.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WireError> {
        Ok(seal(MAGIC, &wire::encode_long(self)?))
    }

    /// Reads what [`NetworkContext::to_bytes`] wrote, and checks it.
    ///
    /// # Errors
    /// [`ReadError`] says what is wrong, and where.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ReadError> {
        let body = unseal(MAGIC, bytes)?;
        let context: Self = wire::decode_long(body).map_err(ReadError::Body)?;
        context.validate()?;
        Ok(context)
    }

    /// As JSON, to be read.
    ///
    /// # Panics
    /// Never: everything in a context has a form in JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("everything in a context has a form in JSON")
    }

    /// Reads what [`NetworkContext::to_json`] wrote, and checks it.
    ///
    /// # Errors
    /// [`ReadError`] says what is wrong, and where.
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        let context: Self = serde_json::from_str(text)?;
        context.validate()?;
        Ok(context)
    }
}
