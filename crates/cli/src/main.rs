//! `midplane`: runs switches, NICs and gang scheduling; plans, traces and searches for faults.

mod complete;
#[cfg(target_os = "linux")]
mod gang;
#[cfg(target_os = "linux")]
mod nic;
mod path;
mod plan;
mod swarm;
mod switch;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs and inspects Midplane's fabric: switches, NICs, gang scheduling, plans, traces.
#[derive(Debug, Parser)]
#[command(name = "midplane", version, arg_required_else_help = true)]
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
    Path(path::Arguments),
    Trace(trace::Arguments),
    Swarm(swarm::Arguments),
    Completions(complete::Completions),
    Man(complete::Man),
}

fn main() -> ExitCode {
    // The small process that starts each rank of a job is this program, too.
    #[cfg(target_os = "linux")]
    midplane::gang::live::stub::play_part();
    let cli = match midplane_kit::command_line::parse::<Cli>(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match cli.command {
        Command::Switch(arguments) => switch::main(arguments),
        #[cfg(target_os = "linux")]
        Command::Nic(arguments) => nic::main(arguments),
        #[cfg(target_os = "linux")]
        Command::Gang(arguments) => gang::main(arguments),
        Command::Plan(arguments) => plan::main(arguments),
        Command::Path(arguments) => path::main(arguments),
        Command::Trace(arguments) => trace::main(arguments),
        Command::Swarm(arguments) => swarm::main(arguments),
        Command::Completions(arguments) => complete::completions(&arguments),
        Command::Man(arguments) => complete::man(&arguments),
    }
}
