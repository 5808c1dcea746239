//! The recommended law: the gradient of the delay, and each sender's own backlog.
//!
//! The [crate's documentation](crate) has a program of a sender and its receiver.
//!
//! Warp minus one is the slope of the one-way delay. The slope alone cannot show a standing queue.
//! A second term therefore controls each sender's own share of the queue towards its allowed
//! backlog:
//!
//! ```text
//! d lambda / dt = epsilon lambda (1 - warp) + kappa (a - lambda d)
//! ```
//!
//! Here a is the backlog that the sender may keep, and d is the queueing delay. In equilibrium each
//! sender keeps its a: the queue is the sum of all a, and the rates are in proportion to the a.
//! Clocks that drift apart by s move the backlog by epsilon s lambda / kappa and no more. With
//! gains g = epsilon tau and k = kappa tau^2, the loop is (g s + k) e^-s / s^2 in units of the
//! feedback delay tau. The gains g = 0.5 and k = g^2 / 4 leave a phase margin of 47 degrees for any
//! number of senders.

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::time::{Instant, nanos};

use crate::feedback::{Feedback, QueueDelay};

/// The gain g: the share of a gradient that is corrected within one feedback delay.
const GRADIENT_GAIN: f64 = 0.5;
/// The gain k: the share of a backlog's error that is corrected, per feedback delay squared.
const BACKLOG_GAIN: f64 = GRADIENT_GAIN * GRADIENT_GAIN / 4.0;
/// Exponential growth per feedback delay while a sender has hardly any backlog: its rate doubles in
/// 1.5 of them.
const GROWTH: f64 = std::f64::consts::LN_2 / 1.5;
/// If a sender's first backlog reaches this share of its allowance, its start phase ends.
const SEEN: f64 = 0.25;
/// If the queue grows or drains faster than this (|warp - 1|), the path counts as unsettled.
const UNREST: f64 = 0.1;
/// Feedback delays of a settled queue after which growth is back at its full rate ...
const CALM_DELAYS: f64 = 10.0;
/// ... and feedback delays of an unsettled queue that end growth. The shorter time makes an
/// oscillation lose more growth than it regains.
const UNREST_DELAYS: f64 = 1.0;
/// A warp this far above 1 ends all growth, because the queue grows already.
const BRAKE: f64 = 0.25;
/// An excess of arrivals above this (warp - 1) cuts the rate at once instead of gradually.
const OVERLOAD: f64 = 0.2;
/// Standard deviations beyond which a slope is not noise. Smaller slopes are left to the other
/// terms.
const CERTAIN: f64 = 4.0;
/// Past rates that are recorded per feedback delay.
const PAST_STEPS: f64 = 16.0;
/// A queue counts as deep from this share of the feedback delay. A shallower one fills and drains
/// faster than feedback about it arrives, so senders move towards their shares more slowly.
const DEEP: f64 = 1.0 / 3.0;
/// Feedback delays for which an estimate is valid.
const VALIDITY: f64 = 1.5;
/// If much of the feedback is lost: an estimate is valid for this many usual times between two
/// feedbacks ...
const QUIET_GAPS: f64 = 6.0;
/// ... and for at most this many feedback delays.
const MAX_VALIDITY: f64 = 16.0;
/// Without feedback the rate is divided by eight, this many times per feedback delay.
const DECAY_STEPS: u64 = 8;
/// If a sender used less than this share of its rate, its application limits it (as in other
/// controllers).
const APPLICATION_LIMIT: f64 = 0.65;
/// The same limit while the queue is empty: 0.65 / 2^(4/3). What the sender used in the last
/// feedback delay follows from rates of up to two feedback delays ago, and growth multiplies a rate
/// by 2^(4/3) meanwhile.
const EMPTY_LIMIT: f64 = 0.26;
/// The weight of a new sample in a smoothed feedback delay.
const DELAY_GAIN: f64 = 1.0 / 8.0;
/// During a drain a sender keeps this share of its rate ...
const DRAIN_SHARE: f64 = 0.5;
/// ... for this many feedback delays.
const DRAIN_DELAYS: f64 = 2.0;

