//! Encodes and decodes contexts as bytes.
//!
//! | offset | bytes | content |
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
pub(crate) const FORMAT: u16 = 2;
const MAGIC: [u8; 4] = *b"MPNC";
const HEAD: usize = 20;

/// Errors of decoding a context.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The bytes are no context of this kind.
    #[error("byte 0: this is not a context of this kind")]
    Foreign,
    /// The context was written in another format.
    #[error("byte 4: format {found}; this build reads format {FORMAT}")]
    Format {
        /// The context's format.
        found: u16,
    },
    /// There are too few or too many bytes.
    #[error("byte {there}: it ends here, and should end after {expected} bytes")]
    Length {
        /// Number of bytes.
        there: u64,
        /// Expected number of bytes.
        expected: u64,
    },
    /// The body has changed since it was written.
    #[error("byte 8: the checksum is {expected:08x}, that of the bytes from 20 on is {found:08x}")]
    Checksum {
        /// The checksum in the head.
        expected: u32,
        /// The checksum of the body.
        found: u32,
    },
    /// The body can't be decoded.
    #[error("byte {HEAD}: {0}")]
    Body(WireError),
    /// The context is not a consistent cut.
    #[error("the context contradicts itself: {0}")]
    Inconsistent(#[from] Violation),
}

/// Prepends a head to a context's body.
fn seal(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&crc32fast::hash(body).to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Checks a context's head, and returns the body.
fn unseal(bytes: &[u8]) -> Result<&[u8], ReadError> {
    let there = bytes.len() as u64;
    if !bytes.starts_with(&MAGIC[..bytes.len().min(4)]) {
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
    /// Encodes the context as bytes.
    ///
    /// # Errors
    /// [`WireError::TooLong`] beyond 1 GiB.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WireError> {
        Ok(seal(&wire::encode_long(self)?))
    }

    /// Reads the bytes of [`NetworkContext::to_bytes`], and checks the context.
    ///
    /// # Errors
    /// [`ReadError`], with the position of the problem.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ReadError> {
        let body = unseal(bytes)?;
        let context: Self = wire::decode_long(body).map_err(ReadError::Body)?;
        context.validate()?;
        Ok(context)
    }
}
