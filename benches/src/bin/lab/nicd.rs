//! A NIC in a daemon, and its client processes.

mod client;

use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use serde::Serialize;

use crate::daemons::parts::runtime;
use crate::fleet::{Fabric, text};
use crate::processes::{self, Peer};
use crate::report;
use client::Figures;

const EXAMPLES: &str = "\
Examples:
  lab nicd                       two daemons and two clients on this host
  lab nicd --fabric udp --json   the same over UDP alone, as JSON

Exit code: 0 it ran; 1 a process was lost, or messages did not arrive; 2 bad input.";

/// Measure a NIC in a daemon (midplane nic daemon) with two client processes
///
/// The NIC runs while its clients are suspended, and outlives them.
///
/// The numbers are: round trips between processes without a NIC of their own; messages that a suspended process
/// receives and finds when it resumes; and the time until a killed process's peer gets the event.
#[derive(Clone, Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The fabric between the daemons, separated by commas: shm, udp
    #[arg(long, value_parser = fabric, value_delimiter = ',', default_value = "shm,udp")]
    fabric: Vec<Fabric>,
    /// Bytes of a message, from 8 to 32768
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..=32_768))]
    bytes: u16,
    /// Milliseconds of measured round trips
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    milliseconds: u64,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Answer, as the client of the second daemon of this name
    #[arg(long, hide = true, value_name = "NAME")]
    answers: Option<String>,
}

fn fabric(text: &str) -> Result<Fabric, String> {
    match text {
        "shm" => Ok(Fabric::Shm),
        "udp" => Ok(Fabric::Udp),
        _ => Err("daemons are joined by shm or udp".into()),
    }
}

#[derive(Debug, Serialize)]
struct Run {
    fabric: Fabric,
    bytes: u16,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Debug, Serialize)]
struct Document {
    runs: Vec<Run>,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let done = runtime().and_then(|runtime| match &arguments.answers {
        Some(name) => {
            processes::end_with_parent();
            runtime.block_on(client::answer(name, arguments.bytes.into()))
        }
        None => runtime.block_on(measure(&arguments)),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => report::fail(&what, report::FAILED),
    }
}

/// Runs daemons and clients on every fabric, and reports the results.
async fn measure(arguments: &Arguments) -> Result<(), String> {
    let bytes = arguments.bytes;
    let mut runs = Vec::new();
    for &fabric in &arguments.fabric {
        let figures = tokio::select! {
            figures = contest(arguments, fabric) => figures?,
            _ = tokio::signal::ctrl_c() => return Err("stopped".into()),
        };
        runs.push(Run { fabric, bytes, figures });
    }
    report::print_tables(arguments.json, &Document { runs });
    Ok(())
}

/// Runs two daemons and two clients on one fabric.
async fn contest(arguments: &Arguments, fabric: Fabric) -> Result<Figures, String> {
    let peers = processes::free_addresses(2)?;
    let name = format!("nicd-{}-{fabric}", std::process::id());
    let daemon = |rank| Peer::spawn(daemon(fabric, &name, rank)?, &peers).map_err(text);
    let mut daemons = [daemon(0)?, daemon(1)?];
    let answering =
        ["nicd".into(), format!("--answers={name}"), format!("--bytes={}", arguments.bytes)];
    let mut other = Peer::start(&answering, &[])?;
    let time = Duration::from_millis(arguments.milliseconds);
    let done = client::ask(&name, arguments.bytes.into(), time).await;
    done.map_err(|what| {
        // The failed process names the cause; the others only miss it.
        let complaint = daemons.iter_mut().chain([&mut other]).find_map(Peer::complaint);
        complaint.unwrap_or(what)
    })
}

/// Returns the command of a daemon: `midplane`, from this program's folder.
///
/// # Errors
/// One line, if it is not there.
fn daemon(fabric: Fabric, name: &str, rank: u16) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(text)?;
    let program = own.with_file_name("midplane").with_extension(std::env::consts::EXE_EXTENSION);
    if !program.is_file() {
        return Err(format!("{} is missing: cargo build -p midplane-cli", program.display()));
    }
    let mut command = Command::new(program);
    command.args(["nic", "daemon", "--child", "--size=2", "--peers=-"]);
    command.args([
        format!("--fabric={fabric}"),
        format!("--name={name}"),
        format!("--rank={rank}"),
    ]);
    Ok(command)
}
