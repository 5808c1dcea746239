//! Fixed points x = F(x) by iteration, synchronous or asynchronous. Each rank computes some of the
//! unknowns and sends them to the others (Heddaya and Park 1994, sections 2 and 3).
//!
//! An asynchronous iteration uses whatever values a rank has. It converges to the one fixed point
//! despite loss, delay and duplicates on two conditions: F contracts in a weighted maximum norm,
//! and the last value of each unknown keeps arriving (Baudet 1978; Bertsekas and Tsitsiklis 1989).
//! For a linear system x = M x + c, F contracts exactly if the spectral radius of |M| is below one
//! (Chazan and Miranker 1969). [`matrix`] checks that before the iteration starts.
//!
//! Each rank sweeps its [`Part`], sends its values by any means, and stops by `termination`. Here two ranks are in one
//! thread, and exchange values every third sweep. Between hosts, values travel as slow writes to
//! [`memory`](crate::memory) or in messages, reports and orders in messages that arrive (`examples/solver.rs`).
//!
//! ```
//! use std::ops::Range;
//! use std::slice::from_ref;
//! use std::sync::Arc;
//!
//! use midplane_warp::iterate::matrix::{Linear, read};
//! use midplane_warp::iterate::termination::{Coordinator, Participant};
//! use midplane_warp::iterate::{Order, Part, partition};
//!
//! let text = "%%MatrixMarket matrix coordinate real general\n\
//!             3 3 7\n1 1 4\n1 2 -1\n2 1 -1\n2 2 4\n2 3 -1\n3 2 -1\n3 3 4\n";
//! let system = Arc::new(Linear::new(read(text)?, Some(vec![2.0, 4.0, 10.0]))?);
//! system.check()?;
//! let ranges = partition(3, 2);
//! let part = |own: &Range<usize>| Part::new(system.clone(), own.clone(), Order::GaussSeidel);
//! let mut parts: Vec<_> = ranges.iter().map(part).collect();
//! let mut sides = [Participant::new(1e-9), Participant::new(1e-9)];
//! let mut coordinator = Coordinator::new(2, 1e-9);
//! for sweep in 0.. {
//!     let mut reports = Vec::new();
//!     for rank in 0..2 {
//!         if sides[rank].may_sweep() {
//!             let residual = parts[rank].sweep();
//!             reports.extend(sides[rank].on_sweep(residual).map(|report| (rank, report)));
//!         }
//!         if sweep % 3 == 0 {
//!             for i in ranges[rank].clone() {
//!                 let value = parts[rank].x()[i];
//!                 parts[1 - rank].handle_value(i, value);
//!             }
//!         }
//!     }
//!     // An order goes to all ranks, whose answers are reports again.
//!     while let Some((rank, report)) = reports.pop() {
//!         let Some(order) = coordinator.handle_report(&system, rank, report) else { continue };
//!         for (rank, side) in sides.iter_mut().enumerate() {
//!             let answers = side.handle_order(order, from_ref(&ranges[rank]), parts[rank].x());
//!             reports.extend(answers.into_iter().map(|report| (rank, report)));
//!         }
//!     }
//!     if sides.iter().all(Participant::is_stopped) {
//!         break;
//!     }
//! }
//! let answer = coordinator.answer().expect("all have stopped");
//! assert!(answer.iter().zip([1.0, 2.0, 3.0]).all(|(x, exact)| (x - exact).abs() < 1e-8));
//! # Ok::<_, midplane_warp::iterate::matrix::MatrixError>(())
//! ```

#[cfg(feature = "sparse")]
pub mod matrix;
#[cfg(test)]
mod problem;
#[doc(hidden)]
pub mod termination;

use std::ops::Range;
use std::sync::Arc;

/// A fixed-point problem, given by F for each unknown.
pub trait FixedPoint {
    /// Returns the number of unknowns.
    fn unknowns(&self) -> usize;

    /// Computes F for unknown `i` from all unknowns `x`.
    fn update(&self, i: usize, x: &[f64]) -> f64;

    /// Returns the start value of unknown `i`; 0 unless implemented.
    fn start(&self, _i: usize) -> f64 {
        0.0
    }

    /// Returns how far unknown `i` is from its fixed point, on the scale of the caller's
    /// tolerances. By default this is the change that an update would make.
    fn residual(&self, i: usize, x: &[f64]) -> f64 {
        let (now, next) = (x[i], self.update(i, x));
        // Equal infinities are at rest, for example a node that no path reaches.
        if now == next { 0.0 } else { (next - now).abs() }
    }
}

