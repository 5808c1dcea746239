//! `midplane completions` and `midplane man`: shell completions and manual pages.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use midplane_kit::command_line;
use midplane_kit::report::{self, Failure};

use crate::Cli;

/// Print completions of this command for a shell.
///
/// For bash: midplane completions bash > ~/.local/share/bash-completion/completions/midplane
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// Shell that will read them
    shell: Shell,
}

/// Write a manual page for each command into a folder.
///
/// To read one: man -l FOLDER/midplane.1, or, in a folder man1 of MANPATH, man midplane-gang-run
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Folder for the pages, made if it is missing
    folder: PathBuf,
}

/// Prints completions on standard output.
pub(crate) fn completions(arguments: &Completions) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "midplane", &mut script);
    report::print(&String::from_utf8_lossy(&script));
    Ok(0)
}

/// Writes the manual pages.
pub(crate) fn man(arguments: &Man) -> Result<u8, Failure> {
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command_line::reflow(Cli::command()), folder))
        .map_err(|error| {
            let text = format!("{}: {error}; name a folder that can be written", folder.display());
            Failure::of_write(error.kind(), text)
        })?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    /// Columns of a narrow terminal. Clap breaks longer lines, and a broken example can't be pasted.
    const COLUMNS: usize = 80;

    /// Regression: a folder that can't be written was bad input.
    #[test]
    fn pages_that_cannot_be_written_are_no_bad_input() {
        let file = Man { folder: std::env::current_exe().unwrap() };
        let failure = format!("{:?}", man(&file).unwrap_err());
        assert!(failure.ends_with(", 1)"), "{failure}");
    }

    #[test]
    fn examples_fit_into_a_narrow_terminal() {
        let mut commands: Vec<Command> = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            let texts = [command.get_after_help(), command.get_after_long_help()];
            for text in texts.into_iter().flatten().map(ToString::to_string) {
                let too_long =
                    |line: &&str| line.starts_with(' ') && line.chars().count() > COLUMNS;
                let long: Vec<&str> = text.lines().filter(too_long).collect();
                assert!(long.is_empty(), "{}: {long:#?}", command.get_name());
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }
}
