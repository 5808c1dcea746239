//! Ranks: processes that sum their numbers, on one host or many, with messages by MPI's rules.
//!
//! ```toml
//! [dependencies]
//! clap = { version = "4", features = ["derive"] }
//! midplane = { path = "../midplane", features = ["fabric"] } # where you have it
//! tokio = { version = "1", features = ["macros", "process", "rt", "signal", "time"] }
//! ```

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use midplane::via::message::collective::Operation;
use midplane::via::message::envelope::Tag;
use midplane::via::message::group::Rank;
use midplane::{ErrorKind, Node};
use tokio::process::{Child, Command};
use tokio::time::Instant;

type Fail = Box<dyn std::error::Error + Send + Sync>;

/// Passes a message round all ranks, and sums a number of each.
///
/// Alone, it starts all ranks as processes of this host. Across hosts, start each rank with the same list of addresses:
/// `ranks --rank 0 --ranks 2 --bind 10.0.0.1:4700 --discover 10.0.0.1:4700,10.0.0.2:4700 --key-file KEY`, and so on.
#[derive(Parser)]
struct Arguments {
    /// Processes, 1 to 64.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: u32,
    /// Runs as this rank only, from 0.
    #[arg(long)]
    rank: Option<u32>,
    /// Numbers that each rank contributes.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    numbers: u32,
    /// This host's address, where other hosts take part.
    #[arg(long, requires = "rank")]
    bind: Option<std::net::SocketAddr>,
    /// The addresses of the ranks, with commas between.
    #[arg(long, requires = "rank")]
    discover: Option<String>,
    /// The file of the key that all hosts share.
    #[arg(long, requires = "rank")]
    key_file: Option<std::path::PathBuf>,
}

async fn join(arguments: &Arguments, rank: u32) -> Result<(), Fail> {
    let mut builder = Node::builder().name(format!("rank-{rank}"));
    builder = builder.connect_timeout(Duration::from_secs(60));
    if let Some(address) = arguments.bind {
        builder = builder.bind(address);
    }
    if let Some(address) = &arguments.discover {
        builder = builder.discover(address);
    }
    if let Some(file) = &arguments.key_file {
        builder = builder.key_file(file);
    }
    let node = builder.start().await?;
    let world = node.world("ranks", rank, arguments.ranks).await?;

    let (next, last) =
        (Rank((rank + 1) % arguments.ranks), Rank((rank + arguments.ranks - 1) % arguments.ranks));
    let started = Instant::now();
    for round in 0..100 {
        world.send_receive((next, Tag(round)), vec![0; 64], last, Tag(round)).await?;
    }
    let round_trip = started.elapsed() / 100;

    let own = vec![u64::from(rank) + 1; arguments.numbers as usize];
    let started = Instant::now();
    let sums = world.all_reduce(&own, Operation::Sum).await?;
    let took = started.elapsed();
    if rank == 0 {
        println!("{} ranks: each passed a message on in {round_trip:.0?}", arguments.ranks);
        println!("the sum of {} numbers is {} each, in {took:.0?}", sums.len(), sums[0]);
    }
    world.finalize().await;
    node.shutdown().await;
    Ok(())
}

fn start(arguments: &Arguments, rank: u32, cluster: &str) -> Result<Child, Fail> {
    let mut command = Command::new(std::env::current_exe()?);
    for (name, value) in
        [("--ranks", arguments.ranks), ("--numbers", arguments.numbers), ("--rank", rank)]
    {
        command.args([name, &value.to_string()]);
    }
    Ok(command.env("MIDPLANE_CLUSTER", cluster).stdin(Stdio::null()).kill_on_drop(true).spawn()?)
}

async fn run(arguments: Arguments) -> Result<(), Fail> {
    if let Some(rank) = arguments.rank {
        return join(&arguments, rank).await;
    }
    let cluster = format!("ranks-{}", std::process::id());
    let ranks = (0..arguments.ranks).map(|rank| start(&arguments, rank, &cluster));
    for (rank, mut process) in ranks.collect::<Result<Vec<_>, _>>()?.into_iter().enumerate() {
        let status = process.wait().await?;
        if !status.success() {
            return Err(format!("rank {rank}: {status}").into());
        }
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Err(bad) if bad.use_stderr() => {
            eprintln!("{}", bad.to_string().replace("\n  ", " ").lines().next().unwrap_or(""));
            return ExitCode::from(2);
        }
        parsed => parsed.unwrap_or_else(|help| help.exit()),
    };
    let ended = tokio::select! {
        ended = run(arguments) => ended,
        _ = tokio::signal::ctrl_c() => return ExitCode::from(130),
    };
    let Err(error) = ended else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let kind = error.downcast_ref::<midplane::Error>().map(midplane::Error::kind);
    ExitCode::from(if kind == Some(ErrorKind::Config) { 2 } else { 1 })
}
