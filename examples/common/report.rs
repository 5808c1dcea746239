//! How an example ends: one JSON document, or one line that says what is wrong.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use serde::Serialize;

/// It ran, and something did not hold, or a peer was lost.
pub(crate) const DID_NOT_HOLD: u8 = 1;
/// What was asked for can't be.
pub(crate) const BAD_INPUT: u8 = 2;

/// Parses a command line; what is wrong with it is said in one line.
///
/// # Errors
/// The exit code, once everything is said: help was asked for, or the input is bad.
pub(crate) fn parse<A: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<A, ExitCode> {
    A::try_parse_from(arguments).map_err(|error| {
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            say(&error.render().to_string());
            return ExitCode::SUCCESS;
        }
        let text = error.render().to_string();
        let what = text.split("\n\n").next().unwrap_or(&text);
        let words: Vec<&str> = what.split_whitespace().collect();
        fail(words.join(" ").trim_start_matches("error: "), BAD_INPUT)
    })
}

/// Says in one line what is wrong, and with which code the process is to end.
pub(crate) fn fail(what: &str, code: u8) -> ExitCode {
    // Nobody is there to be told of a closed stream.
    let _ = writeln!(std::io::stderr(), "error: {what}");
    ExitCode::from(code)
}

/// Prints one JSON document.
pub(crate) fn print_json(document: &impl Serialize) {
    let text = serde_json::to_string(document).expect("reports are plain data");
    say(&format!("{text}\n"));
}

/// Prints text; a reader that has gone is no error.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