/// The backlog that a sender may keep, and the limits of its rate.
#[derive(Clone, Copy, Debug)]
pub struct ControlConfig {
    backlog: f64,
    floor: f64,
    ceiling: f64,
    first_delay: Duration,
    is_always_used: bool,
}

impl ControlConfig {
    /// Configures a sender that may keep `backlog` bytes in queues, at `floor` to `ceiling` bytes a
    /// second.
    ///
    /// The backlog is the weight: senders that share a queue get rates in proportion to their
    /// backlogs. For a queue of Q bytes, N equal senders have Q / N each. The floor is the rate of
    /// the probes that an idle or cut-off sender still sends; one message every few feedback delays
    /// is enough.
    ///
    /// # Panics
    /// If the backlog or the floor is not above zero, or if the ceiling is below the floor.
    #[must_use]
    pub fn new(backlog: f64, floor: f64, ceiling: f64) -> Self {
        assert!(backlog > 0.0, "the backlog must be above 0: a sender without one has no share");
        assert!(
            floor > 0.0 && ceiling >= floor,
            "the floor must be above 0, and the ceiling not below it"
        );
        Self {
            backlog,
            floor,
            ceiling,
            first_delay: Duration::from_millis(1),
            is_always_used: false,
        }
    }

    /// If `is` is true, assumes that the application uses the whole rate; off unless set.
    ///
    /// For a caller that cannot count all bytes sent under this rate. The rate of an idle sender
    /// then rises to its ceiling.
    #[must_use]
    pub const fn is_always_used(mut self, is: bool) -> Self {
        self.is_always_used = is;
        self
    }

    /// Sets the feedback delay that is assumed before the first measurement; 1 ms unless set. A
    /// value that is too long slows the start; one that is too short lets the start overshoot.
    #[must_use]
    pub const fn first_delay(mut self, delay: Duration) -> Self {
        self.first_delay = delay;
        self
    }
}

/// The state of a controller: its rate and its measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControllerState {
    /// Bytes a second that may be sent.
    pub rate: f64,
    /// The last warp; 1 before the first feedback.
    pub warp: f64,
    /// Queueing delay on the forward path.
    pub queue_delay: Duration,
    /// Time from a change of the rate to the feedback that shows its effect, with half the
    /// estimate's span.
    pub feedback_delay: Duration,
    /// True if the estimate is still valid.
    pub is_valid: bool,
    /// True if the application sends less than the rate allows.
    pub is_application_limited: bool,
}

/// Controls the rate of one sender to one destination.
///
/// Report each send ([`Controller::on_sent`]), each feedback and each timeout to it. After each
/// call, read [`Controller::rate`] and [`Controller::poll_timeout`] again. `now` is the sender's
/// clock and never goes back. While `poll_timeout` returns `None`, only feedback changes the rate.
#[derive(Clone, Debug)]
pub struct Controller {
    config: ControlConfig,
    rate: f64,
    warp: f64,
    queue_ns: u64,
    delay: QueueDelay,
    /// Smoothed feedback delay, in nanoseconds; at most that of the empty path and the present queue.
    /// Otherwise it would stay long after a queue has drained, and slow the growth.
    feedback_ns: f64,
    /// Smoothed feedback delay without the queue, in nanoseconds.
    empty_ns: f64,
    newest: Option<(u32, Instant)>,
    /// When the last feedback arrived, and the smoothed time between two of them in nanoseconds.
    fed_at: Option<Instant>,
    fed_gap_ns: f64,
    valid_until: Option<Instant>,
    is_paused: bool,
    is_valid: bool,
    drain_until: Instant,
    usage: Usage,
    has_measured: bool,
    past: Past,
    /// True until this sender first has a backlog of its own.
    is_starting: bool,
    /// Share of its growth that the sender applies, from 0 to 1.
    calm: f64,
}

/// Measures how much of its rate a sender uses.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    sent: f64,
    since: Instant,
    last_sent: Option<Instant>,
    /// Time between the last two messages, in nanoseconds.
    gap_ns: u64,
    is_limited: bool,
}

