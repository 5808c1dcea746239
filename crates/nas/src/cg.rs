//! CG: the smallest eigenvalue of a sparse matrix, by inverse iteration with conjugate gradients.
//!
//! The matrix is divided into a grid of blocks, one per rank. A product is summed along each row of the grid by
//! recursive doubling, then exchanged with the transposed rank.

use midplane_simhw::wire;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::envelope::Tag;
use midplane_via::message::group::Rank;
use midplane_via::message::process::MessageError;
use midplane_via::message::typed::{from_bytes, to_bytes};
use serde::{Deserialize, Serialize};

use super::pace::compute;
use super::random::Stream;
use super::{Class, Kernel, KernelError, Pace, Verdict};

const SEED: u64 = 314_159_265;
const CONDITION: f64 = 0.1;
/// Steps of conjugate gradients per step of inverse iteration.
const INNER: usize = 25;
/// Steps of inverse iteration, in every class.
const OUTER: u32 = 15;
const EXCHANGE: Tag = Tag(1);

struct Problem {
    order: usize,
    nonzeros: usize,
    shift: f64,
    zeta: f64,
}

const fn problem(class: Class) -> Problem {
    match class {
        Class::S => Problem { order: 1400, nonzeros: 7, shift: 10.0, zeta: 8.597_177_507_864_8 },
        Class::W => Problem { order: 7000, nonzeros: 8, shift: 12.0, zeta: 10.362_595_087_124 },
        Class::A => Problem { order: 14_000, nonzeros: 11, shift: 20.0, zeta: 17.130_235_054_029 },
    }
}

/// A rank's place in the grid.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Grid {
    rows: usize,
    columns: usize,
    row: usize,
    column: usize,
}

impl Grid {
    fn new(rank: u32, ranks: u32, order: usize) -> Option<Self> {
        if !ranks.is_power_of_two() {
            return None;
        }
        let rows = 1_usize << (ranks.ilog2() / 2);
        let columns = ranks as usize / rows;
        let (row, column) = (rank as usize / columns, rank as usize % columns);
        (order.is_multiple_of(columns) && order.is_multiple_of(rows)).then_some(Self {
            rows,
            columns,
            row,
            column,
        })
    }

    /// Returns the rank that this rank exchanges products with: each needs what the other has.
    const fn transposed(&self) -> Rank {
        if self.rows == self.columns {
            return Rank((self.column * self.columns + self.row) as u32);
        }
        Rank((self.column / 2 * self.columns + 2 * self.row + self.column % 2) as u32)
    }

    /// Returns the rank in the same row whose column differs in bit `bit`.
    const fn partner(&self, bit: usize) -> Rank {
        Rank((self.row * self.columns + (self.column ^ bit)) as u32)
    }
}

