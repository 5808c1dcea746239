//! Messages over TCP between a node and the commands that order it, such as `midplane nic install`.
//!
//! The command sends a line of JSON, and the module if there is one. The node answers with a line of JSON.

use clap::ValueEnum;
use midplane::nicvm::install::Policy;
use serde::{Deserialize, Serialize};

/// Most bytes of a line of JSON.
pub(crate) const MAX_LINE: u64 = 64 << 10;

/// Order to a node.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Installs the module whose `bytes` bytes follow the line.
    Install {
        number: u8,
        policy: PolicyName,
        bytes: usize,
    },
    RollBack {
        number: u8,
    },
    Quarantine {
        number: u8,
    },
    List,
    /// Sends the extension a command. The answer has the completion's status, length and two words.
    Call {
        number: u8,
        opcode: u8,
        to: u16,
        args: [u64; 3],
    },
}

/// Reaction of a node when the extension fails on it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PolicyName {
    /// Leave it down on that node
    Deactivate,
    /// Return to the previous version on all nodes
    RollBack,
    /// Restart it on that node
    Restart,
}

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::Deactivate => Self::Deactivate,
            PolicyName::RollBack => Self::RollBack,
            PolicyName::Restart => Self::Restart,
        }
    }
}

/// Answer to an order.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Answer {
    pub(crate) node: u16,
    /// "done", or the name of another status.
    pub(crate) status: String,
    /// Version that runs now.
    pub(crate) epoch: Option<u16>,
    /// Number of nodes that run it.
    pub(crate) nodes: Option<u64>,
    /// Number of the node that refused.
    pub(crate) refused_by: Option<u64>,
    pub(crate) why: Option<String>,
    /// Length in a call's completion.
    pub(crate) length: Option<u64>,
    pub(crate) words: Option<[u64; 2]>,
    pub(crate) installed: Vec<Installed>,
}

/// One extension of a node.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Installed {
    pub(crate) number: u8,
    pub(crate) epoch: u16,
    pub(crate) sha256: String,
    pub(crate) is_down: bool,
    pub(crate) has_former: bool,
    pub(crate) commands: u64,
    pub(crate) control_messages: u64,
    pub(crate) frames: u64,
    pub(crate) timeouts: u64,
    pub(crate) failures: u64,
}
