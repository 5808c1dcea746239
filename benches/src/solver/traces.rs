//! Rank 0's observations during a run: the figures' curves.

use midplane::simhw::id::NodeId;

/// Largest number of points of one curve.
const MOST: usize = 4_000;
/// The rank whose messages Figures 2 and 3 show.
const WATCHED: NodeId = NodeId(1);

/// The curves of one run.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    /// Seconds, and the residual of rank 0's values, as the tolerance defines it.
    pub residual: Vec<(f64, f64)>,
    /// Messages received from rank 1 whose warp is known, and the warp of the last one.
    pub warp: Vec<(f64, f64)>,
    /// Messages sent, and Lambda.
    pub lambda: Vec<(f64, f64)>,
    received: u64,
}

impl Traces {
    pub fn on_residual(&mut self, seconds: f64, residual: f64) {
        self.residual.push((seconds, residual));
    }

    /// Records the warp of a message, by the paper's message decoding protocol.
    pub fn on_warp(&mut self, from: NodeId, warp: f64) {
        if from == WATCHED {
            self.received += 1;
            if self.warp.len() < MOST {
                self.warp.push((self.received as f64, warp));
            }
        }
    }

    pub fn on_lambda(&mut self, sent: u64, lambda: f64) {
        let sent = sent as f64;
        if self.lambda.len() < MOST && self.lambda.last().is_none_or(|(last, _)| *last < sent) {
            self.lambda.push((sent, lambda));
        }
    }

    /// Returns the standard deviation of the recorded warps; NaN if there are none.
    pub fn warp_deviation(&self) -> f64 {
        let count = self.warp.len() as f64;
        let mean = self.warp.iter().map(|(_, warp)| warp).sum::<f64>() / count;
        let square = |(_, warp): &(f64, f64)| (warp - mean).powi(2);
        (self.warp.iter().map(square).sum::<f64>() / count).sqrt()
    }

    /// Returns when the residual was first within `tolerance`, and its last value.
    pub fn reached(&self, tolerance: f64) -> Option<f64> {
        let is_within = |(_, residual): &&(f64, f64)| *residual <= tolerance;
        self.residual.iter().find(is_within).map(|(seconds, _)| *seconds)
    }
}
