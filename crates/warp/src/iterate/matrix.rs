//! Sparse linear systems: reading, generating, and checking for convergence (feature `sparse`).

use std::io::Cursor;

use midplane_simhw::rng::Rng;
use sprs::{CsMat, TriMat};
use thiserror::Error;

use super::FixedPoint;

/// An error of a matrix, found before a rank starts.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum MatrixError {
    /// A line of the file is invalid.
    #[error("line {line}: {what}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Description of the error.
        what: &'static str,
    },
    /// The matrix is not square.
    #[error("the matrix is {rows} by {columns}; a system to solve has a square matrix")]
    NotSquare {
        /// Number of rows.
        rows: usize,
        /// Number of columns.
        columns: usize,
    },
    /// A diagonal entry is zero. Each unknown is computed by dividing by its diagonal entry.
    #[error("the diagonal entry of row {row} is zero; reorder the rows so that none is")]
    ZeroDiagonal {
        /// Number of the row, from 1.
        row: usize,
    },
    /// An entry of the matrix is not finite: no iteration would end.
    #[error("the matrix's entry in row {row}, column {column} is {value}; it must be finite")]
    EntryNotFinite {
        /// Number of the row, from 1.
        row: usize,
        /// Number of the column, from 1.
        column: usize,
        /// The value of the entry.
        value: f64,
    },
    /// An entry of the right-hand side is not finite: no iteration would end.
    #[error("the right-hand side's entry {row} is {value}; it must be finite")]
    NotFinite {
        /// Number of the entry, from 1.
        row: usize,
        /// The value of the entry.
        value: f64,
    },
    /// The condition of Chazan and Miranker fails: the spectral radius is 1 or more.
    #[error(
        "the spectral radius of |M| is at least {at_least:.6}: an asynchronous iteration converges \
         for every delay only below 1"
    )]
    Diverges {
        /// A lower bound of the spectral radius.
        at_least: f64,
    },
    /// The condition could be neither proved nor refuted.
    #[error(
        "the spectral radius of |M| lies between {at_least:.6} and {at_most:.6}, and it could not \
         be shown to be below 1"
    )]
    Undecided {
        /// A lower bound of the spectral radius.
        at_least: f64,
        /// An upper bound of the spectral radius.
        at_most: f64,
    },
}

/// The linear system A x = b, as the fixed point x = D^-1 (b - (A - D) x) with D the diagonal of A.
#[derive(Clone, Debug)]
pub struct Linear {
    a: CsMat<f64>,
    b: Vec<f64>,
    diagonal: Vec<f64>,
    scale: f64,
}

/// A lower and an upper bound of a spectral radius.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpectralRadius {
    /// The lower bound.
    pub at_least: f64,
    /// The upper bound.
    pub at_most: f64,
}

/// The most steps of power iteration, after which the radius counts as undecided.
const POWER_STEPS: usize = 20_000;

impl Linear {
    /// Creates the system of `a` and `b`. If `b` is `None`, makes the `b` whose solution is all
    /// ones.
    ///
    /// # Errors
    /// [`MatrixError::NotSquare`] if `a` is not square or is empty,
    /// [`MatrixError::EntryNotFinite`] if an entry of `a` is not finite,
    /// [`MatrixError::ZeroDiagonal`] if a diagonal entry is zero, and [`MatrixError::NotFinite`] if
    /// an entry of `b` is not finite. [`Linear::check`] decides whether it converges.
    ///
    /// # Panics
    /// If the length of `b` is not the number of rows.
    pub fn new(a: CsMat<f64>, b: Option<Vec<f64>>) -> Result<Self, MatrixError> {
        let a = a.to_csr();
        let (rows, columns) = a.shape();
        if rows != columns || rows == 0 {
            return Err(MatrixError::NotSquare { rows, columns });
        }
        if let Some((value, (row, column))) = a.iter().find(|(value, _)| !value.is_finite()) {
            let (row, column) = (row + 1, column + 1);
            return Err(MatrixError::EntryNotFinite { row, column, value: *value });
        }
        let diagonal: Vec<f64> = (0..rows).map(|i| a.get(i, i).copied().unwrap_or(0.0)).collect();
        if let Some(row) = diagonal.iter().position(|entry| *entry == 0.0) {
            return Err(MatrixError::ZeroDiagonal { row: row + 1 });
        }
        let b =
            b.unwrap_or_else(|| a.outer_iterator().map(|row| row.data().iter().sum()).collect());
        assert_eq!(b.len(), rows, "b must have one entry for each row of a");
        if let Some(row) = b.iter().position(|entry| !entry.is_finite()) {
            return Err(MatrixError::NotFinite { row: row + 1, value: b[row] });
        }
        let scale = b.iter().fold(0.0_f64, |most, entry| most.max(entry.abs()));
        Ok(Self { a, b, diagonal, scale: if scale > 0.0 { scale } else { 1.0 } })
    }

