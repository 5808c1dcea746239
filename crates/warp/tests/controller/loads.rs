//! The rate laws of the paper, its additive law and a multiplicative variant, and the load of a queue
//! that is never empty under them.
//!
//! Neither should control a real link. First, an empty queue has a warp of 1 at any load, so a
//! sender never speeds up. Second, any split of the link and any standing queue is an equilibrium.
//! Third, if the two clocks drift apart, the queue grows without bound.

/// Steps in a feedback delay of 1 s.
const STEPS: usize = 64;

/// The paper's additive rate adjustment protocol: d lambda / dt = epsilon (1 - warp).
///
/// Stable while N epsilon tau / mu < pi / 2, for N senders, a feedback delay of tau and a service
/// rate of mu. Does not overshoot up to 1 / e. The paper's k is thus pi mu / (2 N).
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaperLaw {
    rate: f64,
    epsilon: f64,
}

impl PaperLaw {
    /// Creates a sender at `rate`. The rate changes by `epsilon` a second for each unit of warp.
    pub(crate) const fn new(rate: f64, epsilon: f64) -> Self {
        Self { rate, epsilon }
    }

    /// Applies the law to a `warp` that held for `seconds`.
    pub(crate) fn adjust(&mut self, warp: f64, seconds: f64) {
        self.rate = (self.rate + self.epsilon * (1.0 - warp) * seconds).max(0.0);
    }

    /// Returns the rate, in the unit that the caller passed to `new`.
    pub(crate) const fn rate(&self) -> f64 {
        self.rate
    }
}

/// The gradient term alone, multiplicative: d lambda / dt = epsilon lambda (1 - warp).
///
/// Stable while epsilon tau < pi / 2, for any number of senders and any link rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GradientLaw {
    rate: f64,
    epsilon: f64,
}

impl GradientLaw {
    /// Creates a sender at `rate`, with a gain of `epsilon` a second.
    pub(crate) const fn new(rate: f64, epsilon: f64) -> Self {
        Self { rate, epsilon }
    }

    /// Applies the law to a `warp` that held for `seconds`.
    pub(crate) fn adjust(&mut self, warp: f64, seconds: f64) {
        self.rate *= (self.epsilon * (1.0 - warp) * seconds).exp();
    }

    /// Returns the rate, in the unit that the caller passed to `new`.
    pub(crate) const fn rate(&self) -> f64 {
        self.rate
    }
}

/// Returns the loads by senders with `laws` over a queue that is never empty, so that warp is the
/// load exactly. The service rate is 1.
fn loads(mut laws: Vec<impl FnMut(f64) -> f64>, seconds: usize, start: f64) -> Vec<f64> {
    let mut loads = vec![start; STEPS + 1];
    for _ in 0..seconds * STEPS {
        let warp = loads[loads.len() - 1 - STEPS];
        loads.push(laws.iter_mut().map(|law| law(warp)).sum());
    }
    loads
}

/// Returns the loads under the paper's additive law.
pub(crate) fn paper(senders: usize, epsilon: f64, start: f64) -> Vec<f64> {
    let mut one = PaperLaw::new(start / senders as f64, epsilon);
    let law = move |warp: f64| {
        one.adjust(warp, 1.0 / STEPS as f64);
        one.rate()
    };
    loads(vec![law; senders], 120, start)
}

/// Returns the loads under the multiplicative gradient law.
pub(crate) fn gradient(senders: usize, epsilon: f64, start: f64) -> Vec<f64> {
    let mut one = GradientLaw::new(start / senders as f64, epsilon);
    let law = move |warp: f64| {
        one.adjust(warp, 1.0 / STEPS as f64);
        one.rate()
    };
    loads(vec![law; senders], 120, start)
}

/// Returns the largest deviation of the load from 1 in the last ten feedback delays.
pub(crate) fn late_swing(loads: &[f64]) -> f64 {
    let late = &loads[loads.len() - 10 * STEPS..];
    late.iter().map(|load| (load - 1.0).abs()).fold(0.0, f64::max)
}
