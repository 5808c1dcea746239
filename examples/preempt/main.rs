//! What being preempted costs a parallel job.

mod arguments;
mod channel;
mod cluster;
#[path = "../common/command_line.rs"]
mod command_line;
#[path = "../common/daemons/mod.rs"]
#[expect(dead_code, reason = "other examples use the rest")]
mod daemons;
mod fit;
mod freezes;
#[path = "../common/gantt.rs"]
mod gantt;
mod laps;
mod lines;
mod live;
#[path = "../common/nas_rank.rs"]
mod nas_rank;
mod paper;
mod parts;
#[path = "../common/plot.rs"]
mod plot;
#[path = "../common/pm.rs"]
mod pm;
#[path = "../common/processes.rs"]
#[expect(dead_code, reason = "other examples use the rest")]
mod processes;
#[path = "../common/report.rs"]
mod report;
mod slices;
mod slowdown;
mod soak;
mod sweep;
mod trees;
mod turns;

use std::process::ExitCode;

use arguments::{Arguments, FabricName};

fn main() -> ExitCode {
    if parts::play_part() {
        return ExitCode::SUCCESS;
    }
    let arguments = match command_line::parse::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
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
            Err(error) => report::fail(&error, report::DID_NOT_HOLD),
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
    if holds { ExitCode::SUCCESS } else { ExitCode::from(report::DID_NOT_HOLD) }
}