/// The rates of the last feedback delay. A warp is the effect of one of them.
#[derive(Clone, Debug, Default)]
struct Past(VecDeque<(Instant, f64)>);

impl Past {
    /// Records that the rate is `rate` from `now` on. Changes less than `spacing` nanoseconds apart
    /// count as one.
    fn note(&mut self, now: Instant, rate: f64, spacing: u64) {
        match self.0.back_mut() {
            Some((at, last)) if now.nanos_since(*at) < spacing => *last = rate,
            _ => self.0.push_back((now, rate)),
        }
    }

    /// Returns the rate at `then`, and discards older rates.
    fn at(&mut self, then: Instant) -> Option<f64> {
        while self.0.get(1).is_some_and(|(at, _)| *at <= then) {
            self.0.pop_front();
        }
        self.0.front().filter(|(at, _)| *at <= then).map(|(_, rate)| *rate)
    }
}

impl Controller {
    /// Creates a controller without measurements at `now`. Its first rate is one backlog per
    /// feedback delay.
    #[must_use]
    pub fn new(config: ControlConfig, now: Instant) -> Self {
        let feedback_ns = nanos(config.first_delay).max(1) as f64;
        let rate = (config.backlog / (feedback_ns / 1e9)).clamp(config.floor, config.ceiling);
        Self {
            config,
            rate,
            warp: 1.0,
            queue_ns: 0,
            delay: QueueDelay::default(),
            feedback_ns,
            empty_ns: feedback_ns,
            newest: None,
            fed_at: None,
            fed_gap_ns: 0.0,
            valid_until: None,
            is_paused: false,
            is_valid: false,
            drain_until: Instant::ZERO,
            usage: Usage { since: now, ..Usage::default() },
            has_measured: false,
            past: Past::default(),
            is_starting: true,
            calm: 1.0,
        }
    }

    /// Sets the first rate to `rate` bytes a second, for a path with a known capacity.
    #[doc(hidden)]
    pub fn start_at(&mut self, rate: f64) -> &mut Self {
        if rate.is_finite() {
            self.rate = rate.clamp(self.config.floor, self.config.ceiling);
        }
        self
    }

    /// Sets the least rate, in bytes a second, for example when the feedback delay has changed.
    pub(crate) fn set_floor(&mut self, floor: f64) {
        if floor > 0.0 && floor <= self.config.ceiling {
            self.config.floor = floor;
        }
    }

    /// Records that the sender sent `bytes` at `now`.
    pub fn on_sent(&mut self, now: Instant, bytes: usize) {
        let usage = &mut self.usage;
        usage.sent += bytes as f64;
        if let Some(last) = usage.last_sent {
            usage.gap_ns = now.nanos_since(last);
        }
        usage.last_sent = Some(now);
        if self.valid_until.is_none() {
            self.valid_until = Some(self.expiry(now));
        }
    }

