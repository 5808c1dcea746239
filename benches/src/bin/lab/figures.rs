//! The tables and figures with data of the five papers, from the simulated machines.
//!
//! ```text
//! cargo run --release -p midplane-benches -- figures
//! ```
//!
//! Draws into `target/figures` and prints one table of Markdown: the paper's number, the measured one, and the deviation.

mod dvcm;
mod lam_via;
mod pipelines;
mod rows;
mod score_d;
mod warp;

use std::path::PathBuf;

use clap::Parser;
use rows::Row;

use crate::report::{self, Failure, progress};

/// Measure and draw the papers' tables and figures, in virtual time
///
/// Each figure is drawn as SVG, with the profile of the paper's machine. The table compares our numbers with those
/// that the paper prints. A figure without printed numbers is drawn, not compared. Rows that can't be reproduced say
/// why.
///
/// Transfers named after sections and tables of machines are raw: they go through the NIC's firmware alone, except
/// TCP and PM's channels. Rows marked "a constant of the profile" come out by construction. Each machine's
/// documentation (simhw::profile::Machine) says which constants were read, derived or fitted. The same run gives the
/// same numbers on every computer.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit code: 0 all figures were drawn, whatever the deviations; 1 a run failed; 2 bad input."
)]
pub(crate) struct Arguments {
    /// Directory of the pictures
    #[arg(long, value_name = "DIR", default_value = "target/figures")]
    directory: PathBuf,
    /// Only these papers, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    paper: Vec<Paper>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Paper {
    Dvcm,
    ScoreD,
    LamVia,
    Pipelines,
    Warp,
}

type Plates = fn(&std::path::Path) -> Result<Vec<Row>, String>;

/// The papers, in the order of the table.
const PAPERS: [(Paper, Plates); 5] = [
    (Paper::Dvcm, dvcm::plates),
    (Paper::ScoreD, score_d::plates),
    (Paper::LamVia, lam_via::plates),
    (Paper::Pipelines, pipelines::plates),
    (Paper::Warp, warp::plates),
];

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    std::fs::create_dir_all(&arguments.directory)
        .map_err(|error| format!("--directory {}: {error}", arguments.directory.display()))?;
    let asked = |paper: &Paper| arguments.paper.is_empty() || arguments.paper.contains(paper);
    let papers: Vec<_> = PAPERS.into_iter().filter(|(paper, _)| asked(paper)).collect();
    let bar = progress(papers.len(), "{bar:30} {pos}/{len} papers");
    let mut rows = Vec::new();
    for (_, plates) in papers {
        rows.extend(plates(&arguments.directory).map_err(Failure::of_run)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    report::print_document(arguments.json, &rows::Document { rows }, rows::markdown);
    Ok(0)
}
