//! Records which counters of a session have been seen: a window over the newest ones (as in RFC 6479).

/// Width of the window in counters: at 64 bytes a frame and 10 Gb/s, 2 ms.
pub(super) const WINDOW: u64 = 4_096;
const WORDS: usize = WINDOW as usize / 64 + 1;

/// The set of counters that have been seen.
#[derive(Debug)]
pub(super) struct Window {
    /// One bit a counter, at the counter modulo the window. One extra word lets the newest word be cleared
    /// without losing any within the window.
    words: [u64; WORDS],
    /// The newest counter seen, plus one.
    next: u64,
}

impl Window {
    pub(super) const fn new() -> Self {
        Self { words: [0; WORDS], next: 0 }
    }

    /// Returns whether `counter` was seen, or is behind the window.
    pub(super) fn has_seen(&self, counter: u64) -> bool {
        if counter >= self.next {
            return false;
        }
        if self.next - counter > WINDOW {
            return true;
        }
        let (word, bit) = place(counter);
        self.words[word] & bit != 0
    }

    /// Records `counter`, which must be new.
    pub(super) fn note(&mut self, counter: u64) {
        if counter >= self.next {
            let newest = self.next.saturating_sub(1) / 64;
            let skipped = (counter / 64 - newest).min(WORDS as u64);
            for word in 1..=skipped {
                self.words[((newest + word) % WORDS as u64) as usize] = 0;
            }
            self.next = counter + 1;
        }
        let (word, bit) = place(counter);
        self.words[word] |= bit;
    }
}

const fn place(counter: u64) -> (usize, u64) {
    ((counter / 64 % WORDS as u64) as usize, 1 << (counter % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_counter_passes_once_and_none_behind_the_window(
            steps in proptest::collection::vec((0_u64..4, 0_u64..6_000), 1..400),
            start in prop_oneof![Just(0), 0_u64..1 << 40],
        ) {
            let mut window = Window::new();
            let mut seen = BTreeSet::new();
            let mut newest = start;
            for (kind, distance) in steps {
                let counter = match kind {
                    0 => newest + 1,
                    1 => newest + distance,
                    _ => newest.saturating_sub(distance),
                };
                let old = seen.last().is_some_and(|last| last + 1 - counter.min(*last) > WINDOW);
                prop_assert_eq!(window.has_seen(counter), old || seen.contains(&counter));
                if !window.has_seen(counter) {
                    window.note(counter);
                    seen.insert(counter);
                }
                newest = newest.max(counter);
            }
        }
    }
}
