//! The system to solve, and its direct solution.

use midplane::warp::iterate::FixedPoint as _;
use midplane::warp::iterate::matrix::{self, Linear};
use nalgebra::{DMatrix, DVector};

use super::arguments::Arguments;
use crate::meeting::fingerprint;

/// Number of unknowns of the paper's system.
const UNKNOWNS: usize = 1_000;
/// Spectral radius of a random system.
const RADIUS: f64 = 0.9;
/// Largest number of unknowns that are also solved directly: some seconds and 30 MB.
const DIRECT: usize = 2_000;

/// Reads or builds the requested system, and checks that it must converge.
///
/// # Errors
/// One line that names the argument, and the line of the file or the reason.
pub fn read(arguments: &Arguments) -> Result<Linear, String> {
    let (name, a) = if let Some(path) = &arguments.matrix {
        let name = format!("--matrix {}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        let a = matrix::read(&text).map_err(|error| format!("{name}: {error}"))?;
        (name, a)
    } else if let Some(n) = arguments.random {
        (format!("--random {n}"), matrix::random(n.into(), RADIUS, arguments.nodes.seed))
    } else {
        let n = arguments.trefethen.map_or(UNKNOWNS, usize::from);
        (format!("--trefethen {n}"), matrix::trefethen(n))
    };
    let problem = Linear::new(a, None).map_err(|error| format!("{name}: {error}"))?;
    let unknowns = problem.unknowns();
    if unknowns > usize::from(u16::MAX) {
        return Err(format!("{name}: {unknowns} unknowns; an update names one of 65535 at most"));
    }
    // The parent process has checked it.
    if !arguments.nodes.child {
        problem.check().map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(problem)
}

/// Returns a number that identifies a system.
pub fn number(problem: &Linear) -> u64 {
    let entries: Vec<(u64, (usize, usize))> =
        problem.a().iter().map(|(value, at)| (value.to_bits(), at)).collect();
    fingerprint(&entries)
}

/// Solves small systems by elimination with pivots; `None` for larger ones.
pub fn solve_directly(problem: &Linear) -> Option<Vec<f64>> {
    let n = problem.unknowns();
    if n > DIRECT {
        return None;
    }
    let mut dense = DMatrix::<f64>::zeros(n, n);
    for (value, (i, j)) in problem.a().iter() {
        dense[(i, j)] += *value;
    }
    let b = DVector::from_column_slice(problem.b());
    dense.lu().solve(&b).map(|x| x.as_slice().to_vec())
}
