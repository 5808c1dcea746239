//! Output and exit codes of programs: one JSON document, or one line with an error.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

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
