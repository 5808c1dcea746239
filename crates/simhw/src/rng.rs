//! Named random streams: one for each component, derived from one seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

/// A portable random stream, determined by a seed and a name.
///
/// Components draw from streams of their own, so that an additional draw in one changes no other. The same seed
/// gives the same sequence on every platform: ChaCha with 8 rounds.
#[derive(Clone, Debug)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// Creates the stream `name` of `seed`.
    #[must_use]
    pub fn new(seed: u64, name: &str) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&fnv1a(name).to_le_bytes());
        key[16..24].copy_from_slice(&(name.len() as u64).to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Draws 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Draws a uniform number in `0..bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Multiply-shift: the bias is below bound / 2^64.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws a uniform number in `low..=high`; `low` if `high` is smaller.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        if high <= low {
            return low;
        }
        match (high - low).checked_add(1) {
            Some(span) => low + self.below(span),
            None => self.next_u64(),
        }
    }

    /// Draws a uniform number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws `true` with `probability`, from 0 to 1.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// Fills `bytes` with uniform bits.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_of_a_stream_never_change() {
        let mut rng = Rng::new(7, "link");
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(first, GOLDEN);
    }
    const GOLDEN: [u64; 3] =
        [1_347_505_666_276_095_584, 8_500_245_127_407_451_832, 5_226_457_584_555_995_237];

    #[test]
    fn streams_of_other_names_or_seeds_are_other_streams() {
        let first = |seed, name| Rng::new(seed, name).next_u64();
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
    }

    #[test]
    fn draws_stay_in_their_range() {
        let mut rng = Rng::new(1, "range");
        for _ in 0..10_000 {
            assert!(rng.below(3) < 3);
            assert!((5..=9).contains(&rng.between(5, 9)));
            assert!((0.0..1.0).contains(&rng.unit()));
        }
        assert!(!rng.chance(0.0) && rng.chance(1.0));
        assert_eq!((rng.below(0), rng.between(4, 2)), (0, 4));
    }
}
