//! Configuration and counters of a NIC's channels.

use std::time::Duration;

use midplane_simhw::id::PortId;

/// Flow control between sender and receiver.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Flow {
    /// Answers from the receiver, which accepts or refuses each message, as in PM.
    #[default]
    AckNack,
    /// No flow control, over links that block
    /// ([`Context::leave_frame`](midplane_nicvm::context::Context::leave_frame)).
    ///
    /// A message without room stays on the link, and blocks all messages behind it, of every channel. For study: jobs
    /// that share a NIC deadlock, and a stopped channel is never steady. Only `sim` has such links; on other links,
    /// such messages are lost.
    BackPressure,
}

/// Most messages to one peer that are unanswered.
pub(crate) const WINDOW: u32 = 32;
/// Most messages that one answer covers, and how long it is delayed for them.
pub(crate) const MERGE: u32 = 4;
pub(crate) const MERGE_FOR: Duration = Duration::from_micros(10);

/// Configuration of a NIC's channels.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GangConfig {
    pub(crate) channels: u16,
    pub(crate) flow: Flow,
    pub(crate) port_suspender: Option<PortId>,
    pub(crate) arrival_watcher: Option<PortId>,
}

impl Default for GangConfig {
    fn default() -> Self {
        Self { channels: 4, flow: Flow::AckNack, port_suspender: None, arrival_watcher: None }
    }
}

impl GangConfig {
    /// Sets the port whose commands stop and resume all other ports. The daemon opens it by this number before other
    /// processes can ask for it. Default: none.
    #[must_use]
    pub const fn port_suspender(mut self, port: PortId) -> Self {
        self.port_suspender = Some(port);
        self
    }

    /// Sets the port that learns of arrivals for stopped ports. The daemon opens it by this number before other processes
    /// can ask for it. Default: none.
    #[must_use]
    pub const fn arrival_watcher(mut self, port: PortId) -> Self {
        self.arrival_watcher = Some(port);
        self
    }

    /// Sets the flow control. Default: [`Flow::AckNack`].
    #[must_use]
    pub const fn flow(mut self, flow: Flow) -> Self {
        self.flow = flow;
        self
    }

    /// Sets how many channels the NIC has; each has one active context. Default: 4, as in PM.
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
    /// Messages sent, retransmissions included.
    pub transmitted: u64,
    /// Number of messages accepted.
    pub taken: u64,
    /// Messages refused: no room, stopped, or out of order.
    pub refused: u64,
    /// Answers sent; one may cover several messages.
    pub answers: u64,
    /// Fences sent.
    pub fences: u64,
    /// Frames dropped because they are of another epoch, of an earlier round, or for no context.
    pub stale: u64,
    /// Frames dropped because no peer would send them: from a node that does not host the rank, or inconsistent with
    /// earlier answers.
    pub foreign: u64,
    /// Answers that did not arrive in time.
    pub missed: u64,
    /// Messages left on the link, with back-pressure alone.
    pub left: u64,
}
