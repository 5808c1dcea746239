//! Plants known bugs, and counts the seeds until one finds each.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use midplane::nicvm::planted::{Bug, plant};
use midplane_kit::report::{FAILED, Failure, print_document};
use serde::Serialize;

use super::summary::replay;
use super::{Arguments, all, at_signal, one};

/// Returns the bug of that name, or all bugs for "all".
///
/// # Errors
/// One line with the known names.
pub(crate) fn chosen(name: &str) -> Result<Vec<Bug>, String> {
    let bugs: Vec<Bug> =
        Bug::ALL.iter().copied().filter(|bug| name == "all" || bug.name() == name).collect();
    if bugs.is_empty() {
        let names: Vec<_> = Bug::ALL.iter().map(|bug| bug.name()).collect();
        return Err(format!("--plant {name}: unknown; name one of all, {}", names.join(", ")));
    }
    Ok(bugs)
}

#[derive(Serialize)]
struct Row {
    bug: &'static str,
    what: &'static str,
    seeds_tried: u64,
    found_by_seed: Option<u64>,
    complaints: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Document {
    bugs: Vec<Row>,
}

/// Plants one bug after another, and prints the seed that finds each. Returns a failure if one is not found.
pub(crate) fn table(arguments: &Arguments, bugs: &[Bug]) -> Result<u8, Failure> {
    let is_recorded = arguments.pcapng.is_some() || arguments.perfetto.is_some();
    if is_recorded && bugs.len() > 1 {
        return Err("--plant all: name one bug with --pcapng and --perfetto".to_owned().into());
    }
    let stopped = match arguments.seed {
        Some(_) => Arc::default(),
        None => at_signal(),
    };
    let rows = bugs.iter().take_while(|_| !stopped.load(Ordering::Relaxed)).map(|bug| {
        plant(Some(*bug));
        let summary = match arguments.seed {
            Some(seed) => one(arguments, seed)?,
            None => all(arguments, true, &stopped),
        };
        let (found_by_seed, complaints) = summary.failures.first().cloned().unzip();
        let (bug, what, seeds_tried) = (bug.name(), bug.description(), summary.seeds);
        Ok(Row { bug, what, seeds_tried, found_by_seed, complaints })
    });
    let document = Document { bugs: rows.collect::<Result<_, Failure>>()? };
    plant(None);
    print_document(arguments.json, &document, |document| text(document, arguments));
    let missed = document.bugs.iter().any(|row| row.found_by_seed.is_none());
    let missed = missed || document.bugs.len() < bugs.len();
    Ok(if missed { FAILED } else { 0 })
}

/// Returns the number of seeds that were run until `seed` found a bug.
fn count(arguments: &Arguments, seed: u64) -> u64 {
    arguments.seed.map_or(seed - arguments.first + 1, |_| 1)
}

fn text(document: &Document, arguments: &Arguments) -> String {
    let rows = document.bugs.iter().map(|row| {
        let found = match (row.found_by_seed, &row.complaints) {
            (Some(seed), Some(complaints)) => {
                let (seeds, what) = (count(arguments, seed), &complaints[0]);
                format!("{seeds} | {what} | {}", replay(seed, Some(row.bug)))
            }
            _ => format!("not in {} | |", row.seeds_tried),
        };
        format!("| {} | {} | {found} |\n", row.bug, row.what)
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn files_of_all_bugs_are_refused() {
        let words = ["swarm", "--plant", "all", "--seed", "1", "--pcapng", "/nowhere"];
        let refused = table(&Line::parse_from(words).arguments, Bug::ALL).unwrap_err();
        assert!(refused.to_string().contains("name one bug"), "{refused}");
    }

    #[test]
    fn the_number_of_seeds_counts_from_the_first() {
        let count_of = |words: &[&str], seed| {
            let words = ["swarm"].iter().chain(words);
            count(&Line::parse_from(words).arguments, seed)
        };
        assert_eq!(count_of(&[], 6), 7);
        assert_eq!(count_of(&["--first", "1000"], 1_006), 7);
        assert_eq!(count_of(&["--seed", "17"], 17), 1);
    }
}
