//! Solves linear systems by asynchronous iteration over a congested network.
//!
//! ```text
//! cargo run --release --example solver
//! cargo run --release --example solver -- --fabric sim --control warp+csend --background 0.5 --json
//! ```
//!
//! Ranks compute their unknowns from the latest received values of the others', and send the results. Without control
//! the network fills with values that are stale when they arrive. Under Warp fewer messages carry more and newer values.
//! Without `--rank` this process starts a switch and the ranks on this host. The figures are those of Heddaya and Park
//! (1994), section 5.3.

use std::process::ExitCode;

use midplane_benches::nodes;
use midplane_benches::solver::arguments::Arguments;

fn main() -> ExitCode {
    nodes::main::<Arguments>()
}
