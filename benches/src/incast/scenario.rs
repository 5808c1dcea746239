//! The application: one receiver, its senders, and one background node. Written once, for every fabric.

use std::time::Duration;

use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;

use super::setting::{Service, Setting};

mod receiver;
mod sender;

pub use receiver::{Measured, receive};
pub use sender::send;

/// The receiving node.
pub const RECEIVER: NodeId = NodeId(0);
/// Messages that a sender keeps posted, so that its port always has more to send.
pub const POSTED: u32 = 100;
/// Bytes of the post time at the start of a message; shorter messages have none.
const STAMP_BYTES: usize = 8;
/// The bit of a message's tag that marks counted messages; the other bits are the message's number.
const COUNTS: u32 = 1 << 31;
/// Bytes of a background message.
pub const BACKGROUND_BYTES: u32 = 1_000;

/// Parameters of one node in one run.
#[derive(Clone, Debug)]
pub struct Part {
    /// Parameters of the run.
    pub setting: Setting,
    /// Number of the run in this cluster, from 0.
    pub round: u32,
    /// Time to wait for nodes that have not started yet.
    pub wait: Duration,
    /// Offset from the host's time to a clock that all nodes share; `None` if they share none.
    pub epoch_ns: Option<u64>,
}

impl Part {
    /// Returns whether `node` is the background node.
    pub fn is_background(&self, node: NodeId) -> bool {
        node.0 > self.setting.senders
    }

    /// Returns the service that `node` sends by.
    pub fn service(&self, node: NodeId) -> Service {
        if self.is_background(node) { Service::Messages } else { self.setting.mode.service() }
    }

    /// Returns the bytes of the messages of `node`.
    pub fn message_bytes(&self, node: NodeId) -> u32 {
        if self.is_background(node) { BACKGROUND_BYTES } else { self.setting.message_bytes }
    }

    /// Returns the longest time in which the receiver gets all posted messages.
    pub fn drain(&self) -> Duration {
        let message = self.setting.message_nanos(self.setting.message_bytes);
        let posted = u64::from(POSTED) * u64::from(self.setting.nodes());
        Duration::from_secs(2) + Duration::from_nanos(message * posted * 2)
    }

    /// Returns the shared time, if nodes share a clock.
    pub fn stamp(&self, host: &impl Host) -> Option<u64> {
        self.epoch_ns.map(|epoch| epoch + host.now().as_nanos())
    }
}
