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

pub(crate) use arguments::Arguments;

use crate::report::Failure;

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    match &arguments.turns {
        Some(folder) => turns::run(folder, arguments.json),
        None => slowdown::run(arguments),
    }
}
