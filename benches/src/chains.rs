//! Random chains of stages.

use midplane::pipeline::{Pipeline, Stage};
use midplane::simhw::rng::Rng;

/// Returns a number between two bounds, log-uniformly distributed.
pub fn between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    (low.ln() + rng.unit() * (high / low).ln()).exp()
}

/// Returns a chain of `n` stages: 1 to 200 us per fragment, 1 to 100 us/KB.
pub fn chain(rng: &mut Rng, n: usize) -> Pipeline {
    let stages = (0..n).map(|_| {
        let (g, c) = (between(rng, 1.0, 200.0), between(rng, 0.001, 0.1));
        Stage::new(g, c).expect("both lie within the limits")
    });
    Pipeline::new(stages.collect()).expect("n is at least 1")
}
