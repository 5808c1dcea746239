//! The handshake of a connection over TCP.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::joining::{self, Joining};
use super::{Config, Failed, Records, STREAMS};
use crate::wire::pipe::packet::{IDENTIFIED_BYTES, NOISE_BYTES};
use crate::wire::pipe::sealing::{Begun, Cipher, Secrets, answer};

/// Versions of the protocol: without keys of the nodes' own, and with them.
const SHARED: u8 = 1;
const IDENTIFIED: u8 = 2;
/// The first bytes of both messages.
pub(super) const MAGIC: &[u8; 8] = b"midplane";
/// Bytes of both messages before the Noise message.
const HEAD_BYTES: usize = 24;
/// Bytes of both messages that are the same in every version.
pub(super) const FIXED_BYTES: usize = 16;
/// Limits how long a dialer waits for the connection and for the answer.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Limits how long an acceptor waits for the dialer's messages, which are sent at once.
const ACCEPT_WITHIN: Duration = Duration::from_secs(2);
/// Silence after which a peer counts as lost, as over UDP: 30 s. The system probes an idle one after 10 s.
#[cfg(target_os = "linux")]
const SILENCE: Duration = Duration::from_secs(30);
const PROBE: Duration = Duration::from_secs(10);

/// The numbers of reasons in refusals.
pub(super) mod reason {
    pub(in super::super) const NONE: u8 = 0;
    pub(super) const VERSION: u8 = 2;
    pub(super) const KEY: u8 = 3;
    /// There is no such stream, or it can't have a connection of its own.
    pub(in super::super) const STREAM: u8 = 4;
}

/// A connection whose handshake has succeeded: over TCP, or another stream of bytes.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    pub(crate) stream: S,
    /// Seals and opens records; `None` without a key.
    pub(crate) records: Option<Records>,
    /// The random number of the acceptor.
    pub(crate) id: u64,
}

/// The purpose of a connection that a process has accepted.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// It carries a session.
    Session(Box<Connection<TcpStream>>),
    /// It carries one stream of a session. The acceptor has not answered yet.
    Stream(TcpStream, Joining),
}

/// Connects to the process at an address.
///
/// # Cancel safety
/// If dropped, it closes the connection.
pub(crate) async fn connect(
    to: SocketAddr,
    config: &Config,
) -> Result<Connection<TcpStream>, Failed> {
    let connecting = async {
        let secrets = config.secrets();
        match dial(to, secrets, newest(secrets)).await {
            Err(Failed::Version(SHARED)) if newest(secrets) > SHARED => {
                dial(to, secrets, SHARED).await
            }
            dialed => dialed,
        }
    };
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
    connected.unwrap_or(Err(Failed::NoAnswer))
}

/// Returns the newest version that an end with these secrets speaks.
fn newest(secrets: Option<Secrets<'_>>) -> u8 {
    if secrets.is_some_and(|secrets| secrets.own.is_some()) { IDENTIFIED } else { SHARED }
}

/// Returns the secrets that a version uses.
fn of_version(secrets: Option<Secrets<'_>>, version: u8) -> Option<Secrets<'_>> {
    secrets.map(|secrets| match version {
        IDENTIFIED => secrets,
        _ => Secrets { own: None, ..secrets },
    })
}

/// Returns the bytes of a dialer's message of a version; the acceptor's has 8 more.
const fn dial_bytes(version: u8) -> usize {
    HEAD_BYTES + if version == IDENTIFIED { IDENTIFIED_BYTES } else { NOISE_BYTES }
}

async fn dial(
    to: SocketAddr,
    secrets: Option<Secrets<'_>>,
    version: u8,
) -> Result<Connection<TcpStream>, Failed> {
    let stream = TcpStream::connect(to).await?;
    set_options(&stream)?;
    dial_over(stream, secrets, version).await
}

/// Connects over a stream, to a peer that speaks the newest version that this end speaks.
///
/// # Cancel safety
/// If dropped, it closes the stream.
pub(crate) async fn connect_over<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    config: &Config,
) -> Result<Connection<S>, Failed> {
    let secrets = config.secrets();
    let dialing = dial_over(stream, secrets, newest(secrets));
    tokio::time::timeout(CONNECT_TIMEOUT, dialing).await.unwrap_or(Err(Failed::NoAnswer))
}

