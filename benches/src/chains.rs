//! Random chains of stages.

use midplane::pipeline::{Pipeline, Stage};

/// A small generator of reproducible random numbers (SplitMix64), for benches only.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates a generator; equal seeds give equal numbers.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 (included) to 1 (excluded).
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number between two bounds, log-uniformly distributed.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + self.unit() * (high / low).ln()).exp()
    }

    /// Returns a chain of `n` stages: 1 to 200 us per fragment, 1 to 100 us/KB.
    pub fn chain(&mut self, n: usize) -> Pipeline {
        let stages = (0..n).map(|_| {
            let (g, c) = (self.between(1.0, 200.0), self.between(0.001, 0.1));
            Stage::new(g, c).expect("both lie within the limits")
        });
        Pipeline::new(stages.collect()).expect("n is at least 1")
    }
}
