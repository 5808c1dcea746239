//! Reads and writes frames on streams: bounded, and in as few calls as the stream allows.

use std::io::{self, IoSlice};
use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Most bytes for which memory is reserved before they arrive.
pub(crate) const RESERVED: usize = 64 * 1024;
/// Time after which a peer is slow if it has not sent, or not taken, the next [`RESERVED`] bytes of a body: 2 s.
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

/// Writes the parts of a frame. Calls `on_slow` every 2 s in which the stream has not accepted the next [`RESERVED`] bytes
/// of the body.
pub(crate) async fn write_whole(
    stream: &mut (impl AsyncWrite + Unpin),
    head: &[u8],
    body: &[u8],
    mut on_slow: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let (first, rest) = body.split_at(body.len().min(RESERVED));
    complete(write_parts(stream, head, first, 0), &mut on_slow).await?;
    for part in rest.chunks(RESERVED) {
        complete(write_parts(stream, &[], part, 0), &mut on_slow).await?;
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
    let mut body = Vec::new();
    read_until(stream, &mut body, length, length).await?;
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
        let end = length.min(body.len() + RESERVED);
        complete(read_until(stream, body, end, length), &mut on_slow).await?;
    }
    Ok(())
}

/// Completes `work`, unless `on_slow`, which is called every 2 s until then, fails.
async fn complete(
    work: impl Future<Output = io::Result<()>>,
    on_slow: &mut impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let mut work = pin!(work);
    loop {
        match timeout(SLOW, &mut work).await {
            Ok(done) => return done,
            Err(_) => on_slow()?,
        }
    }
}

/// Reads a body of `length` bytes up to its first `end`. Whenever its memory is full, reserves as much again and at least
/// [`RESERVED`], but not more than the body needs.
async fn read_until(
    stream: &mut (impl AsyncRead + Unpin),
    body: &mut Vec<u8>,
    end: usize,
    length: usize,
) -> io::Result<()> {
    while body.len() < end {
        if body.len() == body.capacity() {
            body.reserve_exact(body.len().max(RESERVED).min(length - body.len()));
        }
        let most = (end - body.len()) as u64;
        if (&mut *stream).take(most).read_buf(body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Regression: a body of a little more than 64 KiB took memory of 128 KiB, which the C library returned to the system
    /// and requested again with each call.
    #[tokio::test]
    async fn a_body_takes_no_more_memory_than_its_bytes() {
        let sent = vec![7; 3 * RESERVED + 3];
        for length in [1, RESERVED, RESERVED + 3, sent.len()] {
            let whole = read_body(&mut &sent[..], length).await.unwrap();
            let mut in_parts = read_body(&mut &sent[..], length.min(RESERVED)).await.unwrap();
            let rest = &sent[in_parts.len()..];
            read_rest(&mut &*rest, &mut in_parts, length, || Ok(())).await.unwrap();
            for body in [whole, in_parts] {
                assert_eq!((body.len(), body.capacity()), (length, length));
            }
        }
    }

    /// Regression: one byte in 1.9 s was enough for a reader not to be slow.
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_single_bytes_is_slow() {
        let (mut writer, mut reader) = tokio::io::duplex(1);
        let taking = async {
            while reader.read_u8().await.is_ok() {
                sleep(Duration::from_millis(1_900)).await;
            }
        };
        let (start, on_slow) = (Instant::now(), || Err(io::ErrorKind::TimedOut.into()));
        let body = [0; 2 * RESERVED];
        tokio::select! {
            written = write_whole(&mut writer, b"head", &body, on_slow) => {
                assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
            }
            () = taking => panic!("the writer is there"),
        }
        assert!(start.elapsed() < 2 * SLOW, "{:?}", start.elapsed());
    }
}
