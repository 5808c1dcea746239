//! Random chains of stages, and statistics over them.

use midplane::pipeline::{Pipeline, Stage};

/// A small generator of reproducible random numbers (SplitMix64), for studies and benches only.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates a generator; equal seeds give equal numbers.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 (included) to 1 (excluded).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number between two bounds, log-uniformly distributed.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + self.unit() * (high / low).ln()).exp()
    }

    /// Returns a whole number in `low..=high`.
    pub fn whole(&mut self, low: usize, high: usize) -> usize {
        low + (self.bits() % (high - low + 1) as u64) as usize
    }

    /// Returns a normally distributed number.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Returns a chain of `n` stages: 1 to 200 us per fragment, 1 to 100 us/KB.
    pub fn chain(&mut self, n: usize) -> Pipeline {
        let stages = (0..n).map(|_| {
            let (g, c) = (self.between(1.0, 200.0), self.between(0.001, 0.1));
            Stage::new(g, c).expect("both lie within the limits")
        });
        Pipeline::new(stages.collect()).expect("n is at least 1")
    }

    /// Returns a chain with one stage whose overhead is 500 to 5000 us.
    pub fn slow_chain(&mut self, n: usize) -> Pipeline {
        let slow = self.whole(0, n - 1);
        let mut stages = self.chain(n).stages().to_vec();
        let overhead = self.between(500.0, 5000.0);
        stages[slow] = Stage::new(overhead, stages[slow].per_byte().get())
            .expect("both lie within the limits");
        Pipeline::new(stages).expect("n is at least 1")
    }
}

/// A sample of numbers, for its mean and quantiles.
#[derive(Clone, Debug, Default)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// Adds one number.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Returns how many numbers there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the mean; 0 for an empty sample.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len().max(1) as f64
    }

    /// Returns the value below which `fraction` of the numbers lies; NaN for an empty sample.
    pub fn quantile(&self, fraction: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let index = (fraction * sorted.len() as f64) as usize;
        sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    }

    /// Returns the largest number.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }
}
