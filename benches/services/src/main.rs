//! Unmodified axum and tonic services and calls over midplane's nodes, compared with tokio's TCP: see `--help`.

mod arguments;
mod bulk;
mod calls;
mod client;
mod grpc;
mod http;
mod pair;
mod place;

use std::process::ExitCode;

use arguments::{Arguments, Part, Row, Threads, Transport, Unit, word};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use pair::Pair;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One line of the table.
#[derive(Debug, Serialize)]
struct Run {
    #[serde(flatten)]
    row: Row,
    unit: Unit,
    /// Medians of the rounds.
    ours: f64,
    theirs: f64,
    /// Median of the rounds' ratios, and their range over it; none where TCP's is 0.
    ratio: Option<f64>,
    spread: Option<f64>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let rows = arguments.rows();
    if arguments.part.is_none() && rows.iter().any(|row| row.transport == Transport::Tcp) {
        eprintln!("services: --transport tcp: TCP is what ours are compared with; name shm or udp");
        return ExitCode::from(2);
    }
    let is_between_hosts = match arguments.namespaces.len() {
        0 => false,
        2 => true,
        _ => {
            eprintln!("services: --namespaces: name two, the service's and the client's");
            return ExitCode::from(2);
        }
    };
    if is_between_hosts && arguments.transport != [Transport::Udp] {
        eprintln!("services: --namespaces: two hosts share no memory; add --transport udp");
        return ExitCode::from(2);
    }
    let mut builder = match arguments.threads {
        Threads::Single => tokio::runtime::Builder::new_current_thread(),
        Threads::Multi => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(processor) = arguments.processor {
        let mut set = CpuSet::new();
        set.set(processor);
        // Without the right to, the row says what it can.
        let _ = sched_setaffinity(None, &set);
    }
    // A thousand connections need more descriptors than a process has by default.
    let most = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
    let runtime = builder.enable_all().build().expect("a runtime");
    let ended = runtime.block_on(async {
        match arguments.part {
            Some(Part::Service) => place::serve(rows[0], arguments.host).await,
            Some(Part::Client) => client::run(rows[0], &arguments.at, arguments.host).await,
            None => run(&arguments, &rows).await,
        }
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("services: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments, rows: &[Row]) -> Result<(), Failure> {
    let progress = ProgressBar::new(rows.len() as u64 * u64::from(arguments.rounds));
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} rounds, {msg}")?;
    progress.set_style(style);
    if !arguments.json {
        println!(
            "{:9} {:10} {:9} {:>11} {:>12} {:>12} {:>9} {:>7} {:>7}",
            "transport",
            "what",
            "placement",
            "connections",
            "ours",
            "TCP",
            "unit",
            "ratio",
            "spread"
        );
    }
    let mut runs = Vec::new();
    for &row in rows {
        progress.set_message(word(&row.what));
        let run = Run::new(row, measure(arguments, row, &progress).await?);
        if !arguments.json {
            progress.suspend(|| run.show());
        }
        runs.push(run);
    }
    progress.finish_and_clear();
    let law = tcp_congestion();
    if arguments.json {
        println!("{}", serde_json::json!({ "tcp_congestion": law, "runs": runs }));
    } else {
        println!("TCP's congestion control: {law} (sysctl net.ipv4.tcp_congestion_control)");
    }
    Ok(())
}

/// Returns the name of the system's default congestion control of TCP, on which the rates of long bodies depend.
fn tcp_congestion() -> String {
    let law = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    law.map_or_else(|_| "unknown".into(), |law| law.trim().into())
}

/// Measures ours and TCP's in turn; returns the pairs of numbers.
async fn measure(
    arguments: &Arguments,
    row: Row,
    progress: &ProgressBar,
) -> Result<Vec<[f64; 2]>, Failure> {
    let seconds = arguments.seconds(row.what);
    let theirs = Row { transport: Transport::Tcp, ..row };
    let mut rounds = Vec::new();
    let mut pairs = None;
    for _ in 0..arguments.rounds {
        // Memory that was used once is used again: each round has new processes.
        if row.what.unit() == Unit::Bytes {
            pairs = None;
        }
        if pairs.is_none() {
            pairs =
                Some([Pair::start(arguments, row).await?, Pair::start(arguments, theirs).await?]);
        }
        let [ours, theirs] = pairs.as_mut().expect("they were started");
        rounds.push([ours.measure(seconds).await?, theirs.measure(seconds).await?]);
        progress.inc(1);
    }
    Ok(rounds)
}

impl Run {
    fn new(row: Row, rounds: Vec<[f64; 2]>) -> Self {
        let ratios: Vec<f64> = rounds.iter().map(|[ours, theirs]| ours / theirs).collect();
        let (least, most) =
            ratios.iter().fold((f64::MAX, 0.0_f64), |(a, b), r| (a.min(*r), b.max(*r)));
        let ratio = Some(median(ratios)).filter(|ratio| ratio.is_finite());
        Self {
            row,
            unit: row.what.unit(),
            ours: median(rounds.iter().map(|[ours, _]| *ours).collect()),
            theirs: median(rounds.iter().map(|[_, theirs]| *theirs).collect()),
            ratio,
            spread: ratio.map(|ratio| (most - least) / ratio).filter(|spread| spread.is_finite()),
        }
    }

    fn show(&self) {
        let Row { transport, what, placement, connections } = &self.row;
        let (factor, digits, unit) = match self.unit {
            Unit::AnswersPerS => (1.0, 0, "1/s"),
            Unit::OfACore => (100.0, 3, "% of core"),
            Unit::Bytes => (1.0 / f64::from(1 << 20), 1, "MiB"),
        };
        let optional = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
        println!(
            "{:9} {:10} {:9} {connections:>11} {:>12.digits$} {:>12.digits$} {unit:>9} {:>7} {:>7}",
            word(transport),
            word(what),
            word(placement),
            self.ours * factor,
            self.theirs * factor,
            optional(self.ratio),
            optional(self.spread),
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
