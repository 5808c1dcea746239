//! The application: one receiver, its senders, and one node that sends beside them. Written once,
//! for every fabric.

use std::fmt;
use std::time::Duration;

use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;

use super::setting::{Service, Setting};

mod receiver;
mod sender;

pub use receiver::{Measured, receive};
pub use sender::send;

/// The node that receives.
pub const RECEIVER: NodeId = NodeId(0);
/// Messages that a sender keeps posted: its port always has more to send.
pub const POSTED: u32 = 100;
/// Bytes at the start of a message: when it was posted. Shorter messages do not say.
const STAMP_BYTES: usize = 8;
/// The bit of a message's tag that says that it counts; the others number it.
const COUNTS: u32 = 1 << 31;
/// Bytes of a message of the node beside.
pub const BACKGROUND_BYTES: u32 = 1_000;

/// One node's part in one run.
#[derive(Clone, Debug)]
pub struct Part {
    /// The run.
    pub setting: Setting,
    /// Which run of this cluster it is, from 0.
    pub round: u32,
    /// How long to wait for nodes that are not there yet.
    pub wait: Duration,
    /// What makes of the host's time one that all nodes share; `None` where they share none.
    pub epoch_ns: Option<u64>,
}

impl Part {
    /// Whether `node` is the one that sends beside the others.
    pub fn is_background(&self, node: NodeId) -> bool {
        node.0 > self.setting.senders
    }

    /// The service that `node` sends its messages by.
    pub fn service(&self, node: NodeId) -> Service {
        if self.is_background(node) { Service::Messages } else { self.setting.mode.service() }
    }

    /// Bytes of the messages of `node`.
    pub fn message_bytes(&self, node: NodeId) -> u32 {
        if self.is_background(node) { BACKGROUND_BYTES } else { self.setting.message_bytes }
    }

    /// Time that the receiver may take at most to get all that is posted.
    pub fn drain(&self) -> Duration {
        let message = self.setting.message_nanos(self.setting.message_bytes);
        let posted = u64::from(POSTED) * u64::from(self.setting.nodes());
        Duration::from_secs(2) + Duration::from_nanos(message * posted * 2)
    }

    /// The shared time, where there is one.
    pub fn stamp(&self, host: &impl Host) -> Option<u64> {
        self.epoch_ns.map(|epoch| epoch + host.now().as_nanos())
    }
}

/// Why a node could not do its part.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// These nodes were never heard of.
    Unreachable(Vec<NodeId>),
    /// A node takes part in another run.
    Mismatch(NodeId),
    /// The receiver was there, and is not any more.
    ReceiverLost,
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
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(nodes) => {
                let ranks: Vec<String> = nodes.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "--peers: rank {} did not answer; start it, or see --wait",
                    ranks.join(", ")
                )
            }
            Self::Mismatch(node) => {
                write!(f, "rank {node} was started with other parameters; give all ranks the same")
            }
            Self::ReceiverLost => f.write_str("rank 0, the receiver, was lost"),
            Self::Input(what) | Self::Stopped(what) => f.write_str(what),
        }
    }
}
