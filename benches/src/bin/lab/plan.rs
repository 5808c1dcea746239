//! A fragmentation planner on the command line: pipelines in, plans out.
//!
//! Reads a JSON document on standard input and writes one on standard output, or reproduces the paper's numbers
//! (`--paper`), draws its figures (`--figures DIR`), or measures the planners on random pipelines (`--study`).

mod document;
pub(crate) mod figures;
mod measure;
mod numbers;
pub(crate) mod paper;
mod study;

use crate::gantt;
use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::plan::numbers::Report;
use crate::report::{BAD_INPUT, DID_NOT_HOLD, fail, print_json, say};

/// Cuts messages so that they arrive soonest.
///
/// Without --paper, --study or --figures: reads {"pipelines":[..]} on standard input, writes {"plans":[..]} on
/// standard output, in the same order.
#[derive(Debug, Parser)]
#[command(after_long_help = HELP)]
pub(crate) struct Arguments {
    /// Reproduce every number of the paper that can be computed, with the deviation.
    #[arg(long)]
    paper: bool,
    /// Measure the planners on random pipelines: against brute force, the linear program, noise and change.
    #[arg(long)]
    study: bool,
    /// Draw the paper's figures 2 and 8 to 14 into this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Draw a Gantt chart of the first plan, as SVG; with a name that ends in .json, as a trace for Perfetto.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print reports as one JSON document. Plans always are.
    #[arg(long)]
    json: bool,
    /// Seed of the random pipelines.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Random pipelines for each comparison with the linear program; the others take more or fewer in proportion.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(8..=1_000_000))]
    samples: u64,
}

const HELP: &str = r#"A pipeline and what is asked of it:

  {"stages": [{"overhead_us": 7.2, "us_per_byte": 0.0072}, ..],   in the order of the way; at least one
   "bytes": 4096,                                                 the message
   "planner": "auto",              fixed | ramp | ramp-up (2 stages) | ramp-up-down (3 stages) | hierarchical | auto | lp
   "fragments": 5,                 exactly so many (optional)
   "vector": [1024, 3072],         only time these fragments (instead of a planner)
   "groups": [[0, 1], [2]],        cut anew at the borders; each group is one compound stage (optional)
   "mtu": 1500, "align": 64, "min_fragment": 128, "max_fragments": 100, "equal_but_last": false, "max_in_flight": 8}

A stage may also have "first_overhead_us", its overhead for the first fragment. With groups, fixed, ramp, ramp-up and
ramp-up-down plan the top level and equal fragments go through the groups (the paper's algorithms B and C).

A plan: "fragments" enter the first stage at the top level; "levels", where it refragments, has for each group its
"stages" and, for each top-level fragment, the pieces that cross them; "latency_us" is exact; "lower_bound_us" is what
no plan can beat; "gap" is the distance between the two as a fraction; "bottleneck" is the stage that is busy longest.

Try it:
  echo '{"pipelines":[{"stages":[{"overhead_us":7.2,"us_per_byte":0.0072},{"overhead_us":5.2,"us_per_byte":0.0249},
    {"overhead_us":7.5,"us_per_byte":0.0249},{"overhead_us":7.4,"us_per_byte":0.0079}],"bytes":4096}]}' |
    cargo run --release --example plan -- --plot gantt.svg

Exit code: 0 fine; 1 a number of --paper or --study is not where it should be; 2 bad input, named on standard error."#;

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(DID_NOT_HOLD),
        Err(problem) => fail(&problem.replace('\n', " "), BAD_INPUT),
    }
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let mut report = Report::new("numbers");
    let mut reports = false;
    if arguments.paper {
        report.append(paper::run());
        reports = true;
    }
    if arguments.study {
        study(&mut report, arguments);
        reports = true;
    }
    if let Some(directory) = &arguments.figures {
        let names = figures::draw(directory)
            .map_err(|problem| format!("--figures {}: {problem}", directory.display()))?;
        if !arguments.json && !reports {
            names.iter().for_each(|name| say(&format!("{}\n", name.display())));
        }
    }
    if reports {
        if arguments.json {
            print_json(&report.json());
        } else {
            say(&report.table());
        }
        return Ok(report.holds());
    }
    if arguments.figures.is_none() { plan(arguments) } else { Ok(true) }
}

fn study(report: &mut Report, arguments: &Arguments) {
    let samples = usize::try_from(arguments.samples).unwrap_or(usize::MAX);
    report.append(study::run(arguments.seed, samples));
    measure::black_box(report, arguments.seed, samples);
    measure::sudden_change(report, arguments.seed, samples / 2);
    measure::cache(report, arguments.seed);
}

fn plan(arguments: &Arguments) -> Result<bool, String> {
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err("standard input: a JSON document is expected; see --help for one".into());
    }
    let mut text = String::new();
    stdin.read_to_string(&mut text).map_err(|problem| format!("standard input: {problem}"))?;
    let solved = document::solve(&text)?;
    if let Some(file) = &arguments.plot {
        let Some(first) = solved.first() else {
            return Err("--plot: there is no pipeline to draw".into());
        };
        let rows = first.plan.rows(&first.pipeline, first.max_in_flight);
        gantt::write(file, &[("predicted", &rows)], &[])
            .map_err(|problem| format!("--plot {}: {problem}", file.display()))?;
    }
    print_json(&document::answer(&solved));
    Ok(true)
}
