//! The slowdown as a power of the slice, fitted over all measured slices.

use serde::Serialize;

use super::slowdown::{Run, student};

/// Least number of slices for a fit with a meaningful spread.
const LEAST: usize = 4;

/// A slowdown of `at_100ms * (slice / 100 ms) ^ exponent`, by least squares over logarithms.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Fit {
    pub(crate) kernel: &'static str,
    pub(crate) class: midplane::gang::nas::Class,
    pub(crate) ranks: u16,
    pub(crate) mode: &'static str,
    pub(crate) slices: usize,
    /// Exponent; -1 means that twice the slice halves the slowdown.
    pub(crate) exponent: f64,
    /// Bounds of the 95 % confidence interval.
    pub(crate) exponent_ci: [f64; 2],
    pub(crate) slowdown_at_100ms: f64,
    pub(crate) slowdown_at_100ms_ci: [f64; 2],
    pub(crate) slowdown_at_40ms: f64,
    pub(crate) slowdown_at_40ms_ci: [f64; 2],
    pub(crate) slowdown_at_10ms: f64,
    pub(crate) slowdown_at_10ms_ci: [f64; 2],
}

/// A straight line through points, with the numbers for its confidence interval.
struct Line {
    count: f64,
    mean_x: f64,
    mean_y: f64,
    slope: f64,
    /// Sum of squares of x about its mean.
    width: f64,
    /// Standard deviation of the points from the line.
    deviation: f64,
    quantile: f64,
}

impl Line {
    fn through(points: &[(f64, f64)]) -> Self {
        let count = points.len() as f64;
        let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
        let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
        let width: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
        let slope = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>() / width;
        let rest = |(x, y): &(f64, f64)| (y - mean_y - slope * (x - mean_x)).powi(2);
        let deviation = (points.iter().map(rest).sum::<f64>() / (count - 2.0)).sqrt();
        let quantile = student(points.len() - 2);
        Self { count, mean_x, mean_y, slope, width, deviation, quantile }
    }

    fn slope_ci(&self) -> [f64; 2] {
        let half = self.quantile * self.deviation / self.width.sqrt();
        [self.slope - half, self.slope + half]
    }

    /// Returns the line's value at `x`, and its bounds.
    fn at(&self, x: f64) -> [f64; 3] {
        let value = self.mean_y + self.slope * (x - self.mean_x);
        let spread = (1.0 / self.count + (x - self.mean_x).powi(2) / self.width).sqrt();
        let half = self.quantile * self.deviation * spread;
        [value - half, value, value + half]
    }
}

fn fit(runs: &[&Run]) -> Option<Fit> {
    let point = |run: &&Run| (run.slice_ms.ln(), run.slowdown.ln());
    let points: Vec<(f64, f64)> = runs.iter().filter(|run| run.slowdown > 0.0).map(point).collect();
    let first = runs.first().filter(|_| points.len() >= LEAST)?;
    let line = Line::through(&points);
    let at = |slice_ms: f64| {
        let [low, value, high] = line.at(slice_ms.ln()).map(f64::exp);
        (value, [low, high])
    };
    let (slowdown_at_100ms, slowdown_at_100ms_ci) = at(100.0);
    let (slowdown_at_40ms, slowdown_at_40ms_ci) = at(40.0);
    let (slowdown_at_10ms, slowdown_at_10ms_ci) = at(10.0);
    Some(Fit {
        kernel: first.kernel,
        class: first.class,
        ranks: first.ranks,
        mode: first.mode,
        slices: points.len(),
        exponent: line.slope,
        exponent_ci: line.slope_ci(),
        slowdown_at_100ms,
        slowdown_at_100ms_ci,
        slowdown_at_40ms,
        slowdown_at_40ms_ci,
        slowdown_at_10ms,
        slowdown_at_10ms_ci,
    })
}

/// Fits each kernel, class, number of ranks and mode that has enough slices.
pub(crate) fn all(runs: &[Run]) -> Vec<Fit> {
    let groups = runs.chunk_by(Run::is_like);
    groups.filter_map(|group| fit(&group.iter().collect::<Vec<_>>())).collect()
}

pub(crate) fn table(fits: &[Fit]) -> String {
    if fits.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "fitted over the slices, with bounds of 95 %\n{:<4} {:>5} {:>5} {:<8} {:>25} {:>26} {:>26} {:>26}\n",
        "", "class", "ranks", "mode", "power of the slice", "at 100 ms", "at 40 ms", "at 10 ms"
    );
    for fit in fits {
        let [low, high] = fit.exponent_ci;
        text += &format!(
            "{:<4} {:>5} {:>5} {:<8} {:>7.3} ({low:>6.3} to {high:>6.3})",
            fit.kernel, fit.class, fit.ranks, fit.mode, fit.exponent
        );
        for (value, [low, high]) in [
            (fit.slowdown_at_100ms, fit.slowdown_at_100ms_ci),
            (fit.slowdown_at_40ms, fit.slowdown_at_40ms_ci),
            (fit.slowdown_at_10ms, fit.slowdown_at_10ms_ci),
        ] {
            let [value, low, high] = [value, low, high].map(|part| part * 100.0);
            text += &format!(" {value:>6.2} % ({low:>5.2} to {high:>5.2})");
        }
        text += "\n";
    }
    text
}
