//! Sealed frames: only holders of a key can read, make or change them.
//!
//! No I/O and no clock here: the caller passes datagrams and the time to `Seals`, and sends what it returns.
//!
//! Two kinds of keys admit nodes:
//!
//! - An [`Identity`]: a key pair for each node, and the list of all public keys. A key that is not on the list
//!   is refused, and no node can impersonate another: the source of an opened frame is certain.
//! - A [`Key`]: one secret of the whole fabric. It keeps out every process without it. Alone, it *does not
//!   distinguish its holders*: each of them can claim to be any node. Together with identities, it is a second lock.
//!
//! Each pair of nodes agrees on its own session keys by a Noise handshake (Noise Protocol Framework, revision
//! 34, sections 7.5 and 9), implemented by the crate `snow`. The pattern is `NNpsk0` with the fabric's key
//! alone, and `KKpsk0` between identities. `KK` fits because an envelope names both nodes, and the list has the
//! keys of both. No key is therefore sent, messages are no longer than those of `NN`, and the first message of
//! an unknown node is refused. The price is three more multiplications on the curve for each end, once a
//! session; two of them come before a forged first message is refused. Each frame is then sealed whole with
//! ChaCha20-Poly1305, under a counter that starts anew with each session. Both sides put fresh random numbers
//! into each session's keys. No key and counter are therefore ever used twice, whichever node restarts and
//! whatever its clock says. A key that leaks later does not open frames recorded before.
//!
//! A datagram is an envelope of 24 bytes, little-endian, and a body:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | magic, 0x53 |
//! | 1 | 1 | version, 1 |
//! | 2 | 1 | kind: 0 a frame, 1 begins a handshake, 2 answers it |
//! | 3 | 1 | hop limit |
//! | 4 | 2 | source node |
//! | 6 | 2 | destination node |
//! | 8 | 4 | the receiver's number of the session; in the first handshake message, the key's number |
//! | 12 | 1 | 1 if the frame may overtake others, else 0 |
//! | 13 | 3 | reserved, 0 |
//! | 16 | 8 | counter; 0 in a handshake |
//!
//! A switch reads the envelope and changes the hop limit, which is not protected. Everything else is bound to
//! the body. The handshake covers the two nodes and the key's number. A body opens only with the session and
//! counter under which it was sealed. The frame inside names its nodes again.

mod basis;
mod envelope;
mod identity;
mod key_file;
mod noise;
mod peer;
mod replay;
mod seals;
mod session;
#[doc(hidden)]
pub mod stream;

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

pub(crate) use envelope::ENVELOPE_BYTES;
pub use envelope::EnvelopeKind;
pub use envelope::{Envelope, EnvelopeError};
pub use identity::NoRandom;
pub use identity::{Identity, IdentityError, NodeKeyError, PublicKey, SecretKey};
pub use key_file::{KeyFileError, read_key};
pub use seals::{Opened, RETRY, SILENCE, SealConfigError, Seals, Verdict};
pub(crate) use seals::{check_identity, check_keys};

/// Bytes that sealing adds to a frame: the envelope, and the tag of Poly1305.
#[doc(hidden)]
pub const SEAL_BYTES: usize = ENVELOPE_BYTES + TAG_BYTES;
/// Bytes of a tag.
const TAG_BYTES: usize = 16;

/// A secret that all nodes of a fabric share, with a number that identifies it.
///
/// Its text form is `NUMBER:SECRET`, with 64 hexadecimal digits for the secret; `openssl rand -hex 32` makes
/// one.
#[derive(Clone, Eq, PartialEq)]
pub struct Key {
    id: u32,
    secret: [u8; 32],
}

/// The error of a text that is not a key. Its `Debug` text is readable as well: `main` may return it.
#[derive(Clone, Copy, Eq, Error, PartialEq)]
#[error("a key is a number, a colon and 64 hexadecimal digits, such as 1:00112233...")]
pub struct KeyError;

impl fmt::Debug for KeyError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

impl Key {
    /// A publicly known key, for a fabric without one, whose nodes have identities.
    const NONE: Self = Self { id: 0, secret: [0; 32] };

    /// Creates the key with number `id`. The secret must be drawn at random: it is not a password.
    #[must_use]
    pub const fn new(id: u32, secret: [u8; 32]) -> Self {
        Self { id, secret }
    }

    /// Returns the key's number, which datagrams carry in the clear.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Returns the secret, for handshakes of other layers. Never print it.
    #[must_use]
    pub const fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let (id, digits) = text.trim().split_once(':').ok_or(KeyError)?;
        let id = id.parse().map_err(|_| KeyError)?;
        let secret = identity::unhex(digits).ok_or(KeyError)?;
        Ok(Self { id, secret })
    }
}

/// Prints the number only.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
