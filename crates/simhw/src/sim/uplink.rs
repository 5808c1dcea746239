//! A NIC's line. Frames leave it in the order in which they were submitted. Urgent frames leave between two pieces of
//! others, as cells of one ATM circuit pass between those of another.

use std::collections::VecDeque;

use crate::time::{Instant, LineRate, Serializer};

/// Preemptions by urgent frames that are remembered for frames in flight.
const PREEMPTIONS: usize = 4096;

/// The reservation of a frame on the line.
#[derive(Clone, Copy, Debug)]
struct Reserved {
    /// When its first bit leaves, or its first bit since an urgent frame preempted it.
    begins: Instant,
    leaves: Instant,
    /// When it was to leave before urgent frames preempted it.
    promised: Instant,
    piece_ns: u64,
}

/// The state that an abort restores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checkpoint {
    line: Serializer,
    /// Number of frames ever reserved.
    given: u64,
}

#[derive(Debug)]
pub(super) struct Uplink {
    line: Serializer,
    reserved: VecDeque<Reserved>,
    /// Number of frames that have left.
    gone: u64,
    /// When the last urgent frame has left.
    urgent_free: Instant,
    /// Preemptions: the instant from which other frames were delayed, and the nanoseconds of delay.
    preemptions: VecDeque<(Instant, u64)>,
    /// Number of preemptions that were forgotten.
    forgotten: u64,
    /// True if the line is a shared medium: frames leave when [`Uplink::depart`] is called.
    shared: bool,
}

impl Uplink {
    pub(super) fn new(rate: LineRate, shared: bool) -> Self {
        Self {
            line: Serializer::new(rate),
            reserved: VecDeque::new(),
            gone: 0,
            urgent_free: Instant::ZERO,
            preemptions: VecDeque::new(),
            forgotten: 0,
            shared,
        }
    }

    pub(super) const fn rate(&self) -> LineRate {
        self.line.rate()
    }

    /// Changes the rate of the line from now on; frames with a reservation keep their times.
    pub(super) const fn set_rate(&mut self, rate: LineRate) {
        self.line.set_rate(rate);
    }

    /// Returns the number of frames that have not left, and when the first of them leaves.
    pub(super) fn waiting(&mut self, now: Instant) -> (usize, Instant) {
        while !self.shared && self.reserved.front().is_some_and(|frame| frame.leaves <= now) {
            self.reserved.pop_front();
            self.gone += 1;
        }
        (self.reserved.len(), self.reserved.front().map_or(now, |frame| frame.leaves))
    }

    /// Removes the first frame, which has left a shared medium or was dropped. If it is late, all others are
    /// late by the same time.
    pub(super) fn depart(&mut self, now: Instant) {
        let Some(first) = self.reserved.pop_front() else { return };
        self.gone += 1;
        let late = now.nanos_since(first.leaves);
        for frame in &mut self.reserved {
            frame.begins = frame.begins.plus_nanos(late);
            frame.leaves = frame.leaves.plus_nanos(late);
        }
        self.line.delay(late);
    }

    /// Returns the nanoseconds by which the last frame leaves later than promised.
    pub(super) fn lag(&self) -> u64 {
        self.reserved.back().map_or(0, |frame| frame.leaves.nanos_since(frame.promised))
    }

    pub(super) fn checkpoint(&self) -> Checkpoint {
        Checkpoint { line: self.line, given: self.gone + self.reserved.len() as u64 }
    }

    pub(super) fn restore(&mut self, checkpoint: Checkpoint) {
        self.line = checkpoint.line;
        let keep = checkpoint.given.saturating_sub(self.gone);
        self.reserved.truncate(usize::try_from(keep).unwrap_or(usize::MAX));
    }

    /// Reserves the line for a frame that is ready at `ready`. Returns the line as it is before the frame, the
    /// instant from which the frame counts, and when its last bit leaves.
    pub(super) fn reserve(
        &mut self,
        ready: Instant,
        bytes: u32,
        piece: u32,
    ) -> (Serializer, Instant, Instant) {
        let ready = ready.max(self.urgent_free);
        let before = self.line;
        let begins = ready.max(before.free_at());
        let leaves = self.line.send(ready, bytes);
        let piece_ns = self.line.rate().nanos_for(u64::from(piece)).max(1);
        self.reserved.push_back(Reserved { begins, leaves, promised: leaves, piece_ns });
        (before, ready, leaves)
    }

    /// Returns when an urgent frame that is ready at `ready` could begin: at the next end of a piece.
    pub(super) fn urgent_begin(&self, ready: Instant) -> Instant {
        let at = ready.max(self.urgent_free);
        match self.reserved.iter().find(|frame| frame.leaves > at) {
            Some(frame) if frame.begins < at => {
                let pieces = at.nanos_since(frame.begins).div_ceil(frame.piece_ns);
                frame.begins.plus_nanos(pieces * frame.piece_ns).min(frame.leaves)
            }
            _ => at,
        }
    }

