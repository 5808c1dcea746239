//! Measures incast: many senders to one receiver through a switch with small buffers, without and with coordination.
//!
//! ```text
//! cargo run --release --example incast
//! cargo run --release --example incast -- --fabric sim --mode none --senders 3 --json
//! ```
//!
//! Without `--rank` this process starts a switch, senders and a receiver on this host, for every mode, 1 to 3 senders and
//! messages of up to 10 KB. It prints goodput, loss and fairness of each. The figures are those of the DVCM paper's
//! section 4.

mod arguments;
mod children;
mod table;

use midplane_benches::incast;
use midplane_kit::{command_line, plot, processes, ranks, report};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use midplane::simhw::launch;
use midplane::simhw::udp::{SoftSwitch, SwitchConfig, resolve_peers};
use serde::Serialize;

use arguments::Arguments;
use incast::fabrics::{self, Place};
use incast::run::Run;
use incast::scenario::Failure;
use incast::setting::{Fabric, Setting};
use report::{BAD_INPUT, FAILED};

fn main() -> ExitCode {
    let arguments = match command_line::parse::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match conduct(&arguments) {
        Ok(outcome) => finish(&arguments, &outcome),
        Err(failure) => {
            let bad_input = matches!(
                failure,
                Failure::Input(_) | Failure::Unreachable(_) | Failure::Mismatch(_)
            );
            report::fail(&failure.to_string(), if bad_input { BAD_INPUT } else { FAILED })
        }
    }
}

/// Runs that this process reports.
struct Outcome {
    runs: Vec<Run>,
    /// True if this process carried out all runs.
    alone: bool,
}

/// Carries out the command line; only the receiver has runs to report.
fn conduct(arguments: &Arguments) -> Result<Outcome, Failure> {
    if let Some(path) = &arguments.plot
        && !path.parent().is_none_or(|folder| folder == Path::new("") || folder.is_dir())
    {
        return Err(Failure::Input(format!("--plot {}: there is no such folder", path.display())));
    }
    if arguments.serve_switch {
        let peers = arguments.ranks.peers.read().map_err(Failure::Input)?;
        return serve(arguments, &peers).map(|()| Outcome { runs: Vec::new(), alone: false });
    }
    let runs = match arguments.ranks.place().map_err(Failure::Input)? {
        Some(place) => take_part(arguments, &place)?,
        None if arguments.switch.is_some() => {
            return Err(Failure::Input(
                "--switch: name this host's place with --rank and --peers".into(),
            ));
        }
        None => return compare(arguments).map(|runs| Outcome { runs, alone: true }),
    };
    Ok(Outcome { runs, alone: false })
}

/// Carries out all runs from this process.
fn compare(arguments: &Arguments) -> Result<Vec<Run>, Failure> {
    arguments.keys().map_err(Failure::Input)?;
    let settings = arguments.settings(None);
    // The bar is only drawn on a terminal.
    let bar = ProgressBar::new(settings.len() as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {eta}");
    bar.set_style(style.expect("a constant"));
    let mut runs = Vec::new();
    for setting in settings {
        bar.set_message(format!("{} senders, {} bytes", setting.senders, setting.message_bytes));
        runs.push(match setting.fabric {
            Fabric::Sim => fabrics::simulate(&setting)?,
            Fabric::Udp | Fabric::Switch => children::run(arguments, &setting)?,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(runs)
}

/// Carries out all runs as one of their nodes.
fn take_part(arguments: &Arguments, place: &launch::Place) -> Result<Vec<Run>, Failure> {
    if arguments.child {
        processes::end_with_parent();
    }
    let input = |what: String| Err(Failure::Input(what));
    let keys = arguments.keys().map_err(Failure::Input)?;
    let senders = arguments.senders_among(place.size()).map_err(Failure::Input)?;
    let settings = arguments.settings(Some(senders));
    let (rank, nodes) = (place.rank, settings.first().map_or(0, Setting::nodes));
    if rank >= nodes {
        return input(format!(
            "--rank {rank}: outside the list of {nodes} peers; ranks count from 0"
        ));
    }
    let switch = match (arguments.fabric, &arguments.switch) {
        (Fabric::Sim, _) => {
            return input("--fabric sim: start one process, without --rank and --peers".into());
        }
        (Fabric::Udp, Some(_)) => {
            return input("--switch: leave it out; --fabric udp has none".into());
        }
        (Fabric::Udp, None) => None,
        (Fabric::Switch, None) => {
            return input("--switch: give its host:port, or use --fabric udp".into());
        }
        (Fabric::Switch, Some(at)) => {
            let found = resolve_peers(std::slice::from_ref(at));
            let found = found.map_err(|_| {
                Failure::Input(format!(
                    "--switch {at}: it must be host:port with a host that resolves"
                ))
            })?;
            Some(found[0])
        }
    };
    let peers = ranks::addresses(place, arguments.wait()).map_err(Failure::Input)?;
    let place = Place { rank, peers, switch, keys };
    let runtime = runtime()?;
    let mut runs = Vec::new();
    for (round, setting) in (0..).zip(&settings) {
        let part = fabrics::take_part(setting, &place, round, arguments.wait());
        runs.extend(runtime.block_on(part)?);
    }
    Ok(runs)
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::stopped)
}

/// Runs the switch until standard input ends, then prints its dropped frames by cause.
fn serve(arguments: &Arguments, peers: &[String]) -> Result<(), Failure> {
    let setting = arguments.settings(None).remove(0);
    let mut peers =
        resolve_peers(peers).map_err(|error| Failure::Input(format!("--peers: {error}")))?;
    let bind = peers.remove(0);
    let config = SwitchConfig::new(bind, peers)
        .link(setting.link())
        .profile(setting.switch())
        .seed(setting.seed);
    let switch = SoftSwitch::start(config).map_err(|error| Failure::Input(error.to_string()))?;
    // After an end or an error of standard input no process uses the switch.
    let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
    let counters = runtime()?.block_on(switch.shutdown());
    let drops: BTreeMap<&str, u64> =
        counters.frame_drops.iter().map(|(cause, count)| (cause.name(), count)).collect();
    report::print_json(&drops);
    Ok(())
}

#[derive(Serialize)]
struct Document<'a> {
    runs: &'a [Run],
}

/// Prints the report, and returns the exit code.
fn finish(arguments: &Arguments, Outcome { runs, alone }: &Outcome) -> ExitCode {
    if runs.is_empty() {
        return ExitCode::SUCCESS;
    }
    if arguments.json {
        report::print_json(&Document { runs });
    } else {
        report::print(&table::table(runs));
    }
    let picture = arguments.is_comparison() && !arguments.json && *alone;
    let path = arguments.plot.clone().or_else(|| picture.then(|| "incast.svg".into()));
    if let Some(path) = path {
        if let Err(what) = table::plot(&path, runs) {
            return report::fail(&what, BAD_INPUT);
        }
        if !arguments.json {
            report::print(&format!("The picture is in {}\n", path.display()));
        }
    }
    let mut lost: Vec<u16> = runs.iter().flat_map(|run| run.lost_ranks.iter().copied()).collect();
    lost.sort_unstable();
    lost.dedup();
    if lost.is_empty() {
        return ExitCode::SUCCESS;
    }
    report::fail(&format!("rank {lost:?} was lost on the way"), FAILED)
}
