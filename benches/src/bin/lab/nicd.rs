//! A NIC in a daemon, and the processes that use it.

mod arguments;
mod client;
mod demo;

use std::process::ExitCode;

pub(crate) use arguments::Arguments;

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    demo::main(arguments)
}
