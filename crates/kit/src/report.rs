//! Output and exit codes of programs: one JSON document, or text, or one line with an error.

use std::fmt::{Display, Formatter};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Serialize, Serializer};

use crate::tables;

/// Exit code if a claim failed, or a peer was lost.
pub const FAILED: u8 = 1;
/// Exit code for bad input.
pub const BAD_INPUT: u8 = 2;

/// True once a result could not be written.
static HAS_FAILED_TO_WRITE: AtomicBool = AtomicBool::new(false);

/// Error of a program: one line, and the exit code. A text alone is bad input.
#[derive(Debug)]
pub struct Failure(String, u8);

impl Failure {
    /// Creates the error of a run that failed, though its input was right.
    pub fn of_run(what: impl Display) -> Self {
        Self(what.to_string(), FAILED)
    }

    /// Creates the error of a file that can't be written: bad input if its path or its extension is wrong.
    pub fn of_write(kind: ErrorKind, what: impl Display) -> Self {
        use ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound};

        let is_input = matches!(kind, InvalidInput | IsADirectory | NotADirectory | NotFound);
        Self(what.to_string(), if is_input { BAD_INPUT } else { FAILED })
    }

    /// Returns the exit code.
    pub const fn code(&self) -> u8 {
        self.1
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self(what, BAD_INPUT)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns an error's text.
pub fn text(error: impl Display) -> String {
    error.to_string()
}

/// Prints the error, if there is one, and returns the exit code.
pub fn finish(ended: Result<u8, Failure>) -> ExitCode {
    match ended {
        Ok(0) if HAS_FAILED_TO_WRITE.load(Ordering::Relaxed) => ExitCode::from(FAILED),
        Ok(code) => ExitCode::from(code),
        Err(Failure(what, code)) => fail(&what, code),
    }
}

/// Prints one line with the error, and returns the exit code.
pub fn fail(what: &str, code: u8) -> ExitCode {
    let what: Vec<String> = what.split('\n').map(plain).collect();
    let what = what.join("\n");
    // A closed stream cannot report an error.
    let _ = writeln!(std::io::stderr(), "error: {what}");
    ExitCode::from(code)
}

/// Serializes a path as text, for `serialize_with`; replaces what is not UTF-8, which serde refuses.
///
/// # Errors
/// The serializer's.
pub fn lossy<S: Serializer>(path: &impl AsRef<Path>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.as_ref().display())
}

/// Prints one JSON document.
pub fn print_json(document: &impl Serialize) {
    let text = serde_json::to_string(document).expect("reports are plain data");
    print(&format!("{text}\n"));
}

/// Prints a document as JSON, or else as the text that `text` makes of it.
pub fn print_document<D: Serialize>(json: bool, document: &D, text: impl FnOnce(&D) -> String) {
    match json {
        true => print_json(document),
        false => print(&text(document)),
    }
}

/// Replaces control characters by spaces: a terminal does not carry out what peers and other users write.
pub fn plain(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { ' ' } else { it }).collect()
}

/// Prints text. A closed pipe ends the output; another error, such as a full disk, is printed, and [`finish`] returns
/// [`FAILED`].
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Err(error) = written.map_err(|error| error.kind())
        && error != ErrorKind::BrokenPipe
    {
        HAS_FAILED_TO_WRITE.store(true, Ordering::Relaxed);
        fail(&format!("standard output: {error}"), FAILED);
    }
}

/// Prints a line to standard error, and ignores a closed stream.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", plain(text));
}

/// Prints a document as JSON, or as tables for a terminal.
pub fn print_tables(json: bool, document: &impl Serialize) {
    print_document(json, document, |document| tables::text(document));
}

/// Prints a document; returns the exit code for claims that hold or failed.
pub fn conclude(json: bool, document: &impl Serialize, holds: bool) -> u8 {
    print_tables(json, document);
    if holds { 0 } else { FAILED }
}

/// Returns the value below which a share of all values lies; NaN for an empty list.
pub fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// Creates a progress bar of `steps` steps, drawn by `template` and on terminals only.
///
/// # Panics
/// Panics if the template is wrong.
pub fn progress(steps: usize, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a constant template");
    ProgressBar::new(steps as u64).with_style(style)
}

/// Formats rows below their titles, which commas separate, as lines with aligned columns: columns of numbers to the right.
pub fn table(titles: &str, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let titles = titles.split(',').map(|title| title.trim().to_owned()).collect();
    let plain = |row: Vec<String>| row.iter().map(|cell| plain(cell)).collect();
    let rows: Vec<Vec<String>> = std::iter::once(titles).chain(rows).map(plain).collect();
    let column = |column| rows.iter().filter_map(move |row: &Vec<String>| row.get(column));
    let is_number = |cell: &String| matches!(&cell[..], "-" | "") || cell.parse::<f64>().is_ok();
    let shapes: Vec<(usize, bool)> = (0..rows[0].len())
        .map(|at| {
            let width = column(at).map(|cell| cell.chars().count()).max().unwrap_or_default();
            (width, column(at).skip(1).all(is_number))
        })
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&shapes).map(|(cell, &(width, is_number))| match is_number {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Formats rows below their titles, which commas separate, as a table of Markdown.
pub fn markdown(titles: &str, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let titles: Vec<String> = titles.split(',').map(|title| title.trim().to_owned()).collect();
    let rule = vec!["---".to_owned(); titles.len()];
    let rows = [titles, rule].into_iter().chain(rows);
    rows.map(|row| format!("| {} |\n", row.join(" | "))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a full disk was bad input.
    #[test]
    fn a_file_that_cannot_be_written_is_bad_input_only_if_its_path_is_wrong() {
        for (kind, code) in [
            (ErrorKind::StorageFull, FAILED),
            (ErrorKind::PermissionDenied, FAILED),
            (ErrorKind::InvalidInput, BAD_INPUT),
            (ErrorKind::NotFound, BAD_INPUT),
            (ErrorKind::IsADirectory, BAD_INPUT),
            (ErrorKind::NotADirectory, BAD_INPUT),
        ] {
            assert_eq!(Failure::of_write(kind, "a.svg").code(), code, "{kind}");
        }
    }
}
