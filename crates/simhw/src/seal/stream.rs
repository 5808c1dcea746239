//! Sealed byte streams, such as TCP between two programs: only holders of a key can read, make or change them.
//!
//! No I/O here. The dialing side sends [`Dial`]'s message, and the other answers it with [`answer`]. Each piece
//! of up to [`PIECE_BYTES`] is then sealed under a counter of its direction, and pieces must be opened in the
//! order in which they were sealed. An end knows that the other has the key once that end's first piece opens.
//!
//! Where nodes have an [`Identity`], [`Dial::to`] and [`answer_named`] make a stream between two named nodes.
//! Only the two can read it, and neither end can be another node than it claims.

use std::sync::Arc;

use snow::{HandshakeState, StatelessTransportState};
use thiserror::Error;

use super::basis::Basis;
use super::{Identity, Key, TAG_BYTES};
use crate::id::NodeId;

/// Most bytes of a piece; a sealed piece with two bytes of length before it fits 64 KiB.
pub const PIECE_BYTES: usize = 32 << 10;
/// Bytes of each handshake message: a public key of Curve25519, and a tag.
pub const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;
/// Bytes of the first message between nodes with identities: the dialing node's number, little-endian, then the
/// handshake message.
pub const NAMED_BYTES: usize = 2 + HANDSHAKE_BYTES;

/// The reason why a stream cannot be established or continued.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum StreamError {
    /// The other side has another key or none, or the bytes were changed on the way.
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

/// Returns the [`prologue`] between two named nodes: it binds the handshake to both and to their roles.
fn named_prologue(key: &Key, dials: NodeId, answers: NodeId) -> [u8; 25] {
    let mut bytes = *b"midplane stream 1........";
    bytes[17..21].copy_from_slice(&key.id.to_le_bytes());
    bytes[21..23].copy_from_slice(&dials.0.to_le_bytes());
    bytes[23..].copy_from_slice(&answers.0.to_le_bytes());
    bytes
}

fn begin(basis: Basis<'_>, prologue: &[u8]) -> Result<(Dial, [u8; HANDSHAKE_BYTES]), StreamError> {
    let begun = basis.builder(prologue).ok_or(StreamError::Key)?.build_initiator();
    let mut handshake = begun.map_err(|_| StreamError::Random)?;
    let mut message = [0; HANDSHAKE_BYTES];
    handshake.write_message(&[], &mut message).map_err(|_| StreamError::Random)?;
    Ok((Dial { handshake }, message))
}

fn respond(
    basis: Basis<'_>,
    prologue: &[u8],
    message: &[u8],
) -> Result<(Ends, [u8; HANDSHAKE_BYTES]), StreamError> {
    let begun = basis.builder(prologue).ok_or(StreamError::Key)?.build_responder();
    let mut handshake = begun.map_err(|_| StreamError::Random)?;
    handshake.read_message(message, &mut []).map_err(|_| StreamError::Key)?;
    let mut answer = [0; HANDSHAKE_BYTES];
    handshake.write_message(&[], &mut answer).map_err(|_| StreamError::Random)?;
    Ok((ends(handshake)?, answer))
}

/// The dialing side of a stream, until the answer arrives.
#[derive(Debug)]
pub struct Dial {
    handshake: HandshakeState,
}

impl Dial {
    /// Begins a stream; returns it with the message to send.
    ///
    /// # Errors
    /// [`StreamError::Random`] if the system has no random numbers.
    pub fn new(key: &Key) -> Result<(Self, [u8; HANDSHAKE_BYTES]), StreamError> {
        begin(Basis { key, named: None }, &prologue(key))
    }