/// A block of the matrix, in compressed sparse row (CSR) form.
#[derive(Clone, Debug, Default, PartialEq)]
struct Block {
    starts: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

impl Block {
    fn multiply(&self, x: &[f64], out: &mut [f64]) {
        for (row, out) in out.iter_mut().enumerate() {
            let range = self.starts[row]..self.starts[row + 1];
            let entries = self.columns[range.clone()].iter().zip(&self.values[range]);
            *out = entries.map(|(column, value)| value * x[*column as usize]).sum();
        }
    }
}

/// Generates a sparse random vector, with 0.5 at index `at`.
fn sparse_vector(
    stream: &mut Stream,
    order: usize,
    nonzeros: usize,
    at: usize,
) -> Vec<(usize, f64)> {
    let range = order.next_power_of_two() as f64;
    let mut entries: Vec<(usize, f64)> = Vec::with_capacity(nonzeros + 1);
    while entries.len() < nonzeros {
        let value = stream.next();
        let place = (range * stream.next()) as usize;
        if place < order && !entries.iter().any(|(other, _)| *other == place) {
            entries.push((place, value));
        }
    }
    match entries.iter_mut().find(|(place, _)| *place == at) {
        Some((_, value)) => *value = 0.5,
        None => entries.push((at, 0.5)),
    }
    entries
}

/// Generates a rank's block of the matrix: a sum of outer products of sparse vectors, weighted to give the condition
/// number that the benchmark demands.
fn make_block(problem: &Problem, grid: &Grid) -> Block {
    let order = problem.order;
    let (height, width) = (order / grid.rows, order / grid.columns);
    let (top, left) = (grid.row * height, grid.column * width);
    let mut rows: Vec<Vec<(u32, f64)>> = vec![Vec::new(); height];
    let mut stream = Stream::new(SEED);
    let _ = stream.next();
    let ratio = CONDITION.powf(1.0 / order as f64);
    let mut size = 1.0;
    for at in 0..order {
        let entries = sparse_vector(&mut stream, order, problem.nonzeros, at);
        for &(row, a) in entries.iter().filter(|(row, _)| (top..top + height).contains(row)) {
            let scale = size * a;
            for &(column, b) in entries.iter().filter(|(c, _)| (left..left + width).contains(c)) {
                let diagonal = row == column && row == at;
                let more = if diagonal { CONDITION - problem.shift } else { 0.0 };
                rows[row - top].push(((column - left) as u32, b * scale + more));
            }
        }
        size *= ratio;
    }
    let mut block = Block { starts: vec![0], ..Block::default() };
    for mut row in rows {
        // A stable sort: values of one element are added in the order of their generation.
        row.sort_by_key(|(column, _)| *column);
        for (column, value) in row {
            let begin = *block.starts.last().expect("`starts` begins with one entry");
            match (block.columns.last(), block.values.last_mut()) {
                (Some(last), Some(sum)) if *last == column && block.columns.len() > begin => {
                    *sum += value;
                }
                _ => {
                    block.columns.push(column);
                    block.values.push(value);
                }
            }
        }
        block.starts.push(block.columns.len());
    }
    block
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    class: Class,
    rank: u32,
    ranks: u32,
    /// Steps made. The first is a warm-up, whose result is discarded.
    step: u32,
    zeta: f64,
    residual: f64,
    x: Vec<f64>,
}

/// CG on one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Cg {
    state: State,
    grid: Grid,
    block: Block,
}

impl Cg {
    fn with(state: State) -> Result<Self, KernelError> {
        let State { class, rank, ranks, .. } = state;
        let problem = problem(class);
        let grid = Grid::new(rank, ranks, problem.order).ok_or(KernelError::Ranks {
            kernel: Self::NAME,
            class,
            ranks,
            allowed: match class {
                Class::S | Class::W => "1, 2, 4, 8, 16, 32 or 64",
                Class::A => "1, 2, 4, 8, 16, 32, 64, 128 or 256",
            },
        })?;
        if state.x.len() != problem.order / grid.columns {
            return Err(KernelError::Saved);
        }
        Ok(Self { block: make_block(&problem, &grid), state, grid })
    }

    /// Sums over a row of the grid. The result is bit-identical on all its ranks.
    async fn row_sum(&self, world: &Communicator, values: &mut [f64]) -> Result<(), MessageError>
    where
        Communicator: Send + Sync,
    {
        let mut bit = 1;
        while bit < self.grid.columns {
            let theirs = exchange(world, self.grid.partner(bit), values).await?;
            for (mine, theirs) in values.iter_mut().zip(&theirs) {
                *mine += theirs;
            }
            bit *= 2;
        }
        Ok(())
    }

    async fn dot(&self, world: &Communicator, a: &[f64], b: &[f64]) -> Result<f64, MessageError>
    where
        Communicator: Send + Sync,
    {
        let mut sum = [a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>()];
        self.row_sum(world, &mut sum).await?;
        Ok(sum[0])
    }

    /// Multiplies the matrix by a vector; argument and result are divided by columns.
    async fn product(
        &self,
        world: &Communicator,
        pace: &impl Pace,
        x: &[f64],
    ) -> Result<Vec<f64>, MessageError>
    where
        Communicator: Send + Sync,
    {
        let mut rows = vec![0.0; self.block.starts.len() - 1];
        let operations = 2 * self.block.values.len() as u64;
        compute(pace, operations, || self.block.multiply(x, &mut rows)).await;
        self.row_sum(world, &mut rows).await?;
        let half = rows.len() / 2;
        let part = match (self.grid.rows == self.grid.columns, self.grid.column % 2) {
            (true, _) => &rows[..],
            (false, 0) => &rows[..half],
            (false, _) => &rows[half..],
        };
        let to = self.grid.transposed();
        if to == world.rank() {
            return Ok(part.to_vec());
        }
        exchange(world, to, part).await
    }

