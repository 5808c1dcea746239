//! The same measurements over a TCP connection of tokio's.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader, BufWriter};
use tokio::net::TcpStream;

use crate::loopback::{LONG, Plan, Question, SHORT, now, run_sides};

/// Measures the plan's quantity over TCP.
pub(crate) fn run(plan: Plan) -> io::Result<f64> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let here = std::net::TcpStream::connect(listener.local_addr()?)?;
    let (there, _) = listener.accept()?;
    for stream in [&here, &there] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
    }
    match plan.question {
        Question::OneWay => run_sides(plan.placement, ask(here, plan), echo(there)),
        Question::Stream(bytes) => {
            run_sides(plan.placement, receive(here, plan, bytes), send(there, plan, bytes))
        }
    }
}

async fn ask(stream: std::net::TcpStream, plan: Plan) -> io::Result<f64> {
    let mut stream = TcpStream::from_std(stream)?;
    let mut bytes = [7; SHORT];
    let (begin, mut rounds) = (now(), 0_u32);
    while begin.elapsed() < plan.time {
        for _ in 0..50 {
            stream.write_all(&bytes).await?;
            stream.read_exact(&mut bytes).await?;
            rounds += 1;
        }
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0)
}

async fn echo(stream: std::net::TcpStream) -> io::Result<f64> {
    let mut stream = TcpStream::from_std(stream)?;
    let mut bytes = [0; SHORT];
    while stream.read_exact(&mut bytes).await.is_ok() {
        stream.write_all(&bytes).await?;
    }
    Ok(0.0)
}

/// Returns the messages received per second.
async fn receive(stream: std::net::TcpStream, plan: Plan, bytes: usize) -> io::Result<f64> {
    let mut stream = BufReader::with_capacity(LONG, TcpStream::from_std(stream)?);
    let mut message = vec![0; bytes];
    let (begin, mut count) = (now(), 0_u64);
    while begin.elapsed() < plan.time {
        for _ in 0..16 {
            stream.read_exact(&mut message).await?;
            count += 1;
        }
    }
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

async fn send(stream: std::net::TcpStream, plan: Plan, bytes: usize) -> io::Result<f64> {
    let stream = TcpStream::from_std(stream)?;
    if plan.buffered {
        write(BufWriter::new(stream), bytes).await;
    } else {
        write(stream, bytes).await;
    }
    Ok(0.0)
}

/// Writes until the receiver closes the connection.
async fn write(mut stream: impl AsyncWrite + Unpin, bytes: usize) {
    let message = vec![7; bytes];
    while stream.write_all(&message).await.is_ok() {}
}
