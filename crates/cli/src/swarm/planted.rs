//! Plants known bugs, and counts the seeds until one finds each.

use midplane::nicvm::planted::{Bug, plant};
use midplane_kit::report::{FAILED, Failure, print_document};
use serde::Serialize;

use super::summary::replay;
use super::{Arguments, all, run};

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
    let bugs = bugs.iter().map(|bug| {
        plant(Some(*bug));
        let (seeds_tried, failure) = match arguments.seed {
            Some(seed) => (1, Some((seed, run::run(seed, None).complaints))),
            None => {
                let summary = all(arguments, true);
                (summary.seeds, summary.failures.first().cloned())
            }
        };
        let (found_by_seed, complaints) =
            failure.filter(|(_, complaints)| !complaints.is_empty()).unzip();
        Row { bug: bug.name(), what: bug.description(), seeds_tried, found_by_seed, complaints }
    });
    let document = Document { bugs: bugs.collect() };
    plant(None);
    print_document(arguments.json, &document, text);
    let missed = document.bugs.iter().any(|row| row.found_by_seed.is_none());
    Ok(if missed { FAILED } else { 0 })
}

fn text(document: &Document) -> String {
    let rows = document.bugs.iter().map(|row| {
        let found = match (row.found_by_seed, &row.complaints) {
            (Some(seed), Some(complaints)) => {
                let (seeds, what) = (seed + 1, &complaints[0]);
                format!("{seeds} | {what} | {}", replay(seed, Some(row.bug)))
            }
            _ => format!("not in {} | |", row.seeds_tried),
        };
        format!("| {} | {} | {found} |\n", row.bug, row.what)
    });
    rows.collect()
}
