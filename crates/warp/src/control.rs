//! The law to use: the gradient of the delay, and each sender's own backlog.
//!
//! Warp minus one is the slope of the one-way delay. Alone it cannot see a standing queue, so a
//! second term steers each sender's own share of the queue to what the sender is allowed:
//!
//! ```text
//! d lambda / dt = epsilon lambda (1 - warp) + kappa (a - lambda d)
//! ```
//!
//! with a the backlog that the sender may keep and d the queueing delay. In equilibrium each keeps
//! its a: the queue stands at the sum, rates are as the a are, and clocks that drift apart move the
//! backlog by epsilon s lambda / kappa and no more. With gains g = epsilon tau and k = kappa tau^2
//! the loop is (g s + k) e^-s / s^2 in units of the feedback delay tau; g = 0.5 and k = g^2 / 4
//! leave a phase margin of 47 degrees, whatever the number of senders.

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::time::{Instant, nanos};

use crate::feedback::{Feedback, QueueDelay};

/// g: how much of a gradient is answered within a feedback delay.
const GRADIENT_GAIN: f64 = 0.5;
/// k: how much of a backlog's error is, squared in the feedback delay.
const BACKLOG_GAIN: f64 = GRADIENT_GAIN * GRADIENT_GAIN / 4.0;
/// Growth in a feedback delay where a sender has no backlog to speak of: it doubles in 1.5.
const GROWTH: f64 = std::f64::consts::LN_2 / 1.5;
/// The share of its allowance at which a sender's first backlog ends its start.
const SEEN: f64 = 0.25;
/// A queue that grows or drains by so much is not calm.
const UNREST: f64 = 0.1;
/// Feedback delays from unrest to growth at its full.
const CALM_DELAYS: f64 = 10.0;
/// ... and of unrest until there is none: a swing loses more calm than it wins back.
const UNREST_DELAYS: f64 = 1.0;
/// A warp so far above 1 ends all growth: the queue grows already.
const BRAKE: f64 = 0.25;
/// An excess of arrivals that is answered at once, not by and by.
const OVERLOAD: f64 = 0.2;
/// Deviations of the slope that are no chance: less is left to the other terms.
const CERTAIN: f64 = 4.0;
/// Rates that are remembered of a feedback delay.
const PAST_STEPS: f64 = 16.0;
/// A queue of so much of the feedback delay is deep: a shallower one fills and drains faster than
/// news of it travels, and shares are then sought more slowly.
const DEEP: f64 = 1.0 / 3.0;
/// Feedback delays that an estimate is good for.
const VALIDITY: f64 = 1.5;
/// Usual times between two feedbacks of silence that are no chance, where many of them are lost ...
const QUIET_GAPS: f64 = 6.0;
/// ... and the most feedback delays that this makes an estimate good for.
const MOST_VALIDITY: f64 = 16.0;
/// A rate without feedback is divided by eight each eighth of a feedback delay.
const DECAY_STEPS: u64 = 8;
/// A sender that used less of its rate is limited by its application (as other controllers have it).
const APPLICATION_LIMIT: f64 = 0.65;
/// The weight of what is new in the feedback delay.
const DELAY_GAIN: f64 = 1.0 / 8.0;
/// While it drains the queue a sender keeps this share of its rate ...
const DRAIN_SHARE: f64 = 0.5;
/// ... for so many feedback delays.
const DRAIN_DELAYS: f64 = 2.0;

/// What a sender is allowed, and between which rates.
#[derive(Clone, Copy, Debug)]
pub struct ControlConfig {
    backlog: f64,
    floor: f64,
    ceiling: f64,
    first_delay: Duration,
    is_always_used: bool,
}

impl ControlConfig {
    /// A sender that may keep `backlog` bytes in queues, at `floor` to `ceiling` bytes a second.
    ///
    /// The backlog is the weight: senders that share a queue get rates as their backlogs are. For a
    /// queue of Q bytes, N equal senders have Q / N each. The floor is the rate of the probes that
    /// keep an idle or a cut-off sender alive; a message each few feedback delays is enough.
    ///
    /// # Panics
    /// If the backlog or the floor is not above zero, or the ceiling below the floor.
    #[must_use]
    pub fn new(backlog: f64, floor: f64, ceiling: f64) -> Self {
        assert!(backlog > 0.0, "a sender without a backlog has no share");
        assert!(floor > 0.0 && ceiling >= floor, "rates go from the floor to the ceiling");
        Self {
            backlog,
            floor,
            ceiling,
            first_delay: Duration::from_millis(1),
            is_always_used: false,
        }
    }

    /// Does not ask how much of the rate is used, for who is not told of what others send under
    /// it; off unless set. The rate of an idle sender then rises to its ceiling.
    pub const fn is_always_used(&mut self, is: bool) -> &mut Self {
        self.is_always_used = is;
        self
    }

    /// The feedback delay that is assumed before the first one is measured; 1 ms unless set. Too
    /// long costs time at the start, too short lets a start overshoot.
    pub const fn first_delay(&mut self, delay: Duration) -> &mut Self {
        self.first_delay = delay;
        self
    }
}