async fn dial_over<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    secrets: Option<Secrets<'_>>,
    version: u8,
) -> Result<Connection<S>, Failed> {
    let (id, secrets) = (random()?, of_version(secrets, version));
    let begun = secrets.map(|secrets| Begun::new(secrets, STREAMS, id).ok_or(Failed::KeyMismatch));
    let (begun, noise) = begun.transpose()?.unzip();
    let cipher = secrets.map_or(Cipher::ChaCha, |secrets| secrets.cipher);
    let mut message = message(version, u8::from(secrets.is_some()), cipher, id, noise.as_deref());
    message.resize(dial_bytes(version), 0);
    stream.write_all(&message).await?;
    let answer =
        read_message(&mut stream, |of| (of == version).then(|| dial_bytes(of) + 8)).await?;
    match (answer[8], answer[9]) {
        (other, _) if other != version => return Err(Failed::Version(other)),
        (_, reason::NONE) => {}
        (_, reason::KEY) => return Err(Failed::KeyMismatch),
        (_, other) => return Err(Failed::Refused(other)),
    }
    let (mut records, acceptor) = (None, word(&answer, FIXED_BYTES));
    if let Some(begun) = begun {
        let seal = begun.finish(acceptor, Cipher::of(answer[10]), &answer[HEAD_BYTES..]);
        let seal = seal.map_err(|_| Failed::KeyMismatch)?;
        let mut own = Records::new(seal);
        let mut proof = Vec::new();
        own.seal(&[], &mut proof);
        stream.write_all(&proof).await?;
        records = Some(own);
    }
    Ok(Connection { stream, records, id: acceptor })
}

/// Answers the process that has connected, unless it has for a stream. Takes at most 2 s.
///
/// # Cancel safety
/// If dropped, it closes the connection.
pub(crate) async fn accept(mut stream: TcpStream, config: &Config) -> Result<Accepted, Failed> {
    set_options(&stream)?;
    let secrets = config.secrets();
    let accepting = async {
        let joins = |version| config.moves_streams() && version == joining::VERSION;
        let bytes =
            |version| if joins(version) { Some(joining::BYTES) } else { spoken(secrets, version) };
        let dial = read_message(&mut stream, bytes).await.map_err(|_| Failed::NoNode)?;
        if joins(dial[8]) {
            joining::set_patient(&stream)?;
            return Ok(Accepted::Stream(stream, Joining::read(&dial)));
        }
        greet(stream, secrets, &dial).await.map(Box::new).map(Accepted::Session)
    };
    tokio::time::timeout(ACCEPT_WITHIN, accepting).await.unwrap_or(Err(Failed::NoAnswer))
}

/// Answers the process that has connected over a stream. Takes at most 2 s.
///
/// # Cancel safety
/// If dropped, it closes the stream.
pub(crate) async fn accept_over<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    config: &Config,
) -> Result<Connection<S>, Failed> {
    let secrets = config.secrets();
    let accepting = async {
        let bytes = |version| spoken(secrets, version);
        let dial = read_message(&mut stream, bytes).await.map_err(|_| Failed::NoNode)?;
        greet(stream, secrets, &dial).await
    };
    tokio::time::timeout(ACCEPT_WITHIN, accepting).await.unwrap_or(Err(Failed::NoAnswer))
}

/// Returns the bytes of a dialer's message of a version, if an end with these secrets speaks it.
fn spoken(secrets: Option<Secrets<'_>>, version: u8) -> Option<usize> {
    (SHARED..=newest(secrets)).contains(&version).then(|| dial_bytes(version))
}

