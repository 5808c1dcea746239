//! Sends and receives frames over byte streams: Unix sockets within a host, or TCP sealed with a key between hosts.
//!
//! A frame is sent after its encoded length (4 bytes, little-endian). A sealed stream is split into pieces, each after
//! its length (2 bytes).

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use midplane_simhw::id::NodeId;
use midplane_simhw::seal::stream::{
    Dial, Ends, HANDSHAKE_BYTES, NAMED_BYTES, Opener, PIECE_BYTES, Sealer, answer, answer_named,
};
use midplane_simhw::seal::{Identity, Key};
use midplane_simhw::wire;
use rustix::net::sockopt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::node_core::message::LONGEST;

/// Bytes of a frame's length.
const HEAD: usize = 4;
/// Most time that a dialling peer may take to authenticate.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// Unanswered probes after which an idle connection ends.
const PROBES: u32 = 3;

/// A standard stream of a rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard input.
    Input,
    /// Standard output, or the terminal.
    Output,
    /// Standard error.
    Error,
}

/// A unit of transfer over a link.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub enum Frame {
    /// An encoded message.
    Message(Bytes),
    /// Bytes of a rank's standard stream.
    Data {
        /// The rank's number.
        rank: u16,
        /// The stream of the rank.
        stream: Stream,
        /// The bytes.
        bytes: Bytes,
    },
}

impl Frame {
    /// Encodes a message.
    ///
    /// # Panics
    /// If the encoded message exceeds a gigabyte.
    #[must_use]
    pub fn message(message: &impl Serialize) -> Self {
        Self::Message(wire::encode_long(message).expect("messages are far shorter").into())
    }

    /// Decodes the message, if this frame is one of type `T`.
    #[must_use]
    pub fn parse<T: DeserializeOwned>(&self) -> Option<T> {
        match self {
            Self::Message(bytes) => wire::decode_long(bytes).ok(),
            Self::Data { .. } => None,
        }
    }
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "received bytes that are no frame")
}

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// The sending half of a link.
pub struct Sender {
    io: Writer,
    sealer: Option<Sealer>,
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

/// The receiving half of a link.
pub struct Receiver {
    io: Reader,
    opener: Option<Opener>,
    /// Received bytes that don't form a whole frame yet.
    buffer: BytesMut,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("sealed", &self.sealer.is_some()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("sealed", &self.opener.is_some()).finish_non_exhaustive()
    }
}

/// Both halves of a connection.
pub type Link = (Sender, Receiver);

fn pair(io: (Reader, Writer), ends: Option<Ends>) -> Link {
    let (sealer, opener) = ends.unzip();
    let (plain, sealed, scratch) = (Vec::new(), Vec::new(), Vec::new());
    let sender = Sender { io: io.1, sealer, plain, sealed };
    (sender, Receiver { io: io.0, opener, buffer: BytesMut::new(), scratch })
}

/// Creates a link over a Unix socket within a host.
#[must_use]
pub fn local(stream: tokio::net::UnixStream) -> Link {
    let (reader, writer) = stream.into_split();
    pair((Box::new(reader), Box::new(writer)), None)
}

/// Keys with which daemons of different hosts authenticate each other.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// A key that all hosts share. It does not distinguish them: each holder can claim to be any host.
    Shared(Key),
    /// This host's own key and the list of all hosts' keys, and the shared key as well, if there is one.
    Named(Identity, Option<Key>),
}

impl Credentials {
    /// Returns the credentials of these keys; `None` without any key.
    #[must_use]
    pub fn new(identity: Option<Identity>, key: Option<Key>) -> Option<Self> {
        match (identity, key) {
            (Some(identity), key) => Some(Self::Named(identity, key)),
            (None, Some(key)) => Some(Self::Shared(key)),
            (None, None) => None,
        }
    }
}

/// Makes the system end an idle connection whose other host does not answer for about `silence`, at least four
/// seconds: it may have lost its power. A limit for unacknowledged data would also end the connections of clients that
/// pause reading.
fn end_in_silence(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    let interval = (silence / (1 + PROBES)).max(Duration::from_secs(1));
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, interval)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    Ok(sockopt::set_tcp_keepcnt(stream, PROBES)?)
}

/// Connects to the daemon of `host`. The connection ends if that host does not answer for about `silence`.
///
/// # Errors
/// The system's error; [`io::ErrorKind::PermissionDenied`] if the other side has another key.
///
/// # Cancel safety
/// If this is dropped, the connection closes.
pub async fn dial(
    address: &str,
    (host, silence): (u16, Duration),
    credentials: &Credentials,
) -> io::Result<Link> {
    let dialed = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        end_in_silence(&stream, silence)?;
        let dial = match credentials {
            Credentials::Shared(key) => {
                let (dial, message) = Dial::new(key).map_err(denied)?;
                stream.write_all(&message).await?;
                dial
            }
            Credentials::Named(identity, key) => {
                let begun = Dial::to(identity, key.as_ref(), NodeId(host));
                let (dial, message) = begun.map_err(denied)?;
                stream.write_all(&message).await?;
                dial
            }
        };
        let mut answer = [0; HANDSHAKE_BYTES];
        stream.read_exact(&mut answer).await.map_err(denied)?;
        let ends = dial.finish(&answer).map_err(denied)?;
        Ok(sealed(stream, ends))
    };
    timeout(HANDSHAKE, dialed).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Authenticates a dialling daemon, and returns its first message. If hosts have keys of their own, also returns which
