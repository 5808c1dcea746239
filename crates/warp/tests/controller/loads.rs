//! The load of a queue that is never empty, under the pure laws.

use midplane_warp::law::{GradientLaw, PaperLaw};

/// Steps in a feedback delay of 1 s.
const STEPS: usize = 64;

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
