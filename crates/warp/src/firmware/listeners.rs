//! The receivers of one path: one node, or all destinations of a broadcast. The slowest sets the
//! rate.

use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::time::{Instant, nanos};

use crate::control::{ControlConfig, Controller, ControllerState};
use crate::feedback::Feedback;

/// Feedback delays of silence after which a receiver no longer limits the rate to the others.
const SILENCE_TIMEOUT: u64 = 64;

/// A controller for each receiver of a path.
#[derive(Debug)]
pub(super) struct Listeners(Vec<Listener>);

#[derive(Debug)]
struct Listener {
    node: NodeId,
    law: Controller,
    /// When its last feedback arrived.
    fed_at: Instant,
}

impl Listener {
    fn is_silent(&self, now: Instant) -> bool {
        let known = self.law.state(now);
        let timeout = nanos(known.feedback_delay).saturating_mul(SILENCE_TIMEOUT);
        !known.is_valid && now.nanos_since(self.fed_at) > timeout
    }
}

impl Listeners {
    pub(super) fn new(nodes: &[NodeId], config: ControlConfig, now: Instant) -> Self {
        let listener = |node: &NodeId| Listener {
            node: *node,
            law: Controller::new(config, now),
            fed_at: now,
        };
        Self(nodes.iter().map(listener).collect())
    }

    /// Returns the receiving nodes.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.0.iter().map(|listener| listener.node).collect()
    }

    pub(super) fn on_sent(&mut self, now: Instant, bytes: usize) {
        self.0.iter_mut().for_each(|listener| listener.law.on_sent(now, bytes));
    }

    pub(super) fn handle_feedback(&mut self, now: Instant, from: NodeId, feedback: &Feedback) {
        for listener in self.0.iter_mut().filter(|listener| listener.node == from) {
            listener.law.handle_feedback(now, feedback);
            listener.fed_at = now;
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.0.iter_mut().for_each(|listener| listener.law.handle_timeout(now));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().filter_map(|listener| listener.law.poll_timeout()).min()
    }

    /// Suspends all controllers: nothing is sent, so no feedback is expected.
    pub(super) fn pause(&mut self) {
        self.0.iter_mut().for_each(|listener| listener.law.pause());
    }

    /// Resumes all controllers after a pause of `suspended`.
    pub(super) fn resume(&mut self, now: Instant, suspended: Duration) {
        for listener in &mut self.0 {
            listener.law.resume(now, suspended);
            listener.fed_at += suspended;
        }
    }

    /// Discards the estimate of the path to `node`.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.0.iter_mut().filter(|l| l.node == node).for_each(|listener| listener.law.forget());
    }

    /// Returns the rate of the slowest receiver, in bytes a second.
    pub(super) fn rate(&self, now: Instant) -> f64 {
        self.slowest(now).map_or(0.0, |listener| listener.law.rate(now))
    }

    /// Returns the measurements of the path to the slowest receiver.
    pub(super) fn state(&self, now: Instant) -> Option<ControllerState> {
        self.slowest(now).map(|listener| listener.law.state(now))
    }

    /// Returns the receiver with the lowest rate of those that send feedback; of all, if none does.
    fn slowest(&self, now: Instant) -> Option<&Listener> {
        let rate = |listener: &&Listener| listener.law.rate(now);
        let lower = |a: &&Listener, b: &&Listener| rate(a).total_cmp(&rate(b));
        let answer = self.0.iter().filter(|listener| !listener.is_silent(now)).min_by(lower);
        answer.or_else(|| self.0.iter().min_by(lower))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::{Arrivals, Estimate};

    const fn at(micros: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + micros * 1_000)
    }

    fn feedback(number: u32, now: Instant, warp: f64, queue_ns: i64) -> Feedback {
        let estimate = Estimate {
            warp,
            delay_ns: 100_000 + queue_ns,
            min_delay_ns: 100_000 + queue_ns,
            noise_ns: 0.0,
            newest: now - std::time::Duration::from_micros(200),
            span_ns: 250_000,
            epoch: 0,
        };
        Feedback::new(number, estimate, Arrivals::default(), now)
    }

    #[test]
    fn the_slowest_listener_sets_the_rate_unless_it_has_gone() {
        let nodes = [NodeId(1), NodeId(2)];
        let mut all = Listeners::new(&nodes, ControlConfig::new(1e4, 1e3, 1e8), at(0));
        let mut now = at(0);
        for i in 1..200 {
            now = at(u64::from(i) * 250);
            all.on_sent(now, 1_500);
            all.handle_feedback(now, NodeId(1), &feedback(i, now, 1.0, 0));
            let queue = if i < 3 { 0 } else { 5_000_000 };
            all.handle_feedback(now, NodeId(2), &feedback(i, now, 1.2, queue));
        }
        let (rate, slow) = (all.rate(now), all.0[1].law.rate(now));
        assert_eq!(rate, slow);
        assert!(all.0[0].law.rate(now) > 4.0 * slow);
        // The slow receiver is silent: its rate decays, limits the path for a while, and then no
        // longer does.
        let gone = now;
        for i in 200..4_000 {
            now = at(u64::from(i) * 250);
            all.on_sent(now, 1_500);
            all.handle_feedback(now, NodeId(1), &feedback(i, now, 1.0, 0));
            all.handle_timeout(now);
        }
        assert!(all.0[1].is_silent(now) && all.rate(now) > 4.0 * slow, "{}", all.rate(now));
        assert!(!all.0[1].is_silent(gone));
        // When no receiver sends feedback, all rates fall to the floor.
        for _ in 0..100 {
            now = now.plus_nanos(10_000_000);
            all.handle_timeout(now);
        }
        assert!(all.rate(now) <= 1e3, "{}", all.rate(now));
    }
}
