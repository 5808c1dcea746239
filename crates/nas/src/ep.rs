//! EP: pairs of Gaussian deviates, counted in square annuli. Ranks exchange messages only at the end.

use midplane_simhw::wire;
use midplane_via::message::collective::Operation;
use midplane_via::message::communicator::Communicator;
use serde::{Deserialize, Serialize};

use super::pace::compute;
use super::random::Stream;
use super::{Class, Kernel, KernelError, Pace, Verdict, sum};

const SEED: u64 = 271_828_183;
/// Pairs per block.
const BLOCK: u64 = 1 << 16;
/// Blocks per step.
const BLOCKS_A_STEP: u64 = 8;
/// Floating-point operations per pair, as the benchmark's authors count them: about 25, and a logarithm.
const OPERATIONS: u64 = 50;

/// The official signed sums (before 3.4.2), absolute sums (since 3.4.2), and count of pairs.
const fn official(class: Class) -> [f64; 5] {
    match class {
        Class::S => [
            -3.247_834_652_034_74e3,
            -6.958_407_078_382_297e3,
            1.051_299_420_395_306e7,
            1.051_517_131_857_535e7,
            13_176_389.0,
        ],
        Class::W => [
            -2.863_319_731_645_753e3,
            -6.320_053_679_109_499e3,
            2.102_505_525_182_392e7,
            2.103_162_209_578_822e7,
            26_354_769.0,
        ],
        Class::A => [
            -4.295_875_165_629_892e3,
            -1.580_732_573_678_431e4,
            1.682_235_632_304_711e8,
            1.682_195_123_368_299e8,
            210_832_767.0,
        ],
    }
}

/// EP on one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ep {
    class: Class,
    rank: u32,
    ranks: u32,
    /// Number of the next block.
    next: u64,
    /// Two signed sums, then two absolute sums.
    sums: [f64; 4],
    /// Number of pairs per annulus.
    annuli: [u64; 10],
    done: bool,
}

impl Ep {
    const fn blocks(class: Class) -> u64 {
        match class {
            Class::S => 1 << 8,
            Class::W => 1 << 9,
            Class::A => 1 << 12,
        }
    }

    /// Counts the pairs of the next block.
    fn count(&mut self) {
        let mut stream = Stream::new(SEED).skip(2 * BLOCK * self.next);
        for _ in 0..BLOCK {
            let (x, y) = (2.0 * stream.next() - 1.0, 2.0 * stream.next() - 1.0);
            let t = x * x + y * y;
            if t > 1.0 {
                continue;
            }
            let scale = (-2.0 * t.ln() / t).sqrt();
            let (x, y) = (x * scale, y * scale);
            let annulus = x.abs().max(y.abs()) as usize;
            self.annuli[annulus.min(9)] += 1;
            for (sum, value) in self.sums.iter_mut().zip([x, y, x.abs(), y.abs()]) {
                *sum += value;
            }
        }
    }
}

impl Kernel for Ep {
    const NAME: &'static str = "ep";

    fn begin(class: Class, rank: u32, ranks: u32) -> Result<Self, KernelError> {
        let (next, sums, annuli) = (rank.into(), [0.0; 4], [0; 10]);
        Ok(Self { class, rank, ranks, next, sums, annuli, done: false })
    }

    async fn step(&mut self, world: &Communicator, pace: &impl Pace) -> Result<bool, KernelError>
    where
        Communicator: Send + Sync,
    {
        for _ in 0..BLOCKS_A_STEP {
            if self.next < Self::blocks(self.class) {
                compute(pace, BLOCK * OPERATIONS, || self.count()).await;
                self.next += u64::from(self.ranks);
            }
        }
        // Every rank makes the same number of steps.
        let (rank, each) = (u64::from(self.rank), u64::from(self.ranks));
        let made = (self.next - rank) / each;
        let most = Self::blocks(self.class).div_ceil(each);
        if made < most && self.next < Self::blocks(self.class) {
            return Ok(false);
        }
        let sums = sum(world, &self.sums).await?;
        self.sums.copy_from_slice(&sums);
        let annuli = world.all_reduce(&self.annuli, Operation::Sum).await;
        self.annuli.copy_from_slice(&annuli?);
        self.done = true;
        Ok(true)
    }

    fn verdict(&self) -> Verdict {
        let pairs: u64 = self.annuli.iter().sum();
        let mut values = self.sums.to_vec();
        values.push(pairs as f64);
        let mut verdict = Verdict::of(values, &official(self.class), 1e-8);
        verdict.verified &= self.done;
        verdict
    }

    fn save(&self) -> Vec<u8> {
        wire::encode_long(self).expect("the state is far smaller than the limit")
    }

    fn restore(class: Class, rank: u32, ranks: u32, saved: &[u8]) -> Result<Self, KernelError> {
        let state: Self = wire::decode_long(saved).map_err(|_| KernelError::Saved)?;
        let same = (state.class, state.rank, state.ranks) == (class, rank, ranks);
        if same { Ok(state) } else { Err(KernelError::Saved) }
    }
}
