//! Stages from measurements: from instrumented stages, from outside, hop by hop, and while messages
//! flow.
//!
//! These modules read no clock and do no I/O: the caller measures and passes in sizes and times.

mod black_box;
mod hops;
mod line;
mod online;

pub use black_box::BlackBox;
pub use black_box::{BlackBoxError, Path, observe};
pub use hops::{HopPath, hops};
pub use line::{FitError, Line, fit};
pub use online::{Monitor, Verdict};

use crate::stage::{Pipeline, Stage};

/// Fits the stages of a chain to timings of each: `(bytes, us)` pairs of fragments that did not
/// wait (section 5.3.1).
///
/// # Errors
///
/// As [`fit`], for the first stage that cannot be fitted.
pub fn instrumented<S: AsRef<[(f64, f64)]>>(stages: &[S]) -> Result<Pipeline, FitError> {
    let fitted: Result<Vec<Stage>, FitError> =
        stages.iter().map(|timings| Ok(fit(timings.as_ref())?.stage())).collect();
    Pipeline::new(fitted?).map_err(|_| FitError::TooFew(0))
}
