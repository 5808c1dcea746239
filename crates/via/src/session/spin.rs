//! Decides whether the driver polls its socket before it parks: only if its last pauses were short, no other process needs
//! the processor, and no session has several streams in use at once.
//!
//! A pause is a time in which the driver has nothing to do, whether it polls or is parked. On a processor that both
//! processes share, the driver yields between two polls, so that the peer can answer.

use std::time::Duration;

use tokio::time::Instant;

/// Limits one bout of polling: where this was measured, a wake-up on another processor takes 31 to 60 us, and
/// the answer follows it.
const SPIN: Duration = Duration::from_micros(150);
/// The longest pause that polling would have shortened: two wake-ups, and an answer between them.
const SHORT: Duration = Duration::from_micros(300);
/// The longest yield of the processor that no other process has used: a switch and the peer's answer take longer.
const BRIEF: Duration = Duration::from_micros(5);
/// Short pauses in a row before the driver polls: the initial number, and the largest, after unsuccessful bouts.
const WANTED: (u32, u32) = (16, 1 << 14);
/// More pauses in which polling gains nothing than others, before that counts as an unsuccessful bout.
const VAIN: u32 = 8;
/// Factor by which that number grows with each unsuccessful bout.
const BACK_OFF: u32 = 4;

/// The pauses of a driver, and whether it polls during the next one.
#[derive(Debug)]
pub(super) struct AdaptiveSpin {
    /// When the current pause began.
    since: Option<Instant>,
    /// Short pauses in a row.
    short: u32,
    /// Short pauses in a row before the driver polls.
    wanted: u32,
    /// True if the runtime has one thread. Otherwise, the driver yields to other threads of its own process, and one that
    /// parks leaves more to do to the thread that wakes it.
    is_current_thread: bool,
    /// True if polling gains nothing in the current pause, or in the next one.
    is_vain: bool,
    /// Pauses in which polling gained nothing, less those in which it gained something, since the last unsuccessful bout.
    vain: u32,
}

impl AdaptiveSpin {
    pub(super) const fn new(is_current_thread: bool) -> Self {
        Self { since: None, short: 0, wanted: WANTED.0, is_current_thread, is_vain: false, vain: 0 }
    }

    /// Handles the end of the pause: the driver has work.
    pub(super) fn on_work(&mut self, now: Instant) {
        let Some(since) = self.since.take() else { return };
        let is_vain = std::mem::take(&mut self.is_vain);
        let has_polled = self.short >= self.wanted;
        if now.duration_since(since) > SHORT {
            // Another process may have had the processor since the driver yielded it.
            self.on_long_pause(has_polled);
            return;
        }
        if has_polled {
            if is_vain {
                self.vain += 1;
                if self.vain == VAIN {
                    self.vain = 0;
                    return self.on_long_pause(true);
                }
            } else {
                self.vain = self.vain.saturating_sub(1);
                // A successful bout undoes a part of the back-off.
                self.wanted = (self.wanted - self.wanted.div_ceil(16)).max(WANTED.0);
            }
        }
        self.short = self.short.saturating_add(1);
    }

    /// Handles a yield of the processor within a pause. After a long one, which does not count as a part of the pause, the
    /// driver polls no more in this pause: another process needs the processor, maybe the peer.
    pub(super) fn on_yield(&mut self, took: Duration) {
        if took > if self.is_current_thread { BRIEF } else { SHORT } {
            self.is_vain = true;
            self.since = self.since.map(|since| since + took);
        }
    }

    /// Handles a turn, in which data of several streams may have arrived: then more are on their way, and a driver that parks
    /// takes them together.
    pub(super) const fn on_turn(&mut self, has_several: bool) {
        self.is_vain |= has_several && self.is_current_thread;
    }

    fn on_long_pause(&mut self, has_polled: bool) {
        self.short = 0;
        if has_polled {
            self.wanted = (BACK_OFF * self.wanted).min(WANTED.1);
        }
    }

