//! FT: a partial differential equation, solved by Fourier transforms in three dimensions.
//!
//! Each rank has planes of equal z. A transform exchanges them for planes of equal y, in which each rank sends a block
//! to every other. FT communicates the most of the three kernels.

use midplane_simhw::wire;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::process::MessageError;
use midplane_via::message::typed::{from_bytes, to_bytes};
use serde::{Deserialize, Serialize};

use super::pace::compute;
use super::random::Stream;
use super::{Class, Kernel, KernelError, Pace, Verdict, sum};

const SEED: u64 = 314_159_265;
const ALPHA: f64 = 1e-6;
/// Number of steps, in every class.
const STEPS: usize = 6;

type Complex = [f64; 2];

const fn multiply([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a * c - b * d, a * d + b * c]
}

/// Lengths of the three dimensions: x, y, z.
const fn dimensions(class: Class) -> [usize; 3] {
    match class {
        Class::S => [64, 64, 64],
        Class::W => [128, 128, 32],
        Class::A => [256, 256, 128],
    }
}

const fn official(class: Class) -> [[f64; 2]; 6] {
    match class {
        Class::S => [
            [554.608_700_496_4, 484.536_333_197_8],
            [554.638_540_918_9, 486.530_426_951_1],
            [554.614_840_617_1, 488.391_072_233_6],
            [554.542_360_741_5, 490.127_316_904_6],
            [554.425_503_962_4, 491.747_585_799_3],
            [554.268_341_190_2, 493.259_724_494_1],
        ],
        Class::W => [
            [567.361_217_894_4, 529.324_684_917_5],
            [563.143_688_527_1, 528.214_998_662_9],
            [559.402_408_997_0, 527.099_655_803_7],
            [556.069_804_702_0, 526.002_790_492_5],
            [553.089_899_125_0, 524.940_084_563_3],
            [550.415_973_453_8, 523.921_224_708_6],
        ],
        Class::A => [
            [504.673_500_819_3, 511.404_790_551_0],
            [505.941_231_973_4, 509.880_966_643_3],
            [506.937_689_628_7, 509.814_404_221_3],
            [507.789_286_847_4, 510.133_613_075_9],
            [508.523_309_539_1, 510.491_465_519_4],
            [509.148_709_995_9, 510.791_784_280_3],
        ],
    }
}

/// A transform of one length, by its roots of unity.
struct Line {
    roots: Vec<Complex>,
}

impl Line {
    fn new(length: usize, forward: bool) -> Self {
        let sign = if forward { 1.0 } else { -1.0 };
        let root = |at: usize| {
            let (sine, cosine) = (std::f64::consts::TAU * at as f64 / length as f64).sin_cos();
            [cosine, sign * sine]
        };
        Self { roots: (0..length / 2).map(root).collect() }
    }

    /// Transforms `line` in place, by Stockham's algorithm, which needs no reordering.
    fn transform(&self, line: &mut Vec<Complex>, scratch: &mut Vec<Complex>) {
        let length = line.len();
        let (mut count, mut stride) = (length, 1);
        while count > 1 {
            let half = count / 2;
            for p in 0..half {
                let root = self.roots[p * stride];
                for q in 0..stride {
                    let (a, b) = (line[q + stride * p], line[q + stride * (p + half)]);
                    scratch[q + stride * 2 * p] = [a[0] + b[0], a[1] + b[1]];
                    scratch[q + stride * (2 * p + 1)] = multiply([a[0] - b[0], a[1] - b[1]], root);
                }
            }
            std::mem::swap(line, scratch);
            count = half;
            stride *= 2;
        }
    }
}

/// Transforms each line of `length` values.
fn transform_rows(data: &mut [Complex], length: usize, forward: bool) {
    let transform = Line::new(length, forward);
    let (mut line, mut scratch) = (vec![[0.0; 2]; length], vec![[0.0; 2]; length]);
    for row in data.chunks_exact_mut(length) {
        line.copy_from_slice(row);
        transform.transform(&mut line, &mut scratch);
        row.copy_from_slice(&line);
    }
}

