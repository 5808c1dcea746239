//! Measures every promised number by one command, and prints one table.
//!
//! ```text
//! cargo run --release -p midplane-benches --bin lab -- all --quick
//! ```
//!
//! Each command of `promises/rows.txt` runs once in every round, one after the other. A row has the median of its rounds.

mod children;
mod machine;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use children::{Lack, Programs, Report};
use clap::Parser;
use machine::Machine;
use midplane_benches::promises::{Bound, Command, Measured, Number, Promise, Promises, Source};
use midplane_kit::clock::now;
use serde::Serialize;

use crate::processes;
use crate::report::{self, Failure, progress};

/// Most rounds and time of the full run, and of the quick one. No round begins that would end later.
const FULL: (usize, Duration) = (5, Duration::from_secs(3600));
const QUICK: (usize, Duration) = (3, Duration::from_secs(900));
/// A command that takes longer than the run's time divided by this has failed.
const SHARE: u32 = 5;
/// The line of a page after which its table begins.
const MARK: &str = "<!-- `lab all --write` replaces what follows. -->";

/// Measure every number that this project promises; print one table
///
/// Each row has its bound, the median and the range of the rounds, and the command that measures it. A row that can't
/// be measured here says why. Numbers depend on the machine's load: run it on an idle one. Ctrl-C stops all commands,
/// and prints the rows measured so far.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit code: 0 every measured number is within its bound; 1 one is not, or a command failed; 2 bad input."
)]
pub(crate) struct Arguments {
    /// Measure for shorter times and in fewer rounds, after the builds: at most 15 minutes instead of an hour
    #[arg(long)]
    quick: bool,
    /// Only rows whose area, text or command contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Replace the table of this page
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "only"])]
    write: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Document {
    machine: Machine,
    quick: bool,
    /// True if Ctrl-C ended the run.
    stopped: bool,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    area: String,
    what: String,
    asked: String,
    unit: String,
    #[serde(flatten)]
    measured: Option<Measured>,
    /// The reason why there is no number.
    reason: Option<String>,
    /// True if the command failed.
    failed: bool,
    command: String,
    /// The command's name in the table.
    #[serde(skip)]
    name: String,
}

/// Reports of each command, by its name.
type Reports = BTreeMap<String, Vec<Result<Report, Lack>>>;

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let Promises { rows, mut commands } = Promises::read();
    let rows: Vec<Promise> =
        rows.into_iter().filter(|row| fits(row, &commands, &arguments.only)).collect();
    if rows.is_empty() {
        return Err(format!("--only {}: no row has that text", arguments.only).into());
    }
    let page = arguments.write.as_deref().map(introduction).transpose()?;
    commands.retain(|command| {
        words(command, arguments.quick).is_some() && rows.iter().any(|row| is_of(row, command))
    });
    let (reports, stopped) = processes::run(measure(&commands, arguments.quick))?;
    let row = |promise: &Promise| row(promise, &commands, &reports, arguments.quick);
    let rows = rows.iter().map(row).collect();
    let document = Document { machine: machine::describe(), quick: arguments.quick, stopped, rows };
    match (page, &arguments.write) {
        (Some(page), Some(file)) if !stopped => {
            let text = markdown(&document);
            std::fs::write(file, format!("{page}\n\n{text}")).map_err(|error| {
                report::print(&text);
                Failure::of_run(format!("--write {}: {error}", file.display()))
            })?;
        }
        _ => report::print_document(arguments.json, &document, markdown),
    }
    let holds = |row: &Row| !row.failed && row.measured.is_none_or(|measured| measured.holds);
    let holds = !stopped && document.rows.iter().all(holds);
    Ok(if holds { 0 } else { report::FAILED })
}

fn is_of(row: &Promise, command: &Command) -> bool {
    matches!(&row.source, Source::Report(name, _) if *name == command.name)
}

