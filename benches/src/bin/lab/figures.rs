//! The tables and figures with data of the five papers, from the simulated machines.
//!
//! ```text
//! cargo run --release -p midplane-benches -- figures
//! ```
//!
//! Draws into `target/figures` and writes a page for each paper there: its numbers, ours, the deviations, and the sources of both.

mod dvcm;
mod lam_via;
mod pages;
mod pipelines;
mod rows;
mod score_d;
mod warp;

use std::path::PathBuf;

use clap::{Parser, ValueEnum as _};
use rows::Row;
use serde::Serialize;

use crate::report::{self, Failure, progress};

/// Measure and draw the papers' tables and figures, in virtual time
///
/// Each figure is drawn as SVG, with the profile of the paper's machine. The page of each paper compares our numbers with
/// those that it prints, says which of ours are inputs, fitted or predicted, and lists the constants of the machine with
/// their sources. A figure without printed numbers is drawn, not compared. Rows that can't be reproduced say why.
///
/// Transfers named after sections and tables of machines are raw: they go through the NIC's firmware alone, except
/// TCP and PM's channels. The same run gives the same numbers on every computer.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit code: 0 all figures were drawn, regardless of the deviations; 1 a run failed; 2 bad input."
)]
pub(crate) struct Arguments {
    /// Directory of the pages and pictures
    #[arg(long, value_name = "DIR", default_value = "target/figures")]
    directory: PathBuf,
    /// Only these papers, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    paper: Vec<Name>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Name {
    Dvcm,
    ScoreD,
    LamVia,
    Pipelines,
    Warp,
}

/// A paper, and the function that draws its figures and measures its numbers.
struct Paper {
    name: &'static str,
    title: &'static str,
    /// Its authors and full title.
    source: &'static str,
    plates: fn(&std::path::Path) -> Result<Vec<Row>, String>,
}

impl Name {
    const fn paper(self) -> Paper {
        match self {
            Self::Dvcm => Paper {
                name: "dvcm",
                title: "DVCM: sender coordination",
                source: "M.-C. Roșu and K. Schwan, *Sender Coordination in the Distributed Virtual Communication Machine*",
                plates: dvcm::plates,
            },
            Self::ScoreD => Paper {
                name: "score-d",
                title: "SCore-D: preemptive gang scheduling",
                source: "A. Hori, H. Tezuka and Y. Ishikawa, *Overhead Analysis of Preemptive Gang Scheduling*",
                plates: score_d::plates,
            },
            Self::LamVia => Paper {
                name: "lam-via",
                title: "LAM/MPI over VIA",
                source: "M. Bertozzi, M. Panella and M. Reggiani, *Design of a VIA Based Communication Protocol for LAM/MPI Suite*",
                plates: lam_via::plates,
            },
            Self::Pipelines => Paper {
                name: "pipelines",
                title: "Optimal communication pipelines",
                source: "R. Y. Wang, A. Krishnamurthy, R. P. Martin, T. E. Anderson and D. E. Culler, *Towards a Theory of Optimal \
                         Communication Pipelines*",
                plates: pipelines::plates,
            },
            Self::Warp => Paper {
                name: "warp",
                title: "Warp: parallel iterations on loaded networks",
                source: "A. Heddaya and K. Park, *Mapping Parallel Iterative Algorithms onto Workstation Networks*",
                plates: warp::plates,
            },
        }
    }
}

#[derive(Serialize)]
struct Document {
    rows: Vec<Row>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let directory = &arguments.directory;
    std::fs::create_dir_all(directory).map_err(|error| {
        Failure::of_write(error.kind(), format!("--directory {}: {error}", directory.display()))
    })?;
    let asked = |name: &Name| arguments.paper.is_empty() || arguments.paper.contains(name);
    let names = Name::value_variants().iter().copied().filter(asked);
    let papers: Vec<Paper> = names.map(Name::paper).collect();
    let bar = progress(papers.len(), "{bar:30} {pos}/{len} papers");
    let mut rows = Vec::new();
    for paper in &papers {
        rows.extend((paper.plates)(directory).map_err(Failure::of_run)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    pages::write(directory, &papers, &rows)?;
    report::print_document(arguments.json, &Document { rows }, |document| {
        let summary = pages::summary(&papers, &document.rows, |paper| paper.name.into());
        format!("{summary}\nPages and pictures: {}\n", directory.join("README.md").display())
    });
    Ok(0)
}
