//! Fixed-point problems other than linear systems: shortest paths, PageRank, ODEs and network
//! flows.

use super::FixedPoint;

/// Shortest paths to a node as dynamic programming.
///
/// The distance of a node is the least, over its edges, of the edge's length plus the distance of
/// the edge's end. Converges asynchronously from above (Bertsekas 1982). A node without a path to
/// the target stays at infinity.
#[derive(Clone, Debug)]
pub(crate) struct ShortestPaths {
    edges: Vec<Vec<(usize, f64)>>,
    target: usize,
}

/// An invalid graph.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum GraphError {
    /// An edge names a node that does not exist.
    #[error(
        "edge {edge} joins nodes {from} and {to}; the graph has {nodes} nodes, numbered from 0"
    )]
    Node {
        /// Index of the edge.
        edge: usize,
        /// Node where the edge begins.
        from: usize,
        /// Node where the edge ends.
        to: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// The length, weight or conductance of an edge is not above zero, or not finite.
    #[error("edge {edge} has the length {length}; a length must be finite and above 0")]
    Length {
        /// Index of the edge.
        edge: usize,
        /// The given length.
        length: f64,
    },
}

/// Checks the edges of a graph of `nodes`, and groups them by the node that they leave.
fn edges_of(
    nodes: usize,
    edges: &[(usize, usize, f64)],
) -> Result<Vec<Vec<(usize, f64)>>, GraphError> {
    let mut from_each = vec![Vec::new(); nodes];
    for (edge, &(from, to, length)) in edges.iter().enumerate() {
        if from >= nodes || to >= nodes {
            return Err(GraphError::Node { edge, from, to, nodes });
        }
        if !(length.is_finite() && length > 0.0) {
            return Err(GraphError::Length { edge, length });
        }
        from_each[from].push((to, length));
    }
    Ok(from_each)
}

impl ShortestPaths {
    /// Creates the problem of paths to `target` over `edges` of (from, to, length).
    ///
    /// # Errors
    /// [`GraphError`] names the invalid edge.
    pub(crate) fn new(
        nodes: usize,
        edges: &[(usize, usize, f64)],
        target: usize,
    ) -> Result<Self, GraphError> {
        Ok(Self { edges: edges_of(nodes, edges)?, target })
    }
}

impl FixedPoint for ShortestPaths {
    fn unknowns(&self) -> usize {
        self.edges.len()
    }

    fn update(&self, i: usize, x: &[f64]) -> f64 {
        if i == self.target {
            return 0.0;
        }
        self.edges[i].iter().map(|(to, length)| length + x[*to]).fold(f64::INFINITY, f64::min)
    }

    fn start(&self, i: usize) -> f64 {
        if i == self.target { 0.0 } else { f64::INFINITY }
    }
}

/// The stationary rank of pages that a reader follows links on, with a jump to a random page now
/// and then (Brin and Page 1998).
///
/// The update contracts by the damping, in the sum of ranks. The ranks add up to 1.
#[derive(Clone, Debug)]
pub(crate) struct PageRank {
    /// For each page the pages that link to it, and the share of their rank that it receives.
    links: Vec<Vec<(usize, f64)>>,
    damping: f64,
}

impl PageRank {
    /// Creates the problem of ranking `pages` by `links` of (from, to, weight), with a damping of
    /// 0.85. A page without links counts as one that links to itself.
    ///
    /// # Errors
    /// [`GraphError`] names the invalid link.
    pub(crate) fn new(pages: usize, links: &[(usize, usize, f64)]) -> Result<Self, GraphError> {
        let from_each = edges_of(pages, links)?;
        let mut to_each = vec![Vec::new(); pages];
        for (from, links) in from_each.iter().enumerate() {
            let sum: f64 = links.iter().map(|(_, weight)| weight).sum();
            for (to, weight) in links {
                to_each[*to].push((from, weight / sum));
            }
            if links.is_empty() {
                to_each[from].push((from, 1.0));
            }
        }
        Ok(Self { links: to_each, damping: 0.85 })
    }
}

impl FixedPoint for PageRank {
    fn unknowns(&self) -> usize {
        self.links.len()
    }

    fn update(&self, i: usize, x: &[f64]) -> f64 {
        let given: f64 = self.links[i].iter().map(|(from, share)| share * x[*from]).sum();
        (1.0 - self.damping) / self.links.len() as f64 + self.damping * given
    }

    fn start(&self, _: usize) -> f64 {
        1.0 / self.links.len() as f64
    }
}

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
    /// # Errors
    /// [`GraphError`] names the invalid edge.
    pub(crate) fn new(supply: Vec<f64>, edges: &[(usize, usize, f64)]) -> Result<Self, GraphError> {
        // Checks the edges by the caller's indexes.
        edges_of(supply.len(), edges)?;
        let both: Vec<(usize, usize, f64)> =
            edges.iter().flat_map(|&(from, to, g)| [(from, to, g), (to, from, g)]).collect();
        Ok(Self { edges: edges_of(supply.len(), &both)?, supply })
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