/// What a controller knows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knowledge {
    /// Bytes a second that may be sent.
    pub rate: f64,
    /// The last warp; 1 before there was one.
    pub warp: f64,
    /// Time in queues on the way out.
    pub queue_delay: Duration,
    /// From a change of the rate to the news of what came of it, with half the estimate's span.
    pub feedback_delay: Duration,
    /// Whether the estimate is still good.
    pub is_valid: bool,
    /// Whether the application sends less than it may.
    pub is_application_limited: bool,
}

/// The rate of one sender to one destination.
///
/// Tell it of what is sent ([`Controller::on_sent`]), of feedback and of its timeout; after each,
/// read [`Controller::rate`] and [`Controller::poll_timeout`] anew. `now` is the sender's clock and
/// never goes back. With no timeout only feedback changes the rate.
#[derive(Clone, Debug)]
pub struct Controller {
    config: ControlConfig,
    rate: f64,
    warp: f64,
    queue_ns: u64,
    delay: QueueDelay,
    /// Smoothed, in nanoseconds.
    feedback_ns: f64,
    newest: Option<(u32, Instant)>,
    /// When the last feedback came, and the smoothed time between two, in nanoseconds.
    fed_at: Option<Instant>,
    fed_gap_ns: f64,
    valid_until: Option<Instant>,
    is_paused: bool,
    is_valid: bool,
    drain_until: Instant,
    usage: Usage,
    has_measured: bool,
    past: Past,
    /// No queue of its own has been seen yet.
    is_starting: bool,
    /// How much of its growth a sender allows itself, from 0 to 1.
    calm: f64,
}

/// How much of its rate a sender uses.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    sent: f64,
    since: Instant,
    last_sent: Option<Instant>,
    /// Time between messages, in nanoseconds.
    gap_ns: u64,
    is_limited: bool,
}

/// The rates of the last feedback delay: what a warp is the answer to.
#[derive(Clone, Debug, Default)]
struct Past(VecDeque<(Instant, f64)>);

impl Past {
    /// The rate is `rate` from `now` on; changes less than `spacing` apart count as one.
    fn note(&mut self, now: Instant, rate: f64, spacing: u64) {
        match self.0.back_mut() {
            Some((at, last)) if now.nanos_since(*at) < spacing => *last = rate,
            _ => self.0.push_back((now, rate)),
        }
    }

    /// The rate at `then`; what lies before is forgotten.
    fn at(&mut self, then: Instant) -> Option<f64> {
        while self.0.get(1).is_some_and(|(at, _)| *at <= then) {
            self.0.pop_front();
        }
        self.0.front().filter(|(at, _)| *at <= then).map(|(_, rate)| *rate)
    }
}

impl Controller {
    /// A controller that knows nothing yet, at `now`: its rate is its backlog a feedback delay.
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

    /// Starts at `rate` bytes a second, where something is known of the path.
    pub fn start_at(&mut self, rate: f64) -> &mut Self {
        if rate.is_finite() {
            self.rate = rate.clamp(self.config.floor, self.config.ceiling);
        }
        self
    }

    /// May keep `backlog` bytes in queues from now on, as when senders come or go.
    pub fn set_backlog(&mut self, backlog: f64) {
        if backlog.is_finite() && backlog > 0.0 {
            self.config.backlog = backlog;
        }
    }

    /// `bytes` have been sent at `now`.
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

    /// Feedback has arrived at `now`.
    pub fn handle_feedback(&mut self, now: Instant, feedback: &Feedback) {
        let estimate = &feedback.estimate;
        let last = self.newest;
        // Feedback that was overtaken says nothing new. One that is very much older is of a
        // receiver that has restarted.
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
        self.feedback_ns += gain * (age - self.feedback_ns);
        self.has_measured = true;
        let since = last.map_or(0, |(_, at)| estimate.newest.nanos_since(at)) as f64;
        let quiet = self.fed_at.map_or(0, |at| now.nanos_since(at)) as f64;
        self.fed_gap_ns +=
            DELAY_GAIN * (quiet.min(MOST_VALIDITY * self.feedback_ns) - self.fed_gap_ns);
        self.fed_at = Some(now);
        self.usage_since(now);
        // The deviation of a slope: exact for four groups, and near enough for others.
        let unsure = estimate.noise_ns / (0.75 * estimate.span_ns.max(1) as f64);
        self.adjust((since / self.feedback_ns).min(1.0), unsure);
        self.brake(estimate.newest - Duration::from_nanos(estimate.span_ns / 2), unsure);
        self.past.note(now, self.rate(now), (self.feedback_ns / PAST_STEPS) as u64);
        // A drain that began before a deep queue ends when that is gone: feedback is faster then.
        let drained = now.plus_nanos((DRAIN_DELAYS * self.feedback_ns) as u64);
        self.drain_until = self.drain_until.min(drained);
        if feedback.drain && now >= self.drain_until {
            self.delay.on_drain();
            self.drain_until = drained;
        }
        self.is_valid = true;
        self.valid_until = Some(self.expiry(now));
    }

