//! The packet model: packets through one queue, with loss, reordering, duplicates and noise.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use midplane_simhw::rng::Rng;
use midplane_simhw::time::{Instant, nanos};

use crate::control::Controller;
use crate::estimate::{Estimator, Grouping};
use crate::feedback::Feedback;
use crate::stamp::{Encoder, Stamp};

/// Faults of the path behind the queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Share of packets that are lost, from 0 to 1.
    pub loss: f64,
    /// Share of packets that are delayed by 2.5 packet times, from 0 to 1.
    pub reordered: f64,
    /// Share of packets that arrive twice, from 0 to 1.
    pub duplicate: f64,
    /// Standard deviation of each packet's delay, in nanoseconds.
    pub noise_ns: f64,
    /// If true, all feedback is lost.
    pub is_feedback_cut: bool,
}

/// The properties of the queue and of the packets.
#[derive(Clone, Copy, Debug)]
pub struct PacketsConfig {
    /// Bytes a second that leave the queue.
    pub service: f64,
    /// Capacity of the queue in bytes; packets that do not fit are lost.
    pub buffer: f64,
    /// Size of a packet in bytes.
    pub packet: u64,
    /// Packets that a sender sends at once, with the same send time.
    pub burst: u64,
    /// Grouping of packets in the receivers' estimators.
    pub grouping: Grouping,
}

/// A sender of packets, with its receiver's estimator.
#[derive(Clone, Debug)]
pub struct PacketSender {
    /// Controller that sets the sender's rate. If `None`, the sender uses [`PacketSender::fixed`].
    pub controller: Option<Controller>,
    /// Rate of a sender without a controller, in bytes a second.
    pub fixed: f64,
    /// Round-trip delay without the queue.
    pub delay: Duration,
    /// Most additional delay of each packet on the forward path, in nanoseconds; uniformly
    /// distributed from 0.
    pub jitter_ns: u64,
    encoder: Encoder,
    estimator: Estimator,
    feedbacks: u32,
    /// Bytes of this sender that entered the queue, and so leave it.
    pub delivered: f64,
    last_arrival: u64,
}

impl PacketSender {
    /// Creates a sender with a round-trip `delay`.
    #[must_use]
    pub fn new(config: &PacketsConfig, controller: Option<Controller>, delay: Duration) -> Self {
        Self {
            controller,
            fixed: 0.0,
            delay,
            jitter_ns: 0,
            encoder: Encoder::default(),
            estimator: Estimator::new(config.grouping),
            feedbacks: 0,
            delivered: 0.0,
            last_arrival: 0,
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Send(usize),
    Arrive(usize, Stamp),
    Feedback(usize, Box<Feedback>),
}

/// Packet senders and one queue, in virtual time.
#[derive(Debug)]
pub struct Packets {
    /// The properties of the queue and of the packets.
    pub config: PacketsConfig,
    /// Faults of the path behind the queue.
    pub faults: Faults,
    /// The senders.
    pub senders: Vec<PacketSender>,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    pending: Vec<Option<Event>>,
    free: Vec<usize>,
    order: u64,
    now: u64,
    /// When the queue will be empty, in nanoseconds.
    empties: f64,
    rng: Rng,
    drain_until: u64,
    /// Bytes that all senders sent to the queue.
    pub offered: f64,
    /// Packets that were dropped because the queue was full.
    pub dropped: u64,
}

impl Packets {
    /// Creates the model. Each sender starts at a random time within its first packet gap.
    #[must_use]
    pub fn new(config: PacketsConfig, senders: Vec<PacketSender>, seed: u64) -> Self {
        let mut packets = Self {
            config,
            faults: Faults::default(),
            senders,
            events: BinaryHeap::new(),
            pending: Vec::new(),
            free: Vec::new(),
            order: 0,
            now: 1_000_000_000,
            empties: 1e9,
            rng: Rng::new(seed, "packets"),
            drain_until: 0,
            offered: 0.0,
            dropped: 0,
        };
        for sender in 0..packets.senders.len() {
            let gap = packets.gap(sender);
            let at = packets.now + packets.rng.below(gap.max(1));
            packets.at(at, Event::Send(sender));
        }
        packets
    }

    /// Runs the model for `time` and calls `observe` every `every`.
    pub fn run(&mut self, time: Duration, every: Duration, mut observe: impl FnMut(&Self)) {
        let end = self.now + nanos(time);
        let mut next_observation = self.now + nanos(every);
        while let Some(Reverse((at, _, _))) = self.events.peek() {
            while next_observation <= *at && next_observation <= end {
                self.now = next_observation;
                observe(self);
                next_observation += nanos(every).max(1);
            }
            if *at > end {
                break;
            }
            let Some(Reverse((at, _, slot))) = self.events.pop() else { break };
            self.now = at;
            self.free.push(slot);
            if let Some(event) = self.pending[slot].take() {
                self.handle(event);
            }
        }
        self.now = end;
    }

    /// Makes the feedback of the next `time` request a drain from all senders.
    pub fn request_drain(&mut self, time: Duration) {
        self.drain_until = self.now + nanos(time);
    }

    /// Returns the time of the model.
    #[must_use]
    pub const fn now(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// Returns the bytes in the queue.
    #[must_use]
    pub fn queue(&self) -> f64 {
        (self.empties - self.now as f64).max(0.0) / 1e9 * self.config.service
    }

    /// Returns each sender's rate, in bytes a second.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        (0..self.senders.len()).map(|sender| self.rate(sender)).collect()
    }

    fn rate(&self, sender: usize) -> f64 {
        let sender = &self.senders[sender];
        sender.controller.as_ref().map_or(sender.fixed, |law| law.rate(self.now()))
    }

    fn gap(&self, sender: usize) -> u64 {
        let bytes = (self.config.packet * self.config.burst.max(1)) as f64;
        (bytes / self.rate(sender).max(1e-3) * 1e9).min(1e15) as u64
    }

    fn at(&mut self, at: u64, event: Event) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        self.pending[slot] = Some(event);
        self.order += 1;
        self.events.push(Reverse((at, self.order, slot)));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Send(sender) => self.send(sender),
            Event::Arrive(sender, stamp) => self.arrive(sender, stamp),
            Event::Feedback(sender, feedback) => {
                let now = self.now();
                if let Some(law) = &mut self.senders[sender].controller {
                    law.handle_feedback(now, &feedback);
                }
            }
        }
    }