    /// Processes feedback that arrived at `now`.
    pub fn handle_feedback(&mut self, now: Instant, feedback: &Feedback) {
        let estimate = &feedback.estimate;
        let last = self.newest;
        // Ignores feedback that a newer one overtook. If its number is very much older, the
        // receiver has restarted.
        let is_old = |(number, _): (u32, Instant)| number.wrapping_sub(feedback.sequence) < 1 << 16;
        if last.is_some_and(is_old) || estimate.newest > now {
            return;
        }
        let Some(reading) = self.delay.handle_feedback(now, feedback) else { return };
        self.newest = Some((feedback.sequence, estimate.newest));
        self.queue_ns = reading.queue_ns;
        self.warp = estimate.warp;
        let age = (now.nanos_since(estimate.newest) + estimate.span_ns / 2).max(1) as f64;
        let gain = if self.has_measured { DELAY_GAIN } else { 1.0 };
        let queue = self.queue_ns as f64;
        self.feedback_ns += gain * (age - self.feedback_ns);
        self.empty_ns += gain * ((age - queue).max(1.0) - self.empty_ns);
        self.feedback_ns = self.feedback_ns.min(self.empty_ns + queue);
        self.has_measured = true;
        let since = last.map_or(0, |(_, at)| estimate.newest.nanos_since(at)) as f64;
        let quiet = self.fed_at.map_or(0, |at| now.nanos_since(at)) as f64;
        self.fed_gap_ns +=
            DELAY_GAIN * (quiet.min(MAX_VALIDITY * self.feedback_ns) - self.fed_gap_ns);
        self.fed_at = Some(now);
        self.usage_since(now);
        // The deviation of the slope: exact for four groups, and a good approximation for other
        // numbers.
        let unsure = estimate.noise_ns / (0.75 * estimate.span_ns.max(1) as f64);
        self.adjust((since / self.feedback_ns).min(1.0), unsure);
        self.brake(estimate.newest - Duration::from_nanos(estimate.span_ns / 2), unsure);
        self.past.note(now, self.rate(now), (self.feedback_ns / PAST_STEPS) as u64);
        // If a drain began while the queue was deep, it ends earlier once that queue is empty: the
        // feedback delay is shorter then.
        let drained = now.plus_nanos((DRAIN_DELAYS * self.feedback_ns) as u64);
        self.drain_until = self.drain_until.min(drained);
        if feedback.drain && now >= self.drain_until {
            self.delay.on_drain();
            self.drain_until = drained;
        }
        self.is_valid = true;
        self.valid_until = Some(self.expiry(now));
    }

