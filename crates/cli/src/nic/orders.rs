//! What `nicctl` and `node` say to each other over TCP: a line of JSON, the module if there is one,
//! and a line of JSON back.

use serde::{Deserialize, Serialize};

/// Most bytes of a line.
pub(crate) const MAX_LINE: u64 = 64 << 10;

/// What a node is told to do.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub(crate) enum Order {
    /// So many bytes of a module follow the line.
    Install {
        number: u8,
        policy: String,
        bytes: usize,
    },
    RollBack {
        number: u8,
    },
    Quarantine {
        number: u8,
    },
    List,
    /// Gives the extension a command; completes with its status, length and two words.
    Call {
        number: u8,
        opcode: u8,
        to: u16,
        args: [u64; 3],
    },
}

/// What came of it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Answer {
    pub(crate) node: u16,
    /// "done", or what else.
    pub(crate) status: String,
    /// The version that runs now.
    pub(crate) epoch: Option<u16>,
    /// Nodes that it runs on.
    pub(crate) nodes: Option<u64>,
    /// Who refused, and why.
    pub(crate) refused_by: Option<u64>,
    pub(crate) why: Option<String>,
    /// Of a call.
    pub(crate) length: Option<u64>,
    pub(crate) words: Option<[u64; 2]>,
    pub(crate) installed: Vec<Installed>,
}

/// One line of a list.
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
