//! Failures of a run or a rank.

use std::fmt;

use midplane::simhw::id::NodeId;

/// Reason for a missing result.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// These ranks never answered.
    Unreachable(Vec<NodeId>),
    /// A rank was started for another run.
    Mismatch(NodeId),
    /// These ranks were lost during the run.
    Lost(Vec<u16>),
    /// The arguments cannot be satisfied: bad input.
    Input(String),
    /// The fabric failed.
    Stopped(String),
}

impl Failure {
    /// Wraps an error of a NIC or a port.
    pub fn stopped(error: impl fmt::Display) -> Self {
        Self::Stopped(error.to_string())
    }

    /// Returns whether other arguments would help.
    pub const fn is_input(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Mismatch(_) | Self::Input(_))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(nodes) => {
                let ranks: Vec<String> = nodes.iter().map(ToString::to_string).collect();
                let ranks = ranks.join(", ");
                write!(f, "--peers: rank {ranks} did not answer; start it, or see --wait")
            }
            Self::Mismatch(node) => {
                write!(f, "rank {node} was started with another system or other parameters")
            }
            Self::Lost(ranks) => {
                write!(f, "rank {ranks:?} was lost; --on-loss go-on goes on without it")
            }
            Self::Input(what) | Self::Stopped(what) => f.write_str(what),
        }
    }
}
