//! Estimates warp, delay and noise from the stamps of one sender, at the receiver.
//!
//! The ratio of two single gaps is noise divided by a small number, and infinite for a burst. So
//! the estimator gathers messages in groups by their stamps. Warp is one plus the slope of the
//! one-way delay over the stamps of the last groups, by least squares. With a noise of sigma per
//! group, a span G and n groups, the deviation of warp is sqrt(12 / n) sigma / (n G).

use std::collections::VecDeque;

use midplane_simhw::time::Instant;

use crate::stamp::Stamp;

/// Sequence numbers that are remembered, to distinguish a duplicate from a late message.
const REMEMBERED: u64 = 128;
/// If the delay jumps by more than this, a clock was set; no queue grows that fast.
const STEP_NS: i64 = 1_000_000_000;
/// The weight of a new sample in the measured noise.
const NOISE_GAIN: f64 = 1.0 / 16.0;

/// The span of a group of messages, and the number of groups in an estimate.
#[derive(Clone, Copy, Debug)]
pub struct Grouping {
    span_ns: u64,
    groups: usize,
}

impl Grouping {
    /// Sets groups of `span_ns` nanoseconds of the sender's time, and estimates over `groups` of
    /// them.
    ///
    /// An eighth of the feedback delay and 4 groups suit the laws of [`control`](crate::control):
    /// the estimate alone then adds a quarter of the feedback delay.
    ///
    /// # Panics
    /// If the span is zero or there are fewer than two groups.
    #[must_use]
    pub const fn new(span_ns: u64, groups: usize) -> Self {
        assert!(span_ns > 0 && groups >= 2, "the span must be above 0, and the groups at least 2");
        Self { span_ns, groups }
    }
}

/// An estimate of one sender's path, made from its stamps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Arrivals over departures: above 1 a queue grows, below 1 one drains.
    pub warp: f64,
    /// One-way delay of the newest group on the fitted line, in nanoseconds. It contains the offset
    /// of the two clocks.
    pub delay_ns: i64,
    /// The smallest one-way delay of these groups, in nanoseconds.
    pub min_delay_ns: i64,
    /// Deviation of a group's delay from the fitted line, in nanoseconds.
    pub noise_ns: f64,
    /// When the newest group was sent, by the sender's clock.
    pub newest: Instant,
    /// Nanoseconds of the sender's time that the groups of this estimate cover.
    pub span_ns: u64,
    /// Number of times that a clock was found to have been set. Delays of different epochs are not
    /// comparable.
    pub epoch: u32,
}

/// Counts of messages by outcome, from their stamps.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Arrivals {
    /// Messages that arrived, without duplicates.
    pub received: u64,
    /// Messages whose sequence number was skipped and that have not arrived since.
    pub missing: u64,
    /// Messages that arrived again.
    pub duplicates: u64,
    /// Messages that arrived after their group was closed.
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

/// A closed group: mean send time and mean one-way delay in nanoseconds, and the group's least
/// delay.
#[derive(Clone, Copy, Debug)]
struct Point {
    sent: u64,
    delay: i64,
    least: i64,
}

/// Makes estimates from the stamps of one sender.
#[derive(Clone, Debug)]
pub struct Estimator {
    grouping: Grouping,
    open: Option<Group>,
    points: VecDeque<Point>,
    /// The next expected sequence number, and a bitmap of the last numbers received: bit 0 is the
    /// newest.
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
    /// Creates an estimator without messages.
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

    /// Processes a message with `stamp` that arrived at `now`, by the receiver's clock. Returns an
    /// estimate once a group; the receiver is to send it back to the sender.
    pub fn handle_arrival(&mut self, stamp: Stamp, now: Instant) -> Option<Estimate> {
        if !self.is_new(stamp.sequence) {
            self.arrivals.duplicates += 1;
            return None;
        }
        self.arrivals.received += 1;
        let sent = stamp.sent.as_nanos();
        // The offset of the clocks is arbitrary: the difference may wrap, but its changes do not.
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

    /// Discards the groups, for example after a pause, which would otherwise count as queueing.
    /// Keeps the counts.
    pub fn restart(&mut self) {
        self.open = None;
        self.points.clear();
        self.gap = 0;
        self.newest_sent = 0;
    }

    /// Returns the counts of messages by outcome.
    #[must_use]
    pub const fn arrivals(&self) -> Arrivals {
        self.arrivals
    }

    /// Records a sequence number. Returns true if it is new.
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
            // The sum counts delays above the least one, so a new least delay adds to it for each
            // message.
            group.delay_sum += group.least.wrapping_sub(delay) as f64 * group.count;
            group.least = delay;
        }
        self.close_if_full(sent)
    }

    fn open(&mut self, sent: u64, delay: i64) {
        self.open =
            Some(Group { first: sent, count: 1.0, sent_sum: 0.0, delay_sum: 0.0, least: delay });
    }

    /// Closes the open group if the next message will not belong to it, judged by the last gap. The
    /// estimate then does not wait for that message.
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
        // If a sender sends rarely, its last two groups are better evidence than four that reach
        // far back.
        let window = 4 * self.grouping.groups as u64 * self.grouping.span_ns;
        let is_old = |point: &Point| sent - point.sent > window;
        while self.points.len() > self.grouping.groups
            || self.points.len() > 2 && self.points.front().is_some_and(is_old)
        {
            self.points.pop_front();
        }
        self.fit()
    }

    /// Fits a line to the points by least squares.
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
        // The send times rise from point to point, so `sxx` is not zero.
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
            min_delay_ns: self.points.iter().map(|point| point.least).min().unwrap_or(last.least),
            noise_ns: self.noise_ns,
            newest: Instant::from_nanos(last.sent),
            span_ns: span,
            epoch: self.epoch,
        })
    }
}

#[cfg(test)]
mod tests;
