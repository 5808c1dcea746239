//! Page rank (Brin and Page 1998): the share of time on each page of a reader who follows links, and sometimes jumps to
//! any page.

use midplane::warp::iterate::FixedPoint;

use crate::graph::Graph;

/// Share of steps that follow a link; the other steps jump to any page.
const DAMPING: f64 = 0.85;

/// The fixed point y = 1 + damping * (links)^T y, which is the page rank except for its scale.
///
/// Pages without links need no special case: that their readers jump to any page changes the scale alone (Del Corso, Gulli
/// and Romani 2005). The update contracts, since the spectral radius of its matrix is at most the damping.
#[derive(Clone, Debug)]
pub struct PageRank {
    /// For each page the pages that link to it, and the share of their readers that follow the link.
    links: Vec<Vec<(usize, f64)>>,
}

impl PageRank {
    /// Creates the problem for the pages of `graph`; readers follow links in proportion to their weights.
    #[must_use]
    pub fn new(graph: &Graph) -> Self {
        let mut sums = vec![0.0; graph.names.len()];
        graph.edges.iter().for_each(|(from, _, weight)| sums[*from] += weight);
        let mut links = vec![Vec::new(); graph.names.len()];
        for &(from, to, weight) in &graph.edges {
            links[to].push((from, weight / sums[from]));
        }
        Self { links }
    }

    /// Scales a solution so that the ranks of all pages add up to 1.
    #[must_use]
    pub fn normalized(mut y: Vec<f64>) -> Vec<f64> {
        let sum: f64 = y.iter().sum();
        y.iter_mut().for_each(|value| *value /= sum);
        y
    }
}

impl FixedPoint for PageRank {
    fn unknowns(&self) -> usize {
        self.links.len()
    }

    fn update(&self, i: usize, y: &[f64]) -> f64 {
        1.0 + DAMPING * self.links[i].iter().map(|(from, share)| share * y[*from]).sum::<f64>()
    }
}
