//! Disk to network to disk: a file sent whole, in 64 KiB fragments, in every power of two, and by plan, in paired
//! runs.
//!
//! Alone, it starts its receiver as a process on this host. With `--rank` and `--peers` sender and receiver run on
//! two hosts.

mod compare;

use crate::processes::{self, Peer, until_stopped};
use crate::report::Failure;
use crate::{claims, ranks};
use std::net::SocketAddr;
use std::time::Duration;

use claims::Verdict;
use clap::Parser;
use midplane_benches::meeting::reach;
use midplane_benches::transfer;
use midplane_benches::transfer::wire::{Connection, end, serve};
use tokio::net::TcpListener;

/// Longest wait for the receiver.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measure a file's transfer from disk to disk, in planned and other fragments
///
/// The path is first observed: messages in random fragments, timed in every stage, and whole messages. The plan
/// follows from that alone. Then the whole file, fixed sizes and the plan are timed in alternating rounds, and their
/// medians compared.
///
/// Disks and link have the rates of a small cloud machine; the planner does not know them.
#[derive(Clone, Debug, Parser)]
#[command(after_long_help = HELP)]
pub(crate) struct Arguments {
    /// Rank 0 sends, rank 1 receives
    #[command(flatten)]
    ranks: ranks::Ranks,
    /// Rounds of paired runs
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Stop measuring after this many seconds, even if rounds are left
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
    /// Exit when standard input closes
    #[arg(long, hide = true)]
    child: bool,
}

const HELP: &str = "Two hosts: put their host:port into a file, one a line, then run
  host A: lab transfer --rank 0 --peers FILE
  host B: lab transfer --rank 1 --peers FILE

Columns: the plan's fragments and family; its median time, the time it predicted, and the error of that; the median
times of the whole file, of 64 KiB fragments, and of the fastest fixed size; the plan's time over the latter's.

Exit code: 0 the plan was faster than the whole file, its mean prediction error was below 5.9 %, and it took at most 2 %
longer than the fastest fixed size; also 0 with fewer than 3 rounds or without optimization, which are not judged;
1 one of these failed, or the peer was lost; 2 bad input; 3 one failed, and the machine was too busy to judge it.";

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let place = place(&arguments.ranks)?;
    if arguments.child {
        processes::end_with_parent();
    }
    let watch = claims::Watch::start();
    // One thread per process: on two processors the two processes are the parallel stages, and no stage waits for
    // another thread to wake.
    let part = async { take_part(arguments, place).await.map_err(Failure::of_run) };
    let verdict = processes::run(until_stopped(part))?;
    Ok(verdict.map_or(0, |verdict| claims::exit(&[verdict], &watch)))
}

/// Returns this process's rank of two and both addresses, after checking that its own is free; `None` if it is alone.
fn place(ranks: &ranks::Ranks) -> Result<Option<(u16, Vec<SocketAddr>)>, String> {
    let Some(place) = ranks.place()? else { return Ok(None) };
    if place.size() != 2 {
        return Err(format!("--peers: name two ranks, 0 and 1, not {}", place.size()));
    }
    let peers = ranks::addresses(&place, Duration::ZERO)?;
    if place.rank == 1 {
        // It listens for TCP there.
        ranks::listen(peers[1])?;
    }
    Ok(Some((place.rank, peers)))
}

/// Takes this process's part, as a sender or a receiver; a process that is alone starts its receiver. The sender
/// returns a verdict.
async fn take_part(
    arguments: &Arguments,
    place: Option<(u16, Vec<SocketAddr>)>,
) -> Result<Option<Verdict>, String> {
    match place {
        Some((0, peers)) => send(arguments, peers[1]).await.map(Some),
        Some((_, peers)) => receive(peers[1]).await.map(|()| None),
        None => {
            let peers = processes::free_addresses(2)?;
            let words = ["transfer", "--rank=1", "--peers=-", "--child"].map(str::to_owned);
            let mut receiver = Peer::start(&words, &peers)?;
            receiver.while_running(send(arguments, peers[1])).await.map(Some)
        }
    }
}

async fn receive(own: SocketAddr) -> Result<(), String> {
    let file = transfer::file(0).map_err(|error| format!("a file to receive: {error}"))?;
    let listener = TcpListener::from_std(ranks::listen(own)?);
    let work = async {
        let (stream, _) = listener?.accept().await?;
        serve(stream, &file).await
    };
    work.await.map_err(|error| format!("the sender: {error}"))
}

async fn send(arguments: &Arguments, to: SocketAddr) -> Result<Verdict, String> {
    let file = transfer::file(compare::FILE);
    let file = file.map_err(|error| format!("writing the file to send: {error}"))?;
    let connection = reach(to, PATIENCE).await.and_then(Connection::new);
    let connection = connection.map_err(|error| format!("{to}: {error}"))?;
    let verdict = compare::run(arguments, &connection, &file).await?;
    end(&connection).await.map_err(|error| format!("the receiver: {error}"))?;
    Ok(verdict)
}
