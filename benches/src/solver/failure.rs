//! Why a run, or a rank of it, came to nothing.

use std::fmt;

use midplane::simhw::id::NodeId;

/// Why there is no result.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// These ranks were never heard of.
    Unreachable(Vec<NodeId>),
    /// A rank was started for another run.
    Mismatch(NodeId),
    /// These were there, and are not any more.
    Lost(Vec<u16>),
    /// What was asked for can't be: bad input.
    Input(String),
    /// The fabric failed.
    Stopped(String),
}

impl Failure {
    /// A NIC or a port refused.
    pub fn stopped(error: impl fmt::Display) -> Self {
        Self::Stopped(error.to_string())
    }

    /// Whether other arguments would help.
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
