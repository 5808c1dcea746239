//! Unmodified axum and tonic services and calls over midplane's nodes, compared with tokio's TCP: see `--help`.

mod arguments;
mod bulk;
mod calls;
mod client;
mod grpc;
mod http;
mod pair;
mod place;
mod restarts;
mod tls;

use std::process::ExitCode;

use arguments::{Arguments, Part, Placement, Row, Threads, Transport, Unit};
use indicatif::ProgressBar;
use midplane_kit::claims::Medians;
use midplane_kit::command_line::{self, name_of};
use midplane_kit::processes::end_with_parent;
use midplane_kit::report;
use pair::Pair;
use place::Host;
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
    #[serde(flatten)]
    medians: Medians,
}

#[derive(Serialize)]
struct Document {
    tcp_congestion: String,
    /// True if ours is sealed and theirs is TLS.
    sealed: bool,
    runs: Vec<Run>,
}

/// Returns the mistake in the arguments, if there is one.
fn mistake(arguments: &Arguments, rows: &[Row], processors: usize) -> Option<&'static str> {
    let theirs = |row: &Row| matches!(row.transport, Transport::Tokio | Transport::Tls);
    let is_placed =
        |row: &Row| row.placement != Placement::Any && arguments.runs_anywhere(row.what);
    match arguments.namespaces.len() {
        _ if arguments.part.is_some() => None,
        _ if rows.iter().any(theirs) => Some(
            "--transport: tokio's TCP and TLS are what ours are compared with; name shm, udp, tcp or net",
        ),
        _ if rows.iter().any(is_placed) => Some(
            "--placement: under --threads multi, and for joined, noticed and reached, processes run on any; name any",
        ),
        _ if processors < 2 && rows.iter().any(|row| row.placement == Placement::TwoCores) => {
            Some("--placement: this program may use one processor; name any,one_core")
        }
        _ if !arguments.namespaces.is_empty()
            && rows.iter().any(|row| row.what.unit() == Unit::Seconds) =>
        {
            Some("--namespaces: joined, noticed and reached are measured on one host")
        }
        _ if arguments.sealed && rows.iter().any(|row| !row.can_be_sealed()) => Some(
            "--sealed: only axum services over UDP or TCP; add --transport udp,tcp --what axum_hello,axum_4mib",
        ),
        0 => None,
        2 if arguments.transport.contains(&Transport::Shm) => {
            Some("--namespaces: two hosts share no memory; add --transport udp")
        }
        2 => None,
        _ => Some("--namespaces: name two, the service's and the client's"),
    }
}

fn main() -> ExitCode {
    command_line::main(start)
}

fn start(arguments: &Arguments) -> Result<u8, report::Failure> {
    let rows = arguments.rows();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if let Some(what) = mistake(arguments, &rows, processors) {
        return Err(what.to_owned().into());
    }
    if arguments.part == Some(Part::Service) {
        end_with_parent();
    }
    let mut builder = match arguments.threads {
        Threads::Single => tokio::runtime::Builder::new_current_thread(),
        Threads::Multi => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(processor) = arguments.processor {
        let mut set = CpuSet::new();
        set.set(processor);
        sched_setaffinity(None, &set)
            .map_err(|error| report::Failure::of_run(format!("processor {processor}: {error}")))?;
    }
    // A thousand connections need more descriptors than a process has by default.
    let most = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
    let runtime = builder.enable_all().build().expect("a runtime");
    let host = Host { address: arguments.host, is_sealed: arguments.sealed };
    let ended = runtime.block_on(async {
        match arguments.part {
            Some(Part::Service) => place::serve(rows[0], &arguments.at, host).await,
            Some(Part::Client) => client::run(rows[0], &arguments.at, host).await,
            None => run(arguments, &rows).await,
        }
    });
    ended.map(|()| 0).map_err(report::Failure::of_run)
}

async fn run(arguments: &Arguments, rows: &[Row]) -> Result<(), Failure> {
    let rounds = rows.len() * usize::from(arguments.rounds);
    let bar = report::progress(rounds, "{bar:30} {pos}/{len} rounds, {msg}");
    let mut runs = Vec::new();
    for &row in rows {
        bar.set_message(name_of(&row.what));
        let medians = Medians::of(&measure(arguments, row, &bar).await?);
        runs.push(Run { row, unit: row.what.unit(), medians });
    }
    bar.finish_and_clear();
    let document = Document { tcp_congestion: tcp_congestion(), sealed: arguments.sealed, runs };
    report::print_document(arguments.json, &document, text);
    Ok(())
}

/// Returns the name of the system's default congestion control of TCP, on which the rates of long bodies depend.
fn tcp_congestion() -> String {
    let law = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    law.map_or_else(|_| "unknown".into(), |law| law.trim().into())
}

/// Measures ours and TCP's in turn, if TCP has the like; returns the pairs of numbers.
async fn measure(
    arguments: &Arguments,
    row: Row,
    progress: &ProgressBar,
) -> Result<Vec<(f64, Option<f64>)>, Failure> {
    let host = Host { address: arguments.host, is_sealed: false };
    let mut rounds = Vec::new();
    if row.what.unit() == Unit::Seconds {
        for _ in 0..arguments.rounds {
            rounds.push((restarts::measure(arguments, row, host).await?, None));
            progress.inc(1);
        }
        return Ok(rounds);
    }
    let seconds = arguments.seconds(row.what);
    let theirs = if arguments.sealed { Transport::Tls } else { Transport::Tokio };
    let theirs = Row { transport: theirs, ..row };
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
        rounds.push((ours.measure(seconds).await?, Some(theirs.measure(seconds).await?)));
        progress.inc(1);
    }
    Ok(rounds)
}

