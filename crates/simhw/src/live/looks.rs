//! Looking before waiting: as long as that has paid lately.

use super::clock::Clock;
use crate::time::Instant;

/// Waits after which one looks for as long as one may once more.
const ANEW: u32 = 16;
/// How often the time is halved at most.
const HALVINGS: u32 = 4;

/// How looking has paid.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Times in a row that it was in vain.
    vain: u32,
}

impl Looks {
    /// Calls `find` until it finds something, for `most` nanoseconds at the longest; not at all where
    /// that is 0.
    pub(crate) fn look<T>(&mut self, most: u32, mut find: impl FnMut() -> Option<T>) -> Option<T> {
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

    /// How long to look from now on, within `most` nanoseconds.
    pub(crate) fn until(&self, most: u32) -> Instant {
        // Half as long each time it was in vain, but now and then as long as ever: who has once been
        // slower than a short look would never be found by one again.
        let again = self.vain.is_multiple_of(ANEW);
        let spin = if again { most } else { most >> self.vain.min(HALVINGS) };
        Clock::now().plus_nanos(spin.into())
    }

    /// So looking has ended.
    pub(crate) const fn on_end(&mut self, has_found: bool) {
        self.vain = if has_found { 0 } else { self.vain.wrapping_add(1) };
    }
}
