//! `midplane plan`: plans the fragments of messages through pipelines.

mod document;

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use crate::gantt;
use clap::Args;
use midplane_kit::report::{Failure, print_json};
use serde_json::Value;

/// Plan the fragments of messages through pipelines.
///
/// Reads a JSON document {"pipelines":[..]} from standard input, and prints {"plans":[..]} in the same order.
#[derive(Args, Debug)]
#[command(after_help = SHORT_HELP, after_long_help = HELP)]
pub(crate) struct Arguments {
    /// Draw the first plan as a Gantt chart (.svg) or a trace for Perfetto (.json)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

const SHORT_HELP: &str = "Document and example: midplane plan --help";

const HELP: &str = r#"A pipeline and its message:

  {"stages": [{"overhead_us": 7.2, "us_per_byte": 0.0072}, ..],
   "bytes": 4096,
   "planner": "auto",
   "fragments": 5, "vector": [1024, 3072], "groups": [[0, 1], [2]],
   "mtu": 1500, "align": 64, "min_fragment": 128, "max_fragments": 100,
   "equal_but_last": false, "max_in_flight": 8}

  stages      the stages in the message's order, at least one
  bytes       the message
  planner     fixed, ramp, ramp-up (2 stages), ramp-up-down (3 stages),
              hierarchical, auto (default) or lp
  fragments   exactly this many
  vector      only time these fragments, instead of planning
  groups      refragment at the borders; each group is one compound stage; not
              with lp
  align       bytes of which fragments but the last are multiples; 1 for whole
              bytes: without it, the planners' fragments are fractions of bytes

All but stages and bytes are optional.

A stage may also have "first_overhead_us", its overhead for the first fragment, and "error", the relative error of its
times: 0.05 for 5 %. If the mean error of the stages is above 0.35, auto makes equal fragments. With groups, fixed,
ramp, ramp-up and ramp-up-down plan the top level and equal fragments go through the groups (the paper's algorithms B
and C).

A plan: "fragments" enter the first stage at the top level; "levels", where it refragments, has for each group its
"stages" and, for each top-level fragment, the pieces that cross them; "latency_us" is exact; "lower_bound_us" is a
bound that no plan can beat; "gap" is the distance between the two as a fraction; "bottleneck" is the stage that is busy
longest.

Try it:
  echo '{"pipelines":[{"bytes":4096,"align":1,"stages":[
    {"overhead_us":7.2,"us_per_byte":0.0072},
    {"overhead_us":5.2,"us_per_byte":0.0249},
    {"overhead_us":7.5,"us_per_byte":0.0249},
    {"overhead_us":7.4,"us_per_byte":0.0079}
  ]}]}' | midplane plan --plot gantt.svg

Exit code: 0 planned; 1 the chart could not be written; 2 bad input."#;

pub(crate) fn main(arguments: &Arguments) -> Result<u8, Failure> {
    print_json(&plan(arguments)?);
    Ok(0)
}

fn plan(arguments: &Arguments) -> Result<Value, Failure> {
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err("standard input: give a JSON document; --help shows one".to_owned().into());
    }
    let mut text = String::new();
    stdin.read_to_string(&mut text).map_err(|problem| format!("standard input: {problem}"))?;
    let solved = document::solve(&text).map_err(|problem| problem.replace('\n', " "))?;
    if let Some(file) = &arguments.plot {
        let Some(first) = solved.first() else {
            return Err("--plot: the document has no pipeline to draw".to_owned().into());
        };
        let rows = first.plan.rows(&first.pipeline, first.max_in_flight);
        gantt::write(file, &[("predicted", &rows)], &[]).map_err(|error| {
            Failure::of_write(error.kind(), format!("--plot {}: {error}", file.display()))
        })?;
    }
    Ok(document::answer(&solved))
}
