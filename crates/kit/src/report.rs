//! Output and exit codes of programs: one JSON document, or one line with an error.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

/// Exit code if a claim failed, or a peer was lost.
pub const DID_NOT_HOLD: u8 = 1;
/// Exit code for bad input.
pub const BAD_INPUT: u8 = 2;

/// Prints one line with the error, and returns the exit code.
pub fn fail(what: &str, code: u8) -> ExitCode {
    // A closed stream cannot report an error.
    let _ = writeln!(std::io::stderr(), "error: {what}");
    ExitCode::from(code)
}

/// Prints one JSON document.
pub fn print_json(document: &impl Serialize) {
    let text = serde_json::to_string(document).expect("reports are plain data");
    say(&format!("{text}\n"));
}

/// Prints text, and ignores a closed stream.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// Prints a document as JSON, or its text; returns the exit code for claims that hold or failed.
pub fn conclude(
    json: bool,
    document: &impl Serialize,
    text: impl FnOnce() -> String,
    holds: bool,
) -> ExitCode {
    match json {
        true => print_json(document),
        false => say(&text()),
    }
    ExitCode::from(if holds { 0 } else { DID_NOT_HOLD })
}

/// Formats rows of cells below a heading, each column as wide as its longest cell. The first column is aligned to the
/// left, all others to the right.
pub fn table<const N: usize>(
    heading: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut lines = vec![heading.map(str::to_owned)];
    lines.extend(rows);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let text = |line: &[String; N]| {
        let cells = line.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    lines.iter().map(text).collect()
}

/// Returns the value below which a share of all values lies; NaN for an empty list.
pub fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}