    /// Preempts the line for an urgent frame of `nanos`; frames that have not left by then are delayed.
    pub(super) fn preempt(&mut self, ready: Instant, nanos: u64) -> Instant {
        let begins = self.urgent_begin(ready);
        let ends = begins.plus_nanos(nanos);
        self.urgent_free = ends;
        let Some(next) = self.reserved.iter().find(|frame| frame.leaves > begins) else {
            return begins;
        };
        let delay = if next.begins <= begins { nanos } else { ends.nanos_since(next.begins) };
        if delay == 0 {
            return begins;
        }
        for frame in self.reserved.iter_mut().filter(|frame| frame.leaves > begins) {
            frame.leaves = frame.leaves.plus_nanos(delay);
            frame.begins =
                if frame.begins < begins { ends } else { frame.begins.plus_nanos(delay) };
        }
        self.line.delay(delay);
        if self.preemptions.len() == PREEMPTIONS {
            self.preemptions.pop_front();
            self.forgotten += 1;
        }
        self.preemptions.push_back((begins, delay));
        begins
    }

    /// Returns how often urgent frames have preempted the line.
    pub(super) fn preemptions(&self) -> u64 {
        self.forgotten + self.preemptions.len() as u64
    }

    /// Returns the nanoseconds by which preemptions since `seen` delay a piece that was to leave at `leaves`, and the
    /// new count of preemptions seen.
    pub(super) fn delayed(&self, mut seen: u64, leaves: Instant) -> (u64, u64) {
        let mut delay = 0;
        while let Some(&(at, by)) =
            self.preemptions.get(usize::try_from(seen.saturating_sub(self.forgotten)).unwrap_or(0))
            && leaves.plus_nanos(delay) > at
        {
            delay += by;
            seen = seen.max(self.forgotten) + 1;
        }
        (delay, seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CELL: u32 = 53;

    #[test]
    fn an_urgent_frame_leaves_after_the_cell_that_is_on_the_line() {
        let mut uplink = Uplink::new(LineRate::mbps(424), false); // a cell a microsecond
        let at = Instant::from_nanos;
        let (_, _, leaves) = uplink.reserve(at(0), CELL * 10, CELL);
        assert_eq!(leaves, at(10_000));
        assert_eq!(uplink.preempt(at(2_500), 2_000), at(3_000));
        assert_eq!(uplink.waiting(at(2_500)), (1, at(12_000)));
        // A piece that had left is not delayed; the next one is.
        assert_eq!(uplink.delayed(0, at(3_000)), (0, 0));
        assert_eq!(uplink.delayed(0, at(4_000)), (2_000, 1));
        assert_eq!(uplink.preempt(at(4_000), 2_000), at(5_000));
        let (_, _, leaves) = uplink.reserve(at(4_000), CELL, CELL);
        assert_eq!(leaves, at(15_000));
    }

    #[test]
    fn an_urgent_frame_in_a_gap_delays_only_what_it_meets() {
        let mut uplink = Uplink::new(LineRate::mbps(424), false);
        let at = Instant::from_nanos;
        uplink.reserve(at(5_000), CELL, CELL);
        assert_eq!(uplink.preempt(at(1_000), 1_000), at(1_000));
        assert_eq!(uplink.waiting(at(1_000)), (1, at(6_000)));
        assert_eq!(uplink.preempt(at(4_500), 1_000), at(4_500));
        assert_eq!(uplink.waiting(at(4_500)), (1, at(6_500)));
    }

    proptest! {
        #[test]
        fn no_two_frames_have_the_line_at_once(
            frames in proptest::collection::vec((any::<bool>(), 0_u64..20_000, 1_u32..30), 1..40),
        ) {
            let mut uplink = Uplink::new(LineRate::mbps(424), false);
            let mut now = Instant::ZERO;
            let mut stolen: u64 = 0;
            let mut urgent_ends = Instant::ZERO;
            let mut last = Instant::ZERO;
            for (urgent, gap, cells) in frames {
                now = now.plus_nanos(gap);
                let nanos = u64::from(cells) * 1_000;
                if urgent {
                    let begins = uplink.preempt(now, nanos);
                    prop_assert!(begins >= now && begins >= urgent_ends);
                    prop_assert!(begins.nanos_since(now.max(urgent_ends)) <= 1_000);
                    urgent_ends = begins.plus_nanos(nanos);
                    stolen += nanos;
                } else {
                    let (_, _, leaves) = uplink.reserve(now, CELL * cells, CELL);
                    prop_assert!(leaves >= last.max(now).plus_nanos(nanos));
                    last = leaves;
                }
                let end = uplink.reserved.back().map_or(Instant::ZERO, |frame| frame.leaves);
                prop_assert!(end >= last && end.nanos_since(last) <= stolen);
                last = last.max(end);
            }
        }
    }
}