    /// Handles the timeout of [`Controller::poll_timeout`]. Does nothing before that time.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|until| now < until) {
            return;
        }
        // Without feedback the state of the path is unknown: the rate decays to the floor. Messages
        // sent at the floor request feedback, and the rate grows again when feedback arrives.
        self.is_valid = false;
        self.rate = (self.rate / 8.0).max(self.config.floor);
        let step = (self.feedback_ns / DECAY_STEPS as f64).max(1.0) as u64;
        let is_over = self.rate <= self.config.floor;
        self.valid_until = (!is_over).then(|| now.plus_nanos(step));
    }

    /// Discards the estimate of the path: the rate is the floor until the next feedback, whatever its number.
    pub const fn forget(&mut self) {
        self.is_valid = false;
        self.newest = None;
        self.rate = self.config.floor;
        self.valid_until = None;
    }

    /// Stops the timeout while the sender is suspended: missing feedback is then no sign of loss.
    pub const fn pause(&mut self) {
        self.is_paused = true;
    }

    /// Resumes at `now`, after a pause that took `suspended`, at the rate of before the pause.
    ///
    /// The pause counts neither as silence nor as congestion. The caller must also restart the
    /// receiver's [`Estimator`](crate::estimate::Estimator).
    pub fn resume(&mut self, now: Instant, suspended: Duration) {
        self.is_paused = false;
        self.valid_until = None;
        self.usage = Usage { since: now, last_sent: None, sent: 0.0, ..self.usage };
        self.newest = self.newest.map(|(number, at)| (number, at + suspended));
        self.fed_at = self.fed_at.map(|at| at + suspended);
    }

    /// Returns when [`Controller::handle_timeout`] is due.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        if self.is_paused { None } else { self.valid_until }
    }

    /// Returns the allowed rate at `now`, in bytes a second.
    #[must_use]
    pub fn rate(&self, now: Instant) -> f64 {
        let share = if now < self.drain_until { DRAIN_SHARE } else { 1.0 };
        (self.rate * share).max(self.config.floor)
    }

    /// Returns the rate and all measurements.
    #[must_use]
    pub fn state(&self, now: Instant) -> ControllerState {
        ControllerState {
            rate: self.rate(now),
            warp: self.warp,
            queue_delay: Duration::from_nanos(self.queue_ns),
            feedback_delay: Duration::from_nanos(self.feedback_ns as u64),
            is_valid: self.is_valid,
            is_application_limited: self.usage.is_limited,
        }
    }

    /// Returns this sender's share of the queue over the backlog that it may keep.
    fn filled(&self) -> f64 {
        self.queue_ns as f64 / 1e9 * self.rate / self.config.backlog
    }

    /// Returns when an estimate made at `now` expires. It is valid longer if messages are rare or
    /// if the path loses much of the feedback.
    fn expiry(&self, now: Instant) -> Instant {
        let quiet = (QUIET_GAPS * self.fed_gap_ns).min(MAX_VALIDITY * self.feedback_ns);
        let good = (VALIDITY * self.feedback_ns).max(quiet);
        now.plus_nanos(good as u64).plus_nanos(2 * self.usage.gap_ns)
    }

    /// Measures, once per feedback delay, how much of the rate the sender used.
    fn usage_since(&mut self, now: Instant) {
        let elapsed = now.nanos_since(self.usage.since) as f64;
        if elapsed < self.feedback_ns {
            return;
        }
        let allowed = self.rate * elapsed / 1e9;
        let limit = if self.filled() < SEEN { EMPTY_LIMIT } else { APPLICATION_LIMIT };
        self.usage.is_limited = self.usage.sent < limit * allowed;
        self.usage.sent = 0.0;
        self.usage.since = now;
    }

    /// Restores growth gradually after a first queue, as long as the queue neither grows nor
    /// drains, and withdraws it otherwise. A queue that has just run empty does not show yet which
    /// rate the path allows.
    fn calm(&mut self, step: f64, excess: f64, filled: f64, unsure: f64) {
        self.is_starting &= filled < SEEN && excess < BRAKE + CERTAIN * unsure;
        if !self.is_starting {
            let stir = 1.0 - excess.abs() / (UNREST + unsure);
            let pace = if stir < 0.0 { UNREST_DELAYS } else { CALM_DELAYS };
            self.calm = (self.calm + stir.max(-1.0) * step / pace).clamp(0.0, 1.0);
        }
    }

    /// If arrivals far exceed departures, cuts the rate at once. The warp is then the queue's
    /// arrivals over its service. The past rate divided by the warp is therefore this sender's
    /// share of the service.
    fn brake(&mut self, then: Instant, unsure: f64) {
        let offered = self.past.at(then);
        if let Some(offered) = offered.filter(|_| self.warp > 1.0 + OVERLOAD + CERTAIN * unsure) {
            self.rate = self.rate.min(offered / self.warp).max(self.config.floor);
        }
    }

    /// Applies one step of the law, over `step` feedback delays.
    fn adjust(&mut self, step: f64, unsure: f64) {
        let queue = self.queue_ns as f64 / self.feedback_ns;
        // The allowed backlog as queueing time at this rate, in feedback delays.
        let allowed = self.config.backlog / (self.rate * self.feedback_ns / 1e9);
        let filled = self.filled();
        let excess = self.warp - 1.0;
        self.calm(step, excess, filled, unsure);
        let brake = BRAKE + unsure;
        let short = (1.0 - filled).max(0.0).powi(2);
        let pace =
            if self.is_starting { 1.0 } else { self.calm * (allowed / DEEP).min(1.0).powi(2) };
        let growth = GROWTH * short * pace * (1.0 - excess / brake).clamp(0.0, 1.0);
        let over =
            (1.0 - 1.0 / filled.max(1.0)).powi(2) * self.calm * (queue / DEEP).min(1.0).powi(2);
        let retreat = GROWTH * over * (1.0 + excess / brake).clamp(0.0, 1.0);
        let rise = BACKLOG_GAIN * allowed.min(2.0) + growth;
        let is_limited = self.usage.is_limited && !self.config.is_always_used;
        let rise = if is_limited { 0.0 } else { rise };
        let change = rise - retreat - BACKLOG_GAIN * queue - GRADIENT_GAIN * bounded(excess);
        let factor = (change * step).clamp(-4.0, 1.0).exp();
        self.rate = (self.rate * factor).clamp(self.config.floor, self.config.ceiling);
    }
}

/// Bounds an excess of arrivals over departures. Above 1 it counts logarithmically, as does the
/// change of rate that would correct it.
fn bounded(excess: f64) -> f64 {
    if excess <= 1.0 { excess } else { 1.0 + 2.0 * ((1.0 + excess) / 2.0).ln() }
}
