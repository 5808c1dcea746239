//! The message from a receiver back to a sender: its estimate, and the timestamps of a clock
//! exchange.
//!
//! On the paper's shared medium every node observes the same queue and steers by what it receives.
//! On a switched network the queue is on the path from one sender to one receiver, so the estimate
//! has to travel back.

use std::collections::VecDeque;

use midplane_simhw::time::Instant;

use crate::estimate::{Arrivals, Estimate};

/// Bytes of a feedback message.
pub const FEEDBACK_BYTES: usize = 76;

/// An estimate that a receiver returns to the sender, with the second half of a four-timestamp
/// exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feedback {
    /// Sequence number among the feedbacks of one receiver, from 1. The sender ignores one that a
    /// newer overtook.
    pub sequence: u32,
    /// The estimate from the stamps.
    pub estimate: Estimate,
    /// When the receiver sent this feedback, by the receiver's clock.
    pub returned: Instant,
    /// Messages that arrived so far, without duplicates.
    pub received: u64,
    /// Messages that are missing so far.
    pub missing: u64,
    /// True if the receiver asks all its senders to let the queue run empty for a moment. Each can
    /// then measure the delay of the empty path.
    pub drain: bool,
}

impl Feedback {
    /// Wraps `estimate` for its return at `returned`, without a drain request.
    #[must_use]
    pub const fn new(
        sequence: u32,
        estimate: Estimate,
        arrivals: Arrivals,
        returned: Instant,
    ) -> Self {
        let Arrivals { received, missing, .. } = arrivals;
        Self { sequence, estimate, returned, received, missing, drain: false }
    }

    /// Encodes the feedback for the wire, little-endian.
    #[must_use]
    pub fn emit(&self) -> [u8; FEEDBACK_BYTES] {
        let mut bytes = [0; FEEDBACK_BYTES];
        let words = [
            self.estimate.warp.to_bits(),
            self.estimate.delay_ns.cast_unsigned(),
            self.estimate.min_delay_ns.cast_unsigned(),
            self.estimate.newest.as_nanos(),
            self.estimate.span_ns,
            self.returned.as_nanos(),
            self.received,
            self.missing << 1 | u64::from(self.drain),
        ];
        bytes[..4].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.estimate.epoch.to_le_bytes());
        bytes[8..12].copy_from_slice(&(self.estimate.noise_ns as f32).to_le_bytes());
        for (place, word) in bytes[12..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes feedback from `bytes`. Returns `None` if the length is wrong, or if warp or noise is
    /// negative or not finite.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; FEEDBACK_BYTES] = bytes.try_into().ok()?;
        let half = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let mut words = [0; 8];
        for (word, place) in words.iter_mut().zip(bytes[12..].chunks_exact(8)) {
            *word = u64::from_le_bytes(place.try_into().ok()?);
        }
        let warp = f64::from_bits(words[0]);
        let noise_ns = f64::from(f32::from_le_bytes(half(8)));
        let says = |value: f64| value.is_finite() && value >= 0.0;
        if !says(warp) || !says(noise_ns) {
            return None;
        }
        let estimate = Estimate {
            warp,
            delay_ns: words[1].cast_signed(),
            min_delay_ns: words[2].cast_signed(),
            noise_ns,
            newest: Instant::from_nanos(words[3]),
            span_ns: words[4],
            epoch: u32::from_le_bytes(half(4)),
        };
        Some(Self {
            sequence: u32::from_le_bytes(half(0)),
            estimate,
            returned: Instant::from_nanos(words[5]),
            received: words[6],
            missing: words[7] >> 1,
            drain: words[7] & 1 == 1,
        })
    }
}

/// Number of samples of the return path; the shortest of them is used.
const RETURNS: usize = 16;
/// The longest plausible round trip: ten minutes.
const MAX_LOOP_NS: i64 = 600_000_000_000;

/// Computes the queueing delay of the forward path, without the offset and the drift of the two
/// clocks.
///
/// The sum of both directions does not contain the offset. The return delay is the shortest of the
/// last 16 feedbacks, which hides its queues; a drift of 100 ppm hardly shows within them. The
/// delay of the empty path is the shortest round trip since the last drain but one.
///
/// If a path grows longer for good, that looks like a queue until the second drain after it. At a
/// steady rate both show a constant delay and a warp of 1. Only while all senders drain does a
/// queue shrink and a path not.
#[derive(Clone, Debug)]
pub(crate) struct QueueDelay {
    returns: VecDeque<i64>,
    epoch: u32,
    /// Shortest round trip since the last drain, and between the two drains before it.
    least: [Option<i64>; 2],
}

/// One measurement by [`QueueDelay`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    /// Queueing delay on the forward path, in nanoseconds.
    pub(crate) queue_ns: u64,
    /// Round-trip delay of the empty path, in nanoseconds.
    pub(crate) base_ns: u64,
}

impl Default for QueueDelay {
    fn default() -> Self {
        Self { returns: VecDeque::with_capacity(RETURNS + 1), epoch: 0, least: [None; 2] }
    }
}