    fn send(&mut self, sender: usize) {
        let now = self.now();
        if let Some(law) = &mut self.senders[sender].controller
            && law.poll_timeout().is_some_and(|at| at <= now)
        {
            law.handle_timeout(now);
        }
        for _ in 0..self.config.burst.max(1) {
            let stamp = self.senders[sender].encoder.stamp(now);
            let bytes = self.config.packet;
            if let Some(law) = &mut self.senders[sender].controller {
                law.on_sent(now, bytes as usize);
            }
            self.enqueue(sender, stamp);
        }
        let gap = self.gap(sender).max(1);
        // If the rate changes before the next send, that takes effect only after it.
        self.at(self.now + gap, Event::Send(sender));
    }

    fn enqueue(&mut self, sender: usize, stamp: Stamp) {
        let bytes = self.config.packet as f64;
        self.offered += bytes;
        if self.queue() + bytes > self.config.buffer {
            self.dropped += 1;
            return;
        }
        let work = bytes / self.config.service * 1e9;
        self.empties = self.empties.max(self.now as f64) + work;
        self.senders[sender].delivered += bytes;
        if self.rng.chance(self.faults.loss) {
            return;
        }
        let half = nanos(self.senders[sender].delay) / 2;
        let noise =
            self.noise().max(0.0) as u64 + self.rng.below(self.senders[sender].jitter_ns + 1);
        let mut at = self.empties as u64 + half + noise;
        if self.rng.chance(self.faults.reordered) {
            at += (2.5 * work) as u64;
        } else if self.faults.reordered == 0.0 {
            // Noise comes from hosts and clocks: it does not let one packet overtake another.
            at = at.max(self.senders[sender].last_arrival);
            self.senders[sender].last_arrival = at;
        }
        self.at(at, Event::Arrive(sender, stamp));
        if self.rng.chance(self.faults.duplicate) {
            self.at(at + work as u64, Event::Arrive(sender, stamp));
        }
    }

    /// Draws a noise with a mean of three standard deviations, so that it is almost never negative.
    fn noise(&mut self) -> f64 {
        if self.faults.noise_ns == 0.0 {
            return 0.0;
        }
        // The sum of four uniform numbers is close enough to a normal distribution.
        let sum: f64 = (0..4).map(|_| self.rng.unit()).sum();
        (3.0 + (sum - 2.0) * 3.0_f64.sqrt()) * self.faults.noise_ns
    }

    fn arrive(&mut self, at: usize, stamp: Stamp) {
        let now = self.now();
        let sender = &mut self.senders[at];
        let Some(estimate) = sender.estimator.handle_arrival(stamp, now) else { return };
        sender.feedbacks = sender.feedbacks.wrapping_add(1);
        let arrivals = sender.estimator.arrivals();
        let mut feedback = Feedback::new(sender.feedbacks, estimate, arrivals, now);
        feedback.drain = self.now < self.drain_until;
        let half = nanos(sender.delay) / 2;
        if !self.faults.is_feedback_cut {
            self.at(self.now + half, Event::Feedback(at, Box::new(feedback)));
        }
    }
}
