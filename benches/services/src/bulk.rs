//! Connections that carry 1 MiB from the client to the service, which answers with one byte and keeps them.

use midplane::Node;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::Failure;
use crate::place::{Io, SERVICE, Target};

const MIB: usize = 1 << 20;
/// Bytes that are read and written at once.
const PART: usize = 16 * 1024;

pub async fn serve(node: &Node) -> Result<(), Failure> {
    let mut listener = node.listen(SERVICE).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(answer(stream));
    }
}

pub async fn serve_tcp(listener: TcpListener) -> Result<(), Failure> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(answer(stream));
    }
}

/// Reads 1 MiB, answers, and holds the stream as long as the client does.
async fn answer(mut stream: impl Io) {
    // Dropped with the last byte: the connection alone is to be measured.
    let (mut buffer, mut left) = (vec![0; PART], MIB);
    while left > 0 {
        match stream.read(&mut buffer).await {
            Ok(count) if count > 0 => left -= count,
            _ => return,
        }
    }
    drop(buffer);
    let _ = stream.write_all(&[1]).await;
    let _ = stream.read(&mut [0]).await;
}

/// Opens a connection and has it carry 1 MiB.
pub async fn carry(target: &Target) -> Result<Box<dyn Io>, Failure> {
    let mut stream = target.connect().await?;
    for _ in 0..MIB / PART {
        stream.write_all(&[7; PART]).await?;
    }
    stream.read_exact(&mut [0]).await?;
    Ok(stream)
}
