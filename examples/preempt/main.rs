//! What being preempted costs a parallel job.

mod arguments;
mod cluster;
#[path = "../common/command_line.rs"]
mod command_line;
#[path = "../common/gantt.rs"]
mod gantt;
mod paper;
#[path = "../common/report.rs"]
mod report;
mod slices;
mod slowdown;
mod trees;

use std::process::ExitCode;

use arguments::Arguments;

fn main() -> ExitCode {
    let arguments = match command_line::parse::<Arguments>(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    if let Some(file) = &arguments.gantt
        && let Err(error) = slices::draw(file, &arguments)
    {
        return report::fail(&format!("--gantt {}: {error}", file.display()), report::BAD_INPUT);
    }
    let holds = if arguments.paper {
        paper::run(&arguments)
    } else if arguments.freeze {
        trees::run(&arguments)
    } else {
        slowdown::run(&arguments)
    };
    if holds { ExitCode::SUCCESS } else { ExitCode::from(report::DID_NOT_HOLD) }
}
