//! Places that may have nodes, and the time of the next dial to each.

use std::net::SocketAddr;

use midplane_simhw::time::Instant;

/// Nanoseconds from a failed dial to the next: at first, and at most. They double with each failure.
const BACK_OFF: (u64, u64) = (50_000_000, 800_000_000);
/// Nanoseconds that a link must last for its end to count as no failure of its place.
const STEADY: u64 = 1_000_000_000;

/// A place where a node may be.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Target {
    /// The node of this number, on this host.
    Local(u64),
    /// Any node that receives at this address.
    Address(SocketAddr),
}

/// A place, and the state of dials to it.
#[derive(Debug)]
pub(super) struct Place {
    /// True if discovery returns the place now.
    pub(super) is_listed: bool,
    /// True if a dial was requested and has not begun.
    pub(super) is_dialing: bool,
    /// The link that was dialed there, if it has not ended.
    pub(super) link: Option<u64>,
    /// The node that last described itself there.
    pub(super) peer: Option<u64>,
    failures: u32,
    pub(super) again_at: Instant,
}

impl Place {
    pub(super) const fn new(now: Instant, target: Target) -> Self {
        let peer = match target {
            Target::Local(id) => Some(id),
            Target::Address(_) => None,
        };
        Self { is_listed: true, is_dialing: false, link: None, peer, failures: 0, again_at: now }
    }

    /// Handles a dial that could not begin.
    pub(super) fn on_refused(&mut self, now: Instant) {
        self.is_dialing = false;
        self.on_failure(now, now);
    }

    /// Handles the end of the link that was dialed at `since`. `is_described` is true if its peer had described itself.
    pub(super) fn on_ended(&mut self, now: Instant, since: Instant, is_described: bool) {
        self.link = None;
        if is_described && now.nanos_since(since) >= STEADY {
            self.failures = 0;
        }
        self.on_failure(now, since);
    }

    fn on_failure(&mut self, now: Instant, since: Instant) {
        let (first, most) = BACK_OFF;
        let back_off = (first << self.failures.min(10)).min(most);
        // A dial that took long to fail is repeated soon.
        self.again_at = since.plus_nanos(back_off).max(now.plus_nanos(first));
        self.failures = self.failures.saturating_add(1);
    }

    /// Returns whether the place may be dialed: it is listed, and has no dial and no link.
    pub(super) const fn is_free(&self) -> bool {
        self.is_listed && !self.is_dialing && self.link.is_none()
    }
}
