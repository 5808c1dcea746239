//! The owner's values, the clients' keys, and the check of answers.

use std::collections::BTreeMap;

use midplane::simhw::rng::Rng;

use super::table::VALUE;

/// Skew of the keys (YCSB's constant).
const ZIPF: f64 = 0.99;

/// Builds the value of a version of a key, so that any wrong byte is detected.
fn value(key: u64, version: u64) -> Vec<u8> {
    let mut value = [key.to_le_bytes(), version.to_le_bytes()].concat();
    let pattern = (key as u8).wrapping_mul(31).wrapping_add(version as u8);
    value.resize(VALUE, pattern);
    value
}

/// The owner's table: a version for each key.
#[derive(Debug, Default)]
pub(crate) struct Store(BTreeMap<u64, u64>);

impl Store {
    pub(crate) fn get(&self, key: u64) -> Vec<u8> {
        value(key, self.0.get(&key).copied().unwrap_or(0))
    }

    pub(crate) fn change(&mut self, key: u64) -> Vec<u8> {
        *self.0.entry(key).or_default() += 1;
        self.get(key)
    }
}

/// Draws keys by Zipf's law: few keys often.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Share of requests for keys up to this one.
    shares: Vec<f64>,
    rng: Rng,
}

impl Keys {
    pub(crate) fn new(keys: u64, rng: Rng) -> Self {
        let mut sum = 0.0;
        let mut shares: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += (rank as f64).powf(-ZIPF);
                sum
            })
            .collect();
        shares.iter_mut().for_each(|share| *share /= sum);
        Self { shares, rng }
    }

    pub(crate) fn next(&mut self) -> u64 {
        let at = self.rng.unit();
        self.shares.partition_point(|share| *share < at) as u64
    }
}

/// Checks answers: the right key, every byte, and a version no older than the last one.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    seen: BTreeMap<u64, u64>,
    pub(crate) wrong: u64,
}

impl Judge {
    pub(crate) fn judge(&mut self, key: u64, bytes: &[u8]) {
        let version = bytes.get(8..16).and_then(|bytes| bytes.try_into().ok());
        let version = version.map_or(0, u64::from_le_bytes);
        let seen = self.seen.entry(key).or_default();
        self.wrong += u64::from(bytes != value(key, version) || version < *seen);
        *seen = version.max(*seen);
    }
}
