//! Fixed points by iteration, synchronous or not: x = F(x), with the unknowns dealt out to ranks
//! that send each other what they compute (Heddaya and Park 1994, sections 2 and 3).
//!
//! An asynchronous iteration uses whatever values it has. It converges to the one fixed point,
//! whatever is lost, delayed or doubled, if F contracts in a weighted maximum norm and the last
//! value of each unknown keeps arriving (Baudet 1978; Bertsekas and Tsitsiklis 1989): for a linear
//! system x = M x + c exactly if the spectral radius of |M| is below one (Chazan and Miranker 1969),
//! which [`matrix`] checks before anything runs.

#[cfg(feature = "sparse")]
pub mod matrix;
pub mod problem;
pub mod termination;

use std::ops::Range;

/// A fixed-point problem: F of each unknown.
pub trait FixedPoint {
    /// How many unknowns there are.
    fn unknowns(&self) -> usize;

    /// F of unknown `i`, given all unknowns.
    fn update(&self, i: usize, x: &[f64]) -> f64;

    /// What unknown `i` starts from.
    fn start(&self, _i: usize) -> f64 {
        0.0
    }

    /// How far unknown `i` is from its fixed point, on the scale that tolerances are given in.
    fn residual(&self, i: usize, x: &[f64]) -> f64 {
        let (now, next) = (x[i], self.update(i, x));
        // Two that are infinite alike are at rest: a node that nothing reaches.
        if now == next { 0.0 } else { (next - now).abs() }
    }
}

/// Which values an unknown is computed from.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Order {
    /// All from the last sweep.
    Jacobi,
    /// This rank's own as they come: those before it are of this sweep already.
    GaussSeidel,
}

/// The unknowns of each of `ranks`, as evenly as they go.
///
/// # Panics
/// If there are no ranks.
#[must_use]
pub fn partition(unknowns: usize, ranks: usize) -> Vec<Range<usize>> {
    assert!(ranks > 0, "somebody has to compute");
    let at = |rank: usize| unknowns * rank / ranks;
    (0..ranks).map(|rank| at(rank)..at(rank + 1)).collect()
}

/// One rank's part of an iteration: its own unknowns, and what it has heard of the others.
#[derive(Clone, Debug)]
pub struct Part<P> {
    problem: P,
    x: Vec<f64>,
    own: Vec<Range<usize>>,
    order: Order,
    sweeps: u64,
    next: Vec<f64>,
}

impl<P: FixedPoint> Part<P> {
    /// The part with the unknowns `own`, at the problem's start.
    ///
    /// # Panics
    /// If `own` goes beyond the problem's unknowns.
    #[must_use]
    pub fn new(problem: P, own: Range<usize>, order: Order) -> Self {
        assert!(own.end <= problem.unknowns(), "a part is of the problem's unknowns");
        let x = (0..problem.unknowns()).map(|i| problem.start(i)).collect();
        Self { problem, x, own: vec![own], order, sweeps: 0, next: Vec::new() }
    }

    /// Computes each of its unknowns anew; returns the largest residual that it found on the way.
    pub fn sweep(&mut self) -> f64 {
        self.sweeps += 1;
        let mut largest = 0.0_f64;
        self.next.clear();
        for i in self.own.iter().cloned().flatten() {
            largest = largest.max(self.problem.residual(i, &self.x));
            let value = self.problem.update(i, &self.x);
            match self.order {
                Order::GaussSeidel => self.x[i] = value,
                Order::Jacobi => self.next.push(value),
            }
        }
        if self.order == Order::Jacobi {
            for (i, value) in self.own.iter().cloned().flatten().zip(self.next.drain(..)) {
                self.x[i] = value;
            }
        }
        largest
    }

    /// Another rank's value of unknown `i`; what is out of range or not a number is ignored.
    pub fn handle_value(&mut self, i: usize, value: f64) {
        let is_own = self.own.iter().any(|range| range.contains(&i));
        if !is_own
            && !value.is_nan()
            && let Some(place) = self.x.get_mut(i)
        {
            *place = value;
        }
    }

    /// Takes over the unknowns of a rank that died, from what was heard of them.
    pub fn adopt(&mut self, range: Range<usize>) {
        let most = self.x.len();
        self.own.push(range.start.min(most)..range.end.min(most));
    }

    /// Its own unknowns' numbers.
    pub fn own(&self) -> impl Iterator<Item = usize> + use<P> {
        self.own.clone().into_iter().flatten()
    }

    /// All unknowns, as far as it knows.
    #[must_use]
    pub fn x(&self) -> &[f64] {
        &self.x
    }

    /// Sweeps so far.
    #[must_use]
    pub const fn sweeps(&self) -> u64 {
        self.sweeps
    }

    /// The problem.
    #[must_use]
    pub const fn problem(&self) -> &P {
        &self.problem
    }

    /// The largest residual of its own unknowns, as far as it knows.
    #[must_use]
    pub fn residual(&self) -> f64 {
        let residual = |i| self.problem.residual(i, &self.x);
        self.own.iter().cloned().flatten().map(residual).fold(0.0, f64::max)
    }
}

/// The largest residual of `x` over all unknowns; not a number where one of them is not.
#[must_use]
pub fn residual(problem: &impl FixedPoint, x: &[f64]) -> f64 {
    let residual = |i| problem.residual(i, x);
    let largest = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    (0..problem.unknowns()).map(residual).fold(0.0, largest)
}

#[cfg(test)]
mod tests;
