//! Unmodified axum services over midplane's streams, compared with tokio's TCP: see `--help`.

mod arguments;
mod client;
mod service;

use std::process::Stdio;
use std::time::Duration;

use arguments::{Arguments, Placement, Threads, Transport, What};
use clap::Parser;
use client::Target;
use indicatif::ProgressBar;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One row of the table.
#[derive(Debug, Serialize)]
struct Run {
    transport: Transport,
    what: What,
    placement: Placement,
    connections: u16,
    /// Answers a second, medians of the rounds.
    ours: f64,
    theirs: f64,
    /// Median of the rounds' ratios, and their range over it.
    ratio: f64,
    spread: f64,
}

fn main() {
    let arguments = Arguments::parse();
    let mut builder = match arguments.threads {
        Threads::Single => tokio::runtime::Builder::new_current_thread(),
        Threads::Multi => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(processor) = arguments.processor {
        pin(&[processor]);
    }
    let runtime = builder.enable_all().build().expect("a runtime");
    let ended = runtime.block_on(async {
        match arguments.serve {
            Some(transport) => service::serve(transport).await,
            None => run(&arguments).await,
        }
    });
    if let Err(error) = ended {
        eprintln!("services: {error}");
        std::process::exit(1);
    }
}

fn pin(processors: &[usize]) {
    let mut set = CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    // Without the right to, the row says what it can.
    let _ = sched_setaffinity(None, &set);
}

async fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.transport.contains(&Transport::Tcp) {
        eprintln!("services: --transport tcp: TCP is what ours are compared with; name shm or udp");
        std::process::exit(2);
    }
    let kinds = arguments.transport.len() * arguments.what.len();
    let rows = kinds * arguments.connections.len() * arguments.placement.len();
    let processors: Vec<usize> = (0..std::thread::available_parallelism()?.get()).collect();
    let progress = ProgressBar::new((rows * usize::from(arguments.rounds)) as u64);
    let mut runs = Vec::new();
    if !arguments.json {
        println!(
            "{:9} {:11} {:10} {:>11} {:>12} {:>12} {:>7} {:>7}",
            "transport",
            "what",
            "placement",
            "connections",
            "ours 1/s",
            "TCP 1/s",
            "ratio",
            "spread"
        );
    }
    for transport in &arguments.transport {
        for what in &arguments.what {
            for placement in &arguments.placement {
                for connections in &arguments.connections {
                    let asked = (*transport, *what, *placement, *connections);
                    let run = row(arguments, asked, &processors, &progress).await?;
                    if !arguments.json {
                        progress.suspend(|| show(&run));
                    }
                    runs.push(run);
                }
            }
        }
    }
    progress.finish_and_clear();
    if arguments.json {
        println!("{}", serde_json::json!({ "runs": runs }));
    }
    Ok(())
}

fn show(run: &Run) {
    let what = format!("{:?}", run.what);
    let placement = format!("{:?}", run.placement);
    let transport = format!("{:?}", run.transport);
    println!(
        "{transport:9} {what:11} {placement:10} {:>11} {:>12.0} {:>12.0} {:>7.2} {:>7.2}",
        run.connections, run.ours, run.theirs, run.ratio, run.spread
    );
}

/// Starts a service in a process of its own; where it is.
async fn start(
    threads: Threads,
    transport: Transport,
    processor: Option<usize>,
) -> Result<(Child, String), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([
        "--serve",
        match transport {
            Transport::Tcp => "tcp",
            Transport::Shm => "shm",
            Transport::Udp => "udp",
        },
    ]);
    command.args(["--threads", if threads == Threads::Single { "single" } else { "multi" }]);
    if let Some(processor) = processor {
        command.args(["--processor", &processor.to_string()]);
    }
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let output = child.stdout.take().ok_or("no output")?;
    let place = BufReader::new(output).lines().next_line().await?.ok_or("the service ended")?;
    Ok((child, place))
}

async fn row(
    arguments: &Arguments,
    (transport, what, placement, connections): (Transport, What, Placement, u16),
    processors: &[usize],
    progress: &ProgressBar,
) -> Result<Run, Failure> {
    let (own, service) = match placement {
        Placement::Any => (processors.to_vec(), None),
        Placement::OneCore => (vec![0], Some(0)),
        Placement::TwoCores => (vec![1 % processors.len()], Some(0)),
    };
    pin(&own);
    let mut ways = Vec::new();
    for transport in [transport, Transport::Tcp] {
        let (child, place) = start(arguments.threads, transport, service).await?;
        let target = Target::new(transport, &place).await?;
        let open = target.connections(connections).await?;
        ways.push((child, target, open));
    }
    let time = Duration::from_secs_f64(arguments.seconds);
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..arguments.rounds {
        for ((_, _, open), rates) in ways.iter_mut().zip(&mut rates) {
            rates.push(client::measure(open, what, time).await?);
        }
        progress.inc(1);
    }
    let ratios: Vec<f64> =
        rates[0].iter().zip(&rates[1]).map(|(ours, theirs)| ours / theirs).collect();
    let (least, most) = ratios.iter().fold((f64::MAX, 0.0_f64), |(a, b), r| (a.min(*r), b.max(*r)));
    let ratio = median(ratios);
    let [ours, theirs] = rates.map(median);
    let spread = (most - least) / ratio;
    Ok(Run { transport, what, placement, connections, ours, theirs, ratio, spread })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
