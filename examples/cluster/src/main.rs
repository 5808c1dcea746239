//! Compares the crates with plain TCP and UDP, in the same run on one small cluster.
//!
//! ```text
//! cargo run --release -p cluster
//! ```
//!
//! Without `--rank` this process starts a switch with a narrow port and three more ranks on this host. Across hosts, run
//! the same program with `--rank` and `--peers`; see `examples/nodes.md`.

mod arguments;
mod bulk;
mod contest;
mod control;
mod fan_in;
mod fresh;
#[cfg(target_os = "linux")]
mod job;
mod latency;
mod narrow;
mod rows;
mod together;

#[cfg(target_os = "linux")]
use midplane_benches::daemons;
use midplane_benches::{incast, nodes, transfer};
use midplane_kit::{claims, command_line, processes, ranks, report};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use arguments::Arguments;
use processes::Peer;
use report::Failure;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if job::play_part() {
        return ExitCode::SUCCESS;
    }
    command_line::main(run)
}

/// Returns this process's rank and all ranks' addresses; `None` if it is to start the other ranks.
fn place(arguments: &Arguments) -> Result<Option<(u16, Vec<SocketAddr>)>, Failure> {
    let Some(place) = arguments.ranks.place()? else { return Ok(None) };
    if !(2..=16).contains(&place.size()) {
        return Err(format!("--peers: list 2 to 16 ranks, not {}", place.size()).into());
    }
    let wait = Duration::from_secs(arguments.wait);
    let peers = ranks::addresses(&place, wait)?;
    if place.rank == 0 {
        // Rank 0 accepts the other ranks' connections there: checks that the port is free.
        ranks::listen(peers[0])?;
    }
    Ok(Some((place.rank, peers)))
}

/// Takes this process's part; only rank 0 reports.
fn run(arguments: &Arguments) -> Result<u8, Failure> {
    if let Some(target) = arguments.serve_switch {
        let peers = ranks::resolve_all(&arguments.ranks.peers.read()?)?;
        return narrow::serve(peers, target).map(|()| 0).map_err(Failure::of_run);
    }
    let place = place(arguments)?;
    let watch = claims::Watch::start();
    if arguments.child {
        processes::end_with_parent();
    }
    let mut children = Vec::new();
    let (rank, peers) = match place {
        Some(place) => place,
        None => {
            let count = arguments.processes;
            let peers = processes::free_addresses(count.into()).map_err(Failure::of_run)?;
            for rank in 1..count {
                let words = ["--child", "--peers=-", &format!("--rank={rank}")].map(str::to_owned);
                children.push(Peer::start(&words, &peers).map_err(Failure::of_run)?);
            }
            (0, peers)
        }
    };
    let wait = Duration::from_secs(arguments.wait);
    let part = async {
        match rank {
            0 => rows::measure_all(arguments, &peers).await.map(Some),
            _ => control::follow(rank, &peers, wait).await.map(|()| None),
        }
    };
    let done = processes::run(async {
        tokio::select! {
            done = part => done,
            _ = tokio::signal::ctrl_c() => Err(Failure::of_run("stopped")),
        }
    });
    // The error of the child that failed explains more than the time-out of those that wait for it.
    let rows = done.map_err(|failure| {
        children.iter_mut().find_map(Peer::complaint).map_or(failure, Failure::of_run)
    })?;
    Ok(rows.map_or(0, |rows| rows::finish(arguments, &rows, &watch)))
}
