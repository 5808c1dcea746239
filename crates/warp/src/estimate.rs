//! Warp, delay and noise from the stamps of one sender, at the receiver.
//!
//! One ratio of two gaps is noise divided by a small number, and infinite for a burst. So messages
//! gather in groups by their stamps, and warp is one plus the slope of the one-way delay over the
//! stamps of the last groups, by least squares: with a noise of sigma a group, a span G and n
//! groups its deviation is sqrt(12 / n) sigma / (n G).

use std::collections::VecDeque;

use midplane_simhw::time::Instant;

use crate::stamp::Stamp;

/// Stamps that are remembered, to tell a doubled message from one that is late.
const REMEMBERED: u64 = 128;
/// A delay that jumps by so much is a clock that was set, not a queue.
const STEP_NS: i64 = 1_000_000_000;
/// The weight of what is new in the measured noise.
const NOISE_GAIN: f64 = 1.0 / 16.0;

/// How messages gather in groups, and groups in an estimate.
#[derive(Clone, Copy, Debug)]
pub struct Grouping {
    span_ns: u64,
    groups: usize,
}

impl Grouping {
    /// Groups of `span_ns` nanoseconds of the sender's time, and estimates over `groups` of them.
    /// An eighth of the feedback delay and 4 groups suit the laws of [`control`](crate::control):
    /// the estimate is then a quarter of the delay old by itself.
    ///
    /// # Panics
    /// If the span is zero or the groups are fewer than two.
    #[must_use]
    pub const fn new(span_ns: u64, groups: usize) -> Self {
        assert!(span_ns > 0 && groups >= 2, "a slope takes two points that lie apart");
        Self { span_ns, groups }
    }
}

/// What the stamps of one sender show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Arrivals over departures: above 1 a queue grows, below 1 one drains.
    pub warp: f64,
    /// One-way delay of the newest group, in nanoseconds, as fitted; the two clocks' offset is in it.
    pub delay_ns: i64,
    /// The smallest one-way delay of these groups, in nanoseconds.
    pub least_delay_ns: i64,
    /// Deviation of a group's delay from the fitted line, in nanoseconds.
    pub noise_ns: f64,
    /// When the newest group was sent, by the sender's clock.
    pub newest: Instant,
    /// Nanoseconds of the sender's time that the groups of this estimate cover.
    pub span_ns: u64,
    /// How often the clocks were found to have been set; delays before and after do not compare.
    pub epoch: u32,
}

/// What has become of messages, as their stamps tell.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Arrivals {
    /// Messages that arrived, each once.
    pub received: u64,
    /// Stamps that were skipped, and have not come since.
    pub missing: u64,
    /// Messages that came again.
    pub doubled: u64,
    /// Messages too late for their group.
    pub late: u64,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    first: u64,
    count: f64,
    sent_sum: f64,
    delay_sum: f64,
    least: i64,
}

/// A closed group: nanoseconds of the sender's clock and of delay, both after the first group's.
#[derive(Clone, Copy, Debug)]
struct Point {
    sent: u64,
    delay: i64,
    least: i64,
}

/// Reads the stamps of one sender.
#[derive(Clone, Debug)]
pub struct Estimator {
    grouping: Grouping,
    open: Option<Group>,
    points: VecDeque<Point>,
    /// The next stamp's number, and which of the last numbers have been seen: bit 0 is the last.
    expected: u64,
    seen: u128,
    newest_sent: u64,
    /// The sender's time between its last two messages.
    gap: u64,
    last_delay: Option<i64>,
    noise_ns: f64,
    epoch: u32,
    arrivals: Arrivals,
}

impl Estimator {
    /// An estimator that has seen nothing.
    #[must_use]
    pub fn new(grouping: Grouping) -> Self {
        Self {
            grouping,
            open: None,
            points: VecDeque::with_capacity(grouping.groups + 1),
            expected: 0,
            seen: 0,
            newest_sent: 0,
            gap: 0,
            last_delay: None,
            noise_ns: 0.0,
            epoch: 0,
            arrivals: Arrivals::default(),
        }
    }

    /// A message with `stamp` has arrived at `now`, by the receiver's clock. What comes back, once a
    /// group, is to be fed back to the sender.
    pub fn handle_arrival(&mut self, stamp: Stamp, now: Instant) -> Option<Estimate> {
        if !self.is_new(stamp.sequence) {
            self.arrivals.doubled += 1;
            return None;
        }
        self.arrivals.received += 1;
        let sent = stamp.sent.as_nanos();
        // The clocks' offset may be anything: the difference wraps, and its changes do not.
        let delay = now.as_nanos().wrapping_sub(sent).cast_signed();
        if self
            .last_delay
            .is_some_and(|last| !(-STEP_NS..=STEP_NS).contains(&delay.wrapping_sub(last)))
        {
            self.restart();
            self.epoch = self.epoch.wrapping_add(1);
        }
        self.last_delay = Some(delay);
        self.gather(sent, delay)
    }

    /// Forgets the groups, as after a pause that must not look like a queue; counts go on.
    pub fn restart(&mut self) {
        self.open = None;
        self.points.clear();
        self.gap = 0;
        self.newest_sent = 0;
    }