    /// Returns the matrix.
    #[must_use]
    pub const fn a(&self) -> &CsMat<f64> {
        &self.a
    }

    /// Returns the right-hand side.
    #[must_use]
    pub fn b(&self) -> &[f64] {
        &self.b
    }

    /// Bounds the spectral radius of |M|, M = D^-1 (A - D), by power iteration. For any positive
    /// vector v it lies between the least and the largest of (|M| v)_i / v_i (Collatz, Wielandt).
    #[must_use]
    pub(crate) fn spectral_radius(&self) -> SpectralRadius {
        let mut v = vec![1.0; self.b.len()];
        let mut bounds = SpectralRadius { at_least: 0.0, at_most: f64::INFINITY };
        for _ in 0..POWER_STEPS {
            let product = self.absolute_product(&v);
            let ratios = || product.iter().zip(&v).map(|(product, v)| product / v);
            bounds.at_least = ratios().fold(f64::INFINITY, f64::min).max(bounds.at_least);
            bounds.at_most = ratios().fold(0.0, f64::max).min(bounds.at_most);
            let is_close = bounds.at_most - bounds.at_least <= 1e-6;
            if is_close || (bounds.at_least >= 1.0) {
                break;
            }
            // Averages with the identity, or the iteration would oscillate for a bipartite matrix.
            // Keeps every entry at 10^-9 or more, or one on which no other depends would vanish.
            let largest = product.iter().copied().fold(1e-300, f64::max);
            for (v, product) in v.iter_mut().zip(&product) {
                *v = (0.5 * (*v + product / largest.max(1e-300))).max(1e-9);
            }
            let largest = v.iter().copied().fold(1e-300, f64::max);
            v.iter_mut().for_each(|v| *v /= largest);
        }
        bounds
    }

    /// Checks that the asynchronous iteration converges for every delay.
    ///
    /// # Errors
    /// [`MatrixError::Diverges`] or [`MatrixError::Undecided`], with the bounds.
    pub fn check(&self) -> Result<SpectralRadius, MatrixError> {
        let bounds = self.spectral_radius();
        let SpectralRadius { at_least, at_most } = bounds;
        if at_most < 1.0 {
            Ok(bounds)
        } else if at_least >= 1.0 {
            Err(MatrixError::Diverges { at_least })
        } else {
            Err(MatrixError::Undecided { at_least, at_most })
        }
    }

    /// Returns the 2-norm of b - A x over that of b.
    #[must_use]
    pub fn relative_residual(&self, x: &[f64]) -> f64 {
        let rows = self.a.outer_iterator().zip(&self.b);
        let (error, whole) = rows.fold((0.0, 0.0), |(error, whole), (row, b)| {
            let product: f64 = row.iter().map(|(j, a)| a * x[j]).sum();
            (error + (b - product).powi(2), whole + b * b)
        });
        if whole == 0.0 { error.sqrt() } else { (error / whole).sqrt() }
    }

    fn absolute_product(&self, v: &[f64]) -> Vec<f64> {
        let rows = self.a.outer_iterator().zip(&self.diagonal).enumerate();
        let row = |(i, (row, diagonal)): (usize, (sprs::CsVecView<'_, f64>, &f64))| {
            let others = row.iter().filter(|(j, _)| *j != i);
            others.map(|(j, a)| (a / diagonal).abs() * v[j]).sum()
        };
        rows.map(row).collect()
    }
}

impl FixedPoint for Linear {
    fn unknowns(&self) -> usize {
        self.b.len()
    }

    fn update(&self, i: usize, x: &[f64]) -> f64 {
        x[i] + self.defect(i, x) / self.diagonal[i]
    }

