//! Reads and writes frames on streams: bounded, and in as few calls as the stream allows.

use std::io::{self, IoSlice};
use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Most bytes for which memory is reserved before they arrive.
pub(crate) const RESERVED: usize = 64 * 1024;
/// Time after which a peer is slow if the next [`RESERVED`] bytes of a body have not arrived, or if it has taken no byte:
/// 2 s.
const SLOW: Duration = Duration::from_secs(2);

/// Returns the time in which a peer sends or takes the rest of a frame of `length` bytes: 30 s, and 16 us for each byte,
/// as over a line of 500 kb/s.
pub(crate) const fn rest_within(length: usize) -> Duration {
    Duration::from_micros(30_000_000 + 16 * length as u64)
}

/// Writes the parts of a frame from byte `written` on.
///
/// # Cancel safety
/// If the future is dropped, a part of the frame may have been written.
pub(crate) async fn write_parts(
    stream: &mut (impl AsyncWrite + Unpin),
    head: &[u8],
    body: &[u8],
    mut written: usize,
) -> io::Result<()> {
    while written < head.len() + body.len() {
        written += write_some(stream, head, body, written).await?;
    }
    Ok(())
}

/// Writes the parts of a frame. Calls `on_slow` every 2 s in which the stream has accepted no byte.
pub(crate) async fn write_whole(
    stream: &mut (impl AsyncWrite + Unpin),
    head: &[u8],
    body: &[u8],
    mut on_slow: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let mut written = 0;
    while written < head.len() + body.len() {
        match timeout(SLOW, write_some(stream, head, body, written)).await {
            Ok(count) => written += count?,
            Err(_) => on_slow()?,
        }
    }
    Ok(())
}

/// Writes the bytes that the stream accepts at once; returns their number, at least one.
///
/// # Cancel safety
/// If the future is dropped, nothing was written.
pub(crate) async fn write_some(
    stream: &mut (impl AsyncWrite + Unpin),
    head: &[u8],
    body: &[u8],
    written: usize,
) -> io::Result<usize> {
    let rest_of_head = &head[written.min(head.len())..];
    let rest_of_body = &body[written.saturating_sub(head.len())..];
    let parts = [IoSlice::new(rest_of_head), IoSlice::new(rest_of_body)];
    match stream.write_vectored(&parts).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        count => Ok(count),
    }
}

/// Reads exactly `length` bytes, which the caller has bounded. The memory grows with the received bytes.
pub(crate) async fn read_body(
    stream: &mut (impl AsyncRead + Unpin),
    length: usize,
) -> io::Result<Vec<u8>> {
    let mut body = Vec::with_capacity(length.min(RESERVED));
    read_more(stream, &mut body, length).await?;
    Ok(body)
}

/// Reads the rest of a body of `length` bytes. Calls `on_slow` every 2 s in which the next [`RESERVED`] bytes have not
/// arrived.
pub(crate) async fn read_rest(
    stream: &mut (impl AsyncRead + Unpin),
    body: &mut Vec<u8>,
    length: usize,
    mut on_slow: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    while body.len() < length {
        let part = RESERVED.min(length - body.len());
        let mut reading = pin!(read_more(stream, body, part));
        loop {
            match timeout(SLOW, &mut reading).await {
                Ok(read) => break read?,
                Err(_) => on_slow()?,
            }
        }
    }
    Ok(())
}

/// Appends exactly `length` bytes to a body.
async fn read_more(
    stream: &mut (impl AsyncRead + Unpin),
    body: &mut Vec<u8>,
    length: usize,
) -> io::Result<()> {
    let whole = body.len() + length;
    stream.take(length as u64).read_to_end(body).await?;
    if body.len() < whole {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}
