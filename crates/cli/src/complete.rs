//! Completions for shells, and manual pages.

use std::io::stdout;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use midplane_kit::report;

use crate::Cli;

/// Print a shell's completions of this command.
///
/// For bash: midplane completions bash > ~/.local/share/bash-completion/completions/midplane
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Write a manual page for each command.
///
/// Then: man -l FOLDER/midplane.1
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// The folder; it is made
    folder: PathBuf,
}

/// Prints completions.
pub(crate) fn completions(arguments: &Completions) -> ExitCode {
    clap_complete::generate(arguments.shell, &mut Cli::command(), "midplane", &mut stdout());
    ExitCode::SUCCESS
}

/// Writes manual pages.
pub(crate) fn man(arguments: &Man) -> ExitCode {
    let folder = &arguments.folder;
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report::fail(&format!("{}: {error}", folder.display()), report::BAD_INPUT),
    }
}
