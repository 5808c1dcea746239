//! The time of freezing real processes of this host.

use serde::Serialize;

use super::arguments::Arguments;
use super::{live, report};

const PROCESSES: u16 = 64;
/// Seconds that each process computes or waits.
const SECONDS: f64 = 4.0;

#[derive(Serialize)]
struct Document {
    freezes: Vec<live::Frozen>,
}

pub(crate) fn run(arguments: &Arguments) -> bool {
    let mut freezes = Vec::new();
    for blocked in [true, false] {
        match live::freeze(PROCESSES, blocked, SECONDS) {
            Ok(frozen) => freezes.push(frozen),
            Err(error) => {
                report::fail(&error, report::FAILED);
                return false;
            }
        }
    }
    if arguments.json {
        report::print_json(&Document { freezes });
        return true;
    }
    for frozen in &freezes {
        report::print(&format!(
            "{} processes, {}: {:.0} us, 99 % {:.0} us, of {} freezes\n",
            frozen.processes,
            if frozen.blocked { "blocked" } else { "spinning" },
            frozen.median_us,
            frozen.p99_us,
            frozen.freezes
        ));
    }
    true
}
