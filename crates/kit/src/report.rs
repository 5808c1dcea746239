//! How an example ends: one JSON document, or one line that says what is wrong.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

/// It ran, and something did not hold, or a peer was lost.
pub const DID_NOT_HOLD: u8 = 1;
/// What was asked for can't be.
pub const BAD_INPUT: u8 = 2;

/// Says in one line what is wrong, and with which code the process is to end.
pub fn fail(what: &str, code: u8) -> ExitCode {
    // Nobody is there to be told of a closed stream.
    let _ = writeln!(std::io::stderr(), "error: {what}");
    ExitCode::from(code)
}

/// Prints one JSON document.
pub fn print_json(document: &impl Serialize) {
    let text = serde_json::to_string(document).expect("reports are plain data");
    say(&format!("{text}\n"));
}

/// Prints text; a reader that has gone is no error.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
