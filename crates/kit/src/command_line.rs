//! How an example reads its command line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

/// Parses a command line; what is wrong with it is said in one line.
///
/// # Errors
/// The exit code, once everything is said: help was asked for, or the input is bad.
pub fn parse<A: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<A, ExitCode> {
    A::try_parse_from(arguments).map_err(|error| {
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            // Nobody is there to be told of a closed stream.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            eprintln!("error: say what to do; --help tells what there is");
            return ExitCode::from(2);
        }
        let text = error.render().to_string();
        let what = text.split("\n\n").next().unwrap_or(&text);
        let words: Vec<&str> = what.split_whitespace().collect();
        eprintln!("{}", words.join(" "));
        ExitCode::from(2)
    })
}
