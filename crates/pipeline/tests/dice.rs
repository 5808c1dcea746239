//! Reproducible random numbers and chains.

use midplane_pipeline::{Pipeline, Stage};

/// Reproducible random numbers (SplitMix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Draws from 0 (included) to 1 (excluded).
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + self.unit() * (high / low).ln()).exp()
    }

    /// Draws a log-normal factor; the logarithms of half of them lie within `error` of 0.
    pub(crate) fn factor(&mut self, error: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.unit()).cos();
        (error / 0.6745 * normal).exp()
    }

    pub(crate) fn chain(&mut self, n: usize) -> Pipeline {
        let stage = |_| Stage::new(self.between(1.0, 200.0), self.between(0.001, 0.1)).unwrap();
        Pipeline::new((0..n).map(stage).collect()).unwrap()
    }
}