impl<P: FixedPoint> FixedPoint for Arc<P> {
    fn unknowns(&self) -> usize {
        (**self).unknowns()
    }

    fn update(&self, i: usize, x: &[f64]) -> f64 {
        (**self).update(i, x)
    }

    fn start(&self, i: usize) -> f64 {
        (**self).start(i)
    }

    fn residual(&self, i: usize, x: &[f64]) -> f64 {
        (**self).residual(i, x)
    }
}

/// The values from which a sweep computes an unknown.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Order {
    /// All values are from the last sweep.
    Jacobi,
    /// The rank's own values are the newest: those earlier in the sweep are from this sweep.
    GaussSeidel,
}

/// Divides the unknowns among `ranks`, as evenly as possible.
///
/// # Panics
/// If there are no ranks.
#[must_use]
pub fn partition(unknowns: usize, ranks: usize) -> Vec<Range<usize>> {
    assert!(ranks > 0, "the ranks must be at least 1");
    let at = |rank: usize| unknowns * rank / ranks;
    (0..ranks).map(|rank| at(rank)..at(rank + 1)).collect()
}

/// One rank's part of an iteration: its own unknowns, and the last received values of the others.
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
    /// Creates the part with the unknowns `own`, at the problem's start values.
    ///
    /// # Panics
    /// If `own` goes beyond the problem's unknowns.
    #[must_use]
    pub fn new(problem: P, own: Range<usize>, order: Order) -> Self {
        let all = problem.unknowns();
        assert!(own.end <= all, "unknowns {own:?} must be below the problem's {all}");
        let x = (0..problem.unknowns()).map(|i| problem.start(i)).collect();
        Self { problem, x, own: vec![own], order, sweeps: 0, next: Vec::new() }
    }

    /// Updates each of the rank's unknowns once. Returns the largest residual found before an
    /// update; NaN if one of them is NaN. An iteration that stays at NaN never ends by itself.
    pub fn sweep(&mut self) -> f64 {
        self.sweeps += 1;
        let mut largest = 0.0_f64;
        self.next.clear();
        for i in self.own.iter().cloned().flatten() {
            largest = larger(largest, self.problem.residual(i, &self.x));
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

    /// Updates unknown `i` from the present values. Returns its residual before and its value
    /// after.
    ///
    /// # Panics
    /// If there is no such unknown.
    pub fn update(&mut self, i: usize) -> (f64, f64) {
        assert!(i < self.x.len(), "unknown {i} must be below the problem's {}", self.x.len());
        let residual = self.problem.residual(i, &self.x);
        let value = self.problem.update(i, &self.x);
        self.x[i] = value;
        (residual, value)
    }

    /// Stores another rank's value of unknown `i`. Ignores it if `i` is out of range or this rank's
    /// own, or if the value is not a number.
    pub fn handle_value(&mut self, i: usize, value: f64) {
        let is_own = self.own.iter().any(|range| range.contains(&i));
        if !is_own
            && !value.is_nan()
            && let Some(place) = self.x.get_mut(i)
        {
            *place = value;
        }
    }

    /// Takes over the unknowns of a rank that died, at their last received values.
    pub fn adopt(&mut self, range: Range<usize>) {
        let most = self.x.len();
        self.own.push(range.start.min(most)..range.end.min(most));
    }

    /// Returns the indexes of the rank's own unknowns.
    pub fn own(&self) -> impl Iterator<Item = usize> + use<P> {
        self.own.clone().into_iter().flatten()
    }

    /// Returns all unknowns, those of other ranks as last received.
    #[must_use]
    pub fn x(&self) -> &[f64] {
        &self.x
    }

    /// Returns the number of sweeps so far.
    #[must_use]
    pub const fn sweeps(&self) -> u64 {
        self.sweeps
    }

    /// Returns the problem.
    #[must_use]
    pub const fn problem(&self) -> &P {
        &self.problem
    }

    /// Returns the largest residual of the rank's own unknowns, from the values that it has; NaN if
    /// one of them is NaN.
    #[must_use]
    pub fn residual(&self) -> f64 {
        let residual = |i| self.problem.residual(i, &self.x);
        self.own.iter().cloned().flatten().map(residual).fold(0.0, larger)
    }
}

/// Returns the largest residual of `x` over all unknowns; NaN if one of them is NaN.
#[must_use]
pub fn residual(problem: &impl FixedPoint, x: &[f64]) -> f64 {
    let residual = |i| problem.residual(i, x);
    (0..problem.unknowns()).map(residual).fold(0.0, larger)
}

/// Returns the larger of two residuals; NaN if one of them is NaN.
const fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

#[cfg(test)]
mod tests;
