//! All comparisons with other systems, one after another, as one table of Markdown.
//!
//! ```text
//! cargo run --release --example peers > peers.md
//! ```
//!
//! Each is an example of its own, which this one builds where it has to and runs with `--json`. Systems that are
//! not on this machine are named and skipped.

mod comparisons;
mod machine;

#[path = "../common/command_line.rs"]
mod command_line;
#[path = "../common/report.rs"]
mod report;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;
use comparisons::{COMPARISONS, Comparison, Row};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::Value;

/// Runs every comparison with another system and writes a table: machine, versions, date, and what came of it.
///
/// A ratio above 1 is ours ahead. Numbers are this machine's, at this hour: run it on an idle one.
#[derive(Debug, Parser)]
#[command(
    name = "peers",
    after_help = "Exit code: 0 all comparisons ran, whoever is ahead; 1 one could not be run; 2 bad input.\n\n\
                  Takes two minutes once the examples are built; --brief measures for moments only, to see that it works."
)]
struct Arguments {
    /// Only comparisons whose name contains this
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
    /// Measures for moments
    #[arg(long)]
    brief: bool,
    /// Prints one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    machine: machine::Machine,
    rows: Vec<Row>,
    skipped: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = match command_line::parse::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let asked: Vec<&Comparison> =
        COMPARISONS.iter().filter(|one| one.name.contains(&arguments.only)).collect();
    if asked.is_empty() {
        let names: Vec<&str> = COMPARISONS.iter().map(|one| one.name).collect();
        let what = format!("--only {}: there are {}", arguments.only, names.join(", "));
        return report::fail(&what, report::BAD_INPUT);
    }
    let bar = ProgressBar::new(asked.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a constant"));
    let (mut rows, mut skipped, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for comparison in asked {
        bar.set_message(comparison.name);
        match run(comparison, arguments.brief) {
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
    if arguments.json {
        report::print_json(&document);
    } else {
        report::say(&markdown(&document));
    }
    match &failed[..] {
        [] => ExitCode::SUCCESS,
        _ => report::fail(&failed.join("; "), report::DID_NOT_HOLD),
    }
}

/// Has an example measure; what it says.
fn run(comparison: &Comparison, brief: bool) -> Result<Value, String> {
    let program = built(comparison.example)?;
    let words = if brief { comparison.brief } else { comparison.words };
    let done = Command::new(program)
        .args(words.split_whitespace())
        .arg("--json")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    // Whoever is ahead, the numbers are there: a claim that is missed is no failure here.
    serde_json::from_slice(&done.stdout)
        .map_err(|_| format!("{} printed no report", comparison.example))
}

/// An example's program, beside this one; built if it is not there.
fn built(example: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let name = format!("{example}{}", std::env::consts::EXE_SUFFIX);
    let program = own.with_file_name(name);
    if program.is_file() {
        return Ok(program);
    }
    // Set where cargo started this program.
    let missing = || format!("{} is missing; cargo build --release --examples", program.display());
    let cargo = std::env::var_os("CARGO").ok_or_else(missing)?;
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--example", example])
        .stdout(Stdio::null())
        .status();
    match built {
        Ok(status) if status.success() && program.is_file() => Ok(program),
        _ => Err(missing()),
    }
}

fn markdown(document: &Document) -> String {
    let mut text = document.machine.markdown();
    text += "\n| comparison | what | unit | ours | peer | theirs | ratio |\n|---|---|---|---|---|---|---|\n";
    for Row { comparison, what, unit, ours, peer, theirs, ratio } in &document.rows {
        let number = |value: Option<f64>| match value {
            Some(value) if value.abs() < 10.0 => format!("{value:.2}"),
            Some(value) => format!("{value:.0}"),
            None => "-".into(),
        };
        let (ours, theirs, ratio) = (number(*ours), number(*theirs), number(*ratio));
        text +=
            &format!("| {comparison} | {what} | {unit} | {ours} | {peer} | {theirs} | {ratio} |\n");
    }
    if !document.skipped.is_empty() {
        text += "\nSkipped:\n\n";
        document.skipped.iter().for_each(|what| text += &format!("- {what}\n"));
    }
    text
}
