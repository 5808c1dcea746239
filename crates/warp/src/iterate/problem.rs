//! Fixed-point problems other than linear systems, for tests: ODEs and network flows. The example
//! `fixed_points` has page rank and shortest paths.

use super::FixedPoint;

/// Heat along a rod as an initial-value problem, by waveform relaxation (Lelarasmee, Ruehli and
/// Sangiovanni-Vincentelli 1982).
///
/// The unknowns are each point's temperatures at all times, computed from the last temperatures of
/// its neighbours. Implicit Euler in time; both ends are held at 0.
#[derive(Clone, Debug)]
pub(crate) struct Waveform {
    points: usize,
    steps: usize,
    /// The time step over the square of the spacing.
    ratio: f64,
}

impl Waveform {
    /// Creates a rod of `points` with an initial temperature of 1, for `steps` time steps. `ratio`
    /// is the time step over the square of the spacing. Unknown `point * steps + step` is a
    /// temperature.
    ///
    /// # Panics
    /// If there are no points or steps, or the ratio is not above zero.
    #[must_use]
    pub(crate) fn new(points: usize, steps: usize, ratio: f64) -> Self {
        assert!(
            points > 0 && steps > 0 && ratio > 0.0,
            "a rod has points, steps and a ratio above zero"
        );
        Self { points, steps, ratio }
    }
}

impl FixedPoint for Waveform {
    fn unknowns(&self) -> usize {
        self.points * self.steps
    }

    fn update(&self, i: usize, x: &[f64]) -> f64 {
        let (point, step) = (i / self.steps, i % self.steps);
        let at = |point: usize| x[point * self.steps + step];
        let left = if point == 0 { 0.0 } else { at(point - 1) };
        let right = if point + 1 == self.points { 0.0 } else { at(point + 1) };
        let before = if step == 0 { 1.0 } else { x[i - 1] };
        (before + self.ratio * (left + right)) / (1.0 + 2.0 * self.ratio)
    }

    fn start(&self, _: usize) -> f64 {
        1.0
    }
}

/// Flow through a network at the least cost, where an edge that carries f costs f^2 / (2 g), by its
/// dual (Bertsekas and Tsitsiklis 1989, chapter 5).
///
/// The unknowns are potentials. Their difference across an edge, times its conductance g, is the
/// flow, and the flows out of each node add up to its supply. Node 0 is held at a potential of 0
/// and absorbs the remainder.
#[derive(Clone, Debug)]
pub(crate) struct NetworkFlow {
    edges: Vec<Vec<(usize, f64)>>,
    supply: Vec<f64>,
}

impl NetworkFlow {
    /// Creates the problem of the potentials of nodes that supply `supply`, over `edges` of (from,
    /// to, conductance). An edge carries flow in both directions.
    ///
    /// # Panics
    /// If an edge names a node that does not exist.
    pub(crate) fn new(supply: Vec<f64>, edges: &[(usize, usize, f64)]) -> Self {
        let mut of_each = vec![Vec::new(); supply.len()];
        for &(from, to, g) in edges {
            of_each[from].push((to, g));
            of_each[to].push((from, g));
        }
        Self { edges: of_each, supply }
    }

    /// Returns the flow from node `from` to node `to` over an edge of `conductance`, under
    /// potentials `x`.
    #[must_use]
    pub(crate) fn flow(x: &[f64], from: usize, to: usize, conductance: f64) -> f64 {
        conductance * (x[from] - x[to])
    }
}

impl FixedPoint for NetworkFlow {
    fn unknowns(&self) -> usize {
        self.supply.len()
    }

    fn update(&self, i: usize, x: &[f64]) -> f64 {
        if i == 0 || self.edges[i].is_empty() {
            return 0.0;
        }
        let total: f64 = self.edges[i].iter().map(|(_, g)| g).sum();
        let drawn: f64 = self.edges[i].iter().map(|(to, g)| g * x[*to]).sum();
        (self.supply[i] + drawn) / total
    }
}
