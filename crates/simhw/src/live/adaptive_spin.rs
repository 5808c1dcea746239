//! Spin-then-park: busy-polls before parking, for a time that adapts to recent success.

use super::clock::Clock;
use crate::time::Instant;

/// Failed spins in a row after which the next one takes the full time again.
const FULL_EVERY: u32 = 16;
/// Most halvings of the time.
const HALVINGS: u32 = 4;

/// Adapts the time of busy-polling to whether it has succeeded.
#[derive(Debug, Default)]
pub(crate) struct AdaptiveSpin {
    /// Spins in a row that found nothing.
    failed: u32,
}

impl AdaptiveSpin {
    /// Calls `find` until it returns a value, for at most `most` nanoseconds. If `most` is 0, never calls it.
    pub(crate) fn spin<T>(&mut self, most: u32, mut find: impl FnMut() -> Option<T>) -> Option<T> {
        if most == 0 {
            return None;
        }
        let until = self.until(most);
        while Clock::now() < until {
            std::hint::spin_loop();
            if let Some(found) = find() {
                self.on_end(true);
                return Some(found);
            }
        }
        self.on_end(false);
        None
    }

    /// Returns when a spin that begins now ends; it takes at most `most` nanoseconds.
    pub(crate) fn until(&self, most: u32) -> Instant {
        // Each failed spin halves the time. Now and then it is the full time again: otherwise short spins would
        // never find a peer that has once been slower than them.
        let is_full = self.failed.is_multiple_of(FULL_EVERY);
        let nanos = if is_full { most } else { most >> self.failed.min(HALVINGS) };
        Clock::now().plus_nanos(nanos.into())
    }

    /// Records the end of a spin.
    pub(crate) const fn on_end(&mut self, has_found: bool) {
        self.failed = if has_found { 0 } else { self.failed.wrapping_add(1) };
    }
}
