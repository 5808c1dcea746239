//! A line through timings, robust against outliers (Theil and Sen).

use crate::stage::Stage;

/// The most timings used for one line; of more, this many at even steps are used. 96 make 4,560 slopes.
const MAX_TIMINGS: usize = 96;

/// The reason why no line could be fitted.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// Fewer than two timings.
    #[error("{0} timings are too few, a line needs two")]
    TooFew(usize),
    /// All timings are of one size, so that they do not separate overhead and cost per byte.
    #[error("all timings are of {0} bytes")]
    OneSize(f64),
    /// A size or a time is negative or not finite.
    #[error("timing {0} is not a pair of numbers from 0 up")]
    BadTiming(usize),
}

/// A fitted line: overhead and cost per byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Overhead in microseconds, at least 0.
    pub overhead_us: f64,
    /// Microseconds a byte, at least 0.
    pub us_per_byte: f64,
    /// Median of the relative errors of the timings: 0.05 if half of them lie within 5 % of the
    /// line.
    pub error: f64,
}

impl Line {
    /// Returns the line as a stage with the line's error.
    #[must_use]
    pub fn stage(&self) -> Stage {
        Stage::clamped(self.overhead_us, self.us_per_byte, self.error)
    }

    /// Returns the line's value at `bytes`, in microseconds.
    #[must_use]
    pub fn at(&self, bytes: f64) -> f64 {
        self.us_per_byte.mul_add(bytes, self.overhead_us)
    }
}

/// Fits a line to `(bytes, us)` pairs: the weighted median of all pairs' slopes, the median of the
/// remainders, and then least squares over the timings near that line.
///
/// Noise is assumed proportional to the time, as in practice, so that small messages determine the
/// overhead and large ones the cost of a byte. The medians alone withstand a quarter of outliers,
/// but waste a third of the information. Least squares over the timings near the line uses it.
///
/// # Errors
///
/// See [`FitError`].
pub fn fit(timings: &[(f64, f64)]) -> Result<Line, FitError> {
    if timings.len() < 2 {
        return Err(FitError::TooFew(timings.len()));
    }
    let good = |&(bytes, us): &(f64, f64)| {
        bytes.is_finite() && us.is_finite() && bytes >= 0.0 && us >= 0.0
    };
    if let Some(index) = timings.iter().position(|timing| !good(timing)) {
        return Err(FitError::BadTiming(index));
    }
    let step = timings.len().div_ceil(MAX_TIMINGS);
    let used: Vec<(f64, f64)> = timings.iter().step_by(step).copied().collect();
    let mut line = medians(&used)?;
    line.error = line.scale(&used);
    for _ in 0..2 {
        let Some(mut next) = least_squares(&line, &used) else { break };
        next.error = next.scale(&used);
        line = next;
    }
    Ok(line)
}

impl Line {
    pub(super) fn residual(&self, (bytes, us): (f64, f64)) -> f64 {
        us / self.at(bytes).max(1e-9) - 1.0
    }

    fn scale(&self, timings: &[(f64, f64)]) -> f64 {
        let mut errors: Vec<(f64, f64)> =
            timings.iter().map(|&timing| (self.residual(timing).abs(), 1.0)).collect();
        weighted_median(&mut errors)
    }
}

/// Returns the line of Theil and Sen. A slope between two points weighs more, the farther they lie
/// apart in units of their noise.
fn medians(timings: &[(f64, f64)]) -> Result<Line, FitError> {
    let mut slopes = Vec::with_capacity(timings.len() * timings.len() / 2);
    for (index, (x, y)) in timings.iter().enumerate() {
        for (other_x, other_y) in &timings[..index] {
            let run = x - other_x;
            if run != 0.0 {
                slopes.push(((y - other_y) / run, run.abs() / y.hypot(*other_y).max(1e-9)));
            }
        }
    }
    if slopes.is_empty() {
        return Err(FitError::OneSize(timings[0].0));
    }
    let slope = weighted_median(&mut slopes).max(0.0);
    let mut bases: Vec<(f64, f64)> =
        timings.iter().map(|(x, y)| (y - slope * x, 1.0 / y.max(1e-9))).collect();
    let base = weighted_median(&mut bases).max(0.0);
    Ok(Line { overhead_us: base, us_per_byte: slope, error: 0.0 })
}

/// Fits by least squares of relative errors over the timings within 4.5 typical errors of a line.
/// Returns `None` if they determine no line.
fn least_squares(line: &Line, timings: &[(f64, f64)]) -> Option<Line> {
    let reach = (line.error * 4.5).max(1e-9);
    let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for &(x, y) in timings.iter().filter(|&&timing| line.residual(timing).abs() <= reach) {
        let weight = line.at(x).max(1e-9).powi(-2);
        w += weight;
        wx += weight * x;
        wy += weight * y;
        wxx += weight * x * x;
        wxy += weight * x * y;
    }
    let spread = w * wxx - wx * wx;
    if spread.is_nan() || spread <= 1e-9 * w * wxx {
        return None;
    }
    let slope = ((w * wxy - wx * wy) / spread).max(0.0);
    let base = ((wy - slope * wx) / w).max(0.0);
    Some(Line { overhead_us: base, us_per_byte: slope, error: line.error })
}

/// Returns the value with half of the weight on either side.
pub(super) fn weighted_median(values: &mut [(f64, f64)]) -> f64 {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = 0.5 * values.iter().map(|(_, weight)| weight).sum::<f64>();
    let mut below = 0.0;
    for &(value, weight) in values.iter() {
        below += weight;
        if below >= half {
            return value;
        }
    }
    values.last().map_or(0.0, |&(value, _)| value)
}
