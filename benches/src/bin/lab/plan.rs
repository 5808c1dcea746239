//! The planners of fragments: the pipelines paper's numbers and figures, and studies on random pipelines.

pub(crate) mod figures;
mod measure;
mod numbers;
pub(crate) mod paper;
mod study;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::plan::numbers::Report;
use crate::report::{BAD_INPUT, FAILED, fail, print, print_json};

/// Measure the planners of fragments against the paper, or on random pipelines
///
/// Without --study or --figures it reproduces the paper's numbers. --study compares with brute force and the linear
/// program, and adds noise and change.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit code: 0 all numbers are within their bounds; 1 one is not; 2 bad input."
)]
pub(crate) struct Arguments {
    /// Reproduce every number of the paper that can be computed, with the deviation.
    #[arg(long)]
    paper: bool,
    /// Measure the planners on random pipelines: against brute force, the linear program, noise and change
    #[arg(long)]
    study: bool,
    /// Draw the paper's figures 2 and 8 to 14 into this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Seed of the random pipelines
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Random pipelines per comparison with the linear program; other comparisons take proportionally more or fewer
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(8..=1_000_000))]
    samples: u64,
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(problem) => fail(&problem.replace('\n', " "), BAD_INPUT),
    }
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let mut report = Report::new("numbers");
    let is_paper = arguments.paper || !arguments.study && arguments.figures.is_none();
    if is_paper {
        report.append(paper::run());
    }
    if arguments.study {
        study(&mut report, arguments);
    }
    let reports = is_paper || arguments.study;
    if let Some(directory) = &arguments.figures {
        let names = figures::draw(directory)
            .map_err(|problem| format!("--figures {}: {problem}", directory.display()))?;
        if !arguments.json && !reports {
            names.iter().for_each(|name| print(&format!("{}\n", name.display())));
        }
    }
    if !reports {
        return Ok(true);
    }
    if arguments.json {
        print_json(&report.json());
    } else {
        print(&report.table());
    }
    Ok(report.holds())
}

fn study(report: &mut Report, arguments: &Arguments) {
    let samples = usize::try_from(arguments.samples).unwrap_or(usize::MAX);
    report.append(study::run(arguments.seed, samples));
    measure::black_box(report, arguments.seed, samples);
    measure::sudden_change(report, arguments.seed, samples / 2);
    measure::cache(report, arguments.seed);
}
