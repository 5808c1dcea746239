//! The fabric between the nodes of a run.

use clap::ValueEnum;
use serde::Serialize;

/// The fabric between the nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Fabric {
    /// Simulated machines, in virtual time
    Sim,
    /// Shared memory (Linux)
    Shm,
    /// UDP
    Udp,
}

display!(Fabric);
