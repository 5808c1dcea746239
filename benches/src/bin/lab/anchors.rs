//! What the papers measured on their machines, and what the simulated ones give.

use std::process::ExitCode;

use clap::Parser;
use midplane_benches::anchors::measure::{self, Anchor, TOLERANCE};
use midplane_kit::report::{BAD_INPUT, DID_NOT_HOLD, fail, print_json, say};
use serde::Serialize;

/// Measures the simulated machines against what was published of the real ones.
///
/// Each row is a transfer in virtual time, raw: no protocol beside the NIC's firmware, but where the row says TCP, and PM's
/// through its channels. What
/// the profile was fitted to comes out by construction of the whole, not of one constant; rows that are a constant of
/// the profile are marked "input". Which constant was read, derived or fitted is said at each machine
/// (simhw::profile::Machine). The same run gives the same numbers on every computer.
#[derive(Debug, Parser)]
#[command(after_help = "Exit code: 0 every row is within 10 %; 1 some row is not; 2 bad input.")]
pub(crate) struct Arguments {
    /// Only machines whose name contains this.
    #[arg(long, value_name = "NAME", default_value = "")]
    machine: String,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    tolerance: f64,
    anchors: Vec<Anchor>,
    holds: bool,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let mut anchors = measure::all();
    anchors.retain(|anchor| anchor.machine.contains(&arguments.machine));
    if anchors.is_empty() {
        let what = "no machine with published results has this in its name";
        return fail(&format!("--machine {}: {what}", arguments.machine), BAD_INPUT);
    }
    let holds = anchors.iter().all(Anchor::holds);
    if arguments.json {
        print_json(&Document { tolerance: TOLERANCE, anchors, holds });
    } else {
        say(&table(&anchors));
    }
    ExitCode::from(if holds { 0 } else { DID_NOT_HOLD })
}

fn table(anchors: &[Anchor]) -> String {
    let mut text = format!(
        "{:<19} {:<40} {:>10} {:>10}      {:>6}\n",
        "machine", "what", "published", "measured", "off"
    );
    for anchor in anchors {
        let Anchor { machine, what, unit, published, measured, deviation, source, .. } = anchor;
        let off = deviation * 100.0;
        let mark = if !anchor.holds() {
            "  NOT WITHIN 10 %"
        } else if anchor.is_input {
            "  input"
        } else {
            ""
        };
        text += &format!(
            "{machine:<19} {what:<40} {published:>10.2} {measured:>10.2} {unit:<4} {off:>5.1} %  {source}{mark}\n"
        );
    }
    text
}
