//! One service over tokio's TCP and over our fabrics, in the same run.
//!
//! ```text
//! cargo run --release -p midplane-benches -- service
//! ```
//!
//! The server is a `tower::Service` that knows nothing of either. As a *stream*, the code that serves a TCP
//! connection serves one of ours; only the listener differs. As a *call*, each request travels as a message, without
//! framing in a stream.

mod arguments;
mod call;
mod contest;
mod load;

use crate::{plot, processes, ranks, report};
use std::net::SocketAddr;
use std::process::ExitCode;

use midplane::simhw::launch::Place;
use serde::Serialize;

pub(crate) use arguments::Arguments;
use arguments::{Fabric, Way};

/// One row of the report: medians over the rounds.
#[derive(Clone, Debug, Serialize)]
struct Run {
    fabric: Fabric,
    way: Way,
    bytes: usize,
    concurrency: usize,
    requests_per_s: f64,
    median_us: f64,
    p99_us: f64,
    /// Requests per second over those of TCP in the same rounds.
    ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Document {
    rounds: u32,
    milliseconds: u64,
    runs: Vec<Run>,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let checked = arguments.ranks.place().and_then(|place| {
        arguments.check(place.as_ref())?;
        place.map(seat).transpose()
    });
    let place = match checked {
        Ok(place) => place,
        Err(what) => return report::fail(&what, report::BAD_INPUT),
    };
    if arguments.name.is_some() {
        processes::end_with_parent();
    }
    match run(&arguments, place) {
        Ok(Some(runs)) => finish(&arguments, runs),
        Ok(None) => ExitCode::SUCCESS,
        Err(what) => report::fail(&what, report::FAILED),
    }
}

/// Returns this process's rank and both addresses; the server's is also its TCP address.
fn seat(place: Place) -> Result<(u16, Vec<SocketAddr>), String> {
    let peers = ranks::addresses(&place, call::PATIENCE)?;
    if place.rank == 1 {
        ranks::listen(peers[1])?;
    }
    Ok((place.rank, peers))
}

/// Takes this process's part: rank 0 is the client, rank 1 the server; a process that is alone starts its server.
fn run(
    arguments: &Arguments,
    place: Option<(u16, Vec<SocketAddr>)>,
) -> Result<Option<Vec<Run>>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("starting a runtime: {error}"))?;
    let (rank, name, peers, mut server) = match place {
        Some((rank, peers)) => (rank, arguments.name.clone().unwrap_or_default(), peers, None),
        None => {
            let peers = processes::free_addresses(2)?;
            let name = format!("midplane-service-{}", std::process::id());
            let server = processes::Peer::start(&arguments.for_server(&name), &peers)?;
            (0, name, peers, Some(server))
        }
    };
    let site = contest::Site { rank, name, peers };
    let part = async {
        if rank == 0 {
            return load::ask_all(arguments, &site).await.map(Some);
        }
        contest::serve_all(arguments, &site).await.map(|()| None)
    };
    let part = async {
        match &mut server {
            Some(server) => server.beside(part).await,
            None => part.await,
        }
    };
    runtime.block_on(async {
        tokio::select! {
            done = part => done,
            _ = tokio::signal::ctrl_c() => Err("stopped".into()),
        }
    })
}

fn finish(arguments: &Arguments, runs: Vec<Run>) -> ExitCode {
    if let Some(path) = &arguments.plot
        && let Err(what) = draw(path, &runs)
    {
        return report::fail(&what, report::BAD_INPUT);
    }
    if arguments.json {
        let (rounds, milliseconds) = (arguments.rounds, arguments.milliseconds);
        report::print_json(&Document { rounds, milliseconds, runs });
    } else {
        report::print(&table(&runs));
    }
    ExitCode::SUCCESS
}

fn table(runs: &[Run]) -> String {
    let mut text = format!(
        "{:<8}{:<8}{:>8}{:>14}{:>12}{:>12}{:>10}\n",
        "fabric", "way", "bytes", "requests/s", "median us", "p99 us", "of TCP"
    );
    for run in runs {
        let ratio = run.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        text += &format!(
            "{:<8}{:<8}{:>8}{:>14.0}{:>12.1}{:>12.1}{ratio:>10}\n",
            run.fabric.to_string(),
            run.way.to_string(),
            run.bytes,
            run.requests_per_s,
            run.median_us,
            run.p99_us,
        );
    }
    text
}

fn draw(path: &std::path::Path, runs: &[Run]) -> Result<(), String> {
    let lines = |pick: fn(&Run) -> f64| {
        let mut lines: Vec<plot::Line> = Vec::new();
        for run in runs {
            let label = format!("{} {}", run.fabric, run.way);
            let point = (run.bytes.max(1) as f64, pick(run));
            match lines.iter_mut().find(|line| line.label == label) {
                Some(line) => line.points.push(point),
                None => lines.push(plot::Line { label, points: vec![point] }),
            }
        }
        lines
    };
    let panels = [
        plot::Panel { title: "requests/s".into(), lines: lines(|run| run.requests_per_s) },
        plot::Panel { title: "median, us".into(), lines: lines(|run| run.median_us) },
    ];
    let bytes = plot::Axis { label: "bytes", scale: plot::Scale::Binary };
    let measured = plot::Axis { label: "", scale: plot::Scale::Decimal };
    plot::draw(path, bytes, measured, &panels)
}
