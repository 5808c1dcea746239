//! Reads and writes frames on streams: bounded, and in as few calls as the stream allows.

use std::io::{self, IoSlice};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes for which memory is reserved before they arrive.
const EARLY: usize = 64 * 1024;

/// Writes the parts of a frame behind the first `written` bytes.
///
/// # Cancel safety
/// Dropped, it may have written a part of the frame.
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

/// Writes what the stream takes at once; returns how many bytes, at least one.
///
/// # Cancel safety
/// Dropped, it has written nothing.
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

/// Reads exactly `length` bytes, which the caller has bounded. Memory grows as they come.
pub(crate) async fn read_body(
    stream: &mut (impl AsyncRead + Unpin),
    length: usize,
) -> io::Result<Vec<u8>> {
    let mut body = Vec::with_capacity(length.min(EARLY));
    stream.take(length as u64).read_to_end(&mut body).await?;
    if body.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(body)
}
