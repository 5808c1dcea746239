//! Pieces of messages and their layout in datagrams: sealed with a key, plain without one.

use std::fmt;

use chacha20poly1305::aead::AeadInPlace as _;
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use midplane_simhw::seal::Key;
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver as _, DefaultResolver};

use super::super::pipe::packet::{GOSSIP, TAG_BYTES, VERSION, u64_at};

/// Most bytes of a datagram: what an unprobed path carries.
pub(super) const DATAGRAM_BYTES: usize = 1_200;
/// Bytes before the body.
pub(super) const HEADER_BYTES: usize = 32;
/// Bytes of a body before those of the message.
const FIELDS_BYTES: usize = 10;
/// Bytes of a message in each of its pieces but the last, which may have fewer.
pub(super) const PIECE_BYTES: usize = DATAGRAM_BYTES - HEADER_BYTES - FIELDS_BYTES - TAG_BYTES;
/// Most pieces of a message.
pub(super) const MAX_PIECES: usize = 64;
/// The label that separates this use of the cluster's secret from others.
const LABEL: &[u8] = b"midplane gossip 1";

/// Identifies a datagram: the sender's run, and a number that no other datagram of the run has.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Stamp {
    pub(super) run: [u8; 16],
    pub(super) number: u64,
}

impl Stamp {
    /// Reads the stamp of a datagram; `None` if it is too short.
    pub(super) fn read(datagram: &[u8]) -> Option<Self> {
        let run = datagram.get(8..24)?.try_into().ok()?;
        Some(Self { run, number: u64_at(datagram, 24)? })
    }

    /// Returns the nonce: the run and the number.
    fn nonce(self) -> [u8; 24] {
        let mut nonce = [0; 24];
        nonce[..16].copy_from_slice(&self.run);
        nonce[16..].copy_from_slice(&self.number.to_le_bytes());
        nonce
    }
}

/// A piece of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Piece<'a> {
    /// The sender's clock: milliseconds since 1970.
    pub(super) millis: u64,
    /// Index of the piece in its message.
    pub(super) index: u8,
    /// The index of the last one.
    pub(super) last: u8,
    /// Its bytes: [`PIECE_BYTES`], except in the last piece, which has at least one.
    pub(super) bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    fn parse(body: &'a [u8]) -> Option<Self> {
        let (millis, index, last) = (u64_at(body, 0)?, *body.get(8)?, *body.get(9)?);
        let bytes = body.get(FIELDS_BYTES..)?;
        let is_whole = match index == last {
            true => (1..=PIECE_BYTES).contains(&bytes.len()),
            false => bytes.len() == PIECE_BYTES,
        };
        let is_piece = index <= last && usize::from(last) < MAX_PIECES && is_whole;
        is_piece.then_some(Self { millis, index, last, bytes })
    }
}

/// Seals and opens the pieces of one cluster; without a key, leaves them plain.
pub(super) struct Seal {
    cipher: Option<XChaCha20Poly1305>,
    /// Associated data of the seal: the first bytes of each datagram, and the cluster's name.
    associated: Vec<u8>,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").field("is_sealed", &self.is_sealed()).finish_non_exhaustive()
    }
}

impl Seal {
    pub(super) fn new(key: Option<&Key>, cluster: &str) -> Self {
        let cipher = key.map(|key| XChaCha20Poly1305::new(&derive(key).into()));
        let mut associated = vec![GOSSIP, VERSION, u8::from(cipher.is_some()), 0, 0, 0, 0, 0];
        associated.extend_from_slice(cluster.as_bytes());
        Self { cipher, associated }
    }

    pub(super) const fn is_sealed(&self) -> bool {
        self.cipher.is_some()
    }

    /// Makes the datagram of a piece.
    pub(super) fn emit(
        &self,
        stamp: Stamp,
        millis: u64,
        (index, last): (u8, u8),
        bytes: &[u8],
    ) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + FIELDS_BYTES + bytes.len() + TAG_BYTES);
        out.extend_from_slice(&self.associated[..8]);
        out.extend_from_slice(&stamp.nonce());
        out.extend_from_slice(&millis.to_le_bytes());
        out.extend_from_slice(&[index, last]);
        out.extend_from_slice(bytes);
        if let Some(cipher) = &self.cipher {
            let nonce = XNonce::from(stamp.nonce());
            let body = &mut out[HEADER_BYTES..];
            let tag = cipher.encrypt_in_place_detached(&nonce, &self.associated, body);
            out.extend_from_slice(&tag.expect("a piece is shorter than the cipher's limit"));
        }
        out
    }

    /// Opens a datagram with this stamp; returns `None` if it has another key or cluster.
    pub(super) fn open<'a>(&self, stamp: Stamp, datagram: &'a mut [u8]) -> Option<Piece<'a>> {
        if datagram.get(..8)? != &self.associated[..8] {
            return None;
        }
        let body = datagram.get_mut(HEADER_BYTES..)?;
        let Some(cipher) = &self.cipher else { return Piece::parse(body) };
        let (body, tag) = body.split_at_mut_checked(body.len().checked_sub(TAG_BYTES)?)?;
        let nonce = XNonce::from(stamp.nonce());
        let tag: [u8; TAG_BYTES] = (*tag).try_into().ok()?;
        cipher.decrypt_in_place_detached(&nonce, &self.associated, body, &tag.into()).ok()?;
        Piece::parse(body)
    }
}

/// Derives the key of gossip from the cluster's secret.
fn derive(key: &Key) -> [u8; 32] {
    let hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s);
    let mut hash = hash.expect("the build has the hash of the handshake");
    let mut code = [0; 64];
    hash.hmac(key.secret(), LABEL, &mut code);
    std::array::from_fn(|at| code[at])
}
