//! Output and exit codes of programs: one JSON document, or one line with an error.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

use crate::tables;

/// Exit code if a claim failed, or a peer was lost.
pub const FAILED: u8 = 1;
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
    print(&format!("{text}\n"));
}

/// Prints text, and ignores a closed stream.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// Prints a document as JSON, or as tables for a terminal.
pub fn print_document(json: bool, document: &impl Serialize) {
    match json {
        true => print_json(document),
        false => print(&tables::text(document)),
    }
}

/// Prints a document; returns the exit code for claims that hold or failed.
pub fn conclude(json: bool, document: &impl Serialize, holds: bool) -> ExitCode {
    print_document(json, document);
    ExitCode::from(if holds { 0 } else { FAILED })
}

/// Returns the value below which a share of all values lies; NaN for an empty list.
pub fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}
