//! Session keys of two nodes: a handshake agrees on them, and each counter is used once.

use snow::resolvers::{CryptoResolver as _, DefaultResolver};
use snow::{HandshakeState, StatelessTransportState};

use super::basis::Basis;
use super::envelope::{ENVELOPE_BYTES, Envelope, EnvelopeKind};
use super::replay::Window;
use super::{Key, TAG_BYTES};
use crate::drops::DropCause;
use crate::frame::DEFAULT_HOP_LIMIT;
use crate::id::NodeId;

/// Bytes of a handshake message without its payload: a public key of Curve25519, and a tag.
const AROUND: usize = 32 + TAG_BYTES;
/// Most frames that one session seals; it is given up long before its counter could wrap.
const FRAMES: u64 = 1 << 60;

/// The two nodes of a handshake; the handshake is bound to them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Ends {
    pub(super) initiator: NodeId,
    pub(super) responder: NodeId,
}

/// Identifies one attempt of a node to begin a handshake.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Attempt {
    /// Drawn at random at each start of the node, without a clock.
    pub(super) incarnation: u64,
    pub(super) number: u32,
}

/// Draws random bits from the system; `None` if it has none.
pub(super) fn draw() -> Option<u64> {
    let mut bytes = [0; 8];
    DefaultResolver.resolve_rng()?.try_fill_bytes(&mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// A handshake that this node has begun.
#[derive(Debug)]
pub(super) struct Beginning {
    handshake: HandshakeState,
    /// This node's number of the session.
    pub(super) index: u32,
    /// The datagram that was sent, to be sent again.
    pub(super) datagram: Vec<u8>,
}

/// Session keys that both nodes have.
#[derive(Debug)]
pub(super) struct Session {
    transport: StatelessTransportState,
    /// This node's number of the session.
    pub(super) index: u32,
    /// The other node's number of the session.
    remote: u32,
    /// Number of frames sealed so far, which is the next frame's counter.
    sealed: u64,
    opened: Window,
}

fn prologue(key: &Key, ends: Ends) -> [u8; 18] {
    let mut bytes = *b"midplane 1........";
    bytes[10..14].copy_from_slice(&key.id.to_le_bytes());
    bytes[14..16].copy_from_slice(&ends.initiator.0.to_le_bytes());
    bytes[16..18].copy_from_slice(&ends.responder.0.to_le_bytes());
    bytes
}

/// Writes a handshake message, and returns the datagram around it.
fn datagram(envelope: Envelope, handshake: &mut HandshakeState, payload: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = envelope.emit().to_vec();
    bytes.resize(ENVELOPE_BYTES + AROUND + payload.len(), 0);
    let length = handshake.write_message(payload, &mut bytes[ENVELOPE_BYTES..]).ok()?;
    bytes.truncate(ENVELOPE_BYTES + length);
    Some(bytes)
}

impl Beginning {
    /// Begins a handshake; `None` if the system has no random numbers.
    pub(super) fn new(basis: Basis<'_>, ends: Ends, index: u32, attempt: Attempt) -> Option<Self> {
        let prologue = prologue(basis.key, ends);
        let mut handshake = basis.builder(&prologue)?.build_initiator().ok()?;
        let mut payload = [0; 16];
        payload[..4].copy_from_slice(&index.to_le_bytes());
        payload[4..8].copy_from_slice(&attempt.number.to_le_bytes());
        payload[8..].copy_from_slice(&attempt.incarnation.to_le_bytes());
        let envelope = Envelope {
            kind: EnvelopeKind::Begin,
            hop_limit: DEFAULT_HOP_LIMIT,
            source: ends.initiator,
            destination: ends.responder,
            session: basis.key.id,
            urgent: true,
            counter: 0,
        };
        let datagram = datagram(envelope, &mut handshake, &payload)?;
        Some(Self { handshake, index, datagram })
    }

    /// Completes the handshake with an answer; returns it unchanged in `Err` if the answer is invalid.
    pub(super) fn finish(mut self, body: &[u8]) -> Result<Session, Box<Self>> {
        let mut remote = [0; 4];
        if body.len() != AROUND + remote.len() {
            return Err(Box::new(self));
        }
        match self.handshake.read_message(body, &mut remote) {
            Ok(4) => {}
            _ => return Err(Box::new(self)),
        }
        let Self { handshake, index, datagram } = self;
        // A handshake of two messages ends with the second.
        match handshake.into_stateless_transport_mode() {
            Ok(transport) => Ok(Session::new(transport, index, u32::from_le_bytes(remote))),
            Err(_) => unreachable!("{} bytes began it, and it has ended", datagram.len()),
        }
    }
}

/// A session that another node has begun, and the answer to it.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) session: Session,
    pub(super) attempt: Attempt,
    pub(super) datagram: Vec<u8>,
}

/// The first message of a handshake, opened but not answered.
pub(super) struct FirstMessage {
    handshake: HandshakeState,
    remote: u32,
    pub(super) attempt: Attempt,
    ends: Ends,
}

impl FirstMessage {
    /// Opens the first message of a handshake. Only a holder of the key can have made it and, with identities,
    /// only the initiator. It is cheap with the key alone; with identities it takes two multiplications on the
    /// curve.
    pub(super) fn open(basis: Basis<'_>, ends: Ends, body: &[u8]) -> Option<Self> {
        let mut payload = [0; 16];
        if body.len() != AROUND + payload.len() {
            return None;
        }
        let prologue = prologue(basis.key, ends);
        let mut handshake = basis.builder(&prologue)?.build_responder().ok()?;
        handshake.read_message(body, &mut payload).ok()?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| payload[at + i]));
        let incarnation = u64::from(word(12)) << 32 | u64::from(word(8));
        let attempt = Attempt { incarnation, number: word(4) };
        Some(Self { handshake, remote: word(0), attempt, ends })
    }

    /// Answers the handshake.
    pub(super) fn answer(mut self, index: u32) -> Option<Answered> {
        let envelope = Envelope {
            kind: EnvelopeKind::Answer,
            hop_limit: DEFAULT_HOP_LIMIT,
            source: self.ends.responder,
            destination: self.ends.initiator,
            session: self.remote,
            urgent: true,
            counter: 0,
        };
        let datagram = datagram(envelope, &mut self.handshake, &index.to_le_bytes())?;
        let transport = self.handshake.into_stateless_transport_mode().ok()?;
        let session = Session::new(transport, index, self.remote);
        Some(Answered { session, attempt: self.attempt, datagram })
    }
}