/// Answers a dialer's message.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    secrets: Option<Secrets<'_>>,
    dial: &[u8],
) -> Result<Connection<S>, Failed> {
    let newest = newest(secrets);
    let spoken = |version| spoken(secrets, version);
    let (version, is_sealed, id) = (dial[8], dial[9] == 1, random()?);
    let cipher =
        secrets.map_or(Cipher::ChaCha, |secrets| secrets.cipher.with(Cipher::of(dial[10])));
    let secrets = of_version(secrets, version).map(|secrets| Secrets { cipher, ..secrets });
    let failed = if spoken(version).is_none() {
        Some((reason::VERSION, Failed::Version(version)))
    } else if is_sealed != secrets.is_some() {
        Some((reason::KEY, Failed::KeyMismatch))
    } else {
        None
    };
    let sealed = match (&failed, secrets) {
        (None, Some(secrets)) => answer(secrets, STREAMS, word(dial, 16), id, &dial[HEAD_BYTES..]),
        _ => None,
    };
    let failed = failed.or_else(|| {
        let has_no_seal = secrets.is_some() && sealed.is_none();
        has_no_seal.then_some((reason::KEY, Failed::KeyMismatch))
    });
    // A dialer of an unsupported version learns the newest one supported here.
    let version = if spoken(version).is_some() { version } else { newest };
    let said = failed.as_ref().map_or(reason::NONE, |(reason, _)| *reason);
    let (seal, noise) = sealed.unzip();
    let mut message = message(version, said, cipher, id, noise.as_deref());
    message.resize(dial_bytes(version) + 8, 0);
    stream.write_all(&message).await?;
    if let Some((_, failed)) = failed {
        return Err(failed);
    }
    let mut records = seal.map(Records::new);
    if let Some(records) = &mut records {
        stream.read_exact(&mut records.room()[..Records::EMPTY]).await?;
        let mut lengths = Vec::new();
        let opened = records.open(Records::EMPTY, |plain| lengths.push(plain.len()));
        // The head of a longer record would prove nothing.
        if opened.is_err() || lengths != [0] {
            return Err(Failed::KeyMismatch);
        }
    }
    Ok(Connection { stream, records, id })
}

/// Reads a message of the handshake, as long as its version says; of an unknown version, only the fixed bytes.
async fn read_message(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: impl Fn(u8) -> Option<usize>,
) -> Result<Vec<u8>, Failed> {
    let mut message = vec![0; FIXED_BYTES];
    stream.read_exact(&mut message).await.map_err(cut)?;
    if message[..8] != *MAGIC {
        return Err(Failed::NoNode);
    }
    if let Some(bytes) = bytes(message[8]) {
        message.resize(bytes, 0);
        stream.read_exact(&mut message[FIXED_BYTES..]).await.map_err(cut)?;
    }
    Ok(message)
}

/// Converts an error: a peer that closes instead of an answer is no node, or has too many handshakes under way.
fn cut(error: io::Error) -> Failed {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Failed::NoNode,
        _ => Failed::System(error),
    }
}

/// Makes a message of the handshake; `second` follows the version.
fn message(version: u8, second: u8, cipher: Cipher, id: u64, noise: Option<&[u8]>) -> Vec<u8> {
    let mut message = MAGIC.to_vec();
    message.extend([version, second, cipher.byte(), 0, 0, 0, 0, 0]);
    message.extend(id.to_le_bytes());
    message.extend(noise.unwrap_or_default());
    message
}

pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes of a message of fixed length"))
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}

