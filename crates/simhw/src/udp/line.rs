//! The NIC's own line: frames wait here until their first bit may leave.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::batch::Leaving;
use crate::region::{Payload, RegionRef};
use crate::time::{Instant, LineRate, Serializer, nanos};

/// A frame and when its first bit leaves.
#[derive(Debug)]
pub(super) struct Departing {
    pub(super) begins: Instant,
    /// When its last bit was said to have left.
    promised: Instant,
    wire_bytes: u32,
    pub(super) to: SocketAddr,
    pub(super) bytes: Vec<u8>,
    /// What follows them, still where the application has it.
    pub(super) rest: Option<RegionRef>,
}

impl Departing {
    fn len(&self) -> usize {
        self.bytes.len() + self.rest.map_or(0, |rest| rest.length as usize)
    }
}

/// A frame, to the system; `read` finds what is not with it.
pub(super) fn leaving<'a>(
    frame: &'a Departing,
    read: impl Fn(RegionRef) -> Payload<'a>,
) -> Leaving<'a> {
    Leaving {
        rest: frame.rest.map_or(Payload::EMPTY, read),
        ..Leaving::whole(frame.to, &frame.bytes)
    }
}

/// A paced line with transactions: what is put on it counts from the next commit.
#[derive(Debug)]
pub(super) struct Line {
    committed: Serializer,
    staged: Serializer,
    /// Ordered by when they begin; those from `committed_frames` on are staged.
    frames: VecDeque<Departing>,
    committed_frames: usize,
    /// Urgent ones: they pass all others.
    urgent: VecDeque<Departing>,
    committed_urgent: usize,
    /// The line as what was really handed over fills it, however late.
    actual: Serializer,
    /// By how much the last frame left later than was said.
    lag: u64,
    depth: usize,
    catch_up: u64,
    /// How long before their time frames are handed over: what is behind the line holds them.
    ahead: u64,
    /// Buffers of frames that have left.
    spare: Vec<Vec<u8>>,
    /// Some frame's bytes are not all with it.
    borrows: bool,
}

/// Least bytes that are sent from where the application has them: copying fewer costs less than a second
/// part of a datagram, and frames alike go together. None are where the system can't be told of both.
pub(super) const LEAST_LENT: usize =
    if cfg!(all(target_os = "linux", not(all(test, midplane_loom)))) { 4_096 } else { usize::MAX };
/// Wire bytes of a short frame: one packet of an Ethernet ...
const SHORT: usize = 1_600;
/// ... and how many of them may wait in the place of a longer frame: a message of 8 KiB has about twice as many.
const SHORT_PER_DEPTH: usize = 4;
/// Buffers that a line keeps for its next frames.
const SPARES: usize = 16;
/// Frames that may have begun and not yet be with the system, for each that may wait: the bound
/// where the line is faster than the system.
const BEGUN_PER_DEPTH: usize = 4;
/// When to try again past that bound: nobody knows, so soon.
const RETRY_NANOS: u64 = 20_000;

impl Line {
    pub(super) fn new(rate: LineRate, depth: usize, catch_up: Duration, ahead: Duration) -> Self {
        let line = Serializer::new(rate);
        Self {
            committed: line,
            staged: line,
            frames: VecDeque::new(),
            committed_frames: 0,
            urgent: VecDeque::new(),
            committed_urgent: 0,
            actual: line,
            lag: 0,
            depth: depth.max(1),
            catch_up: nanos(catch_up),
            ahead: nanos(ahead),
            spare: Vec::new(),
            borrows: false,
        }
    }

