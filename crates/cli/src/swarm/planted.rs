//! Plants known bugs, and counts the seeds until one finds each.

use std::process::ExitCode;

use midplane::nicvm::planted::{Bug, plant};
use serde_json::json;

use super::{Arguments, all, run};
use crate::swarm::summary::replay;
use midplane_kit::report::{DID_NOT_HOLD, print_json, say};

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

/// Plants one bug after another, and prints the seed that finds each. Returns a failure if one is not found.
pub(crate) fn table(arguments: &Arguments, bugs: &[Bug]) -> ExitCode {
    let mut rows = Vec::new();
    let mut missed = false;
    for bug in bugs {
        plant(Some(*bug));
        let (tried, failure) = match arguments.seed {
            Some(seed) => (1, Some((seed, run::run(seed, None).complaints))),
            None => {
                let summary = all(arguments, true);
                (summary.seeds(), summary.failures.first().cloned())
            }
        };
        let failure = failure.filter(|(_, complaints)| !complaints.is_empty());
        missed |= failure.is_none();
        if !arguments.json {
            let found = match &failure {
                Some((seed, complaints)) => {
                    let (seeds, what) = (seed - arguments.from.min(*seed) + 1, &complaints[0]);
                    format!("{seeds} | {what} | {}", replay(*seed, Some(bug.name())))
                }
                None => format!("not in {tried} | |"),
            };
            say(&format!("| {} | {} | {found} |\n", bug.name(), bug.what()));
        }
        rows.push(json!({
            "bug": bug.name(),
            "what": bug.what(),
            "seeds_tried": tried,
            "found_by_seed": failure.as_ref().map(|(seed, _)| seed),
            "complaints": failure.map(|(_, complaints)| complaints),
        }));
    }
    plant(None);
    if arguments.json {
        print_json(&json!({ "bugs": rows }));
    }
    if missed { ExitCode::from(DID_NOT_HOLD) } else { ExitCode::SUCCESS }
}
