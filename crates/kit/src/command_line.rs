//! Parses command lines.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};

use crate::report::{self, Failure};

/// Returns the command line's name of a value.
pub fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|known| known.get_name().to_owned()).unwrap_or_default()
}

/// Returns a parser of numbers from `from` to `to`.
pub fn within(from: f64, to: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if (from..=to).contains(&number) => Ok(number),
        _ => Err(format!("give a number from {from} to {to}")),
    }
}

/// Runs a program with its command line; prints one line about an error, and returns the exit code.
pub fn main<A: Parser>(run: impl FnOnce(&A) -> Result<u8, Failure>) -> ExitCode {
    match parse(std::env::args_os()) {
        Ok(arguments) => report::finish(run(&arguments)),
        Err(code) => code,
    }
}

/// Parses a command line; prints one line about an error.
///
/// # Errors
/// The exit code, after the output: success for help and version, else bad input.
pub fn parse<A: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<A, ExitCode> {
    A::try_parse_from(arguments).map_err(|error| {
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            // A closed stream cannot report an error.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            return report::fail("a command is missing; --help lists them", report::BAD_INPUT);
        }
        let text = error.render().to_string();
        let what = text.split("\n\n").next().unwrap_or(&text);
        let words: Vec<&str> = what.trim_start_matches("error: ").split_whitespace().collect();
        report::fail(&format!("{}; --help shows how", words.join(" ")), report::BAD_INPUT)
    })
}
