//! The time that readers have to take frames from a wire themselves, before the driver takes them.

use std::time::Duration;

use tokio::time::Instant;

use crate::session::core::Core;

/// Time after which the driver takes a frame that its woken reader has not taken: it may block other streams.
const GRACE: Duration = Duration::from_micros(50);
/// The same time if the driver waits meanwhile, because the runtime's timers are no finer. Also the time in which a
/// reader that takes one part after the other must have taken the whole frame.
pub(super) const READER_TIMEOUT: Duration = Duration::from_millis(1);

/// The progress of the readers of a session.
#[derive(Debug)]
pub(super) struct Reading {
    /// The time when a reader was last woken, or a frame or a part of one was last handled; and how many had been
    /// handled by then.
    read_at: Instant,
    handled: u64,
    /// The time when a reader was last woken, or a frame was last handled to its end; and how many had been by then.
    ended_at: Instant,
    ended: u64,
}

impl Reading {
    pub(super) const fn new(now: Instant) -> Self {
        Self { read_at: now, handled: 0, ended_at: now, ended: 0 }
    }

    /// Returns whether the reader of the next frame has had its time to take it. `is_woken` is true if a reader was
    /// woken just now.
    pub(super) fn is_late(
        &mut self,
        core: &Core,
        now: Instant,
        is_woken: bool,
        is_simulated: bool,
    ) -> bool {
        let ended = core.handled.wrapping_sub(core.parts);
        let has_read = is_woken || self.handled != core.handled;
        if has_read {
            self.read_at = now;
        }
        if is_woken || self.ended != ended {
            self.ended_at = now;
        }
        (self.handled, self.ended) = (core.handled, ended);
        let has_stopped = !has_read && (is_simulated || now >= self.read_at + GRACE);
        has_stopped || now >= self.ended_at + READER_TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::task::Waker;

    use tokio::io::ReadBuf;

    use super::*;
    use crate::session::core::{Direct, Event};
    use crate::session::tests::pair;

    /// Regression: each part that a slow reader took gave it more time, in which all other streams were blocked.
    #[test]
    fn a_reader_that_takes_small_parts_is_late_after_a_millisecond_and_one_of_whole_frames_never() {
        for (bytes, is_slow) in [(10, true), (1_000, false)] {
            let [mut from, mut to] = pair();
            let stream = from.open("service").unwrap();
            from.flush();
            to.pump(None);
            assert!(matches!(to.events.pop_front(), Some(Event::Opened { .. })));
            to.accept(stream);
            to.flush();
            from.pump(None);
            for _ in 0..10 {
                assert_eq!(from.write(stream, &[IoSlice::new(&[7; 1_000])], Waker::noop()), 1_000);
            }
            from.flush();
            let begin = Instant::now();
            let mut reading = Reading::new(begin);
            assert!(!reading.is_late(&to, begin, false, false));
            let mut buffer = vec![0; bytes];
            for turn in 1..100 {
                let now = begin + turn * Duration::from_micros(40);
                let mut into = ReadBuf::new(&mut buffer);
                to.pump(Some(Direct { stream, into: &mut into }));
                let is_late = reading.is_late(&to, now, false, false);
                // A reader of whole frames has read all after ten turns.
                let is_over = if is_slow { turn >= 25 } else { turn >= 12 };
                assert_eq!(is_late, is_over, "{bytes} bytes, turn {turn}");
            }
        }
    }
}
