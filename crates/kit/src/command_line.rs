//! Parses command lines.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Command, Parser, ValueEnum};

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

/// Joins the lines of each paragraph of a command's closing help, and of its subcommands', so that clap wraps it to the
/// terminal. Lines that begin with a space stay as they are, as examples need.
#[must_use]
pub fn reflow(mut command: Command) -> Command {
    if let Some(text) = command.get_after_help().map(ToString::to_string) {
        command = command.after_help(joined(&text));
    }
    if let Some(text) = command.get_after_long_help().map(ToString::to_string) {
        command = command.after_long_help(joined(&text));
    }
    command.mut_subcommands(reflow)
}

fn joined(text: &str) -> String {
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
    let mut result = String::new();
    let mut former = "";
    for line in text.lines() {
        if !result.is_empty() {
            result.push(if is_prose(former) && is_prose(line) { ' ' } else { '\n' });
        }
        result += line;
        former = line;
    }
    result
}

/// Parses a command line; prints one line about an error.
///
/// # Errors
/// The exit code, after the output: success for help and version, else bad input.
pub fn parse<A: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<A, ExitCode> {
    let parsed = reflow(A::command()).try_get_matches_from(arguments);
    let parsed = parsed.and_then(|mut matches| {
        A::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut A::command()))
    });
    parsed.map_err(|error| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_bounded() {
        let seconds = within(0.1, 3_600.0);
        assert_eq!((seconds("0.1"), seconds("3600")), (Ok(0.1), Ok(3_600.0)));
        for wrong in ["0", "-1", "NaN", "inf", "3601", "soon", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn paragraphs_are_joined_and_examples_are_not() {
        let text = "Examples:\n  # A comment\n  midplane top\n\nOne sentence\nof two lines.\n\nExit code: 0";
        let joined = "Examples:\n  # A comment\n  midplane top\n\nOne sentence of two lines.\n\nExit code: 0";
        let inner = Command::new("inner").after_help(text);
        let outer = reflow(Command::new("outer").after_long_help(text).subcommand(inner));
        assert_eq!(outer.get_after_long_help().unwrap().to_string(), joined);
        let inner = outer.find_subcommand("inner").unwrap();
        assert_eq!(inner.get_after_help().unwrap().to_string(), joined);
    }
}