pub(super) fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE / 2)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, SILENCE.as_millis() as u32)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use midplane_simhw::seal::{Key, SecretKey};

    use super::*;

    type Keys = (Option<Key>, Option<SecretKey>);

    fn config((key, own): Keys) -> Config {
        Config::default().key(key).own_key(own)
    }

    /// Connects two ends on loopback, with these keys.
    async fn both(dialer: Keys, acceptor: Keys) -> [Result<Connection<TcpStream>, Failed>; 2] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let (dialer, acceptor) = (config(dialer), config(acceptor));
        let accepting = async {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                match accept(stream, &acceptor).await {
                    // The dialer connects again.
                    Err(Failed::Version(IDENTIFIED)) => {}
                    Ok(Accepted::Session(connection)) => return Ok(*connection),
                    Ok(Accepted::Stream(..)) => panic!("it has connected for a session"),
                    Err(failed) => return Err(failed),
                }
            }
        };
        let both = futures_util::future::join(connect(to, &dialer), accepting);
        both.await.into()
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(test);
    }

    fn key(byte: u8) -> Option<Key> {
        Some(Key::new(1, [byte; 32]))
    }

    fn own(byte: u8) -> Option<SecretKey> {
        Some(format!("{byte:02x}").repeat(32).parse().unwrap())
    }

    #[test]
    fn ends_with_one_key_or_none_connect_and_others_get_the_reason() {
        run(meet());
    }

    async fn meet() {
        for sealed in [None, key(1)] {
            let keys = (sealed.clone(), None);
            let [one, other] = both(keys.clone(), keys).await.map(Result::unwrap);
            assert_eq!(one.records.is_some(), sealed.is_some());
            assert_eq!(other.records.is_some(), sealed.is_some());
        }
        for (dialer, acceptor) in [(key(1), key(2)), (None, key(1)), (key(1), None)] {
            for (one, other) in [(None, None), (own(3), own(4))] {
                for end in both((dialer.clone(), one), (acceptor.clone(), other)).await {
                    assert!(matches!(end, Err(Failed::KeyMismatch)), "{end:?}");
                }
            }
        }
    }

    #[test]
    fn ends_with_keys_of_their_own_prove_them_and_connect_with_ends_without() {
        run(identify());
    }

    async fn identify() {
        for (one, other) in [(own(3), own(4)), (own(3), None), (None, own(4)), (None, None)] {
            let ends = both((key(1), one.clone()), (key(1), other.clone())).await;
            let proven = ends.map(|end| end.unwrap().records.unwrap().peer());
            let expected = match (&one, &other) {
                (Some(one), Some(other)) => [Some(other.public()), Some(one.public())],
                _ => [None, None],
            };
            assert_eq!(proven, expected);
        }
    }

    #[test]
    fn the_bytes_of_a_handshake_never_change() {
        let changed =
            "bytes on the wire have changed: bump the version, and keep reading the old one";
        let golden = b"midplane\x01\x01\x01\0\0\0\0\0\x02\x01\0\0\0\0\0\0noise";
        assert_eq!(message(1, 1, Cipher::Aes, 0x0102, Some(b"noise")), golden, "{changed}");
        assert_eq!((dial_bytes(SHARED), dial_bytes(IDENTIFIED)), (72, 120), "{changed}");
        assert_eq!((SHARED, IDENTIFIED, Records::EMPTY), (1, 2, 18), "{changed}");
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
            for (keys, answer_bytes) in [((None, None), 80), ((key(1), own(3)), 128)] {
                let mut stranger = TcpStream::connect(to).await.unwrap();
                stranger.write_all(bytes).await.unwrap();
                stranger.shutdown().await.unwrap();
                let (stream, _) = listener.accept().await.unwrap();
                let failed = accept(stream, &config(keys)).await.unwrap_err();
                assert_eq!(matches!(failed, Failed::Version(9)), is_version, "{failed}");
                assert_eq!(matches!(failed, Failed::NoNode), !is_version, "{failed}");
                let mut answer = Vec::new();
                let _ = stranger.read_to_end(&mut answer).await;
                assert_eq!(answer.len(), if is_version { answer_bytes } else { 0 });
            }
        }
    }

    #[test]
    fn a_recorded_dial_that_is_sent_again_without_a_proof_is_refused() {
        run(replay());
    }

    async fn replay() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let config = config((key(1), None));
        let (_, noise) = Begun::new(config.secrets().unwrap(), STREAMS, 7).unwrap();
        // The head of a record that never arrives whole.
        for length in [17_u8, 100] {
            let mut stranger = TcpStream::connect(to).await.unwrap();
            let mut bytes = message(SHARED, 1, Cipher::ChaCha, 7, Some(&noise));
            bytes.push(length);
            bytes.resize(bytes.len() + Records::EMPTY - 1, 0);
            stranger.write_all(&bytes).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let failed = accept(stream, &config).await.unwrap_err();
            assert!(matches!(failed, Failed::KeyMismatch), "{failed}");
        }
    }

    #[test]
    fn any_bytes_after_the_head_are_refused() {
        run(refuse_hostile());
    }

    async fn refuse_hostile() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        for version in 0..4 {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut stranger = TcpStream::connect(to).await.unwrap();
                let mut bytes = message(version, 1, Cipher::Aes, 7, Some(&[byte; 200]));
                bytes.truncate(dial_bytes(version));
                stranger.write_all(&bytes).await.unwrap();
                let (stream, _) = listener.accept().await.unwrap();
                let failed = accept(stream, &config((key(1), own(3)))).await.unwrap_err();
                let is_spoken = (1..=2).contains(&version);
                assert_eq!(matches!(failed, Failed::KeyMismatch), is_spoken, "{failed}");
            }
        }
    }
}
