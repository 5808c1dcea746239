//! The handshake of a connection over TCP.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use midplane_simhw::seal::Key;
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Failed, Records, STREAMS};
use crate::wire::pipe::packet::NOISE_BYTES;
use crate::wire::pipe::sealing::{Begun, answer};

/// Version of the protocol.
const VERSION: u8 = 1;
/// The first bytes of both messages.
const MAGIC: &[u8; 8] = b"midplane";
/// Bytes of the dialer's message, and of the acceptor's.
const DIAL_BYTES: usize = 24 + NOISE_BYTES;
const ANSWER_BYTES: usize = 24 + NOISE_BYTES + 8;
/// Bytes of both that stay as they are in every version.
const FIXED_BYTES: usize = 16;
/// Limits how long a dialer waits for the connection, and for the answer.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Limits how long an acceptor waits for the dialer's part: all of it leaves at once.
const ACCEPT_WITHIN: Duration = Duration::from_secs(2);
/// 30 s of silence after which a peer counts as lost, as over UDP; the system probes an idle one after 10 s.
const SILENCE: Duration = Duration::from_secs(30);
const PROBE: Duration = Duration::from_secs(10);

/// The numbers of reasons in refusals.
mod reason {
    pub(super) const NONE: u8 = 0;
    pub(super) const VERSION: u8 = 2;
    pub(super) const KEY: u8 = 3;
}

/// A connection over TCP whose handshake has succeeded.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    /// Seals and opens, with a key.
    pub(crate) records: Option<Records>,
    pub(crate) peer: SocketAddr,
}

/// Connects to the process at an address.
///
/// # Cancel safety
/// Dropped, it closes the connection.
pub(crate) async fn connect(to: SocketAddr, key: Option<&Key>) -> Result<Connection, Failed> {
    let connected = tokio::time::timeout(CONNECT_WITHIN, dial(to, key)).await;
    connected.unwrap_or(Err(Failed::NoAnswer))
}

async fn dial(to: SocketAddr, key: Option<&Key>) -> Result<Connection, Failed> {
    let mut stream = TcpStream::connect(to).await?;
    set_options(&stream)?;
    let id = random()?;
    let begun = key.map(|key| Begun::new(key, STREAMS, id).ok_or(Failed::KeyDoesNotFit));
    let (begun, noise) = begun.transpose()?.unzip();
    let mut message = [0; DIAL_BYTES];
    head(&mut message, u8::from(key.is_some()), id);
    if let Some(noise) = noise {
        message[24..].copy_from_slice(&noise);
    }
    stream.write_all(&message).await?;
    let mut answer = [0; ANSWER_BYTES];
    read_message(&mut stream, &mut answer).await?;
    match (answer[8], answer[9]) {
        (version, _) if version != VERSION => return Err(Failed::Version(version)),
        (_, reason::NONE) => {}
        (_, reason::KEY) => return Err(Failed::KeyDoesNotFit),
        (_, other) => return Err(Failed::Refused(other)),
    }
    let mut records = None;
    if let Some(begun) = begun {
        let seal = begun.finish(word(&answer, 16), &answer[24..]);
        let seal = seal.map_err(|_| Failed::KeyDoesNotFit)?;
        let mut own = Records::new(seal);
        let mut proof = Vec::new();
        own.seal(&[], &mut proof);
        stream.write_all(&proof).await?;
        records = Some(own);
    }
    Ok(Connection { stream, records, peer: to })
}

/// Answers the process that has connected. Takes 2 s at most.
///
/// # Cancel safety
/// Dropped, it closes the connection.
pub(crate) async fn accept(
    stream: TcpStream,
    peer: SocketAddr,
    key: Option<&Key>,
) -> Result<Connection, Failed> {
    let accepted = tokio::time::timeout(ACCEPT_WITHIN, greet(stream, peer, key)).await;
    accepted.unwrap_or(Err(Failed::NoAnswer))
}

async fn greet(
    mut stream: TcpStream,
    peer: SocketAddr,
    key: Option<&Key>,
) -> Result<Connection, Failed> {
    set_options(&stream)?;
    let mut dial = [0; DIAL_BYTES];
    read_message(&mut stream, &mut dial).await.map_err(|error| match error {
        // The dialer learns which version would be understood.
        Failed::Version(_) => error,
        _ => Failed::NoNode,
    })?;
    let id = random()?;
    let mut message = [0; ANSWER_BYTES];
    let dialer = word(&dial, 16);
    let is_sealed = dial[9] == 1;
    let failed = if dial[8] != VERSION {
        Some((reason::VERSION, Failed::Version(dial[8])))
    } else if is_sealed != key.is_some() {
        Some((reason::KEY, Failed::KeyDoesNotFit))
    } else {
        None
    };
    let sealed = match (&failed, key) {
        (None, Some(key)) => answer(key, STREAMS, dialer, id, &dial[24..]),
        _ => None,
    };
    let failed = failed.or_else(|| {
        let has_no_seal = key.is_some() && sealed.is_none();
        has_no_seal.then_some((reason::KEY, Failed::KeyDoesNotFit))
    });
    head(&mut message, failed.as_ref().map_or(reason::NONE, |(reason, _)| *reason), id);
    let seal = sealed.map(|(seal, noise)| {
        message[24..].copy_from_slice(&noise);
        seal
    });
    stream.write_all(&message).await?;
    if let Some((_, failed)) = failed {
        return Err(failed);
    }
    let mut records = seal.map(Records::new);
    if let Some(records) = &mut records {
        let mut proof = [0; Records::EMPTY];
        stream.read_exact(&mut proof).await?;
        let mut nothing = Vec::new();
        if records.open(&proof, &mut nothing).is_err() || !nothing.is_empty() {
            return Err(Failed::KeyDoesNotFit);
        }
    }
    Ok(Connection { stream, records, peer })
}

