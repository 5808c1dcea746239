//! Shortest paths to one node, as dynamic programming (Bellman 1958).

use midplane::warp::iterate::FixedPoint;

use crate::graph::Graph;

/// The fixed point x(i) = least of length(i, j) + x(j), over the edges of node i.
///
/// Iterates from above: a distance only falls. This converges asynchronously (Bertsekas 1982), and exactly. A node without
/// a path to the target stays at infinity.
#[derive(Clone, Debug)]
pub struct ShortestPaths {
    edges: Vec<Vec<(usize, f64)>>,
    target: usize,
}

impl ShortestPaths {
    /// Creates the problem of the distances to node number `target` of `graph`; weights are lengths.
    #[must_use]
    pub fn new(graph: &Graph, target: usize) -> Self {
        let mut edges = vec![Vec::new(); graph.names.len()];
        for &(from, to, length) in &graph.edges {
            edges[from].push((to, length));
        }
        Self { edges, target }
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
