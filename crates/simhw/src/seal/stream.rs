//! Byte streams that only holders of a key can read, make or change: TCP between programs that share one.
//!
//! No I/O here. The dialing side sends [`Dial`]'s message, the other answers it with [`answer`]; after
//! that each piece of up to [`PIECE_BYTES`] is sealed under a counter of its own direction. Pieces have
//! to be opened in the order in which they were sealed. An end knows that the other has the key once
//! the first piece of it opens.

use std::sync::Arc;

use snow::{Builder, HandshakeState, StatelessTransportState};
use thiserror::Error;

use super::{Key, TAG_BYTES};

/// The handshake: two messages, the key mixed in before the first.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Most bytes of a piece; sealed, and with two bytes of length before it, it fits 64 KiB.
pub const PIECE_BYTES: usize = 32 << 10;
/// Bytes of each message of the handshake: a public key of Curve25519, and a tag.
pub const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;

/// Why a stream ends here.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum StreamError {
    /// The other side has another key, or none, or somebody changed what was sent.
    #[error("the other side does not have this key; give both the same")]
    Key,
    /// The system has no random numbers.
    #[error("this system has no random numbers")]
    Random,
}

fn prologue(key: &Key) -> [u8; 21] {
    let mut bytes = *b"midplane stream 1....";
    bytes[17..].copy_from_slice(&key.id.to_le_bytes());
    bytes
}

fn builder<'a>(key: &'a Key, prologue: &'a [u8]) -> Result<Builder<'a>, StreamError> {
    let pattern = PATTERN.parse().map_err(|_| StreamError::Key)?;
    let builder = Builder::new(pattern).psk(0, &key.secret).map_err(|_| StreamError::Key)?;
    builder.prologue(prologue).map_err(|_| StreamError::Key)
}

/// The side that dials, until it has its answer.
#[derive(Debug)]
pub struct Dial {
    handshake: HandshakeState,
}

impl Dial {
    /// Begins a stream; and what to send.
    ///
    /// # Errors
    /// [`StreamError::Random`].
    pub fn new(key: &Key) -> Result<(Self, [u8; HANDSHAKE_BYTES]), StreamError> {
        let prologue = prologue(key);
        let begun = builder(key, &prologue)?.build_initiator();
        let mut handshake = begun.map_err(|_| StreamError::Random)?;
        let mut message = [0; HANDSHAKE_BYTES];
        handshake.write_message(&[], &mut message).map_err(|_| StreamError::Random)?;
        Ok((Self { handshake }, message))
    }

    /// Takes the answer.
    ///
    /// # Errors
    /// [`StreamError::Key`] if whoever answers does not have the key.
    pub fn finish(mut self, answer: &[u8; HANDSHAKE_BYTES]) -> Result<Ends, StreamError> {
        self.handshake.read_message(answer, &mut []).map_err(|_| StreamError::Key)?;
        ends(self.handshake)
    }
}

/// Answers who dials; and what to send back.
///
/// # Errors
/// [`StreamError::Key`] if whoever dials does not have the key.
pub fn answer(
    key: &Key,
    message: &[u8; HANDSHAKE_BYTES],
) -> Result<(Ends, [u8; HANDSHAKE_BYTES]), StreamError> {
    let prologue = prologue(key);
    let begun = builder(key, &prologue)?.build_responder();
    let mut handshake = begun.map_err(|_| StreamError::Random)?;
    handshake.read_message(message, &mut []).map_err(|_| StreamError::Key)?;
    let mut answer = [0; HANDSHAKE_BYTES];
    handshake.write_message(&[], &mut answer).map_err(|_| StreamError::Random)?;
    Ok((ends(handshake)?, answer))
}

/// The two directions of a stream, as one side has them.
pub type Ends = (Sealer, Opener);

fn ends(handshake: HandshakeState) -> Result<Ends, StreamError> {
    let transport = handshake.into_stateless_transport_mode().map_err(|_| StreamError::Key)?;
    let transport = Arc::new(transport);
    let sealer = Sealer { transport: Arc::clone(&transport), counter: 0 };
    Ok((sealer, Opener { transport, counter: 0 }))
}

/// What this side sends.
#[derive(Debug)]
pub struct Sealer {
    transport: Arc<StatelessTransportState>,
    counter: u64,
}

impl Sealer {
    /// Seals a piece to the end of `out`.
    ///
    /// # Panics
    /// If it is longer than [`PIECE_BYTES`].
    pub fn seal(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        assert!(piece.len() <= PIECE_BYTES, "a piece of {} bytes", piece.len());
        let begin = out.len();
        out.resize(begin + piece.len() + TAG_BYTES, 0);
        let sealed = self.transport.write_message(self.counter, piece, &mut out[begin..]);
        sealed.expect("a piece is short enough, and there is room for it");
        self.counter += 1;
    }
}

/// What the other side sends.
#[derive(Debug)]
pub struct Opener {
    transport: Arc<StatelessTransportState>,
    counter: u64,
}

impl Opener {
    /// Opens the next piece to the end of `out`.
    ///
    /// # Errors
    /// [`StreamError::Key`]; nothing that comes after it can be trusted either.
    pub fn open(&mut self, sealed: &[u8], out: &mut Vec<u8>) -> Result<(), StreamError> {
        let begin = out.len();
        out.resize(begin + sealed.len(), 0);
        match self.transport.read_message(self.counter, sealed, &mut out[begin..]) {
            Ok(length) => {
                out.truncate(begin + length);
                self.counter += 1;
                Ok(())
            }
            Err(_) => {
                out.truncate(begin);
                Err(StreamError::Key)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_in_order_and_nothing_else_opens() {
        let key = Key::new(1, [7; 32]);
        let (dial, first) = Dial::new(&key).unwrap();
        let ((mut to_dialer, mut from_dialer), second) = answer(&key, &first).unwrap();
        let (mut to_other, mut from_other) = dial.finish(&second).unwrap();
        let (mut sealed, mut plain) = (Vec::new(), Vec::new());
        to_other.seal(b"one", &mut sealed);
        let end = sealed.len();
        to_other.seal(b"two", &mut sealed);
        assert_eq!(from_dialer.open(&sealed[end..], &mut plain), Err(StreamError::Key));
        for piece in [&sealed[..end], &sealed[end..]] {
            from_dialer.open(piece, &mut plain).unwrap();
        }
        assert_eq!(plain, b"onetwo");
        assert_eq!(from_dialer.open(&sealed[end..], &mut plain), Err(StreamError::Key));
        let mut back = Vec::new();
        to_dialer.seal(b"three", &mut back);
        back[2] ^= 1;
        assert_eq!(from_other.open(&back, &mut plain), Err(StreamError::Key));
        assert_eq!(from_other.open(&[], &mut plain), Err(StreamError::Key));
        back[2] ^= 1;
        from_other.open(&back, &mut plain).unwrap();
        assert_eq!(plain, b"onetwothree");
    }

    #[test]
    fn who_has_another_key_is_turned_away() {
        let (dial, first) = Dial::new(&Key::new(1, [7; 32])).unwrap();
        for other in [Key::new(1, [8; 32]), Key::new(2, [7; 32])] {
            assert_eq!(answer(&other, &first).unwrap_err(), StreamError::Key);
        }
        assert_eq!(dial.finish(&[0; HANDSHAKE_BYTES]).unwrap_err(), StreamError::Key);
    }
}