    /// Returns the absolute error of equation `i`, over the largest right-hand side.
    fn residual(&self, i: usize, x: &[f64]) -> f64 {
        self.defect(i, x).abs() / self.scale
    }
}

impl Linear {
    fn defect(&self, i: usize, x: &[f64]) -> f64 {
        let row = self.a.indptr().outer_inds_sz(i);
        let (columns, entries) = (&self.a.indices()[row.clone()], &self.a.data()[row]);
        let product: f64 = columns.iter().zip(entries).map(|(j, a)| a * x[*j]).sum();
        self.b[i] - product
    }
}

/// Makes the Trefethen matrix of size `n`: primes on the diagonal, and ones where row and column
/// differ by a power of two (Trefethen 2002). The spectral radius of |M| is 0.86.
#[must_use]
#[doc(hidden)]
pub fn trefethen(n: usize) -> CsMat<f64> {
    let mut primes = Vec::with_capacity(n);
    let mut candidate = 2_u64;
    while primes.len() < n {
        let is_divided = |prime: &&u64| candidate.is_multiple_of(**prime);
        let small = primes.iter().take_while(|prime| *prime * *prime <= candidate);
        if small.filter(is_divided).count() == 0 {
            primes.push(candidate);
        }
        candidate += 1;
    }
    let mut matrix = TriMat::new((n, n));
    for (i, prime) in primes.iter().enumerate() {
        matrix.add_triplet(i, i, *prime as f64);
        for apart in (0..usize::BITS).map(|bit| 1 << bit).take_while(|apart| i + apart < n) {
            matrix.add_triplet(i, i + apart, 1.0);
            matrix.add_triplet(i + apart, i, 1.0);
        }
    }
    matrix.to_csr()
}

/// Makes a random matrix of `n` unknowns from `seed`. Each row has about ten entries besides the
/// diagonal. The diagonal entry is `1 / radius` times their sum, so that the spectral radius of |M|
/// is `radius`.
///
/// # Panics
/// If the radius is not above zero.
#[must_use]
#[doc(hidden)]
pub fn random(n: usize, radius: f64, seed: u64) -> CsMat<f64> {
    assert!(radius > 0.0, "the spectral radius must be above zero");
    let mut rng = Rng::new(seed, "matrix");
    let mut matrix = TriMat::new((n, n));
    for i in 0..n {
        let mut sum = 0.0;
        for _ in 0..10.min(n.saturating_sub(1)) {
            let j = rng.below(n as u64 - 1) as usize;
            let j = if j >= i { j + 1 } else { j };
            // All entries have one sign, so that two at the same place add up.
            let entry = 0.1 + rng.unit();
            sum += entry;
            matrix.add_triplet(i, j, -entry);
        }
        matrix.add_triplet(i, i, if sum > 0.0 { sum / radius } else { 1.0 });
    }
    matrix.to_csr()
}

/// Reads a matrix in the Matrix Market format (Boisvert, Pozo and Remington 1996): coordinates of
/// real or integer entries, general or symmetric, at least as many as there are rows.
///
/// # Errors
/// [`MatrixError::Line`] names the invalid line. [`MatrixError::NotSquare`] is found before any
/// entry is read.
pub fn read(text: &str) -> Result<CsMat<f64>, MatrixError> {
    check_lines(text)?;
    // Integers are read as reals.
    let (header, entries) = text.split_once('\n').unwrap_or((text, ""));
    let text = format!("{}\n{entries}", header.to_ascii_lowercase().replace("integer", "real"));
    let matrix = sprs::io::read_matrix_market_from_bufread(&mut Cursor::new(text));
    let matrix: TriMat<f64> = matrix.map_err(|_| MatrixError::Line {
        line: 1,
        what: "not a Matrix Market file that can be read",
    })?;
    Ok(matrix.to_csr())
}

/// Finds the invalid line, which the reader of `sprs` does not name.
fn check_lines(text: &str) -> Result<(), MatrixError> {
    let wrong = |line, what| Err(MatrixError::Line { line, what });
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let header = lines.next().map(|(_, line)| line.to_ascii_lowercase()).unwrap_or_default();
    let words: Vec<&str> = header.split_whitespace().collect();
    let &["%%matrixmarket", "matrix", layout, kind, shape] = words.as_slice() else {
        return wrong(1, "a Matrix Market file begins with %%MatrixMarket matrix coordinate ...");
    };
    if layout != "coordinate" {
        return wrong(1, "only the coordinate layout is read");
    }
    if !matches!(kind, "real" | "integer") || !matches!(shape, "general" | "symmetric") {
        return wrong(1, "only real or integer entries, general or symmetric, are read");
    }
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('%'));
    let Some((at, sizes)) = lines.next() else {
        return wrong(1, "rows, columns and entries are missing");
    };
    let sizes: Vec<Option<usize>> =
        sizes.split_whitespace().map(|word| word.parse().ok()).collect();
    let &[Some(rows), Some(columns), Some(count)] = sizes.as_slice() else {
        return wrong(at, "it should be three whole numbers: rows, columns, entries");
    };
    if rows != columns || rows == 0 {
        return Err(MatrixError::NotSquare { rows, columns });
    }
    // Memory is reserved by row: a short text must not ask for more than there is.
    if count < rows {
        return wrong(at, "there are fewer entries than rows, but each row needs its diagonal one");
    }
    let mut last = at;
    let mut found = 0;
    for (line, entry) in lines {
        let words: Vec<&str> = entry.split_whitespace().collect();
        let place = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok());
        let inside = |place: Option<usize>| place.is_some_and(|place| (1..=rows).contains(&place));
        if words.len() != 3 || !inside(place(0)) || !inside(place(1)) {
            return wrong(line, "it should be a row, a column within the matrix, and a number");
        }
        if !words[2].parse::<f64>().is_ok_and(f64::is_finite) {
            return wrong(line, "its entry is not a number");
        }
        (last, found) = (line, found + 1);
    }
    if found != count {
        return wrong(last, "the file ends with fewer or more entries than it says it has");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
