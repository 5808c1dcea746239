//! Frames that only holders of a key can read, make or change: agreed on, sealed, opened once.
//!
//! No I/O and no clock here: [`Seals`] is handed datagrams and the time, and asked what to send.
//!
//! Two kinds of keys admit nodes:
//!
//! - An [`Identity`]: a key pair for each node, and the list of all public keys. A key that is not on the list
//!   joins nothing, and no node can speak as another: the source of a frame that opens is certain.
//! - A [`Key`]: one secret of the whole fabric. Alone, it keeps out everybody without it, and *holders of the
//!   key are not told apart*: each of them can claim to be any node. Beside identities, it is a second lock.
//!
//! Each pair of nodes agrees on session keys of its own by a Noise handshake (Noise Protocol Framework,
//! revision 34, sections 7.5 and 9), which the crate `snow` carries out: `NNpsk0` with the fabric's key
//! alone, `KKpsk0` between identities. `KK` fits because an envelope names both nodes, and the list has
//! both their keys: none is sent, messages are no longer than those of `NN`, and what a stranger sends is
//! refused with the first message. The price is three more multiplications on the curve for each end, once a
//! session, two of them before a forged first message is refused. Frames are then sealed with ChaCha20-Poly1305, whole, under a counter
//! that starts anew with each session. Both sides put fresh random numbers into each session's keys,
//! so no key and counter are ever used twice, whoever restarts and whatever clocks say, and a key
//! that leaks later does not open what was recorded before.
//!
//! A datagram is an [`Envelope`] of 24 bytes, little-endian, and a body:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | magic, 0x53 |
//! | 1 | 1 | version, 1 |
//! | 2 | 1 | kind: 0 a frame, 1 begins a handshake, 2 answers it |
//! | 3 | 1 | hop limit |
//! | 4 | 2 | source node |
//! | 6 | 2 | destination node |
//! | 8 | 4 | the receiver's number of the session; to begin, the key's |
//! | 12 | 1 | 1 if the frame may pass others, else 0 |
//! | 13 | 3 | reserved, 0 |
//! | 16 | 8 | counter; 0 in a handshake |
//!
//! A switch reads it and changes the hop limit, which nothing protects. Everything else is bound to
//! the body: the handshake covers the two nodes and the key's number, a session and a counter open
//! what was sealed with them alone, and the frame inside names its nodes again.

mod basis;
mod envelope;
mod identity;
mod peer;
mod replay;
mod seals;
mod session;
pub mod stream;

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

pub use envelope::{ENVELOPE_BYTES, Envelope, EnvelopeError, EnvelopeKind};
pub use identity::{Identity, IdentityError, NoRandom, NodeKeyError, PublicKey, SecretKey};
pub use seals::{
    GIVE_UP, HELD_BYTES, HELD_FRAMES, Opened, RETRY, SILENCE, SealConfigError, Seals, Verdict,
};
pub(crate) use seals::{check_identity, check_keys};

/// Bytes that sealing adds to a frame: the envelope, and Poly1305's tag.
pub const SEAL_BYTES: usize = ENVELOPE_BYTES + TAG_BYTES;
/// Bytes of a tag.
const TAG_BYTES: usize = 16;

/// A secret that all nodes of a fabric share, and a number by which they tell it from others.
///
/// As text it is `NUMBER:SECRET` with 64 hexadecimal digits; `openssl rand -hex 32` makes some.
#[derive(Clone, Eq, PartialEq)]
pub struct Key {
    id: u32,
    secret: [u8; 32],
}

/// Why a text is no key.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("a key is a number, a colon and 64 hexadecimal digits, such as 1:00112233...")]
pub struct KeyError;

impl Key {
    /// Of a fabric without one, whose nodes have keys of their own: everybody knows it.
    const NONE: Self = Self { id: 0, secret: [0; 32] };

    /// The key `id`. The secret must be drawn at random: it is not a password.
    #[must_use]
    pub const fn new(id: u32, secret: [u8; 32]) -> Self {
        Self { id, secret }
    }

    /// Its number; datagrams show it.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Returns the secret, for handshakes of other layers; never print it.
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

/// The number alone.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
