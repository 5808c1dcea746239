//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  # The paper's figures: every control and buffer size, without and with background; two pictures
  solver --plot solver.svg

  # One run: a Trefethen system of 1000 unknowns on 5 ranks under Warp, half the cable taken by others
  solver --trefethen 1000 --control warp+csend --background 0.5 --json

  # A system of one's own
  solver --matrix system.mtx --control static --buffer 16

Exit code: 0 every run converged; 1 one did not; 2 bad input, with one line that says which.";

/// Linear systems solved by asynchronous iteration over a cable that is too small for it, and what
/// knowing when not to send does about that.
#[derive(Clone, Debug, Parser)]
#[command(name = "solver", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What joins the ranks: virtual time; the other fabrics are not supported yet
    #[arg(long, value_enum, default_value = "sim")]
    pub(crate) fabric: Fabric,

    /// What the ranks share: one cable of 10 Mb/s with collisions, or a switch with links of 10 Mb/s
    #[arg(long, value_enum, default_value = "cable")]
    pub(crate) medium: Medium,

    /// A system in Matrix Market format; its right-hand side is that of the solution of all ones
    #[arg(long, value_name = "FILE.mtx", conflicts_with_all = ["trefethen", "random"])]
    pub(crate) matrix: Option<PathBuf>,

    /// The Trefethen system of so many unknowns, up to 20000
    #[arg(long, value_name = "N", conflicts_with = "random", value_parser = clap::value_parser!(u16).range(1..=20_000))]
    pub(crate) trefethen: Option<u16>,

    /// A random system of so many unknowns, up to 20000, with a spectral radius of 0.9
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=20_000))]
    pub(crate) random: Option<u16>,

    /// Ranks that the unknowns are dealt out to
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) ranks: u16,

    /// Who decides when updates are sent; every way in turn unless given
    #[arg(long, value_enum)]
    pub(crate) control: Option<Control>,

    /// Updates of a message: fixed for static and csend, the start for warp; several sizes in turn
    /// unless given
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) buffer: Option<u16>,

    /// How updates travel: to each rank by itself; broadcast is not supported yet
    #[arg(long, value_enum, default_value = "unicast")]
    pub(crate) transport: Transport,

    /// The share of the cable that others' traffic asks for, from 0 to 0.9; without and with 0.5
    /// unless given
    #[arg(long, value_parser = fraction)]
    pub(crate) background: Option<f64>,

    /// The relative residual that an answer is good enough with
    #[arg(long, default_value_t = 1e-6, value_parser = tolerance)]
    pub(crate) tolerance: f64,

    /// Microseconds that a rank takes to compute one update
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) update_us: u32,

    /// Seconds after which a run is given up
    #[arg(long, default_value_t = 300.0, value_parser = seconds)]
    pub(crate) seconds: f64,

    /// What everything random is drawn from
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Prints one JSON document and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    /// Writes a picture: time over buffer sizes, residual over time
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

/// What joins the ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fabric {
    /// Virtual time.
    Sim,
}

/// What the ranks share.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Medium {
    /// One cable, one sender at a time.
    Cable,
    /// A link for each, and a switch.
    Switch,
}

/// How updates travel.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// To each rank by itself.
    Unicast,
}

/// Who decides when updates are sent.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Control {
    /// Nobody: each update at once, in a message of its own.
    None,
    /// Nobody: a message for so many updates.
    Static,
    /// A message for so many updates, if the gate is open; if not, none.
    Csend,
    /// Messages leave at Warp's rate, and grow as it falls.
    Warp,
    /// The latest values go when the gate opens.
    #[value(name = "warp+csend")]
    #[serde(rename = "warp+csend")]
    WarpCsend,
}

fn fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=0.9).contains(&value) => Ok(value),
        _ => Err("it is a number from 0 to 0.9".into()),
    }
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (1e-14..=0.1).contains(&value) => Ok(value),
        _ => Err("it is a number from 1e-14 to 0.1".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.01..=36_000.0).contains(&value) => Ok(value),
        _ => Err("it is a number from 0.01 to 36000".into()),
    }
}
