//! Keys of one connection: agreed on by a Noise handshake, used with each packet number once.

use midplane_simhw::seal::Key;
use snow::{Builder, HandshakeState, StatelessTransportState};

use super::packet::{NOISE_BYTES, TAG_BYTES};

/// The handshake of those who share a key: two messages, the key mixed in before the first.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// A Noise message of the handshake.
pub(crate) type Message = [u8; NOISE_BYTES];

fn builder<'a>(key: &'a Key, prologue: &'a [u8]) -> Option<Builder<'a>> {
    Builder::new(PATTERN.parse().ok()?).psk(0, key.secret()).ok()?.prologue(prologue).ok()
}

/// The protocol and its version: a handshake of one is none of the other.
pub(crate) type Label = [u8; 15];
/// The label of connections over datagrams.
pub(crate) const DATAGRAMS: &Label = b"midplane wire 1";

/// The protocol and the dialer's id are bound to the handshake.
fn prologue(label: &Label, dialer: u64) -> [u8; 23] {
    let mut bytes = [0; 23];
    bytes[..15].copy_from_slice(label);
    bytes[15..].copy_from_slice(&dialer.to_le_bytes());
    bytes
}

/// Bytes that only the two ends can read, make or change.
#[derive(Debug)]
pub(crate) struct Seal(StatelessTransportState);

impl Seal {
    /// Seals `plain` to the end of `out`.
    pub(crate) fn seal(&self, number: u64, plain: &[u8], out: &mut Vec<u8>) {
        let begin = out.len();
        out.resize(begin + plain.len() + TAG_BYTES, 0);
        let sealed = self.0.write_message(number, plain, &mut out[begin..]);
        sealed.expect("a body and its tag are below Noise's 65535 bytes, and there is room");
    }

    /// Opens `sealed` into `plain`; returns whether it is the peer's.
    pub(crate) fn open(&self, number: u64, sealed: &[u8], plain: &mut Vec<u8>) -> bool {
        plain.resize(sealed.len().max(TAG_BYTES), 0);
        let Ok(bytes) = self.0.read_message(number, sealed, plain) else { return false };
        plain.truncate(bytes);
        true
    }
}

/// The dialer's half of a handshake.
#[derive(Debug)]
pub(crate) struct Begun(HandshakeState);

impl Begun {
    /// Begins; `None` if the system has no random numbers.
    pub(crate) fn new(key: &Key, label: &Label, dialer: u64) -> Option<(Self, Message)> {
        let prologue = prologue(label, dialer);
        let mut handshake = builder(key, &prologue)?.build_initiator().ok()?;
        let mut message = [0; NOISE_BYTES];
        handshake.write_message(&[], &mut message).ok()?;
        Some((Self(handshake), message))
    }

    /// Takes the answer; itself again if it is of another key.
    pub(crate) fn finish(mut self, acceptor: u64, message: &[u8]) -> Result<Seal, Box<Self>> {
        let mut said = [0; 8];
        let read = self.0.read_message(message, &mut said);
        if read != Ok(said.len()) || u64::from_le_bytes(said) != acceptor {
            return Err(Box::new(self));
        }
        let transport = self.0.into_stateless_transport_mode();
        Ok(Seal(transport.expect("a handshake of two messages has ended with the second")))
    }
}

/// Answers a dialer's message; `None` if it is of another key.
pub(crate) fn answer(
    key: &Key,
    label: &Label,
    dialer: u64,
    acceptor: u64,
    message: &[u8],
) -> Option<(Seal, Vec<u8>)> {
    let prologue = prologue(label, dialer);
    let mut handshake = builder(key, &prologue)?.build_responder().ok()?;
    handshake.read_message(message, &mut []).ok()?;
    let mut answer = vec![0; NOISE_BYTES + 8];
    handshake.write_message(&acceptor.to_le_bytes(), &mut answer).ok()?;
    Some((Seal(handshake.into_stateless_transport_mode().ok()?), answer))
}