    /// Begins a stream to node `to` only; returns it with the message to send. `key` is the fabric's, if there
    /// is one.
    ///
    /// # Errors
    /// [`StreamError::Key`] if the list names no such node; [`StreamError::Random`].
    pub fn to(
        identity: &Identity,
        key: Option<&Key>,
        to: NodeId,
    ) -> Result<(Self, [u8; NAMED_BYTES]), StreamError> {
        let key = key.unwrap_or(&Key::NONE);
        let prologue = named_prologue(key, identity.node(), to);
        let (dial, handshake) = begin(Basis { key, named: Some((identity, to)) }, &prologue)?;
        let mut message = [0; NAMED_BYTES];
        message[..2].copy_from_slice(&identity.node().0.to_le_bytes());
        message[2..].copy_from_slice(&handshake);
        Ok((dial, message))
    }

    /// Completes the handshake with the answer.
    ///
    /// # Errors
    /// [`StreamError::Key`] if the answering side does not have the key.
    pub fn finish(mut self, answer: &[u8; HANDSHAKE_BYTES]) -> Result<Ends, StreamError> {
        self.handshake.read_message(answer, &mut []).map_err(|_| StreamError::Key)?;
        ends(self.handshake)
    }
}

/// Answers the dialing side; returns the stream's ends with the message to send back.
///
/// # Errors
/// [`StreamError::Key`] if the dialing side does not have the key.
pub fn answer(
    key: &Key,
    message: &[u8; HANDSHAKE_BYTES],
) -> Result<(Ends, [u8; HANDSHAKE_BYTES]), StreamError> {
    respond(Basis { key, named: None }, &prologue(key), message)
}

/// Answers a node that dials by name; returns that node, the stream's ends, and the message to send back. `key` is the
/// fabric's, if there is one. Until the first piece opens, the message may be a replay.
///
/// # Errors
/// [`StreamError::Key`] if the dialing side does not have that node's key, or the list names no such node.
pub fn answer_named(
    identity: &Identity,
    key: Option<&Key>,
    message: &[u8; NAMED_BYTES],
) -> Result<(NodeId, Ends, [u8; HANDSHAKE_BYTES]), StreamError> {
    let key = key.unwrap_or(&Key::NONE);
    let node = NodeId(u16::from_le_bytes([message[0], message[1]]));
    if node == identity.node() {
        return Err(StreamError::Key);
    }
    let prologue = named_prologue(key, node, identity.node());
    let (ends, answer) =
        respond(Basis { key, named: Some((identity, node)) }, &prologue, &message[2..])?;
    Ok((node, ends, answer))
}

/// The two directions of a stream at one side.
pub type Ends = (Sealer, Opener);

fn ends(handshake: HandshakeState) -> Result<Ends, StreamError> {
    let transport = handshake.into_stateless_transport_mode().map_err(|_| StreamError::Key)?;
    let transport = Arc::new(transport);
    let sealer = Sealer { transport: Arc::clone(&transport), counter: 0 };
    Ok((sealer, Opener { transport, counter: 0 }))
}

/// The outgoing direction: seals pieces.
#[derive(Debug)]
pub struct Sealer {
    transport: Arc<StatelessTransportState>,
    counter: u64,
}

impl Sealer {
    /// Seals a piece to the end of `out`.
    ///
    /// # Panics
    /// If the piece is longer than [`PIECE_BYTES`].
    pub fn seal(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        assert!(piece.len() <= PIECE_BYTES, "a piece of {} bytes", piece.len());
        let begin = out.len();
        out.resize(begin + piece.len() + TAG_BYTES, 0);
        let sealed = self.transport.write_message(self.counter, piece, &mut out[begin..]);
        sealed.expect("a piece is short enough, and there is space for it");
        self.counter += 1;
    }
}

/// The incoming direction: opens pieces.
#[derive(Debug)]
pub struct Opener {
    transport: Arc<StatelessTransportState>,
    counter: u64,
}

impl Opener {
    /// Opens the next piece to the end of `out`.
    ///
    /// # Errors
    /// [`StreamError::Key`]; later pieces cannot be trusted either.
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
    use crate::seal::SecretKey;

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