    /// What has become of messages.
    #[must_use]
    pub const fn arrivals(&self) -> Arrivals {
        self.arrivals
    }

    /// Notes a stamp's number; whether it is new.
    fn is_new(&mut self, sequence: u64) -> bool {
        if sequence >= self.expected {
            let skipped = sequence - self.expected;
            self.arrivals.missing = self.arrivals.missing.saturating_add(skipped);
            let shift = skipped.saturating_add(1);
            self.seen = if shift >= REMEMBERED { 0 } else { self.seen << shift };
            self.seen |= 1;
            self.expected = sequence.saturating_add(1);
            return true;
        }
        let back = self.expected - 1 - sequence;
        if back >= REMEMBERED || self.seen & (1 << back) != 0 {
            return false;
        }
        self.seen |= 1 << back;
        self.arrivals.missing = self.arrivals.missing.saturating_sub(1);
        true
    }

    fn gather(&mut self, sent: u64, delay: i64) -> Option<Estimate> {
        let Some(group) = &mut self.open else {
            if self.points.back().is_some_and(|last| sent <= last.sent) {
                self.arrivals.late += 1;
                return None;
            }
            self.open(sent, delay);
            return self.close_if_full(sent);
        };
        if sent < group.first {
            self.arrivals.late += 1;
            return None;
        }
        if sent - group.first >= self.grouping.span_ns {
            let estimate = self.close();
            self.open(sent, delay);
            return self.close_if_full(sent).or(estimate);
        }
        group.count += 1.0;
        group.sent_sum += (sent - group.first) as f64;
        group.delay_sum += delay.wrapping_sub(group.least) as f64;
        if delay < group.least {
            // The sum is of what lies above the least.
            group.delay_sum += group.least.wrapping_sub(delay) as f64 * group.count;
            group.least = delay;
        }
        self.close_if_full(sent)
    }

    fn open(&mut self, sent: u64, delay: i64) {
        self.open =
            Some(Group { first: sent, count: 1.0, sent_sum: 0.0, delay_sum: 0.0, least: delay });
    }

    /// Closes the open group if the next message will not belong to it, as the last gap tells: the
    /// estimate need not wait for that message.
    fn close_if_full(&mut self, sent: u64) -> Option<Estimate> {
        if sent > self.newest_sent {
            self.gap = if self.newest_sent == 0 { 0 } else { sent - self.newest_sent };
            self.newest_sent = sent;
        }
        let first = self.open?.first;
        let next = sent.saturating_add(self.gap);
        if next.saturating_sub(first) < self.grouping.span_ns {
            return None;
        }
        self.close()
    }

    fn close(&mut self) -> Option<Estimate> {
        let group = self.open.take()?;
        let sent = group.first.saturating_add((group.sent_sum / group.count) as u64);
        let above = (group.delay_sum / group.count) as i64;
        let delay = group.least.wrapping_add(above);
        if self.points.back().is_some_and(|last| sent <= last.sent) {
            return None;
        }
        self.points.push_back(Point { sent, delay, least: group.least });
        // Of a sender that sends rarely the last two say more than four from long ago.
        let window = 4 * self.grouping.groups as u64 * self.grouping.span_ns;
        let is_old = |point: &Point| sent - point.sent > window;
        while self.points.len() > self.grouping.groups
            || self.points.len() > 2 && self.points.front().is_some_and(is_old)
        {
            self.points.pop_front();
        }
        self.fit()
    }

    /// Least squares over the points.
    fn fit(&mut self) -> Option<Estimate> {
        let (first, last) = (*self.points.front()?, *self.points.back()?);
        if self.points.len() < 2 {
            return None;
        }
        let count = self.points.len() as f64;
        let at = |point: &Point| {
            let x = (point.sent - first.sent) as f64;
            (x, point.delay.wrapping_sub(first.delay) as f64)
        };
        let (sum_x, sum_y) =
            self.points.iter().map(at).fold((0.0, 0.0), |sum, (x, y)| (sum.0 + x, sum.1 + y));
        let (mean_x, mean_y) = (sum_x / count, sum_y / count);
        let (mut sxx, mut sxy, mut syy) = (0.0, 0.0, 0.0);
        for (x, y) in self.points.iter().map(at) {
            sxx += (x - mean_x) * (x - mean_x);
            sxy += (x - mean_x) * (y - mean_y);
            syy += (y - mean_y) * (y - mean_y);
        }
        // Stamps rise from point to point, so that they differ.
        let slope = sxy / sxx;
        let span = last.sent - first.sent;
        if self.points.len() > 2 {
            let off_line = (syy - slope * sxy).max(0.0) / (count - 2.0);
            self.noise_ns += NOISE_GAIN * (off_line.sqrt() - self.noise_ns);
        }
        let fitted = mean_y + slope * (span as f64 - mean_x);
        Some(Estimate {
            warp: (1.0 + slope).max(0.0),
            delay_ns: first.delay.wrapping_add(fitted as i64),
            least_delay_ns: self.points.iter().map(|point| point.least).min().unwrap_or(last.least),
            noise_ns: self.noise_ns,
            newest: Instant::from_nanos(last.sent),
            span_ns: span,
            epoch: self.epoch,
        })
    }
}

#[cfg(test)]
mod tests;