    /// When a frame may be put on the line again, if it may not now.
    pub(super) fn busy_until(&self, now: Instant) -> Option<Instant> {
        if self.frames.len() < self.depth {
            return None;
        }
        let depth = self.depth_for_these();
        if self.frames.len() < depth {
            return None;
        }
        // What has begun is about to leave: it waits no more.
        let until = self.handed_over(&self.frames[self.frames.len() - depth]);
        if until > now {
            return Some(until);
        }
        let begun = self.frames.iter().take_while(|f| self.handed_over(f) <= now).count();
        (begun > BEGUN_PER_DEPTH * depth).then(|| now.plus_nanos(RETRY_NANOS))
    }

    /// Frames that may wait, as long as those that do: what the queue is for is the time that it bridges.
    fn depth_for_these(&self) -> usize {
        let bytes: usize = self.frames.iter().map(|frame| frame.wire_bytes as usize).sum();
        let are_short = bytes <= SHORT * self.frames.len();
        self.depth.saturating_mul(if are_short { SHORT_PER_DEPTH } else { 1 })
    }

    /// When a frame is handed over.
    fn handed_over(&self, frame: &Departing) -> Instant {
        frame.begins - Duration::from_nanos(self.ahead)
    }

    /// A buffer for a frame's bytes, with those of a former one in it: to empty or to overwrite.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back a buffer that was not needed.
    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARES {
            self.spare.push(buffer);
        }
    }

    /// Puts a frame of `wire_bytes` on the line; returns when its last bit will have left.
    pub(super) fn put(
        &mut self,
        now: Instant,
        wire_bytes: u32,
        to: SocketAddr,
        (bytes, rest): (Vec<u8>, Option<RegionRef>),
    ) -> Instant {
        // A line that was idle may make up for some of it: who wakes late has not lost its time.
        let from = now - Duration::from_nanos(self.catch_up);
        let begins = self.staged.free_at().max(from);
        let promised = self.staged.send(from, wire_bytes).max(now);
        self.borrows |= rest.is_some();
        self.frames.push_back(Departing { begins, promised, wire_bytes, to, bytes, rest });
        promised
    }

    /// Puts an urgent frame on the line, before all others; what comes after gives it the time.
    pub(super) fn put_urgent(
        &mut self,
        now: Instant,
        wire_bytes: u32,
        to: SocketAddr,
        bytes: Vec<u8>,
    ) -> Instant {
        let takes = self.staged.rate().nanos_for(u64::from(wire_bytes));
        if self.staged.free_at() > now {
            self.staged.delay(takes);
        }
        let promised = now.plus_nanos(takes);
        let begins = now;
        let frame = Departing { begins, promised, wire_bytes, to, bytes, rest: None };
        self.urgent.push_back(frame);
        promised
    }

    pub(super) fn commit(&mut self) {
        self.committed_urgent = self.urgent.len();
        self.committed = self.staged;
        self.committed_frames = self.frames.len();
    }

    pub(super) fn abort(&mut self) {
        self.staged = self.committed;
        self.frames.truncate(self.committed_frames);
        self.urgent.truncate(self.committed_urgent);
    }

    /// Whether frames on the line are not whole.
    pub(super) const fn borrows(&self) -> bool {
        self.borrows
    }

    /// Makes every frame whole with what `read` finds; one whose memory is gone keeps zeroes.
    pub(super) fn make_whole<'a>(&mut self, read: impl Fn(RegionRef) -> Payload<'a>) {
        self.borrows = false;
        for frame in &mut self.frames {
            if let Some(rest) = frame.rest.take() {
                let begin = frame.bytes.len();
                frame.bytes.resize(begin + rest.length as usize, 0);
                read(rest).copy_to(&mut frame.bytes[begin..]);
            }
        }
    }

    /// Frames whose first bit may leave by `now`, in order: an urgent one passes those that are not
    /// due when it comes, not those that should have left. Nothing may be staged.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = &Departing> + Clone {
        let (mut urgent, mut others) = (0, 0);
        std::iter::from_fn(move || {
            let frame = if self.is_urgent_next(urgent, others) {
                urgent += 1;
                &self.urgent[urgent - 1]
            } else {
                others += 1;
                self.frames.get(others - 1).filter(|frame| self.handed_over(frame) <= now)?
            };
            Some(frame)
        })
    }

    /// Whether an urgent frame is next after so many of them and of the others.
    fn is_urgent_next(&self, urgent: usize, others: usize) -> bool {
        let other =
            self.frames.get(others).map_or(Instant::FAR_FUTURE, |frame| self.handed_over(frame));
        self.urgent.get(urgent).is_some_and(|frame| frame.begins < other)
    }

    /// The first `count` frames have left at `now`; returns their bytes, headers counted.
    pub(super) fn left(&mut self, now: Instant, count: usize) -> u64 {
        let mut total = 0;
        for _ in 0..count {
            let urgent = self.is_urgent_next(0, 0);
            let queue = if urgent { &mut self.urgent } else { &mut self.frames };
            let Some(frame) = queue.pop_front() else { break };
            if urgent {
                self.committed_urgent -= 1;
            } else {
                self.committed_frames -= 1;
                let ends = self.actual.send(now, frame.wire_bytes);
                self.lag = ends.nanos_since(frame.promised);
            }
            total += frame.len() as u64;
            self.recycle(frame.bytes);
        }
        total
    }

    /// The first frame is not sent; for whom it was, and how long.
    pub(super) fn drop_first(&mut self, now: Instant) -> (Option<SocketAddr>, usize) {
        let queue = if self.is_urgent_next(0, 0) { &self.urgent } else { &self.frames };
        let first = queue.front().map(|frame| frame.to);
        (first, self.left(now, 1) as usize)
    }

    /// By how many nanoseconds what was put on the line leaves later than was said.
    pub(super) fn lag(&self, now: Instant) -> u64 {
        let overdue = self.frames.front().map_or(0, |frame| now.nanos_since(frame.begins));
        let gone = self.frames.is_empty() && self.actual.free_at() <= now;
        if gone { 0 } else { self.lag.max(overdue) }
    }

    /// When the next frame may leave; far in the future if there is none.
    pub(super) fn next_due(&self) -> Instant {
        let urgent = self.is_urgent_next(0, 0);
        let first = if urgent { self.urgent.front() } else { self.frames.front() };
        first.map_or(Instant::FAR_FUTURE, |frame| {
            if urgent { frame.begins } else { self.handed_over(frame) }
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.urgent.is_empty()
    }

    pub(super) const fn rate(&self) -> LineRate {
        self.committed.rate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TO: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    fn line(depth: usize, catch_up: u64) -> Line {
        Line::new(LineRate::mbps(100), depth, Duration::from_nanos(catch_up), Duration::ZERO)
    }

    #[test]
    fn an_abort_gives_the_line_time_back() {
        let mut line = line(4, 0);
        let now = Instant::from_nanos(1_000_000);
        let first = line.put(now, 1_000, TO, (vec![1], None));
        line.commit();
        let second = line.put(now, 1_000, TO, (vec![2], None));
        assert_eq!(second.nanos_since(first), 80_000);
        line.abort();
        assert_eq!(line.put(now, 1_000, TO, (vec![3], None)), second);
        line.commit();
        let due: Vec<_> = line.due(Instant::FAR_FUTURE).map(|frame| frame.bytes[0]).collect();
        assert_eq!(due, [1, 3]);
    }

    #[test]
    fn a_full_line_says_when_the_first_frame_that_waits_will_leave() {
        let mut line = line(2, 0);
        let now = Instant::from_nanos(1_000_000);
        for _ in 0..3 {
            assert_eq!(line.busy_until(now), None);
            line.put(now, 10_000, TO, (Vec::new(), None));
        }
        // One has begun, two wait.
        assert_eq!(line.busy_until(now), Some(now.plus_nanos(800_000)));
        assert_eq!(line.busy_until(now.plus_nanos(800_000)), None);
    }

    #[test]
    fn four_short_frames_wait_in_the_place_of_a_longer_one() {
        let mut line = line(2, 0);
        let now = Instant::from_nanos(1_000_000);
        for _ in 0..9 {
            assert_eq!(line.busy_until(now), None);
            line.put(now, 1_000, TO, (Vec::new(), None));
        }
        assert_eq!(line.busy_until(now), Some(now.plus_nanos(80_000)));
    }

    #[test]
    fn an_urgent_frame_passes_those_that_wait_and_takes_its_time_of_the_line() {
        let mut line = line(8, 0);
        let now = Instant::from_nanos(1_000_000);
        line.put(now, 1_000, TO, (vec![1], None));
        line.put(now, 1_000, TO, (vec![2], None));
        line.put_urgent(now, 100, TO, vec![3]);
        let ends = line.put(now, 1_000, TO, (vec![4], None));
        assert_eq!(ends, now.plus_nanos(3 * 80_000 + 8_000));
        line.commit();
        let due: Vec<_> = line.due(now).map(|frame| frame.bytes[0]).collect();
        assert_eq!(due, [1, 3]);
        line.left(now, 2);
        line.put_urgent(now, 100, TO, vec![5]);
        line.abort();
        assert_eq!(line.next_due(), now.plus_nanos(80_000));
    }

    #[test]
    fn frames_are_handed_over_ahead_of_their_time_where_something_holds_them() {
        let (depth, ahead) = (8, Duration::from_nanos(100_000));
        let mut line = Line::new(LineRate::mbps(100), depth, Duration::ZERO, ahead);
        let now = Instant::from_nanos(1_000_000);
        for _ in 0..4 {
            line.put(now, 1_000, TO, (vec![1], None));
        }
        line.commit();
        // They begin 80 us after one another.
        assert_eq!(line.due(now).count(), 2);
        line.left(now, 2);
        assert_eq!(line.next_due(), now.plus_nanos(60_000));
        assert_eq!(line.lag(now), 0);
    }

    #[test]
    fn what_is_handed_over_late_leaves_late_and_the_line_says_so() {
        let mut line = line(8, 0);
        let now = Instant::from_nanos(1_000_000);
        for _ in 0..3 {
            line.put(now, 1_000, TO, (vec![1], None));
        }
        line.commit();
        assert_eq!(line.lag(now), 0);
        line.left(now, 1);
        let late = now.plus_nanos(100_000);
        assert_eq!(line.lag(late), 20_000);
        line.left(late, 1);
        assert_eq!(line.lag(late), 20_000);
        line.left(late.plus_nanos(60_000), 1);
        assert_eq!(line.lag(late.plus_nanos(80_000)), 20_000);
        assert_eq!(line.lag(late.plus_nanos(160_000)), 0);
    }

    proptest! {
        #[test]
        fn no_window_carries_more_than_the_rate_and_the_catch_up(
            gaps in proptest::collection::vec((0_u64..400_000, 64_u32..2_000), 1..100),
            catch_up in 0_u64..1_000_000,
        ) {
            let mut line = line(usize::MAX, catch_up);
            let mut now = Instant::from_nanos(5_000_000);
            let mut left: Vec<(Instant, u64)> = Vec::new();
            for (gap, bytes) in gaps {
                now = now.plus_nanos(gap);
                line.put(now, bytes, TO, (vec![], None));
                // Handed over when it begins, or now if that has passed.
                let begins = line.frames.back().unwrap().begins;
                left.push((begins.max(now), u64::from(bytes)));
            }
            for first in 0..left.len() {
                let mut sum = 0;
                for (at, bytes) in &left[first..] {
                    let window = at.nanos_since(left[first].0) + catch_up;
                    // All but the one that begins at the window's end have passed within it.
                    prop_assert!(sum <= LineRate::mbps(100).bytes_in(window) + 1);
                    sum += bytes;
                }
            }
        }
    }
}
