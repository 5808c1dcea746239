//! Ends slow start before it fills the bottleneck's buffer: HyStart++ (RFC 9406).

/// Bounds in nanoseconds of the delay increase that begins conservative slow start (MIN_RTT_THRESH and MAX_RTT_THRESH).
/// The shortest round trip of a round must exceed that of the round before by an eighth, within these bounds.
const THRESHOLDS: (u64, u64) = (4_000_000, 16_000_000);
const DIVISOR: u64 = 8;
/// Round-trip times that a round must have before it counts (N_RTT_SAMPLE).
const SAMPLES: u32 = 8;
/// The factor by which growth is slower in conservative slow start (CSS_GROWTH_DIVISOR).
const SLOWER: f64 = 4.0;
/// Rounds of conservative slow start, after which it ends (CSS_ROUNDS).
const ROUNDS: u32 = 5;

/// Conservative slow start: the delay has grown, perhaps by chance.
#[derive(Clone, Copy, Debug)]
struct Conservative {
    /// The shortest round trip of the round in which it began.
    baseline: u64,
    rounds: u32,
}

/// The rounds of a slow start. A round ends when a packet is acknowledged that was sent after its begin.
#[derive(Clone, Debug)]
pub(super) struct SlowStart {
    /// The number of the packet that was sent last, and that of the last one sent before this round.
    last_sent: u64,
    round_end: u64,
    /// The shortest round trip of the last round, and of this one, in nanoseconds.
    before: Option<u64>,
    shortest: Option<u64>,
    samples: u32,
    conservative: Option<Conservative>,
}

impl SlowStart {
    pub(super) const fn new() -> Self {
        Self {
            last_sent: 0,
            round_end: 0,
            before: None,
            shortest: None,
            samples: 0,
            conservative: None,
        }
    }

    pub(super) const fn on_sent(&mut self, number: u64) {
        self.last_sent = number;
    }

    /// Handles the acknowledgement of a packet in slow start. Returns the part of its bytes by which the window grows;
    /// `None` if slow start is over.
    pub(super) fn growth(&mut self, number: u64, round_trip: u64) -> Option<f64> {
        let shortest = self.shortest.map_or(round_trip, |least| least.min(round_trip));
        self.shortest = Some(shortest);
        self.samples = self.samples.saturating_add(1);
        if self.samples >= SAMPLES {
            self.check_delay(shortest);
        }
        if number > self.round_end {
            self.end_round();
        }
        match self.conservative {
            Some(Conservative { rounds: ROUNDS.., .. }) => None,
            Some(_) => Some(1.0 / SLOWER),
            None => Some(1.0),
        }
    }

    fn check_delay(&mut self, shortest: u64) {
        match (self.conservative, self.before) {
            (Some(Conservative { baseline, .. }), _) if shortest < baseline => {
                self.conservative = None;
            }
            (None, Some(before)) => {
                let threshold = (before / DIVISOR).clamp(THRESHOLDS.0, THRESHOLDS.1);
                if shortest >= before.saturating_add(threshold) {
                    self.conservative = Some(Conservative { baseline: shortest, rounds: 0 });
                }
            }
            _ => {}
        }
    }

    fn end_round(&mut self) {
        self.round_end = self.last_sent;
        self.before = self.shortest.take();
        self.samples = 0;
        if let Some(conservative) = &mut self.conservative {
            conservative.rounds += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Sends and acknowledges ten packets with this round-trip time; returns the last answer.
    fn round(slow_start: &mut SlowStart, number: &mut u64, round_trip: u64) -> Option<f64> {
        let first = *number + 1;
        *number += 10;
        slow_start.on_sent(*number);
        (first..=*number).map(|packet| slow_start.growth(packet, round_trip)).last()?
    }

    #[test]
    fn it_ends_five_rounds_after_the_delay_has_grown() {
        let (mut slow_start, mut number) = (SlowStart::new(), 0);
        for _ in 0..5 {
            assert_eq!(round(&mut slow_start, &mut number, 10 * MS), Some(1.0));
        }
        for rounds in 0..20 {
            match round(&mut slow_start, &mut number, 15 * MS) {
                Some(growth) => assert_eq!(growth, 0.25),
                None => return assert!((4..7).contains(&rounds), "{rounds}"),
            }
        }
        panic!("slow start does not end");
    }

    #[test]
    fn a_delay_that_passes_does_not_end_it() {
        let (mut slow_start, mut number) = (SlowStart::new(), 0);
        for _ in 0..20 {
            round(&mut slow_start, &mut number, 10 * MS);
            assert_eq!(round(&mut slow_start, &mut number, 15 * MS), Some(0.25));
            assert_eq!(round(&mut slow_start, &mut number, 10 * MS), Some(1.0));
        }
    }
}
