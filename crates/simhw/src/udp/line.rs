//! The NIC's own line: frames wait here until their first bit may leave.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::batch::Leaving;
use crate::region::{Payload, RegionRef};
use crate::time::{Instant, LineRate, Serializer, nanos};

/// A frame, and when its first bit leaves.
#[derive(Debug)]
pub(super) struct Departing {
    pub(super) begins: Instant,
    /// When its last bit was promised to leave.
    promised: Instant,
    wire_bytes: u32,
    pub(super) to: SocketAddr,
    pub(super) bytes: Vec<u8>,
    /// Memory that follows `bytes`, still in the application's region.
    pub(super) rest: Option<RegionRef>,
}

impl Departing {
    fn len(&self) -> usize {
        self.bytes.len() + self.rest.map_or(0, |rest| rest.length as usize)
    }
}

/// Converts a frame for the system; `read` returns the memory that follows its bytes.
pub(super) fn leaving<'a>(
    frame: &'a Departing,
    read: impl Fn(RegionRef) -> Payload<'a>,
) -> Leaving<'a> {
    Leaving {
        rest: frame.rest.map_or(Payload::EMPTY, read),
        ..Leaving::whole(frame.to, &frame.bytes)
    }
}

/// A paced line with transactions: frames put on it count from the next commit.
#[derive(Debug)]
pub(super) struct Line {
    committed: Serializer,
    staged: Serializer,
    /// Frames in the order in which they begin; those from `committed_frames` on are staged.
    frames: VecDeque<Departing>,
    committed_frames: usize,
    /// Urgent frames, which overtake all others.
    urgent: VecDeque<Departing>,
    committed_urgent: usize,
    /// When the answers to probes have had their share of the line.
    answered: Instant,
    /// The line as filled by the frames handed over so far, at their actual times.
    actual: Serializer,
    /// Nanoseconds by which the last frame left later than promised.
    lag: u64,
    depth: usize,
    catch_up: u64,
    /// Nanoseconds by which frames are handed over before their time; a switch holds them until their time.
    ahead: u64,
    /// Buffers of frames that have left.
    spare: Vec<Vec<u8>>,
    /// True if a frame has bytes in an application's region.
    borrows: bool,
}

