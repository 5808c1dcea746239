//! The cost of preemption for a parallel job.

mod arguments;
mod channel;
mod cluster;
mod freezes;
mod laps;
mod lines;
mod live;
pub(crate) mod paper;
pub(crate) mod parts;
pub(crate) mod slowdown;
mod soak;
mod sweep;
mod turns;

use std::process::ExitCode;

pub(crate) use arguments::Arguments;

use crate::fleet::Failure;

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    let json = arguments.json;
    let ended = match arguments {
        Arguments { turns: Some(ref folder), .. } => turns::run(folder, json),
        Arguments { channel: true, .. } => channel::run(json),
        Arguments { sweep: true, .. } => sweep::run(json),
        Arguments { soak: Some(preemptions), seed, .. } => Ok(soak::run(seed, preemptions, json)),
        Arguments { freeze: true, .. } => freezes::run(json),
        _ => slowdown::run(&arguments),
    };
    ended.unwrap_or_else(Failure::exit)
}
