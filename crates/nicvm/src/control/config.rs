//! How control messages are sent.

use std::time::Duration;

/// How control messages are sent. All units of a cluster may differ.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlConfig {
    pub(super) window: u32,
    pub(super) queue: usize,
    pub(super) first_timeout: Duration,
    pub(super) least_timeout: Duration,
    pub(super) dead_after: Duration,
    pub(super) acknowledge_after: Duration,
}

/// Most messages that may be under way to a peer: what an acknowledgement's bitmap covers.
pub(super) const MAX_WINDOW: u32 = 48;

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            // A round trip of 20 us carries more than a million messages a second.
            window: 32,
            // A burst to every extension; beyond it the peer is gone, and soon said to be.
            queue: 1024,
            // Before anything is known: longer than a round trip on any local network.
            first_timeout: Duration::from_millis(10),
            // Two turns of a busy operating system's scheduler.
            least_timeout: Duration::from_millis(4),
            // Longer than a stopped process or a lost cable that comes back, to a user.
            dead_after: Duration::from_millis(500),
            // Well below the least timeout, and often enough time for a message the other way.
            acknowledge_after: Duration::from_micros(500),
        }
    }
}

impl ControlConfig {
    /// Messages that may be under way to one peer: 1 to 48; 32 unless set.
    pub fn window(&mut self, messages: u32) -> &mut Self {
        self.window = messages.clamp(1, MAX_WINDOW);
        self
    }

    /// Messages that may wait for one peer, with those under way; 1024 unless set.
    pub fn queue(&mut self, messages: usize) -> &mut Self {
        self.queue = messages.max(1);
        self
    }

    /// Time after which a message is sent again before a round trip was measured, and the least
    /// later on; 10 ms and 4 ms unless set.
    pub fn timeouts(&mut self, first: Duration, least: Duration) -> &mut Self {
        self.least_timeout = least.max(Duration::from_micros(10));
        self.first_timeout = first.max(self.least_timeout);
        self
    }

    /// Silence after which a peer that owes an answer is declared dead; 500 ms unless set.
    pub fn dead_after(&mut self, silence: Duration) -> &mut Self {
        self.dead_after = silence.max(Duration::from_micros(100));
        self
    }

    /// Time that an acknowledgement waits for a message to ride on; 500 us unless set.
    pub fn acknowledge_after(&mut self, delay: Duration) -> &mut Self {
        self.acknowledge_after = delay.min(Duration::from_millis(60));
        self
    }
}
