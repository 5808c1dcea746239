//! The application: one receiver and its senders. Written once, for every fabric.

use std::time::Duration;

use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::time::Instant;
use serde::{Deserialize, Serialize};

use super::setting::Setting;

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

/// Longest wait for another node's values at the begin of a run and of its measured part.
const PATIENCE: Duration = Duration::from_secs(10);

/// Counts of a sender.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Sent {
    /// Messages sent in the measured part.
    pub messages: u64,
    /// Control messages of its coordination while messages count.
    pub control_messages: u64,
}

/// Parameters of one node in one run.
#[derive(Clone, Debug)]
pub struct Part {
    /// Parameters of the run.
    pub setting: Setting,
    /// Offset from the host's time to a clock that all nodes share; `None` if they share none.
    pub epoch_ns: Option<u64>,
}

/// Runs `work` until time `at`; returns `None` if it has not completed by then.
pub async fn by<T>(host: &impl Host, at: Instant, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        value = work => Some(value),
        () = host.sleep_until(at) => None,
    }
}

impl Part {
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
