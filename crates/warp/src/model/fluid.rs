//! The fluid model: continuous flows of bytes through one queue.

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::time::{Instant, nanos};

use crate::control::Controller;
use crate::estimate::{Arrivals, Estimate};
use crate::feedback::Feedback;

/// A sender of the fluid model.
#[derive(Clone, Debug)]
pub struct FluidSender {
    /// Controller that sets the sender's rate.
    pub controller: Controller,
    /// Round-trip delay without the queue.
    pub delay: Duration,
    /// Rate of the receiver's clock above this sender's, in parts per million.
    pub skew_ppm: f64,
    sequence: u32,
    /// The step whose feedback arrived last.
    fed_step: u64,
    /// True if the next feedback requests a drain.
    is_drain_asked: bool,
}

impl FluidSender {
    /// Creates a sender with a round-trip `delay`, whose clock has the receiver's rate.
    #[must_use]
    pub const fn new(controller: Controller, delay: Duration) -> Self {
        Self { controller, delay, skew_ppm: 0.0, sequence: 0, fed_step: 0, is_drain_asked: false }
    }
}

/// Senders and one queue that is served at [`Fluid::service`].
#[derive(Clone, Debug)]
pub struct Fluid {
    /// Bytes a second that leave the queue while it is not empty.
    pub service: f64,
    /// If true, no feedback reaches the senders.
    pub is_feedback_cut: bool,
    senders: Vec<FluidSender>,
    queue: f64,
    step_ns: u64,
    steps: u64,
    /// The queueing delay in nanoseconds of the bytes of each past step that have left the queue,
    /// oldest first.
    delays: VecDeque<f64>,
    /// The step of the oldest entry of `delays`.
    oldest: u64,
    /// For each later step, the total service after which its bytes leave: what could have been
    /// served until then plus the queue before it, in bytes.
    waiting: VecDeque<f64>,
    /// Bytes that the queue could have served so far.
    servable: f64,
    offered: f64,
}

impl Fluid {
    /// Creates an empty queue with a time step of `step`; a sixteenth of a feedback delay is fine
    /// enough.
    #[must_use]
    pub fn new(service: f64, step: Duration, senders: Vec<FluidSender>) -> Self {
        let step_ns = nanos(step).max(1);
        Self {
            service,
            is_feedback_cut: false,
            senders,
            queue: 0.0,
            step_ns,
            steps: 0,
            delays: VecDeque::new(),
            oldest: 0,
            waiting: VecDeque::new(),
            servable: 0.0,
            offered: 0.0,
        }
    }

    /// Adds a sender.
    pub fn add(&mut self, sender: FluidSender) {
        self.senders.push(sender);
    }

    /// Advances the model by one step.
    pub fn step(&mut self) {
        let now = self.now();
        let seconds = self.step_ns as f64 / 1e9;
        self.offered = self.senders.iter().map(|sender| sender.controller.rate(now)).sum();
        for sender in &mut self.senders {
            let bytes = sender.controller.rate(now) * seconds;
            sender.controller.on_sent(now, bytes as usize + 1);
        }
        self.waiting.push_back(self.servable + self.queue);
        self.serve();
        self.queue = (self.queue + (self.offered - self.service) * seconds).max(0.0);
        self.steps += 1;
        self.deliver_feedback();
        self.discard_old_delays();
    }

    /// Advances the model by `time` and calls `observe` after each step.
    pub fn run(&mut self, time: Duration, mut observe: impl FnMut(&Self)) {
        for _ in 0..nanos(time) / self.step_ns {
            self.step();
            observe(self);
        }
    }

    /// Requests a drain from each sender with its next feedback.
    pub fn request_drain(&mut self) {
        self.senders.iter_mut().for_each(|sender| sender.is_drain_asked = true);
    }

    /// Returns the time of the model.
    #[must_use]
    pub const fn now(&self) -> Instant {
        // The clock starts at 1 s, so that offsets of either sign fit.
        Instant::from_nanos(1_000_000_000 + self.steps * self.step_ns)
    }