    /// The timeout of [`Controller::poll_timeout`] has come; before it, nothing happens.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|until| now < until) {
            return;
        }
        // Nothing is known of the path any more: the rate decays to the probes of the floor. It
        // grows from there when feedback returns, and what is sent meanwhile asks for it.
        self.is_valid = false;
        self.rate = (self.rate / 8.0).max(self.config.floor);
        let step = (self.feedback_ns / DECAY_STEPS as f64).max(1.0) as u64;
        let is_over = self.rate <= self.config.floor;
        self.valid_until = (!is_over).then(|| now.plus_nanos(step));
    }

    /// Nothing is known of the path any more: the rate is the floor until feedback comes.
    pub const fn forget(&mut self) {
        self.is_valid = false;
        self.rate = self.config.floor;
        self.valid_until = None;
    }

    /// Nothing is sent from now on, whatever there is to send, as when a process is stopped: that no feedback comes means
    /// nothing.
    pub const fn pause(&mut self) {
        self.is_paused = true;
    }

    /// Sends again at `now`, after a pause that took `stood`: at the rate of before it, and what came in between is
    /// nobody's fault. The receiver's [`Estimator`](crate::estimate::Estimator) is to restart as well.
    pub fn resume(&mut self, now: Instant, stood: Duration) {
        self.is_paused = false;
        self.valid_until = None;
        self.usage = Usage { since: now, last_sent: None, sent: 0.0, ..self.usage };
        self.newest = self.newest.map(|(number, at)| (number, at + stood));
        self.fed_at = self.fed_at.map(|at| at + stood);
    }

    /// When [`Controller::handle_timeout`] is due.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        if self.is_paused { None } else { self.valid_until }
    }

    /// Bytes a second that may be sent at `now`.
    #[must_use]
    pub fn rate(&self, now: Instant) -> f64 {
        let share = if now < self.drain_until { DRAIN_SHARE } else { 1.0 };
        (self.rate * share).max(self.config.floor)
    }

    /// All that it knows.
    #[must_use]
    pub fn knowledge(&self, now: Instant) -> Knowledge {
        Knowledge {
            rate: self.rate(now),
            warp: self.warp,
            queue_delay: Duration::from_nanos(self.queue_ns),
            feedback_delay: Duration::from_nanos(self.feedback_ns as u64),
            is_valid: self.is_valid,
            is_application_limited: self.usage.is_limited,
        }
    }

    /// Until when the estimate of `now` is good: one that is fed by rare messages lives longer, and so
    /// does one of a path that loses much of the feedback.
    fn expiry(&self, now: Instant) -> Instant {
        let quiet = (QUIET_GAPS * self.fed_gap_ns).min(MOST_VALIDITY * self.feedback_ns);
        let good = (VALIDITY * self.feedback_ns).max(quiet);
        now.plus_nanos(good as u64).plus_nanos(2 * self.usage.gap_ns)
    }

    /// Looks each feedback delay at how much of the rate has been used.
    fn usage_since(&mut self, now: Instant) {
        let elapsed = now.nanos_since(self.usage.since) as f64;
        if elapsed < self.feedback_ns {
            return;
        }
        let allowed = self.rate * elapsed / 1e9;
        self.usage.is_limited = self.usage.sent < APPLICATION_LIMIT * allowed;
        self.usage.sent = 0.0;
        self.usage.since = now;
    }

    /// After a queue was seen growth returns by and by, as long as the queue neither grows nor
    /// drains: what a queue that has just run empty allows is not known yet.
    fn calm(&mut self, step: f64, excess: f64, filled: f64, unsure: f64) {
        self.is_starting &= filled < SEEN && excess < BRAKE + CERTAIN * unsure;
        if !self.is_starting {
            let stir = 1.0 - excess.abs() / (UNREST + unsure);
            let pace = if stir < 0.0 { UNREST_DELAYS } else { CALM_DELAYS };
            self.calm = (self.calm + stir.max(-1.0) * step / pace).clamp(0.0, 1.0);
        }
    }

    /// Where arrivals exceed departures by far, the two are what the queue was offered then and
    /// what it serves: the rate of then over the warp is this sender's part of the service.
    fn brake(&mut self, then: Instant, unsure: f64) {
        let offered = self.past.at(then);
        if let Some(offered) = offered.filter(|_| self.warp > 1.0 + OVERLOAD + CERTAIN * unsure) {
            self.rate = self.rate.min(offered / self.warp).max(self.config.floor);
        }
    }

    /// One step of the law, over `step` feedback delays.
    fn adjust(&mut self, step: f64, unsure: f64) {
        let queue = self.queue_ns as f64 / self.feedback_ns;
        // The allowance as a time in the queue at this rate, in feedback delays.
        let allowed = self.config.backlog / (self.rate * self.feedback_ns / 1e9);
        let filled = queue / allowed;
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

/// An excess of arrivals over departures; above 1 it counts by its logarithm, as the rate does that
/// would put it right.
fn bounded(excess: f64) -> f64 {
    if excess <= 1.0 { excess } else { 1.0 + 2.0 * ((1.0 + excess) / 2.0).ln() }
}
