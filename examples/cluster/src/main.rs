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
mod clock;
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
use midplane_benches::{incast, messages, nodes, transfer};
use midplane_kit::{claims, command_line, processes, ranks, report};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use arguments::Arguments;
use midplane::simhw::udp::resolve_peers;
use processes::Peer;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if job::play_part() {
        return ExitCode::SUCCESS;
    }
    let arguments = match command_line::parse::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if let Some(target) = arguments.serve_switch {
        let peers = arguments.ranks.peers.read();
        let peers = peers.and_then(|peers| resolve_peers(&peers).map_err(|e| e.to_string()));
        return match peers.and_then(|peers| narrow::serve(peers, target)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(what) => report::fail(&what, report::FAILED),
        };
    }
    let place = match place(&arguments) {
        Ok(place) => place,
        Err(what) => return report::fail(&what, report::BAD_INPUT),
    };
    let watch = claims::Watch::start();
    match run(&arguments, place) {
        Ok(Some(rows)) => rows::finish(&arguments, &rows, &watch),
        Ok(None) => ExitCode::SUCCESS,
        Err(what) => report::fail(&what, report::FAILED),
    }
}

/// Returns this process's rank and all ranks' addresses; `None` if it is to start the other ranks.
fn place(arguments: &Arguments) -> Result<Option<(u16, Vec<SocketAddr>)>, String> {
    let Some(place) = arguments.ranks.place()? else { return Ok(None) };
    if !(2..=16).contains(&place.size()) {
        return Err(format!("--peers: list 2 to 16 ranks, not {}", place.size()));
    }
    let wait = Duration::from_secs(arguments.wait);
    let peers = ranks::addresses(&place, wait)?;
    if place.rank == 0 {
        // Rank 0 accepts the other ranks' connections there: checks that the port is free.
        ranks::listen(peers[0])?;
    }
    Ok(Some((place.rank, peers)))
}

/// Takes this process's part; only rank 0 returns rows.
fn run(
    arguments: &Arguments,
    place: Option<(u16, Vec<SocketAddr>)>,
) -> Result<Option<Vec<rows::Row>>, String> {
    if arguments.child {
        processes::end_with_parent();
    }
    let (rank, peers) = match place {
        Some((rank, peers)) => (rank, peers),
        None => (0, processes::free_addresses(arguments.processes.into())?),
    };
    let mut children = Vec::new();
    if !arguments.child && arguments.ranks.place()?.is_none() {
        for rank in 1..peers.len() {
            let words = ["--child", "--peers=-"].map(str::to_owned).into_iter();
            let words: Vec<String> = words.chain([format!("--rank={rank}")]).collect();
            children.push(Peer::start(&words, &peers)?);
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("starting a runtime: {error}"))?;
    let wait = Duration::from_secs(arguments.wait);
    let part = async {
        match rank {
            0 => rows::measure_all(arguments, &peers).await.map(Some),
            _ => control::follow(rank, &peers, wait).await.map(|()| None),
        }
    };
    let done = runtime.block_on(async {
        tokio::select! {
            done = part => done,
            _ = tokio::signal::ctrl_c() => Err("stopped".into()),
        }
    });
    // The process does not wait for blocking reads that were abandoned.
    runtime.shutdown_background();
    // The error of the child that failed explains more than the time-out of those that wait for it.
    done.map_err(|what| children.iter_mut().find_map(Peer::complaint).unwrap_or(what))
}
