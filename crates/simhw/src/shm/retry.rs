//! Schedules polls of a peer whose slots are full, because a peer does not notify a NIC when it releases slots.

use crate::time::Instant;

/// Nanoseconds until the first poll.
const FIRST_NANOS: u64 = 2_000;
/// Most nanoseconds between two polls. Each failed poll doubles the time up to this, because the process that must
/// empty the slots may need the core on which the polls run.
const LONGEST_NANOS: u64 = 64_000;

/// The schedule of one peer's polls.
#[derive(Debug)]
pub(super) struct Retry {
    at: Instant,
    nanos: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { at: Instant::ZERO, nanos: FIRST_NANOS }
    }
}

impl Retry {
    /// Handles full slots: returns when to poll again.
    pub(super) fn on_full(&mut self, now: Instant) -> Instant {
        if now >= self.at {
            self.at = now.plus_nanos(self.nanos);
            self.nanos = (2 * self.nanos).min(LONGEST_NANOS);
        }
        self.at
    }

    /// Handles a successful send: the next time begins at the shortest.
    pub(super) const fn on_room(&mut self) {
        self.nanos = FIRST_NANOS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_peer_is_polled_about_20_times_in_a_millisecond() {
        let (mut retry, mut now, mut polls) = (Retry::default(), Instant::from_nanos(5), 0);
        let until = now.plus_nanos(1_000_000);
        while now < until {
            // Several frames may find the slots full at the same instant.
            let at = retry.on_full(now);
            assert_eq!((retry.on_full(now), at > now), (at, true));
            now = at;
            polls += 1;
        }
        assert!((15..25).contains(&polls), "{polls}");
        retry.on_room();
        assert_eq!(retry.on_full(now), now.plus_nanos(FIRST_NANOS));
    }
}
