//! The cost of preemption for a parallel job.

mod arguments;
mod cluster;
mod laps;
mod lines;
mod live;
pub(crate) mod paper;
pub(crate) mod parts;
pub(crate) mod slowdown;
mod turns;

use std::process::ExitCode;

pub(crate) use arguments::Arguments;

use crate::fleet::Failure;

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let ended = match &arguments.turns {
        Some(folder) => turns::run(folder, arguments.json),
        None => slowdown::run(&arguments),
    };
    ended.unwrap_or_else(Failure::exit)
}
