//! The cost of preemption for a parallel job.

pub(crate) mod arguments;
mod channel;
mod cluster;
mod fit;
mod freezes;
mod laps;
mod lines;
mod live;
pub(crate) mod paper;
pub(crate) mod parts;
mod slices;
pub(crate) mod slowdown;
mod soak;
mod sweep;
mod trees;
mod turns;

use midplane_benches::anchors::pm;

use crate::{daemons, nas_rank, report};
use std::process::ExitCode;

pub(crate) use arguments::Arguments;
use arguments::FabricName;

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    if let Some(file) = &arguments.gantt
        && let Err(error) = slices::draw(file, &arguments)
    {
        return report::fail(&format!("--gantt {}: {error}", file.display()), report::BAD_INPUT);
    }
    if arguments.plot.is_some() && arguments.fabric != FabricName::Sim {
        return report::fail("--plot: draws freezes in sim; leave --fabric out", report::BAD_INPUT);
    }
    if let Some(folder) = &arguments.turns {
        return match turns::run(folder, arguments.json) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => report::fail(&error, report::BAD_INPUT),
        };
    }
    if arguments.channel {
        return match channel::run(arguments.json) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => report::fail(&error, report::FAILED),
        };
    }
    let holds = if arguments.sweep {
        sweep::run(arguments.json)
    } else if let Some(preemptions) = arguments.soak {
        soak::run(arguments.seed, preemptions, arguments.json)
    } else if arguments.freeze && arguments.fabric != FabricName::Sim {
        freezes::run(&arguments)
    } else if arguments.paper {
        paper::run(&arguments)
    } else if arguments.freeze {
        trees::run(&arguments)
    } else {
        slowdown::run(&arguments)
    };
    if holds { ExitCode::SUCCESS } else { ExitCode::from(report::FAILED) }
}