/// Transforms the columns of planes with `height` rows of `width` values.
fn transform_columns(data: &mut [Complex], width: usize, height: usize, forward: bool) {
    let transform = Line::new(height, forward);
    let (mut line, mut scratch) = (vec![[0.0; 2]; height], vec![[0.0; 2]; height]);
    for plane in data.chunks_exact_mut(width * height) {
        for x in 0..width {
            for (y, value) in line.iter_mut().enumerate() {
                *value = plane[y * width + x];
            }
            transform.transform(&mut line, &mut scratch);
            for (y, value) in line.iter().enumerate() {
                plane[y * width + x] = *value;
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    class: Class,
    rank: u32,
    ranks: u32,
    /// Checksums of the steps made, two values each.
    sums: Vec<f64>,
    /// The transformed field: planes of equal y, each with rows of equal x along z. Empty before the first step.
    field: Vec<Complex>,
}

/// FT on one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Ft {
    state: State,
}

impl Ft {
    fn with(state: State) -> Result<Self, KernelError> {
        let State { class, ranks, .. } = state;
        let [x, y, z] = dimensions(class);
        let (ranks_u, field) = (ranks as usize, state.field.len());
        if ranks == 0 || y % ranks_u != 0 || z % ranks_u != 0 {
            let allowed = match class {
                Class::S => "1, 2, 4, 8, 16, 32 or 64",
                Class::W => "1, 2, 4, 8, 16 or 32",
                Class::A => "1, 2, 4, 8, 16, 32, 64 or 128",
            };
            return Err(KernelError::Ranks { kernel: Self::NAME, class, ranks, allowed });
        }
        if field != 0 && field != x * y * z / ranks_u {
            return Err(KernelError::Saved);
        }
        Ok(Self { state })
    }

    /// Sends block r to rank r, and returns the blocks received, by rank.
    async fn exchange(
        &self,
        world: &Communicator,
        blocks: Vec<Vec<Complex>>,
    ) -> Result<Vec<Vec<Complex>>, MessageError>
    where
        Communicator: Send + Sync,
    {
        let blocks = blocks.iter().map(|block| to_bytes(block)).collect();
        let received = world.all_to_all(blocks).await?;
        received.iter().map(|bytes| from_bytes::<Complex>(bytes)).collect()
    }

    /// Exchanges planes of equal z for planes of equal y: `[z][y][x]` to `[y][x][z]`.
    async fn to_y(
        &self,
        world: &Communicator,
        data: &[Complex],
    ) -> Result<Vec<Complex>, MessageError>
    where
        Communicator: Send + Sync,
    {
        let [nx, ny, nz] = dimensions(self.state.class);
        let ranks = self.state.ranks as usize;
        let (own_y, own_z) = (ny / ranks, nz / ranks);
        let cut = |to: usize| {
            let planes = data.chunks_exact(nx * ny);
            planes
                .flat_map(|plane| &plane[to * own_y * nx..(to + 1) * own_y * nx])
                .copied()
                .collect()
        };
        let received = self.exchange(world, (0..ranks).map(cut).collect()).await?;
        let mut out = vec![[0.0; 2]; nx * own_y * nz];
        for (from, block) in received.iter().enumerate() {
            for (z, plane) in block.chunks_exact(nx * own_y).enumerate() {
                for (at, value) in plane.iter().enumerate() {
                    out[at * nz + from * own_z + z] = *value;
                }
            }
        }
        Ok(out)
    }

    /// Exchanges planes of equal y for planes of equal z: `[y][x][z]` to `[z][y][x]`.
    async fn to_z(
        &self,
        world: &Communicator,
        data: &[Complex],
    ) -> Result<Vec<Complex>, MessageError>
    where
        Communicator: Send + Sync,
    {
        let [nx, ny, nz] = dimensions(self.state.class);
        let ranks = self.state.ranks as usize;
        let (own_y, own_z) = (ny / ranks, nz / ranks);
        let cut = |to: usize| -> Vec<Complex> {
            let lines = data.chunks_exact(nz);
            lines.flat_map(|line| &line[to * own_z..(to + 1) * own_z]).copied().collect()
        };
        let received = self.exchange(world, (0..ranks).map(cut).collect()).await?;
        let mut out = vec![[0.0; 2]; nx * ny * own_z];
        for (from, block) in received.iter().enumerate() {
            for (at, line) in block.chunks_exact(own_z).enumerate() {
                let (y, x) = (from * own_y + at / nx, at % nx);
                for (z, value) in line.iter().enumerate() {
                    out[(z * ny + y) * nx + x] = *value;
                }
            }
        }
        Ok(out)
    }

    /// Returns this rank's floating-point operations per three-dimensional transform.
    fn operations(&self) -> u64 {
        let [x, y, z] = dimensions(self.state.class);
        let points = (x * y * z) as u64;
        5 * points * u64::from((x * y * z).ilog2()) / u64::from(self.state.ranks)
    }

    /// Returns the initial field, transformed.
    async fn begin_field(
        &self,
        world: &Communicator,
        pace: &impl Pace,
    ) -> Result<Vec<Complex>, MessageError>
    where
        Communicator: Send + Sync,
    {
        let [nx, ny, nz] = dimensions(self.state.class);
        let own_z = nz / self.state.ranks as usize;
        let first = self.state.rank as usize * own_z;
        let mut data = vec![[0.0; 2]; nx * ny * own_z];
        let begin = || {
            let mut stream = Stream::new(SEED).skip((2 * nx * ny * first) as u64);
            data.fill_with(|| [stream.next(), stream.next()]);
            transform_rows(&mut data, nx, true);
            transform_columns(&mut data, nx, ny, true);
        };
        compute(pace, self.operations() * 2 / 3, begin).await;
        let mut data = self.to_y(world, &data).await?;
        compute(pace, self.operations() / 3, || transform_rows(&mut data, nz, true)).await;
        Ok(data)
    }

    /// Advances the transformed field by one time step.
    fn evolve(&mut self) {
        let [nx, ny, nz] = dimensions(self.state.class);
        let own_y = ny / self.state.ranks as usize;
        let first = self.state.rank as usize * own_y;
        let wave = |at: usize, length: usize| {
            let k = ((at + length / 2) % length) as f64 - (length / 2) as f64;
            k * k
        };
        let scale = -4.0 * ALPHA * std::f64::consts::PI * std::f64::consts::PI;
        for (at, line) in self.state.field.chunks_exact_mut(nz).enumerate() {
            let across = wave(at % nx, nx) + wave(first + at / nx, ny);
            for (z, value) in line.iter_mut().enumerate() {
                let factor = (scale * (across + wave(z, nz))).exp();
                *value = [value[0] * factor, value[1] * factor];
            }
        }
    }

    /// Returns this rank's part of the sum of 1,024 points of the field.
    fn checksum(&self, data: &[Complex]) -> Complex {
        let [nx, ny, nz] = dimensions(self.state.class);
        let own_z = nz / self.state.ranks as usize;
        let first = self.state.rank as usize * own_z;
        let mut sum = [0.0; 2];
        for j in 1..=1024 {
            let (x, y, z) = (j % nx, 3 * j % ny, 5 * j % nz);
            if (first..first + own_z).contains(&z) {
                let value = data[((z - first) * ny + y) * nx + x];
                sum = [sum[0] + value[0], sum[1] + value[1]];
            }
        }
        sum
    }
}

impl Kernel for Ft {
    const NAME: &'static str = "ft";

    fn begin(class: Class, rank: u32, ranks: u32) -> Result<Self, KernelError> {
        Self::with(State { class, rank, ranks, sums: Vec::new(), field: Vec::new() })
    }

    async fn step(&mut self, world: &Communicator, pace: &impl Pace) -> Result<bool, KernelError>
    where
        Communicator: Send + Sync,
    {
        let [nx, ny, nz] = dimensions(self.state.class);
        if self.state.field.is_empty() {
            self.state.field = self.begin_field(world, pace).await?;
        }
        compute(pace, 0, || self.evolve()).await;
        let mut data = self.state.field.clone();
        compute(pace, self.operations() / 3, || transform_rows(&mut data, nz, false)).await;
        let mut data = self.to_z(world, &data).await?;
        pace.work(0).await;
        compute(pace, 0, || transform_columns(&mut data, nx, ny, false)).await;
        let rows = || transform_rows(&mut data, nx, false);
        compute(pace, self.operations() * 2 / 3, rows).await;
        let points = (nx * ny * nz) as f64;
        let total = sum(world, &self.checksum(&data)).await?;
        self.state.sums.extend(total.iter().map(|sum| sum / points));
        Ok(self.state.sums.len() >= 2 * STEPS)
    }

    fn verdict(&self) -> Verdict {
        Verdict::of(self.state.sums.clone(), official(self.state.class).as_flattened(), 1e-12)
    }

    fn save(&self) -> Vec<u8> {
        wire::encode_long(&self.state).expect("the state is smaller than the limit")
    }

    fn restore(class: Class, rank: u32, ranks: u32, saved: &[u8]) -> Result<Self, KernelError> {
        let state: State = wire::decode_long(saved).map_err(|_| KernelError::Saved)?;
        let same = (state.class, state.rank, state.ranks) == (class, rank, ranks);
        if same { Self::with(state) } else { Err(KernelError::Saved) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers;

    #[test]
    fn the_error_names_all_numbers_of_ranks_that_are_accepted() {
        for class in [Class::S, Class::W, Class::A] {
            let Err(KernelError::Ranks { allowed, .. }) = Ft::begin(class, 0, 3) else {
                panic!("3 ranks are accepted");
            };
            let accepted = |ranks: &u32| Ft::begin(class, 0, *ranks).is_ok();
            let accepted: Vec<u32> = (0..2_000).filter(accepted).collect();
            assert_eq!(numbers(allowed), accepted, "class {class}");
        }
    }
}
