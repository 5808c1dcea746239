//! Connections that join a session: each carries one of its streams alone.
//!
//! The dialer sends 32 bytes: `midplane`, the version 3, 7 zeros, the session's id (8 bytes, little-endian), the stream's
//! number (4 bytes), 4 zeros. The id is the one under which the acceptor receives over UDP, or its random number in the
//! handshake over TCP. The acceptor answers with 16 bytes: `midplane`, the version, 0 or the reason of a refusal, 6
//! zeros. Then each direction has an offset (8 bytes), sent before the first byte or the end, and the bytes of the stream
//! from there on; those before cross the session. An acceptor that does not support version 3 answers with another version.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Failed;
use super::handshake::{CONNECT_TIMEOUT, FIXED_BYTES, MAGIC, reason, set_options, word};

/// Limits how long the dialer waits for the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The version of the messages.
pub(super) const VERSION: u8 = 3;
/// Bytes of the dialer's message.
pub(super) const BYTES: usize = 32;

/// The stream that a connection carries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Joining {
    /// The session's id at the acceptor.
    pub(crate) session: u64,
    pub(crate) stream: u32,
}

impl Joining {
    fn message(self) -> Vec<u8> {
        let mut message = head(reason::NONE).to_vec();
        message.extend(self.session.to_le_bytes());
        message.extend(self.stream.to_le_bytes());
        message.resize(BYTES, 0);
        message
    }

    /// Reads a dialer's message of [`BYTES`] bytes.
    pub(super) fn read(message: &[u8]) -> Self {
        let session = word(message, FIXED_BYTES);
        Self { session, stream: word(message, FIXED_BYTES + 8) as u32 }
    }
}

/// Makes the first bytes of both messages.
fn head(reason: u8) -> [u8; FIXED_BYTES] {
    let mut head = [0; FIXED_BYTES];
    head[..8].copy_from_slice(MAGIC);
    (head[8], head[9]) = (VERSION, reason);
    head
}

/// Returns the acceptor's answer.
pub(crate) fn answer(is_accepted: bool) -> [u8; FIXED_BYTES] {
    head(if is_accepted { reason::NONE } else { reason::STREAM })
}

/// Connects to the acceptor of a session, for one of its streams.
///
/// # Cancel safety
/// If dropped, it closes the connection.
pub(crate) async fn join(to: SocketAddr, joining: Joining) -> Result<TcpStream, Failed> {
    let connecting = async {
        let mut stream = TcpStream::connect(to).await?;
        set_options(&stream)?;
        set_patient(&stream)?;
        stream.write_all(&joining.message()).await?;
        io::Result::Ok(stream)
    };
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
    let mut stream = connected.unwrap_or(Err(io::ErrorKind::TimedOut.into()))?;
    let mut answer = [0; FIXED_BYTES];
    // The acceptor may have moved the stream already: a late answer counts.
    let answered = tokio::time::timeout(ANSWER_TIMEOUT, stream.read_exact(&mut answer)).await;
    answered.map_err(|_| Failed::NoAnswer)??;
    match (answer[8], answer[9]) {
        _ if answer[..8] != *MAGIC => Err(Failed::NoNode),
        (VERSION, reason::NONE) => Ok(stream),
        (VERSION, reason) => Err(Failed::Refused(reason)),
        (version, _) => Err(Failed::Version(version)),
    }
}

/// Lets the reader of a connection pause for any time. The session detects a peer that is lost.
pub(super) fn set_patient(stream: &TcpStream) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(stream, 0)?;
    #[cfg(not(target_os = "linux"))]
    let _ = stream;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_connection_that_joins_a_session_never_change() {
        let changed =
            "bytes on the wire have changed: bump the version, and keep reading the old one";
        let joining = Joining { session: 0x0102, stream: 7 };
        let golden = b"midplane\x03\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0\x07\0\0\0\0\0\0\0";
        assert_eq!(
            (joining.message(), Joining::read(golden)),
            (golden.to_vec(), joining),
            "{changed}"
        );
        assert_eq!(answer(true), *b"midplane\x03\0\0\0\0\0\0\0", "{changed}");
        assert_eq!(answer(false), *b"midplane\x03\x04\0\0\0\0\0\0", "{changed}");
    }
}
