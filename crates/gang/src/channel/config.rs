//! Configuration and counters of a NIC's channels.

use std::time::Duration;

use midplane_simhw::id::PortId;

/// Most unanswered messages to one peer.
pub(crate) const WINDOW: u32 = 32;
/// Most messages that one answer covers, and for how long the answer is delayed to cover more.
pub(crate) const MERGE: u32 = 4;
pub(crate) const MERGE_FOR: Duration = Duration::from_micros(10);

/// Configuration of a NIC's channels.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GangConfig {
    pub(crate) channels: u16,
    pub(crate) port_suspender: Option<PortId>,
    pub(crate) arrival_watcher: Option<PortId>,
}

impl Default for GangConfig {
    fn default() -> Self {
        Self { channels: 4, port_suspender: None, arrival_watcher: None }
    }
}

impl GangConfig {
    /// Sets the port whose commands stop and resume all other ports. The daemon must open it by this number before
    /// other processes can request it. Default: none.
    #[must_use]
    #[doc(hidden)]
    pub const fn port_suspender(mut self, port: PortId) -> Self {
        self.port_suspender = Some(port);
        self
    }

    /// Sets the port that receives reports of arrivals for stopped ports. The daemon must open it by this number
    /// before other processes can request it. Default: none.
    #[must_use]
    #[doc(hidden)]
    pub const fn arrival_watcher(mut self, port: PortId) -> Self {
        self.arrival_watcher = Some(port);
        self
    }

    /// Sets the number of channels of the NIC; each has one active context. Default: 4, as in PM.
    #[must_use]
    pub const fn channels(mut self, count: u16) -> Self {
        self.channels = count;
        self
    }
}

/// Counters of a NIC's channels.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct GangCounters {
    /// Messages sent, including retransmissions.
    pub transmitted: u64,
    /// Messages accepted.
    pub taken: u64,
    /// Messages refused because there was no room, the context was stopped, or they were out of order.
    pub refused: u64,
    /// Answers sent; one may cover several messages.
    pub answers: u64,
    /// Fences sent.
    pub fences: u64,
    /// Frames dropped because they belong to another epoch, an earlier round, or no context.
    pub stale: u64,
    /// Frames dropped because no correct peer would send them: from a node that does not host the rank, or
    /// inconsistent with earlier answers.
    pub foreign: u64,
    /// Answers that did not arrive in time.
    pub missed: u64,
}