impl Session {
    const fn new(transport: StatelessTransportState, index: u32, remote: u32) -> Self {
        Self { transport, index, remote, sealed: 0, opened: Window::new() }
    }

    /// Returns whether the session has sealed as many frames as it may.
    pub(super) const fn is_used_up(&self) -> bool {
        self.sealed >= FRAMES
    }

    /// Seals `frame`, which may be empty, to the end of `out`. Session and counter in the envelope are replaced
    /// by this session's.
    pub(super) fn seal(&mut self, envelope: Envelope, frame: &[u8], out: &mut Vec<u8>) {
        let counter = self.sealed;
        self.sealed += 1;
        out.extend_from_slice(&Envelope { session: self.remote, counter, ..envelope }.emit());
        let begin = out.len();
        out.resize(begin + frame.len() + TAG_BYTES, 0);
        let sealed = self.transport.write_message(counter, frame, &mut out[begin..]);
        sealed.expect("a frame and its tag are below Noise's 65535 bytes, and there is room");
    }

    /// Opens a body into `plain`, which must be as long as a datagram; returns the frame's length.
    pub(super) fn open(
        &mut self,
        counter: u64,
        body: &[u8],
        plain: &mut [u8],
    ) -> Result<usize, DropCause> {
        if counter >= FRAMES {
            return Err(DropCause::Unsealed);
        }
        if self.opened.has_seen(counter) {
            return Err(DropCause::Replayed);
        }
        let opened = self.transport.read_message(counter, body, plain);
        let length = opened.map_err(|_| DropCause::Unsealed)?;
        // Only a body that opens proves that the counter is the peer's.
        self.opened.note(counter);
        Ok(length)
    }
}
