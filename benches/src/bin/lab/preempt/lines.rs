//! Real processes: the cost of switches over the slice, as a line; measured costs may be zero or negative and then
//! have no logarithm.

use serde::Serialize;

use super::arguments::Mode;
use super::slowdown::{Run, mean_and_variance};

/// Least number of slices for a line.
const LEAST: usize = 3;
/// Standard deviations of a 95 % bound.
const BOUNDS: f64 = 1.96;

/// A value with its 95 % bounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Bounded {
    value: f64,
    ci: [f64; 2],
}

/// A slowdown over slices: a constant, and a part that halves as the slice doubles.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Line {
    at_100ms: Bounded,
}

/// Lines of one kernel.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Lines {
    kernel: &'static str,
    ranks: u16,
    mode: Mode,
    slices: usize,
    switches: usize,
    slowdown: Line,
}

/// Mean of the values at one slice.
struct Point {
    /// Slices per millisecond.
    x: f64,
    mean: f64,
    /// Reciprocal of the variance.
    weight: f64,
}

impl Point {
    fn of(slice_ms: f64, values: &[f64]) -> Self {
        let (mean, variance) = mean_and_variance(values);
        Self { x: 1.0 / slice_ms, mean, weight: 1.0 / variance }
    }
}

/// Fits a straight line through points, weighted by the reciprocals of their variances.
fn line(points: &[Point]) -> Line {
    let sum = |of: &dyn Fn(&Point) -> f64| points.iter().map(|it| it.weight * of(it)).sum::<f64>();
    let weight = sum(&|_| 1.0);
    let (mean_x, mean_y) = (sum(&|it| it.x) / weight, sum(&|it| it.mean) / weight);
    let width = sum(&|it| (it.x - mean_x).powi(2));
    let slope = sum(&|it| (it.x - mean_x) * (it.mean - mean_y)) / width;
    let x = 1.0 / 100.0;
    let value = mean_y + slope * (x - mean_x);
    let half = BOUNDS * (1.0 / weight + (x - mean_x).powi(2) / width).sqrt();
    Line { at_100ms: Bounded { value, ci: [value - half, value + half] } }
}

fn of(runs: &[Run]) -> Option<Lines> {
    let first = runs.first().filter(|_| runs.len() >= LEAST)?;
    let points: Vec<Point> = runs.iter().map(|run| Point::of(run.slice_ms, &run.lost)).collect();
    Some(Lines {
        kernel: first.kernel,
        ranks: first.ranks,
        mode: first.mode,
        slices: runs.len(),
        switches: runs.iter().map(|run| run.lost.len()).sum(),
        slowdown: line(&points),
    })
}

/// Fits a line for each kernel and mode of real processes that has enough slices.
pub(crate) fn lines(runs: &[Run]) -> Vec<Lines> {
    let groups = runs.chunk_by(Run::is_like);
    groups.filter(|group| group.iter().all(|run| run.lost.len() > 1)).filter_map(of).collect()
}
