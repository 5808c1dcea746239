//! How a NIC's channels behave, and what they have seen.

use std::time::Duration;

use midplane_simhw::id::PortId;

use super::ack::Patience;

/// What a sender knows of its receiver's room.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Flow {
    /// What PM does: the receiver takes or refuses each message, and says so.
    #[default]
    AckNack,
    /// Nothing, over links that wait ([`Context::leave_frame`](midplane_nicvm::context::Context::leave_frame)):
    /// a message without room stays on the link, with all behind it, of every channel. For study: jobs that
    /// share a NIC end in a deadlock, and a stopped channel is never steady. Nothing but `sim` has such
    /// links; elsewhere such messages are lost.
    BackPressure,
}

/// How a NIC's channels behave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GangConfig {
    pub(crate) patience: Patience,
    pub(crate) window: u32,
    pub(crate) merge: u32,
    pub(crate) merge_for: Duration,
    pub(crate) channels: u16,
    pub(crate) flow: Flow,
    pub(crate) warden: Option<PortId>,
}

impl Default for GangConfig {
    fn default() -> Self {
        Self {
            patience: Patience::default(),
            window: 32,
            merge: 4,
            merge_for: Duration::from_micros(10),
            channels: 4,
            flow: Flow::AckNack,
            warden: None,
        }
    }
}

impl GangConfig {
    /// How long answers and refused messages are waited for. Default: [`Patience::default`].
    #[must_use]
    pub const fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Messages to one peer that may be unanswered, at least 1. Default: 32.
    #[must_use]
    pub const fn window(mut self, messages: u32) -> Self {
        self.window = if messages == 0 { 1 } else { messages };
        self
    }

    /// Messages that one answer may stand for, and how long it may wait for them. Default: 4, 10 us.
    #[must_use]
    pub const fn merge(mut self, messages: u32, within: Duration) -> Self {
        self.merge = messages;
        self.merge_for = within;
        self
    }

    /// The port whose commands stop and resume all others: the daemon's, opened by that number before
    /// anybody else can ask for it. Default: nobody's.
    #[must_use]
    pub const fn warden(mut self, port: PortId) -> Self {
        self.warden = Some(port);
        self
    }

    /// What senders know of their receivers' room. Default: [`Flow::AckNack`].
    #[must_use]
    pub const fn flow(mut self, flow: Flow) -> Self {
        self.flow = flow;
        self
    }

    /// Channels of a NIC; each has one active context. Default: 4, as PM.
    #[must_use]
    pub const fn channels(mut self, count: u16) -> Self {
        self.channels = count;
        self
    }
}

/// What a NIC's channels have seen.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct GangCounters {
    /// Messages transmitted, each time counted.
    pub transmitted: u64,
    /// Messages taken.
    pub taken: u64,
    /// Messages refused: no room, stopped, or not the next.
    pub refused: u64,
    /// Answers sent: each may stand for several messages.
    pub answers: u64,
    /// Fences sent.
    pub fences: u64,
    /// Frames of another epoch, of a round that is over, or for no context.
    pub stale: u64,
    /// Frames that no peer of ours sends there: from a node that may not talk on the channel, or
    /// contradicting what was said before.
    pub foreign: u64,
    /// Answers that were missed.
    pub missed: u64,
    /// Times that a message was left on the link.
    pub left: u64,
}
