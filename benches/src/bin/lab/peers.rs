//! Runs all comparisons with other systems, and prints one table of Markdown.
//!
//! ```text
//! cargo run --release -p midplane-benches -- peers > peers.md
//! ```
//!
//! A comparison is a question of this program or the example `cluster`, run with `--json`. Systems that are not on
//! this machine are named and skipped.

mod comparisons;
pub(crate) mod machine;

use std::process::{Command, Stdio};

use clap::Parser;
use comparisons::{COMPARISONS, Comparison, Row};
use serde::Serialize;
use serde_json::Value;

use crate::report::{self, Failure, progress};

/// Measure every comparison with another system; print a Markdown table
///
/// The table names machine, versions and date. A ratio above 1 means that ours is faster. Numbers depend on the
/// machine's load: run it on an idle one.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit code: 0 all comparisons ran, regardless of their ratios; 1 one could not be run; 2 bad input.\n\n\
                  Takes two minutes. Build the example cluster first: cargo build --release -p cluster."
)]
pub(crate) struct Arguments {
    /// Only comparisons whose name contains this
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
    /// Measure each for a moment only, to check that it runs
    #[arg(long)]
    brief: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    machine: machine::Machine,
    rows: Vec<Row>,
    skipped: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let asked: Vec<&Comparison> =
        COMPARISONS.iter().filter(|one| one.name.contains(&arguments.only)).collect();
    if asked.is_empty() {
        let names: Vec<&str> = COMPARISONS.iter().map(|one| one.name).collect();
        return Err(format!("--only {}: there are {}", arguments.only, names.join(", ")).into());
    }
    let bar = progress(asked.len(), "{bar:30} {pos}/{len} {msg}");
    let (mut rows, mut skipped, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for comparison in asked {
        bar.set_message(comparison.name);
        match measure(comparison, arguments.brief) {
            Ok(document) => {
                let found = (comparison.read)(comparison, &document);
                let is_whole = |row: &Row| row.ours.is_some() && row.theirs.is_some();
                if let Some(row) = found.iter().find(|row| !is_whole(row)) {
                    failed.push(format!("{}: {} has no number", comparison.name, row.what));
                }
                rows.extend(found);
                skipped.extend(comparisons::skipped(&document));
            }
            Err(why) => failed.push(format!("{}: {why}", comparison.name)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    skipped.extend(comparisons::absent());
    let document = Document { machine: machine::describe(), rows, skipped };
    report::print_document(arguments.json, &document, markdown);
    if failed.is_empty() { Ok(0) } else { Err(Failure::of_run(failed.join("; "))) }
}

/// Runs one comparison's program; returns its report.
fn measure(comparison: &Comparison, brief: bool) -> Result<Value, String> {
    let mut program = program(comparison.program)?;
    let words = if brief { comparison.brief } else { comparison.words };
    let done = program
        .args(words.split_whitespace())
        .arg("--json")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    // A program whose claim failed still prints a report.
    serde_json::from_slice(&done.stdout)
        .map_err(|_| format!("{} printed no report", comparison.program))
}

/// Returns the command of a question, or of the example `cluster`, which cargo builds next to this program.
fn program(name: &str) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    if name != "cluster" {
        let mut command = Command::new(own);
        command.arg(name);
        return Ok(command);
    }
    let program = own.with_file_name(name).with_extension(std::env::consts::EXE_EXTENSION);
    if !program.is_file() {
        return Err(format!("{} is missing: cargo build --release -p {name}", program.display()));
    }
    Ok(Command::new(program))
}

fn markdown(document: &Document) -> String {
    let number = |value: Option<f64>| match value {
        Some(value) if value.abs() < 10.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.0}"),
        None => "-".into(),
    };
    let cells = |row: &Row| {
        let Row { comparison, what, unit, ours, peer, theirs, ratio } = row.clone();
        vec![comparison.into(), what, unit, number(ours), peer, number(theirs), number(ratio)]
    };
    let titles = "comparison, what, unit, ours, peer, theirs, ratio";
    let rows = report::markdown(titles, document.rows.iter().map(cells));
    let mut text = format!("{}\n{rows}", document.machine.markdown());
    if !document.skipped.is_empty() {
        text += "\nSkipped:\n\n";
        document.skipped.iter().for_each(|what| text += &format!("- {what}\n"));
    }
    text
}