fn fits(row: &Promise, commands: &[Command], only: &str) -> bool {
    let command = commands.iter().find(|command| is_of(row, command));
    let program = match &row.source {
        Source::Nowhere(script) => script,
        Source::Report(name, _) => command.map_or(name, |command| &command.words),
    };
    [&row.area, &row.what, program].iter().any(|text| text.contains(only))
}

/// Returns the text of a page up to its table.
fn introduction(page: &Path) -> Result<String, String> {
    let wrong = |what: &dyn std::fmt::Display| format!("--write {}: {what}", page.display());
    let text = std::fs::read_to_string(page).map_err(|error| wrong(&error))?;
    let (before, _) = text.split_once(MARK).ok_or_else(|| wrong(&format!("no line {MARK}")))?;
    Ok(format!("{before}{MARK}"))
}

/// Returns the words of a command in this run; the quick run may leave it out.
fn words(command: &Command, quick: bool) -> Option<String> {
    let more = if quick { command.quick.as_ref()? } else { &command.full };
    Some(format!("{} {more}", command.words).trim_end().to_owned())
}

/// Runs the commands in rounds; returns their reports, and whether Ctrl-C ended the run. A command that has no report
/// is not run again.
async fn measure(commands: &[Command], quick: bool) -> Result<(Reports, bool), Failure> {
    let (rounds, limit) = if quick { QUICK } else { FULL };
    let programs = Programs::find(limit / SHARE).map_err(Failure::of_run)?;
    let mut stop = pin!(processes::until_asked(None));
    let steps: usize = commands.iter().map(|command| command.rounds.min(rounds)).sum();
    let bar = progress(steps, "{bar:30} {pos}/{len} {elapsed} {msg}");
    let mut reports = Reports::new();
    for command in commands {
        bar.set_message(format!("build: {}", command.name));
        let words = words(command, quick).unwrap_or_default();
        match programs.build(&words, stop.as_mut()).await {
            Ok(()) => {}
            Err(Lack::Stopped) => {
                bar.finish_and_clear();
                return Ok((reports, true));
            }
            Err(lack) => reports.entry(command.name.clone()).or_default().push(Err(lack)),
        }
    }
    let (begin, mut took) = (now(), BTreeMap::new());
    for round in 0..rounds {
        let commands = || commands.iter().filter(move |command| round < command.rounds);
        let expected: Duration = commands().filter_map(|command| took.get(&command.name)).sum();
        if round > 0 && begin.elapsed() + expected > limit {
            break;
        }
        for command in commands() {
            let begin = now();
            let before = reports.entry(command.name.clone()).or_default();
            if before.iter().all(Result::is_ok) {
                bar.set_message(format!("round {}: {}", round + 1, command.name));
                let words = words(command, quick).unwrap_or_default();
                before.push(programs.run(&words, stop.as_mut()).await);
            }
            if matches!(before.last(), Some(Err(Lack::Stopped))) {
                bar.finish_and_clear();
                return Ok((reports, true));
            }
            took.insert(command.name.clone(), begin.elapsed());
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok((reports, false))
}

fn row(promise: &Promise, commands: &[Command], reports: &Reports, quick: bool) -> Row {
    let (measured, command, name) = match &promise.source {
        Source::Nowhere(script) => {
            let lack = Lack::Missing("no measurement by one command".into());
            (Err(lack), script.clone(), script)
        }
        Source::Report(name, number) => {
            match commands.iter().find(|command| command.name == *name) {
                Some(command) => {
                    let reports = reports.get(name).map_or(&[][..], Vec::as_slice);
                    let words = words(command, quick).unwrap_or_default();
                    (numbers(number, &promise.bound, reports), words, name)
                }
                None => (Err(Lack::Missing("only without --quick".into())), name.clone(), name),
            }
        }
    };
    let (reason, failed) = match &measured {
        Ok(_) => (None, false),
        Err(Lack::Missing(reason)) => (Some(reason.clone()), false),
        Err(Lack::Failed(reason)) => (Some(reason.clone()), true),
        Err(Lack::Stopped) => (Some("stopped before".into()), false),
    };
    Row {
        area: promise.area.clone(),
        what: promise.what.clone(),
        asked: promise.bound.to_string(),
        unit: promise.bound.unit.clone(),
        measured: measured.ok(),
        reason,
        failed,
        command,
        name: name.clone(),
    }
}

/// Summarizes a row's numbers in all reports.
fn numbers(
    number: &Number,
    bound: &Bound,
    reports: &[Result<Report, Lack>],
) -> Result<Measured, Lack> {
    let mut documents = Vec::new();
    for report in reports {
        match report {
            Ok(report) => documents.push(&report.document),
            // Earlier rounds count.
            Err(Lack::Stopped) => break,
            Err(lack) => return Err(lack.clone()),
        }
    }
    if documents.is_empty() {
        return Err(Lack::Stopped);
    }
    number.measured(&documents, bound).ok_or_else(|| {
        let is_needed = |line: &&String| number.names(line.split(':').next().unwrap_or_default());
        let mut skipped = reports.iter().flatten().flat_map(|report| &report.skipped);
        let reason = skipped.find(is_needed);
        Lack::Missing(reason.map_or("the report has no such row", |line| line).to_owned())
    })
}

fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.095.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn cells(row: &Row) -> Vec<String> {
    let (measured, spread, holds) = match (&row.measured, &row.reason) {
        (Some(Measured { median, lowest, highest, rounds, holds }), _) => (
            number(*median),
            match rounds {
                1 => "-".into(),
                _ => format!("{} to {}", number(*lowest), number(*highest)),
            },
            if *holds { "yes" } else { "**no**" },
        ),
        (None, reason) => {
            let kind = if row.failed { "failed" } else { "not measured" };
            (format!("{kind}: {}", reason.as_deref().unwrap_or_default()), "-".into(), "-")
        }
    };
    let name = if row.name.is_empty() { "-".into() } else { format!("`{}`", row.name) };
    let [what, unit, asked] = [&row.what, &row.unit, &row.asked].map(Clone::clone);
    let cells = [what, unit, asked, measured, spread, holds.into(), name];
    // A bar would end a cell.
    cells.map(|cell| cell.replace('|', "/")).into()
}

fn markdown(document: &Document) -> String {
    let mut text = document.machine.markdown();
    let count = |which: fn(&Row) -> bool| document.rows.iter().filter(|row| which(row)).count();
    let holding = count(|row| row.measured.is_some_and(|measured| measured.holds));
    let measured = count(|row| row.measured.is_some());
    let missing = document.rows.len() - measured;
    let rounds = document.rows.iter().filter_map(|row| Some(row.measured?.rounds)).max();
    let of = match rounds {
        Some(rounds @ 2..) => format!("medians of up to {rounds} rounds"),
        _ => "of one round".into(),
    };
    text += &format!(
        "Within their bounds are {holding} of {measured} numbers, {of}; {missing} were not measured.\n"
    );
    if document.quick {
        text += "Measured with `--quick`: shorter times, fewer rounds.\n";
    }
    if document.stopped {
        text += "The run was stopped before its end.\n";
    }
    let titles = "what, unit, bound, measured, spread, holds, command";
    for area in document.rows.chunk_by(|a, b| a.area == b.area) {
        let rows = report::markdown(titles, area.iter().map(cells));
        text += &format!("\n## {}\n\n{rows}", area[0].area);
    }
    let named = document.rows.iter().filter(|row| row.name != row.command);
    let commands: BTreeMap<_, _> = named.map(|row| (&row.name, &row.command)).collect();
    if !commands.is_empty() {
        text += "\n## Commands\n\n";
    }
    commands.iter().for_each(|(name, words)| text += &format!("- `{name}`: `{words}`\n"));
    text
}