    /// Returns the bytes in the queue.
    #[must_use]
    pub const fn queue(&self) -> f64 {
        self.queue
    }

    /// Returns the sum of all rates over the service rate.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.offered / self.service
    }

    /// Returns each sender's rate, in bytes a second.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        let now = self.now();
        self.senders.iter().map(|sender| sender.controller.rate(now)).collect()
    }

    /// Returns the senders.
    pub fn senders(&mut self) -> &mut [FluidSender] {
        &mut self.senders
    }

    /// Serves the queue for one step, first in, first out. If the service rate changes while bytes
    /// wait, their delay follows from the rates of that time and not from the rate at their
    /// arrival.
    fn serve(&mut self) {
        let servable = self.servable + self.service * self.step_ns as f64 / 1e9;
        while let Some(mark) = self.waiting.front().copied().filter(|mark| *mark <= servable) {
            let came = (self.oldest + self.delays.len() as u64) * self.step_ns;
            let left =
                (self.steps * self.step_ns) as f64 + (mark - self.servable) / self.service * 1e9;
            self.delays.push_back((left - came as f64).max(0.0));
            self.waiting.pop_front();
        }
        self.servable = servable;
    }

    /// Delivers feedback that has had time to return to its sender.
    fn deliver_feedback(&mut self) {
        let now = self.now();
        for sender in &mut self.senders {
            let loop_ns = nanos(sender.delay) as f64;
            let mut fed_step = sender.fed_step.max(self.oldest);
            let arrived = |step: u64| {
                let queued = self.delays[(step - self.oldest) as usize];
                (step * self.step_ns) as f64 + queued + loop_ns
                    <= (self.steps * self.step_ns) as f64
            };
            let left = self.oldest + self.delays.len() as u64;
            while fed_step + 1 < left && arrived(fed_step + 1) {
                fed_step += 1;
            }
            if fed_step > sender.fed_step && fed_step > self.oldest && !self.is_feedback_cut {
                let mut feedback = feedback_of(sender, fed_step, self.step_ns, now, |step| {
                    self.delays[(step - self.oldest) as usize]
                });
                feedback.drain = std::mem::take(&mut sender.is_drain_asked);
                sender.controller.handle_feedback(now, &feedback);
            }
            sender.fed_step = fed_step;
            if sender.controller.poll_timeout().is_some_and(|at| at <= now) {
                sender.controller.handle_timeout(now);
            }
        }
    }

    fn discard_old_delays(&mut self) {
        let needed = self.senders.iter().map(|sender| sender.fed_step).min().unwrap_or(self.steps);
        while self.oldest + 2 < needed {
            self.delays.pop_front();
            self.oldest += 1;
        }
    }
}

/// Makes the receiver's feedback about the bytes that were sent in step `fed_step`.
fn feedback_of(
    sender: &mut FluidSender,
    fed_step: u64,
    step_ns: u64,
    now: Instant,
    queued: impl Fn(u64) -> f64,
) -> Feedback {
    let skew = sender.skew_ppm / 1e6;
    let half = nanos(sender.delay) / 2;
    let sent = 1_000_000_000 + fed_step * step_ns;
    let drift = |at: f64| (at * skew) as i64;
    let arrived = sent as f64 + half as f64 + queued(fed_step);
    let delay = half.cast_signed() + queued(fed_step) as i64 + drift(arrived);
    let slope = (queued(fed_step) - queued(fed_step - 1)) / step_ns as f64;
    let estimate = Estimate {
        warp: 1.0 + slope + skew,
        delay_ns: delay,
        min_delay_ns: delay,
        noise_ns: 0.0,
        newest: Instant::from_nanos(sent),
        span_ns: step_ns,
        epoch: 0,
    };
    sender.sequence = sender.sequence.wrapping_add(1);
    let left = now.as_nanos() - half;
    let returned = Instant::from_nanos(left.saturating_add_signed(drift(left as f64)));
    Feedback::new(sender.sequence, estimate, Arrivals::default(), returned)
}
