//! The load of a queue that always stands, under the pure laws.

use midplane_warp::law::{GradientLaw, PaperLaw};

/// Steps in a feedback delay of 1 s.
const STEPS: usize = 64;

/// Rates of N senders over a queue that always stands, so that warp is L / mu exactly; mu is 1.
fn loads(mut laws: Vec<impl FnMut(f64) -> f64>, seconds: usize, start: f64) -> Vec<f64> {
    let mut loads = vec![start; STEPS + 1];
    for _ in 0..seconds * STEPS {
        let warp = loads[loads.len() - 1 - STEPS];
        loads.push(laws.iter_mut().map(|law| law(warp)).sum());
    }
    loads
}

/// The paper's law, additive.
pub(crate) fn paper(senders: usize, epsilon: f64, start: f64) -> Vec<f64> {
    let mut one = PaperLaw::new(start / senders as f64, epsilon);
    let law = move |warp: f64| {
        one.adjust(warp, 1.0 / STEPS as f64);
        one.rate()
    };
    loads(vec![law; senders], 120, start)
}

/// The gradient alone, multiplicative.
pub(crate) fn gradient(senders: usize, epsilon: f64, start: f64) -> Vec<f64> {
    let mut one = GradientLaw::new(start / senders as f64, epsilon);
    let law = move |warp: f64| {
        one.adjust(warp, 1.0 / STEPS as f64);
        one.rate()
    };
    loads(vec![law; senders], 120, start)
}

/// How far from 1 the load swings at the end.
pub(crate) fn late_swing(loads: &[f64]) -> f64 {
    let late = &loads[loads.len() - 10 * STEPS..];
    late.iter().map(|load| (load - 1.0).abs()).fold(0.0, f64::max)
}