impl QueueDelay {
    /// Processes a feedback that arrived at `now`, by the sender's clock. Returns `None` if its
    /// round trip is negative or longer than ten minutes.
    pub(crate) fn handle_feedback(&mut self, now: Instant, feedback: &Feedback) -> Option<Reading> {
        let estimate = &feedback.estimate;
        if estimate.epoch != self.epoch {
            self.epoch = estimate.epoch;
            self.returns.clear();
        }
        let back = now.as_nanos().wrapping_sub(feedback.returned.as_nanos()).cast_signed();
        let believed = |ns: &i64| (0..MAX_LOOP_NS).contains(ns);
        // Both delays are from one exchange, so a clock that was set between two exchanges does not
        // matter.
        let whole = Some(estimate.min_delay_ns.wrapping_add(back)).filter(believed)?;
        self.returns.push_back(back);
        if self.returns.len() > RETURNS {
            self.returns.pop_front();
        }
        self.least[0] = Some(self.least[0].map_or(whole, |least| least.min(whole)));
        let base = self.least.iter().flatten().min().copied().unwrap_or(whole);
        let shortest_back = self.returns.iter().min().copied().unwrap_or(back);
        let looped = estimate.min_delay_ns.wrapping_add(shortest_back).clamp(base, MAX_LOOP_NS);
        Some(Reading { queue_ns: (looped - base).cast_unsigned(), base_ns: base.cast_unsigned() })
    }

    /// Starts a new drain: discards round trips measured before the last one.
    pub(crate) const fn on_drain(&mut self) {
        self.least = [None, self.least[0]];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn estimate(delay_ns: i64, newest: u64) -> Estimate {
        Estimate {
            warp: 1.0,
            delay_ns,
            min_delay_ns: delay_ns,
            noise_ns: 0.0,
            newest: Instant::from_nanos(newest),
            span_ns: 10,
            epoch: 0,
        }
    }

    /// Returns one reading per millisecond of a path of 100 us each way. The receiver's clock is
    /// `offset` ahead and gains `ppm`; the queueing delay is `queue` nanoseconds.
    fn readings(offset: i64, ppm: i64, count: u64, queue: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut delay = QueueDelay::default();
        let reading = |i: u64| {
            let at = 10_000_000_000 + i * 1_000_000;
            let clock = |t: u64| (t as i64 + offset + t as i64 / 1_000_000 * ppm).cast_unsigned();
            let arrives = at + 100_000 + queue(i);
            let one_way = clock(arrives) as i64 - at as i64;
            let back = Instant::from_nanos(clock(arrives));
            let feedback =
                Feedback::new(i as u32, estimate(one_way, at), Arrivals::default(), back);
            let now = Instant::from_nanos(arrives + 100_000);
            delay.handle_feedback(now, &feedback).expect("a believable loop").queue_ns
        };
        (0..count).map(reading).collect()
    }

    #[test]
    fn neither_offset_nor_drift_of_the_clocks_is_taken_for_a_queue() {
        for (offset, ppm) in [(0, 0), (5_000_000_000, 100), (-5_000_000_000, -100)] {
            let seen = readings(offset, ppm, 100_000, |i| if i < 10 { 0 } else { 40_000 });
            // A drift of 100 ppm over 16 ms is 1.6 us.
            assert!(seen[20..].iter().all(|queue| queue.abs_diff(40_000) <= 1_700), "{ppm} ppm");
        }
    }

    #[test]
    fn a_path_that_grew_longer_is_believed_after_two_drains() {
        let mut delay = QueueDelay::default();
        let mut read = |one_way: i64, drain: bool| {
            if drain {
                delay.on_drain();
            }
            let feedback =
                Feedback::new(1, estimate(one_way, 0), Arrivals::default(), Instant::ZERO);
            delay.handle_feedback(Instant::from_nanos(50), &feedback).unwrap().queue_ns
        };
        assert_eq!(read(100, false), 0);
        assert_eq!(read(150, true), 50);
        assert_eq!(read(150, true), 0);
    }

    proptest! {
        #[test]
        fn parsing_is_the_inverse_of_emitting(
            words: [u64; 4], delays: [i64; 2], warp in 0.0..1e9, drain: bool, epoch: u32,
        ) {
            let estimate = Estimate {
                warp, delay_ns: delays[0], min_delay_ns: delays[1], noise_ns: 0.5,
                newest: Instant::from_nanos(words[0]), span_ns: words[1], epoch,
            };
            let feedback = Feedback {
                sequence: 7, estimate, returned: Instant::from_nanos(words[2]),
                received: words[3], missing: words[0] >> 1, drain,
            };
            prop_assert_eq!(Feedback::parse(&feedback.emit()), Some(feedback));
        }

        #[test]
        fn any_bytes_parse_to_finite_numbers_or_none(
            bytes in proptest::collection::vec(any::<u8>(), 0..100), now: u64,
        ) {
            let mut delay = QueueDelay::default();
            if let Some(feedback) = Feedback::parse(&bytes) {
                prop_assert!(feedback.estimate.warp.is_finite());
                let _ = delay.handle_feedback(Instant::from_nanos(now), &feedback);
            }
        }
    }
}
