//! Settings of the control protocol, and the reasons for their defaults.

use std::time::Duration;

use midplane_simhw::time::nanos;

use super::receive_window::MAX_WINDOW;

/// Default window in messages: as many as one acknowledgement can tell apart, so a burst of that size never waits for
/// the window.
const DEFAULT_WINDOW: u16 = MAX_WINDOW;
/// Time to a first resend while no round trip has been measured: 10 ms. Longer than a round trip between live hosts whose
/// processes wait to be scheduled, so that the first hello is not doubled; short compared with `dead_after`.
pub(super) const INITIAL_TIMEOUT_NANOS: u64 = 10_000_000;
/// Least time to a resend: 1 ms, about a hundred small round trips, so that a host that is late by a scheduler's tick
/// costs no resend.
pub(super) const MIN_TIMEOUT_NANOS: u64 = 1_000_000;
/// Default time until a peer is declared dead: many times the longest pause of a busy host, yet too short for a person
/// to notice.
#[doc(hidden)]
pub const DEFAULT_DEAD_AFTER: Duration = Duration::from_millis(500);
/// Longest delay of an acknowledgement: long enough that an answer computed by a handler carries it.
#[doc(hidden)]
pub const ACKNOWLEDGEMENT_DELAY: Duration = Duration::from_nanos(ACKNOWLEDGEMENT_DELAY_NANOS);
pub(super) const ACKNOWLEDGEMENT_DELAY_NANOS: u64 = 200_000;
/// Default queue length in messages: holds bursts of several extensions to a peer that is not yet connected. It takes
/// memory only as it fills.
const DEFAULT_QUEUE: usize = 1_024;

/// Resends that fit into `dead_after` once the resend time has grown to its cap.
const CAPPED_ATTEMPTS: u64 = 8;

/// Settings of the control protocol; the two ends may differ.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ControlConfig {
    window: u16,
    dead_after: u64,
    queue: usize,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self { window: DEFAULT_WINDOW, dead_after: nanos(DEFAULT_DEAD_AFTER), queue: DEFAULT_QUEUE }
    }
}

impl ControlConfig {
    /// Sets the messages that may be under way to one peer; clamped to 1 to 32.
    #[must_use]
    pub fn window(mut self, messages: u16) -> Self {
        self.window = messages.clamp(1, MAX_WINDOW);
        self
    }

    /// Sets the time without any new acknowledgement after which a peer that owes one is declared down; at least 8 ns.
    /// Waits between resends grow to at most an eighth of it.
    #[must_use]
    pub fn dead_after(mut self, time: Duration) -> Self {
        self.dead_after = nanos(time).max(CAPPED_ATTEMPTS);
        self
    }

    /// Sets the messages that may wait for one peer behind the window; those under way are not counted. Memory: about
    /// 150 bytes for each message of the longest queue so far.
    #[must_use]
    pub fn queue(mut self, messages: usize) -> Self {
        self.queue = messages;
        self
    }

    pub(super) const fn window_messages(&self) -> usize {
        self.window as usize
    }

    /// Most messages of one peer, under way or waiting.
    pub(super) const fn limit(&self) -> usize {
        self.queue.saturating_add(self.window as usize)
    }

    pub(super) const fn dead_after_nanos(&self) -> u64 {
        self.dead_after
    }

    /// Longest wait between two resends.
    pub(super) const fn timeout_cap_nanos(&self) -> u64 {
        self.dead_after / CAPPED_ATTEMPTS
    }
}
