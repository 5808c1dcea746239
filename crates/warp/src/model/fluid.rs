//! A fluid of bytes through one queue.

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::time::{Instant, nanos};

use crate::control::Controller;
use crate::estimate::{Arrivals, Estimate};
use crate::feedback::Feedback;

/// A sender into the queue.
#[derive(Clone, Debug)]
pub struct FluidSender {
    /// Its law.
    pub controller: Controller,
    /// Out and back without the queue.
    pub delay: Duration,
    /// How much faster the receiver's clock runs than this sender's, in parts per million.
    pub skew_ppm: f64,
    sequence: u32,
    /// The step whose news arrived last.
    heard: u64,
    /// Its next news asks it to let the queue run empty.
    is_drain_asked: bool,
}

impl FluidSender {
    /// A sender with `delay` out and back, whose clock runs as the receiver's.
    #[must_use]
    pub const fn new(controller: Controller, delay: Duration) -> Self {
        Self { controller, delay, skew_ppm: 0.0, sequence: 0, heard: 0, is_drain_asked: false }
    }
}

/// Senders, and a queue that is served at a rate.
#[derive(Clone, Debug)]
pub struct Fluid {
    /// Bytes a second that leave the queue while there are any.
    pub service: f64,
    /// Whether news of the queue reaches the senders.
    pub is_feedback_cut: bool,
    senders: Vec<FluidSender>,
    queue: f64,
    step_ns: u64,
    steps: u64,
    /// The queue's delay in nanoseconds for the bytes of the last steps, as far as they have left it,
    /// the oldest first.
    delays: VecDeque<f64>,
    /// The step of the oldest.
    oldest: u64,
    /// Bytes that could have been served until each later step and with the queue before it: its bytes
    /// leave when so many could have been served in all.
    waiting: VecDeque<f64>,
    /// Bytes that could have been served so far.
    servable: f64,
    offered: f64,
}

impl Fluid {
    /// An empty queue, and time in steps of `step`: a sixteenth of a feedback delay is fine enough.
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

    /// Another sender comes.
    pub fn add(&mut self, sender: FluidSender) {
        self.senders.push(sender);
    }

    /// One step.
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
        self.tell();
        self.forget();
    }

    /// As many steps as `time` has, with `look` after each.
    pub fn run(&mut self, time: Duration, mut look: impl FnMut(&Self)) {
        for _ in 0..nanos(time) / self.step_ns {
            self.step();
            look(self);
        }
    }

    /// Each sender's next news asks it to let the queue run empty.
    pub fn ask_for_a_drain(&mut self) {
        self.senders.iter_mut().for_each(|sender| sender.is_drain_asked = true);
    }

    /// The time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        // Clocks have run for a while, so that offsets of either sign fit.
        Instant::from_nanos(1_000_000_000 + self.steps * self.step_ns)
    }

    /// Bytes in the queue.
    #[must_use]
    pub const fn queue(&self) -> f64 {
        self.queue
    }

    /// What all senders send, over what the queue is served at.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.offered / self.service
    }

    /// Each sender's rate, in bytes a second.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        let now = self.now();
        self.senders.iter().map(|sender| sender.controller.rate(now)).collect()
    }

    /// The senders.
    pub fn senders(&mut self) -> &mut [FluidSender] {
        &mut self.senders
    }

    /// Serves the queue for a step, first in, first out. What leaves has waited at the rates that the
    /// queue was served at meanwhile, not at the one of when it came.
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

    /// News of what was sent long enough ago reaches its sender.
    fn tell(&mut self) {
        let now = self.now();
        for sender in &mut self.senders {
            let loop_ns = nanos(sender.delay) as f64;
            let mut heard = sender.heard.max(self.oldest);
            let arrived = |step: u64| {
                let queued = self.delays[(step - self.oldest) as usize];
                (step * self.step_ns) as f64 + queued + loop_ns
                    <= (self.steps * self.step_ns) as f64
            };
            let left = self.oldest + self.delays.len() as u64;
            while heard + 1 < left && arrived(heard + 1) {
                heard += 1;
            }
            if heard > sender.heard && heard > self.oldest && !self.is_feedback_cut {
                let mut feedback = news(sender, heard, self.step_ns, now, |step| {
                    self.delays[(step - self.oldest) as usize]
                });
                feedback.drain = std::mem::take(&mut sender.is_drain_asked);
                sender.controller.handle_feedback(now, &feedback);
            }
            sender.heard = heard;
            if sender.controller.poll_timeout().is_some_and(|at| at <= now) {
                sender.controller.handle_timeout(now);
            }
        }
    }

    fn forget(&mut self) {
        let needed = self.senders.iter().map(|sender| sender.heard).min().unwrap_or(self.steps);
        while self.oldest + 2 < needed {
            self.delays.pop_front();
            self.oldest += 1;
        }
    }
}

/// What the receiver says of the bytes that were sent in step `heard`.
fn news(
    sender: &mut FluidSender,
    heard: u64,
    step_ns: u64,
    now: Instant,
    queued: impl Fn(u64) -> f64,
) -> Feedback {
    let skew = sender.skew_ppm / 1e6;
    let half = nanos(sender.delay) / 2;
    let sent = 1_000_000_000 + heard * step_ns;
    let drift = |at: f64| (at * skew) as i64;
    let arrived = sent as f64 + half as f64 + queued(heard);
    let delay = half.cast_signed() + queued(heard) as i64 + drift(arrived);
    let slope = (queued(heard) - queued(heard - 1)) / step_ns as f64;
    let estimate = Estimate {
        warp: 1.0 + slope + skew,
        delay_ns: delay,
        least_delay_ns: delay,
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