/// host it is. The connection ends if that host does not answer for about `silence`.
///
/// # Errors
/// As [`dial`], and [`io::ErrorKind::InvalidData`] if the first message is malformed.
///
/// # Cancel safety
/// If this is dropped, the connection closes.
pub async fn accept<T: DeserializeOwned>(
    (mut stream, silence): (TcpStream, Duration),
    credentials: &Credentials,
) -> io::Result<(Option<u16>, T, Link)> {
    let accepted = async {
        stream.set_nodelay(true)?;
        end_in_silence(&stream, silence)?;
        let (host, ends, reply) = match credentials {
            Credentials::Shared(key) => {
                let mut message = [0; HANDSHAKE_BYTES];
                stream.read_exact(&mut message).await?;
                let (ends, reply) = answer(key, &message).map_err(denied)?;
                (None, ends, reply)
            }
            Credentials::Named(identity, key) => {
                let mut message = [0; NAMED_BYTES];
                stream.read_exact(&mut message).await?;
                let answered = answer_named(identity, key.as_ref(), &message);
                let (node, ends, reply) = answered.map_err(denied)?;
                (Some(node.0), ends, reply)
            }
        };
        stream.write_all(&reply).await?;
        let (sender, mut receiver) = sealed(stream, ends);
        // If the first message can be opened, the dialling daemon is the host that it claims to be.
        let first = receiver.message().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((host, first, (sender, receiver)))
    };
    timeout(HANDSHAKE, accepted).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn denied(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, error)
}

fn sealed(stream: TcpStream, ends: Ends) -> Link {
    let (reader, writer) = stream.into_split();
    pair((Box::new(reader), Box::new(writer)), Some(ends))
}

impl Sender {
    /// Sends a frame.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::InvalidInput`] for a frame that no receiver accepts because of its length.
    ///
    /// # Cancel safety
    /// None: part of the frame may have been sent.
    pub async fn send(&mut self, frame: &Frame) -> io::Result<()> {
        let encoded = wire::encode_long(frame).map_err(io::Error::other)?;
        if encoded.len() > LONGEST {
            let why =
                format!("a message has {} bytes, and at most {LONGEST} can be sent", encoded.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.plain.clear();
        self.plain.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
        self.plain.extend_from_slice(&encoded);
        let Some(sealer) = &mut self.sealer else { return self.io.write_all(&self.plain).await };
        self.sealed.clear();
        for piece in self.plain.chunks(PIECE_BYTES) {
            let begin = self.sealed.len();
            self.sealed.extend_from_slice(&[0; 2]);
            sealer.seal(piece, &mut self.sealed);
            let length = (self.sealed.len() - begin - 2) as u16;
            self.sealed[begin..begin + 2].copy_from_slice(&length.to_le_bytes());
        }
        self.io.write_all(&self.sealed).await
    }
}

impl Receiver {
    /// Receives the next frame; `None` when the other side has closed the connection.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::InvalidData`] for malformed frames.
    ///
    /// # Cancel safety
    /// None: part of a frame may be lost.
    pub async fn receive(&mut self) -> io::Result<Option<Frame>> {
        while self.buffer.len() < HEAD {
            if !self.more().await? {
                return Ok(None);
            }
        }
        let length = u32::from_le_bytes([0, 1, 2, 3].map(|at| self.buffer[at])) as usize;
        if length > LONGEST {
            return Err(damaged());
        }
        while self.buffer.len() < HEAD + length {
            if !self.more().await? {
                return Ok(None);
            }
        }
        let frame = self.buffer.split_to(HEAD + length);
        wire::decode_long(&frame[HEAD..]).map(Some).map_err(|_| damaged())
    }

    /// Receives the next frame and decodes its message; `None` when the other side has closed the connection.
    ///
    /// # Errors
    /// As [`Receiver::receive`]; [`io::ErrorKind::InvalidData`] if the frame is no message of type `T`.
    ///
    /// # Cancel safety
    /// As [`Receiver::receive`].
    pub async fn message<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        match self.receive().await? {
            Some(frame) => frame.parse().map(Some).ok_or_else(damaged),
            None => Ok(None),
        }
    }

    async fn more(&mut self) -> io::Result<bool> {
        let Some(opener) = &mut self.opener else {
            return Ok(self.io.read_buf(&mut self.buffer).await? > 0);
        };
        let mut length = [0; 2];
        match self.io.read_exact(&mut length).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => drop(read?),
        }
        self.scratch.resize(u16::from_le_bytes(length).into(), 0);
        self.io.read_exact(&mut self.scratch).await?;
        let mut plain = Vec::new();
        opener.open(&self.scratch, &mut plain).map_err(denied)?;
        self.buffer.extend_from_slice(&plain);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_no_receiver_accepts_is_not_sent() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
            let ((mut sender, _), (_, mut receiver)) = (local(ours), local(theirs));
            let long = Frame::Message(vec![0; LONGEST].into());
            let refused = sender.send(&long).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
            let short = Frame::Message(Bytes::from_static(b"short"));
            sender.send(&short).await.unwrap();
            assert_eq!(receiver.receive().await.unwrap(), Some(short));
        });
    }
}