fn text(document: &Document) -> String {
    let optional = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
    let cells = |Run { row, unit, medians }: &Run| {
        let (factor, digits, unit) = match unit {
            Unit::AnswersPerS => (1.0, 0, "1/s"),
            Unit::OfACore => (100.0, 3, "% of core"),
            Unit::Bytes => (1.0 / f64::from(1 << 20), 1, "MiB"),
            Unit::Seconds => (1.0, 3, "s"),
        };
        let number = |value: f64| format!("{:.digits$}", value * factor);
        vec![
            name_of(&row.transport),
            name_of(&row.what),
            name_of(&row.placement),
            row.connections.to_string(),
            number(medians.ours),
            medians.theirs.map_or("-".into(), number),
            unit.into(),
            optional(medians.ratio),
            optional(medians.spread),
        ]
    };
    let theirs = if document.sealed { "TLS" } else { "TCP" };
    let titles =
        &format!("transport, what, placement, connections, ours, {theirs}, unit, ratio, spread");
    let law = &document.tcp_congestion;
    let table = report::table(titles, document.runs.iter().map(cells));
    format!("{table}TCP's congestion control: {law} (sysctl net.ipv4.tcp_congestion_control)\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn parsed(words: &str) -> Arguments {
        let words = std::iter::once("services").chain(words.split_whitespace());
        Arguments::try_parse_from(words).unwrap()
    }

    /// Regression: rows that no processor was chosen for were measured and printed once for each placement.
    #[test]
    fn rows_without_a_processor_of_their_own_have_one_placement() {
        for words in ["--threads multi", "--restart", "--what joined,reached", "--memory"] {
            let rows = parsed(words).rows();
            assert!(rows.iter().all(|row| row.placement == Placement::Any), "{words}");
        }
        let placements: Vec<Placement> =
            parsed("--what idle --transport shm").rows().iter().map(|row| row.placement).collect();
        assert_eq!(placements, [Placement::Any, Placement::OneCore, Placement::TwoCores]);
    }

    /// Regression: on one processor, a row named `two_cores` had both processes on that one.
    #[test]
    fn placements_that_cannot_apply_are_refused() {
        let refuses = |words: &str, processors| {
            let arguments = parsed(words);
            mistake(&arguments, &arguments.rows(), processors).is_some()
        };
        assert!(refuses("--threads multi --placement one_core", 2));
        assert!(refuses("--what noticed --placement any,two_cores", 2));
        assert!(refuses("--what idle", 1) && refuses("--placement two_cores", 1));
        assert!(!refuses("--what idle --placement any,one_core", 1) && !refuses("--what idle", 2));
        assert!(!refuses("--threads multi --placement any", 1) && !refuses("--restart", 1));
    }
}
