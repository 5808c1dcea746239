//! The `midplane` command, a file a subcommand.

mod complete;
mod discard;
mod doctor;
#[cfg(target_os = "linux")]
mod gang;
mod gantt;
#[cfg(target_os = "linux")]
mod nic;
mod plan;
mod swarm;
mod switch;
#[cfg(target_os = "linux")]
mod top;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use midplane_kit::command_line;

const EXAMPLES: &str = "\
Start here:
  midplane doctor                         test what this machine offers
  midplane top                            watch the nodes of a cluster live
  midplane gang daemon                    run jobs that take turns: the daemon,
  midplane gang run --ranks 4 -- COMMAND  and in another terminal, a job
  midplane nic demo                       upgrade an extension on six NICs
  midplane swarm --seeds 100              test 100 simulated clusters

Exit code: 0 done; 1 something failed; 2 bad input; more in each command's --help.";

/// Run, measure and test Midplane's fabric: NICs, switches, jobs, plans.
///
/// Each command has --help with examples. Most have --json, which prints one JSON document.
#[derive(Debug, Parser)]
#[command(name = "midplane", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Switch(switch::Arguments),
    #[cfg(target_os = "linux")]
    Nic(nic::Arguments),
    #[cfg(target_os = "linux")]
    Gang(gang::Arguments),
    Plan(plan::Arguments),
    #[cfg(target_os = "linux")]
    Top(top::Arguments),
    Trace(trace::Arguments),
    Swarm(swarm::Arguments),
    Doctor(doctor::Arguments),
    Completions(complete::Completions),
    Man(complete::Man),
}

fn main() -> ExitCode {
    // A gang daemon starts each rank of a job, and its reaper, through this program.
    #[cfg(target_os = "linux")]
    midplane::gang::live::exec_shim::play_part();
    command_line::main(|cli: &Cli| match &cli.command {
        Command::Switch(arguments) => switch::main(arguments),
        #[cfg(target_os = "linux")]
        Command::Nic(arguments) => nic::main(arguments),
        #[cfg(target_os = "linux")]
        Command::Gang(arguments) => gang::main(arguments),
        Command::Plan(arguments) => plan::main(arguments),
        #[cfg(target_os = "linux")]
        Command::Top(arguments) => top::main(arguments),
        Command::Trace(arguments) => trace::main(arguments),
        Command::Swarm(arguments) => swarm::main(arguments),
        Command::Doctor(arguments) => doctor::main(arguments),
        Command::Completions(arguments) => complete::completions(arguments),
        Command::Man(arguments) => complete::man(arguments),
    })
}