/// Reads a message of the handshake; of another version the first bytes alone.
async fn read_message(stream: &mut TcpStream, message: &mut [u8]) -> Result<(), Failed> {
    stream.read_exact(&mut message[..FIXED_BYTES]).await.map_err(cut)?;
    if message[..8] != *MAGIC {
        return Err(Failed::NoNode);
    }
    if message[8] == VERSION {
        stream.read_exact(&mut message[FIXED_BYTES..]).await.map_err(cut)?;
    }
    Ok(())
}

/// A peer that closes instead of an answer is no node, or is one that has too many handshakes under way.
fn cut(error: io::Error) -> Failed {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Failed::NoNode,
        _ => Failed::System(error),
    }
}

fn head(message: &mut [u8], second: u8, id: u64) {
    message[..8].copy_from_slice(MAGIC);
    (message[8], message[9]) = (VERSION, second);
    message[16..24].copy_from_slice(&id.to_le_bytes());
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes of a message of fixed length"))
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE / 2)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE.as_millis() as u32)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends on loopback, with these keys.
    async fn both(dialer: Option<Key>, acceptor: Option<Key>) -> [Result<Connection, Failed>; 2] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let accepting = async {
            let (stream, peer) = listener.accept().await.unwrap();
            accept(stream, peer, acceptor.as_ref()).await
        };
        let both = futures_util::future::join(connect(to, dialer.as_ref()), accepting);
        both.await.into()
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(test);
    }

    #[test]
    fn ends_of_one_key_or_none_meet_and_others_learn_why_not() {
        run(meet());
    }

    async fn meet() {
        let key = |byte| Some(Key::new(1, [byte; 32]));
        for sealed in [None, key(1)] {
            let [one, other] = both(sealed.clone(), sealed.clone()).await.map(Result::unwrap);
            assert_eq!(one.records.is_some(), sealed.is_some());
            assert_eq!(other.records.is_some(), sealed.is_some());
        }
        for (dialer, acceptor) in [(key(1), key(2)), (None, key(1)), (key(1), None)] {
            for end in both(dialer, acceptor).await {
                assert!(matches!(end, Err(Failed::KeyDoesNotFit)), "{end:?}");
            }
        }
    }

    #[test]
    fn the_bytes_of_a_handshake_never_change() {
        let changed =
            "bytes on the wire have changed: bump the version, and keep reading the old one";
        let mut dial = [0; DIAL_BYTES];
        head(&mut dial, 1, 0x0102);
        let golden = b"midplane\x01\x01\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0";
        assert_eq!(dial[..24], *golden, "{changed}");
        assert_eq!((DIAL_BYTES, ANSWER_BYTES, Records::EMPTY), (72, 80, 18), "{changed}");
        assert_eq!(STREAMS, b"midplane tcp  1", "{changed}");
        assert_eq!([reason::NONE, reason::VERSION, reason::KEY], [0, 2, 3], "{changed}");
    }

    #[test]
    fn strangers_are_turned_away() {
        run(turn_away());
    }

    async fn turn_away() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let other_version = [&MAGIC[..], &[9], &[0; 7]].concat();
        let cases: [(&[u8], bool); 3] =
            [(b"GET / HTTP/1.1\r\n\r\n", false), (&other_version, true), (b"midplane", false)];
        for (bytes, is_version) in cases {
            let mut stranger = TcpStream::connect(to).await.unwrap();
            stranger.write_all(bytes).await.unwrap();
            stranger.shutdown().await.unwrap();
            let (stream, peer) = listener.accept().await.unwrap();
            let failed = accept(stream, peer, None).await.unwrap_err();
            assert_eq!(matches!(failed, Failed::Version(9)), is_version, "{failed}");
            assert_eq!(matches!(failed, Failed::NoNode), !is_version, "{failed}");
            let mut answer = Vec::new();
            let _ = stranger.read_to_end(&mut answer).await;
            assert_eq!(answer.len(), if is_version { ANSWER_BYTES } else { 0 });
        }
    }
}