    /// Solves A z = x by 25 steps of conjugate gradients; returns z and the norm of the residual.
    async fn solve(
        &self,
        world: &Communicator,
        pace: &impl Pace,
    ) -> Result<(Vec<f64>, f64), MessageError>
    where
        Communicator: Send + Sync,
    {
        let x = &self.state.x;
        let mut z = vec![0.0; x.len()];
        let mut r = x.clone();
        let mut p = r.clone();
        let mut rho = self.dot(world, &r, &r).await?;
        for _ in 0..INNER {
            let q = self.product(world, pace, &p).await?;
            let alpha = rho / self.dot(world, &p, &q).await?;
            for at in 0..z.len() {
                z[at] += alpha * p[at];
                r[at] -= alpha * q[at];
            }
            let before = std::mem::replace(&mut rho, self.dot(world, &r, &r).await?);
            let beta = rho / before;
            for (p, r) in p.iter_mut().zip(&r) {
                *p = r + beta * *p;
            }
            pace.work(10 * z.len() as u64).await;
        }
        let product = self.product(world, pace, &z).await?;
        let rest: Vec<f64> = x.iter().zip(&product).map(|(x, product)| x - product).collect();
        let residual = self.dot(world, &rest, &rest).await?.sqrt();
        Ok((z, residual))
    }
}

async fn exchange(
    world: &Communicator,
    with: Rank,
    values: &[f64],
) -> Result<Vec<f64>, MessageError>
where
    Communicator: Send + Sync,
{
    let receive = world.ireceive(with, EXCHANGE)?;
    world.send(with, EXCHANGE, to_bytes(values)).await?;
    from_bytes(&receive.await?.bytes)
}

impl Kernel for Cg {
    const NAME: &'static str = "cg";

    fn begin(class: Class, rank: u32, ranks: u32) -> Result<Self, KernelError> {
        let columns = Grid::new(rank, ranks, problem(class).order).map_or(1, |grid| grid.columns);
        let x = vec![1.0; problem(class).order / columns];
        Self::with(State { class, rank, ranks, step: 0, zeta: 0.0, residual: 0.0, x })
    }

    async fn step(&mut self, world: &Communicator, pace: &impl Pace) -> Result<bool, KernelError>
    where
        Communicator: Send + Sync,
    {
        let (z, residual) = self.solve(world, pace).await?;
        let product = self.dot(world, &self.state.x, &z).await?;
        let norm = self.dot(world, &z, &z).await?.sqrt();
        let state = &mut self.state;
        state.residual = residual;
        state.zeta = problem(state.class).shift + 1.0 / product;
        state.x = match state.step {
            0 => vec![1.0; z.len()],
            _ => z.iter().map(|z| z / norm).collect(),
        };
        state.step += 1;
        Ok(state.step > OUTER)
    }

    fn verdict(&self) -> Verdict {
        let mut verdict =
            Verdict::of(vec![self.state.zeta], &[problem(self.state.class).zeta], 1e-10);
        verdict.verified &= self.state.step > OUTER;
        verdict
    }

    fn save(&self) -> Vec<u8> {
        wire::encode_long(&self.state).expect("the state is smaller than the limit")
    }

    fn restore(class: Class, rank: u32, ranks: u32, saved: &[u8]) -> Result<Self, KernelError> {
        let state: State = wire::decode_long(saved).map_err(|_| KernelError::Saved)?;
        if (state.class, state.rank, state.ranks) != (class, rank, ranks) {
            return Err(KernelError::Saved);
        }
        Self::with(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers;

    #[test]
    fn the_error_names_all_numbers_of_ranks_that_are_accepted() {
        for class in [Class::S, Class::W, Class::A] {
            let Err(KernelError::Ranks { allowed, .. }) = Cg::begin(class, 0, 3) else {
                panic!("3 ranks are accepted");
            };
            let accepted = |ranks: &u32| Grid::new(0, *ranks, problem(class).order).is_some();
            let accepted: Vec<u32> = (0..2_000).filter(accepted).collect();
            assert_eq!(numbers(allowed), accepted, "class {class}");
        }
    }

    /// Tests that every accepted grid pairs its ranks for the exchange of products.
    #[test]
    fn every_accepted_grid_pairs_its_ranks() {
        for (class, ranks) in [(Class::S, 64), (Class::W, 64), (Class::A, 128), (Class::A, 256)] {
            for rank in 0..ranks {
                let grid = |rank| Grid::new(rank, ranks, problem(class).order).unwrap();
                let other = grid(rank).transposed();
                assert!(other.0 < ranks, "class {class}, {rank} of {ranks}");
                assert_eq!(grid(other.0).transposed().0, rank, "class {class}, of {ranks}");
            }
        }
    }
}