/// Least bytes that are sent from the application's region. Copying fewer costs less than a second part of a datagram,
/// and only frames without a second part can be sent together. Unlimited on systems where a datagram has one part only.
pub(super) const MIN_UNCOPIED: usize = if cfg!(target_os = "linux") { 4_096 } else { usize::MAX };
/// Most wire bytes of a short frame: one Ethernet packet.
const SHORT: usize = 1_600;
/// Number of short frames that may wait in the place of a longer one: a message of 8 KiB has about twice as many.
const SHORT_PER_DEPTH: usize = 4;
/// Most buffers that a line keeps for later frames.
const SPARES: usize = 16;
/// Most frames that have begun and that the system has not accepted yet, for each frame that may wait. It is the bound
/// if the line is faster than the system.
const BEGUN_PER_DEPTH: usize = 4;
/// Nanoseconds until the next try beyond that bound: the instant is unknown, so the time is short.
const RETRY_NANOS: u64 = 20_000;
/// Most urgent frames that wait when an answer to a probe is put on the line.
const MAX_ANSWERS: usize = 1_024;
/// Nanoseconds by which answers to probes may be ahead of their share of the line: many peers may probe at once.
const ANSWERS_AHEAD: u64 = 4_000_000;

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
            answered: Instant::ZERO,
            actual: line,
            lag: 0,
            depth: depth.max(1),
            catch_up: nanos(catch_up),
            ahead: nanos(ahead),
            spare: Vec::new(),
            borrows: false,
        }
    }

    /// Returns when a frame may be put on the line again; `None` if it may now.
    pub(super) fn busy_until(&self, now: Instant) -> Option<Instant> {
        if self.frames.len() < self.depth {
            return None;
        }
        let depth = self.depth_for_these();
        if self.frames.len() < depth {
            return None;
        }
        // A frame that has begun is about to leave, and no longer counts as waiting.
        let until = self.handed_over(&self.frames[self.frames.len() - depth]);
        if until > now {
            return Some(until);
        }
        let begun = self.frames.iter().take_while(|f| self.handed_over(f) <= now).count();
        (begun > BEGUN_PER_DEPTH * depth).then(|| now.plus_nanos(RETRY_NANOS))
    }

    /// Returns how many frames of the present lengths may wait: the queue covers a time, not a number of frames.
    fn depth_for_these(&self) -> usize {
        let bytes: usize = self.frames.iter().map(|frame| frame.wire_bytes as usize).sum();
        let are_short = bytes <= SHORT * self.frames.len();
        self.depth.saturating_mul(if are_short { SHORT_PER_DEPTH } else { 1 })
    }

    /// Returns when a frame is handed over.
    fn handed_over(&self, frame: &Departing) -> Instant {
        frame.begins - Duration::from_nanos(self.ahead)
    }

    /// Returns a buffer for a frame's bytes; it may contain those of an earlier frame.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps an unused buffer for a later frame.
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
        // A line that was idle may make up for some of that time, so that a late wake-up loses no bandwidth.
        let from = now - Duration::from_nanos(self.catch_up);
        let begins = self.staged.free_at().max(from);
        let promised = self.staged.send(from, wire_bytes).max(now);
        self.borrows |= rest.is_some();
        self.frames.push_back(Departing { begins, promised, wire_bytes, to, bytes, rest });
        promised
    }

    /// Puts an urgent frame on the line before all others, which are delayed by its time.
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

    /// Returns whether an answer of `wire_bytes` to a probe may be put on the line, and counts it if so. Peers send
    /// any number of probes, so their answers take at most half of the line's time.
    pub(super) fn admits_answer(&mut self, now: Instant, wire_bytes: u32) -> bool {
        let begins = self.answered.max(now);
        let admits = self.urgent.len() < MAX_ANSWERS && begins.nanos_since(now) <= ANSWERS_AHEAD;
        if admits {
            let takes = self.staged.rate().nanos_for(u64::from(wire_bytes));
            self.answered = begins.plus_nanos(2 * takes);
        }
        admits
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

    /// Returns whether a frame on the line has bytes in an application's region.
    pub(super) const fn borrows(&self) -> bool {
        self.borrows
    }

    /// Copies the bytes of each frame from its region with `read`; if the region was dropped, they stay zero.
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

    /// Iterates over the frames whose first bit may leave by `now`, in order. An urgent frame overtakes frames that are
    /// not due when it is put on the line, but not those that are overdue. Nothing may be staged.
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

    /// Returns whether an urgent frame is next after `urgent` urgent and `others` other ones.
    fn is_urgent_next(&self, urgent: usize, others: usize) -> bool {
        let other =
            self.frames.get(others).map_or(Instant::FAR_FUTURE, |frame| self.handed_over(frame));
        self.urgent.get(urgent).is_some_and(|frame| frame.begins < other)
    }

    /// Removes the first `count` frames, which have left at `now`; returns their bytes, with headers.
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

    /// Drops the first frame; returns its destination and its length.
    pub(super) fn drop_first(&mut self, now: Instant) -> (Option<SocketAddr>, usize) {
        let queue = if self.is_urgent_next(0, 0) { &self.urgent } else { &self.frames };
        let first = queue.front().map(|frame| frame.to);
        (first, self.left(now, 1) as usize)
    }

    /// Returns the nanoseconds by which frames leave later than promised.
    pub(super) fn lag(&self, now: Instant) -> u64 {
        let overdue = self.frames.front().map_or(0, |frame| now.nanos_since(frame.begins));
        let gone = self.frames.is_empty() && self.actual.free_at() <= now;
        if gone { 0 } else { self.lag.max(overdue) }
    }

    /// Returns when the next frame may leave; far in the future if there is none.
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
    fn a_full_line_returns_when_its_first_waiting_frame_will_leave() {
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
    fn answers_to_any_number_of_probes_are_bounded_and_leave_half_of_the_line() {
        let answer = |line: &mut Line, now| {
            let admits = line.admits_answer(now, 100);
            if admits {
                line.put_urgent(now, 100, TO, vec![1]);
            }
            admits
        };
        let line_of = |rate| Line::new(rate, 8, Duration::ZERO, Duration::ZERO);
        let (mut line, mut now) = (line_of(LineRate::mbps(1)), Instant::from_nanos(1_000_000));
        let at_once = (0..100_000).filter(|_| answer(&mut line, now)).count();
        assert_eq!((at_once, line.urgent.len()), (3, 3));
        let mut answers = at_once;
        for _ in 0..1_000 {
            now = now.plus_nanos(1_000_000);
            answers += (0..100).filter(|_| answer(&mut line, now)).count();
            line.commit();
            line.left(now, line.due(now).count());
        }
        // Each takes 0.8 ms of the line.
        assert!((600..=628).contains(&answers), "{answers} answers in a second");
        let mut line = line_of(LineRate::mbps(10_000));
        let waiting = (0..100_000).filter(|_| answer(&mut line, now)).count();
        assert_eq!(waiting, MAX_ANSWERS);
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
    fn a_frame_handed_over_late_leaves_late_and_the_line_reports_the_lag() {
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
                    // All but the one that begins at the window's end have left within it.
                    prop_assert!(sum <= LineRate::mbps(100).bytes_in(window) + 1);
                    sum += bytes;
                }
            }
        }
    }
}
