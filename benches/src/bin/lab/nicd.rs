//! A NIC in a daemon, and its client processes.

mod arguments;
mod client;
mod demo;

use std::process::ExitCode;

pub(crate) use arguments::Arguments;

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    demo::main(arguments)
}
