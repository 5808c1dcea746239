//! Requests in a byte stream, each after its length, over tokio's TCP or our streams.

use std::future::poll_fn;
use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tower_service::Service;

/// Most bytes of a request.
pub const MAX_BYTES: usize = 1 << 20;

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    // One write: with two, the kernel would send two segments.
    let mut message = Vec::with_capacity(4 + bytes.len());
    message.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    message.extend_from_slice(bytes);
    stream.write_all(&message).await
}

/// Reads the next message; `None` if the stream ends.
async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Option<Bytes>> {
    let length = match stream.read_u32_le().await {
        Ok(length) if length as usize <= MAX_BYTES => length as usize,
        Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(Some(bytes.into()))
}

/// Serves a connection until it ends.
pub async fn serve<S, H>(mut stream: S, mut handler: H) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Service<Bytes, Response = Bytes, Error = std::convert::Infallible>,
{
    while let Some(request) = read(&mut stream).await? {
        let Ok(()) = poll_fn(|context| handler.poll_ready(context)).await;
        let Ok(answer) = handler.call(request).await;
        write(&mut stream, &answer).await?;
    }
    stream.shutdown().await
}

/// Sends a request over a connection, and returns the answer.
pub async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    request: &[u8],
) -> io::Result<Bytes> {
    write(stream, request).await?;
    read(stream).await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Closes a connection once both directions are empty.
pub async fn close<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> io::Result<()> {
    stream.shutdown().await?;
    match read(stream).await? {
        None => Ok(()),
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}
