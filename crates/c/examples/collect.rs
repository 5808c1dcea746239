//! A service that reads samples from a given number of streams, and prints their sum. `feed.c` is an MPI job that sends
//! them.
#![cfg(target_os = "linux")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::process::ExitCode;

use midplane::{Node, Stream};
use tokio::io::AsyncReadExt;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Sums the numbers of a stream up to its end.
async fn sum(mut stream: Stream) -> Result<(u64, f64), Error> {
    let (mut count, mut sum) = (0, 0.0);
    loop {
        match stream.read_f64_le().await {
            Ok(sample) => sum += sample,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error.into()),
        }
        count += 1;
    }
    Ok((count, sum))
}

async fn run(streams: usize) -> Result<(), Error> {
    let node = Node::builder().start().await?;
    let mut listener = node.listen("samples").await?;
    let mut readers = tokio::task::JoinSet::new();
    while readers.len() < streams {
        let (stream, _) = listener.accept().await?;
        readers.spawn(sum(stream));
    }
    let (mut count, mut total) = (0, 0.0);
    while let Some(read) = readers.join_next().await {
        let (samples, sum) = read??;
        count += samples;
        total += sum;
    }
    println!("{count} samples, sum {total}");
    node.shutdown().await;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(streams) = std::env::args().nth(1).and_then(|text| text.parse().ok()) else {
        eprintln!("usage: collect STREAMS");
        return ExitCode::from(2);
    };
    match run(streams).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
