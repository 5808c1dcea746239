//! Runs this process's part; the first process starts all others.

use std::process::{Command, ExitCode};
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Serialize;

use crate::nicd::arguments::{Arguments, Fabric};
use crate::nicd::client::{self, Figures};
use crate::processes::{self, Peer};
use crate::report;

/// Default time of round trips.
const MILLISECONDS: u64 = 500;

/// One row of the report.
#[derive(Debug, Serialize)]
struct Run {
    fabric: Fabric,
    bytes: u16,
    spin_us: u64,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Debug, Serialize)]
struct Document {
    runs: Vec<Run>,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    if let Err(what) = arguments.check() {
        return report::fail(&what, report::BAD_INPUT);
    }
    if arguments.answers {
        processes::end_with_parent();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done =
        runtime.map_err(|error| format!("starting a runtime: {error}")).and_then(|runtime| {
            runtime.block_on(async {
                match arguments.answers {
                    true => client::answer(&arguments.name, arguments.bytes.into()).await,
                    false => show(&arguments).await,
                }
            })
        });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => report::fail(&what, report::FAILED),
    }
}

/// Runs daemons and clients on every fabric, and reports the results.
async fn show(arguments: &Arguments) -> Result<(), String> {
    let bar = ProgressBar::new(arguments.fabric.len() as u64);
    let mut runs = Vec::new();
    for fabric in &arguments.fabric {
        let figures = tokio::select! {
            figures = contest(arguments, *fabric) => figures?,
            _ = tokio::signal::ctrl_c() => return Err("stopped".into()),
        };
        let (bytes, spin_us) = (arguments.bytes, arguments.spin_us);
        runs.push(Run { fabric: *fabric, bytes, spin_us, figures });
        bar.inc(1);
    }
    bar.finish_and_clear();
    if arguments.json {
        report::print_json(&Document { runs });
        return Ok(());
    }
    report::print(&table(&runs));
    Ok(())
}

/// Runs two daemons and two clients on one fabric.
async fn contest(arguments: &Arguments, fabric: Fabric) -> Result<Figures, String> {
    let peers = processes::free_addresses(2)?;
    let name = format!("{}-{}-{fabric}", arguments.name, std::process::id());
    let daemon = |rank| {
        Peer::spawn(daemon(arguments, fabric, &name, rank)?, &peers)
            .map_err(|error| error.to_string())
    };
    let mut daemons = [daemon(0)?, daemon(1)?];
    let answering =
        ["nicd", "--answers", &format!("--name={name}"), &format!("--bytes={}", arguments.bytes)];
    let mut other = Peer::start(&answering.map(String::from), &[])?;
    let time = Duration::from_millis(arguments.milliseconds.unwrap_or(MILLISECONDS));
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
fn daemon(arguments: &Arguments, fabric: Fabric, name: &str, rank: u16) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
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
    command.args([
        format!("--spin-us={}", arguments.spin_us),
        format!("--loan-mib={}", arguments.loan_mib),
    ]);
    Ok(command)
}

fn table(runs: &[Run]) -> String {
    let mut text = format!(
        "Two processes without a NIC, each the client of a daemon that has one; {} bytes a message\n\n",
        runs.first().map_or(0, |run| run.bytes)
    );
    text += &format!(
        "{:<8}{:>14}{:>10}{:>22}{:>20}{:>16}\n",
        "fabric", "round trip us", "p99 us", "sent while stopped", "found afterwards", "killed, ms"
    );
    for Run { fabric, figures, .. } in runs {
        text += &format!(
            "{:<8}{:>14.1}{:>10.1}{:>15} in {:.1} ms{:>17}{:>16.1}\n",
            fabric.to_string(),
            figures.median_us,
            figures.p99_us,
            figures.to_stopped,
            figures.to_stopped_us / 1e3,
            figures.found,
            figures.killed_us / 1e3,
        );
    }
    text += "\nSent while stopped: messages that its daemon's NIC acknowledged and placed in the memory of a stopped process.\n\
             Killed: time until the peer's interface reported the broken connection.\n";
    text
}