    fn identities() -> Vec<Identity> {
        let secrets: Vec<_> = (0..3).map(|_| SecretKey::generate().unwrap()).collect();
        let list: Vec<_> = secrets.iter().map(SecretKey::public).collect();
        let of = |(node, secret)| Identity::new(NodeId(node), secret, list.clone()).unwrap();
        (0..).zip(secrets).map(of).collect()
    }

    #[test]
    fn named_ends_know_each_other() {
        let (nodes, fabric) = (identities(), Key::new(1, [7; 32]));
        for key in [None, Some(&fabric)] {
            let (dial, first) = Dial::to(&nodes[2], key, NodeId(0)).unwrap();
            let (who, (_, mut from_dialer), second) = answer_named(&nodes[0], key, &first).unwrap();
            assert_eq!(who, NodeId(2));
            let (mut to_other, _) = dial.finish(&second).unwrap();
            let (mut sealed, mut plain) = (Vec::new(), Vec::new());
            to_other.seal(b"hello", &mut sealed);
            from_dialer.open(&sealed, &mut plain).unwrap();
            assert_eq!(plain, b"hello");
        }
    }

    #[test]
    fn no_end_can_be_another_node_than_it_is() {
        let (nodes, fabric) = (identities(), Key::new(1, [7; 32]));
        let key = Some(&fabric);
        let (dial, first) = Dial::to(&nodes[2], key, NodeId(0)).unwrap();
        // The dialer claims to be node 1; another node answers; a node dials itself; the fabric's key is
        // missing.
        let mut claims = first;
        claims[..2].copy_from_slice(&1_u16.to_le_bytes());
        assert_eq!(answer_named(&nodes[0], key, &claims).unwrap_err(), StreamError::Key);
        assert_eq!(answer_named(&nodes[1], key, &first).unwrap_err(), StreamError::Key);
        assert_eq!(answer_named(&nodes[2], key, &first).unwrap_err(), StreamError::Key);
        assert_eq!(answer_named(&nodes[0], None, &first).unwrap_err(), StreamError::Key);
        claims[..2].copy_from_slice(&9_u16.to_le_bytes());
        assert_eq!(answer_named(&nodes[0], key, &claims).unwrap_err(), StreamError::Key);
        // An unknown node with the fabric's key, whose own list says that it is node 2.
        let stranger = identities();
        let (_, first) = Dial::to(&stranger[2], key, NodeId(0)).unwrap();
        assert_eq!(answer_named(&nodes[0], key, &first).unwrap_err(), StreamError::Key);
        // Nor can one answer as node 0.
        assert!(Dial::to(&nodes[2], key, NodeId(3)).is_err());
        let (_, first) = Dial::to(&nodes[2], key, NodeId(1)).unwrap();
        let (_, _, second) = answer_named(&nodes[1], key, &first).unwrap();
        assert_eq!(dial.finish(&second).unwrap_err(), StreamError::Key);
    }

    #[test]
    fn an_old_first_message_gets_an_answer_and_no_further() {
        let nodes = identities();
        let (dial, first) = Dial::to(&nodes[1], None, NodeId(0)).unwrap();
        let (_, _, second) = answer_named(&nodes[0], None, &first).unwrap();
        let (mut to_other, _) = dial.finish(&second).unwrap();
        let (mut sealed, mut plain) = (Vec::new(), Vec::new());
        to_other.seal(b"hello", &mut sealed);
        let (_, (_, mut again), _) = answer_named(&nodes[0], None, &first).unwrap();
        assert_eq!(again.open(&sealed, &mut plain), Err(StreamError::Key));
        assert_eq!(plain, b"");
    }

    #[test]
    fn a_holder_of_another_key_is_refused() {
        let (dial, first) = Dial::new(&Key::new(1, [7; 32])).unwrap();
        for other in [Key::new(1, [8; 32]), Key::new(2, [7; 32])] {
            assert_eq!(answer(&other, &first).unwrap_err(), StreamError::Key);
        }
        assert_eq!(dial.finish(&[0; HANDSHAKE_BYTES]).unwrap_err(), StreamError::Key);
    }
}
