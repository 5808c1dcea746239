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
use nodes::{Fabric, Place};
use processes::until_stopped;
use report::Failure;
use rows::measure_all;

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
        return narrow::serve(peers, target).map(|()| 0);
    }
    let place = place(arguments)?;
    let watch = claims::Watch::start();
    if arguments.child {
        processes::end_with_parent();
    }
    let wait = Duration::from_secs(arguments.wait);
    let rows = match place {
        Some((0, peers)) => Some(processes::run(until_stopped(measure_all(arguments, &peers)))?),
        Some((rank, peers)) => {
            processes::run(until_stopped(control::follow(rank, &peers, wait)))?;
            None
        }
        None => {
            let words = ["--child", "--peers=-"].map(str::to_owned);
            let part =
                async |place: Place| until_stopped(measure_all(arguments, &place.peers)).await;
            Some(nodes::with_children(&words, Fabric::Udp, arguments.processes, part)?.0)
        }
    };
    Ok(rows.map_or(0, |rows| rows::finish(arguments, &rows, &watch)))
}