    /// Handles a turn without work. Returns whether the driver should poll again rather than park.
    pub(super) fn should_poll(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        if self.short < self.wanted || self.is_vain {
            return false;
        }
        if now.duration_since(since) < SPIN {
            return true;
        }
        self.on_long_pause(true);
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Has the driver pause for `micros`; returns for how many of them it has polled.
    fn pause(spin: &mut AdaptiveSpin, now: &mut Instant, micros: u64) -> u64 {
        let mut polled = 0;
        let mut has_parked = false;
        for _ in 0..micros {
            has_parked = has_parked || !spin.should_poll(*now);
            polled += u64::from(!has_parked);
            *now += Duration::from_micros(1);
        }
        spin.on_work(*now);
        polled
    }

    fn start() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_busy_driver_polls_and_one_of_rare_requests_does_not() {
        let (mut spin, mut now) = (AdaptiveSpin::new(true), start());
        let parked = (0..16).map(|_| pause(&mut spin, &mut now, 120)).sum::<u64>();
        assert_eq!(parked, 0);
        assert_eq!(pause(&mut spin, &mut now, 20), 20);
        // A request every 3 ms: each answer arrives soon, and the next request does not.
        pause(&mut spin, &mut now, 3_000);
        let polled: u64 = (0..1_000)
            .map(|_| pause(&mut spin, &mut now, 100) + pause(&mut spin, &mut now, 3_000))
            .sum();
        assert_eq!(polled, 0);
    }

    #[test]
    fn a_driver_whose_processor_is_taken_while_it_polls_backs_off() {
        let (mut spin, mut now) = (AdaptiveSpin::new(true), start());
        let mut bouts = 0;
        for _ in 0..10_000 {
            if spin.should_poll(now) {
                bouts += 1;
                now += Duration::from_millis(3);
            } else {
                now += Duration::from_micros(50);
            }
            spin.on_work(now);
        }
        assert_eq!(bouts, 5, "after 16, 64, 256, 1,024 and 4,096 short pauses");
    }

    /// Has the driver pause for 20 us, `times` times, with `shares` of every four pauses in vain; returns how many of the
    /// pauses it has polled.
    fn pauses(spin: &mut AdaptiveSpin, now: &mut Instant, times: u32, shares: u32) -> u32 {
        let mut polled = 0;
        for number in 0..times {
            if number % 4 < shares {
                spin.on_turn(true);
            }
            polled += u32::from(pause(spin, now, 20) > 0);
        }
        polled
    }

    #[test]
    fn a_driver_whose_peer_needs_the_processor_parks() {
        let (mut spin, mut now) = (AdaptiveSpin::new(true), start());
        let mut polled = 0;
        for _ in 0..10_000 {
            if spin.should_poll(now) {
                polled += 1;
                now += Duration::from_micros(12);
                spin.on_yield(Duration::from_micros(12));
            }
            now += Duration::from_micros(20);
            spin.on_work(now);
        }
        assert_eq!(polled, 5 * VAIN, "after 16, 64, 256, 1,024 and 4,096 short pauses");
    }

    #[test]
    fn a_driver_with_several_streams_in_use_parks() {
        let (mut spin, mut now) = (AdaptiveSpin::new(true), start());
        assert_eq!(pauses(&mut spin, &mut now, 10_000, 4), 0);
    }

    #[test]
    fn a_driver_polls_although_another_process_has_the_processor_now_and_then() {
        let (mut spin, mut now) = (AdaptiveSpin::new(true), start());
        assert_eq!(pauses(&mut spin, &mut now, 10_000, 1), (10_000 - WANTED.0) / 4 * 3);
        spin.should_poll(now);
        spin.on_yield(Duration::from_millis(3));
        now += Duration::from_millis(3);
        spin.on_work(now);
        assert!(spin.should_poll(now));
    }

    proptest! {
        #[test]
        fn polls_in_vain_take_a_bounded_part_of_the_time(runs in proptest::collection::vec((1_u64..400, 1_usize..40), 1..40)) {
            let (mut spin, mut now) = (AdaptiveSpin::new(true), start());
            let mut vain = 0;
            let mut pauses = 0_u64;
            for (micros, times) in runs {
                for _ in 0..times {
                    let polled = pause(&mut spin, &mut now, micros);
                    vain += u64::from(polled > 0 && polled < micros);
                    pauses += 1;
                }
            }
            prop_assert!(vain * u64::from(WANTED.0) <= pauses);
        }
    }
}
