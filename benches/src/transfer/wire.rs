//! The protocol of the connection: fragment sizes, bytes, and the receiver's times.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use midplane::pipeline::executor::Executor;
use midplane::pipeline::timing::Row;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;

use super::pace::{DISK, LINK, PacedRead, PacedWrite};

/// Largest number of fragments of one message, and of its bytes.
const MAX_FRAGMENTS: u32 = 1 << 16;
const MAX_BYTES: u128 = 1 << 40;

/// A time span by a peer's own clock, in nanoseconds since the header arrived.
pub type Span = (u64, u64);

/// Times of one message.
#[derive(Debug)]
pub struct Outcome {
    /// Microseconds from the first read to the receiver's acknowledgement that all is written.
    pub us: f64,
    /// Rows of the sender's stages: read and send.
    pub sender: Vec<Row>,
    /// For each fragment, the receiver's stages: receive and write.
    pub receiver: Vec<[Span; 2]>,
}

/// Sends the first bytes of a file in fragments of these sizes.
pub async fn send(connection: &Connection, file: &File, sizes: &[u64]) -> io::Result<Outcome> {
    let (mut reader, mut writer) = (connection.handle()?, connection.handle()?);
    let count = u32::try_from(sizes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    writer.write_u32_le(count).await?;
    let mut header = Vec::with_capacity(sizes.len() * 8);
    sizes.iter().for_each(|size| header.extend_from_slice(&size.to_le_bytes()));
    writer.write_all(&header).await?;
    if reader.read_u8().await? != READY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let source = PacedRead::new(Disk::from_start(file)?, DISK)?;
    let link = PacedWrite::new(writer, LINK)?;
    let executor = Executor::source(source, sizes.to_vec()).stage(link);
    let start = executor.started();
    let sender = executor.run().await.map_err(io::Error::other)?;
    if reader.read_u8().await? != DONE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let us = start.elapsed().as_nanos() as f64 / 1000.0;
    let mut receiver = Vec::with_capacity(sizes.len());
    for _ in sizes {
        let mut span = [0; 4];
        for edge in &mut span {
            *edge = reader.read_u64_le().await?;
        }
        receiver.push([(span[0], span[1]), (span[2], span[3])]);
    }
    Ok(Outcome { us, sender, receiver })
}

const READY: u8 = 1;
const DONE: u8 = 2;

/// Sent instead of a number of fragments: no message follows.
const END: u32 = 0;

/// Sends the end marker; a connection that closes without it means a lost peer.
pub async fn end(connection: &Connection) -> io::Result<()> {
    connection.handle()?.write_u32_le(END).await
}

/// Receives messages into a file, one over the other, until the end marker.
pub async fn serve(stream: TcpStream, file: &File) -> io::Result<()> {
    let connection = Connection::new(stream)?;
    let mut handle = connection.handle()?;
    loop {
        let count = handle.read_u32_le().await?;
        if count == END {
            return Ok(());
        }
        let beyond = || io::Error::new(io::ErrorKind::InvalidData, "a header beyond the limits");
        if count > MAX_FRAGMENTS {
            return Err(beyond());
        }
        let mut sizes = Vec::new();
        for _ in 0..count {
            sizes.push(handle.read_u64_le().await?);
        }
        if sizes.iter().map(|&size| u128::from(size)).sum::<u128>() > MAX_BYTES {
            return Err(beyond());
        }
        let volume = PacedWrite::new(Disk::from_start(file)?, DISK)?;
        handle.write_u8(READY).await?;
        let executor = Executor::source(connection.handle()?, sizes).stage(volume);
        let rows = executor.run().await.map_err(io::Error::other)?;
        handle.write_u8(DONE).await?;
        let mut report = Vec::with_capacity(rows.len() * 16);
        for row in &rows {
            for edge in [row.start, row.end] {
                report.extend_from_slice(&((edge.get() * 1000.0) as u64).to_le_bytes());
            }
        }
        handle.write_all(&report).await?;
    }
}

/// A file with synchronous reads and writes. While the page cache answers, handing a fragment to a thread pool costs
/// more than the fragment.
#[derive(Debug)]
pub struct Disk(File);

impl Disk {
    /// Both handles share the file position; only one of them is used at a time.
    fn from_start(file: &File) -> io::Result<Self> {
        let mut own = file.try_clone()?;
        own.rewind()?;
        Ok(Self(own))
    }
}

impl AsyncRead for Disk {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.0.read(buf.initialize_unfilled())?;
        buf.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Disk {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(self.0.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A connection, which stays open when a handle on it is dropped.
#[derive(Debug)]
pub struct Connection(std::net::TcpStream);

/// Silence after which a peer's host counts as lost, and interval of keep-alive probes.
const LOST: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(2);

impl Connection {
    /// Takes a new connection, which detects a lost host within `LOST`.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE).with_interval(PROBE))?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(LOST))?;
        Ok(Self(stream.into_std()?))
    }

    /// Returns a handle on the connection; one handle at a time reads or writes.
    fn handle(&self) -> io::Result<TcpStream> {
        TcpStream::from_std(self.0.try_clone()?)
    }
}
