//! Measures the functions and costs of Midplane: `lab QUESTION`, one module per question.

/// Displays values by their names on the command line.
macro_rules! display {
    ($($name:ty),*) => {
        $(impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&midplane_kit::command_line::name_of(self))
            }
        })*
    };
}

#[cfg(target_os = "linux")]
mod all;
#[cfg(target_os = "linux")]
mod channel;
mod collectives;
mod fabric;
mod fairness;
mod figures;
#[cfg(target_os = "linux")]
mod nas;
#[cfg(target_os = "linux")]
mod nic;
mod pingpong;
mod preempt;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use midplane_benches::{daemons, incast, nas_rank, plot, solver};
use midplane_kit::{claims, command_line, processes, ranks, report};

/// Measure what Midplane does and what it costs
///
/// Each question prints a table, or one JSON document with --json. Exit code: 0 all rows pass; 1 one failed; 2 bad
/// input; 3 the machine was too busy to judge a claim.
#[derive(Debug, Parser)]
#[command(name = "lab", version, arg_required_else_help = true)]
struct Lab {
    #[command(subcommand)]
    question: Question,
}

#[derive(Debug, Subcommand)]
enum Question {
    #[cfg(target_os = "linux")]
    All(all::Arguments),
    #[cfg(target_os = "linux")]
    Channel(channel::Arguments),
    Collectives(collectives::Arguments),
    Fairness(fairness::Arguments),
    Figures(figures::Arguments),
    #[cfg(target_os = "linux")]
    Nas(nas::Arguments),
    #[cfg(target_os = "linux")]
    Nic(nic::Arguments),
    Pingpong(pingpong::Arguments),
    Preempt(preempt::Arguments),
}

fn main() -> ExitCode {
    // This process may be a daemon, a client or a rank that a question has started.
    if preempt::parts::play_part() {
        return ExitCode::SUCCESS;
    }
    command_line::main(|lab: &Lab| match &lab.question {
        #[cfg(target_os = "linux")]
        Question::All(arguments) => all::run(arguments),
        #[cfg(target_os = "linux")]
        Question::Channel(arguments) => channel::run(arguments),
        Question::Collectives(arguments) => collectives::run(arguments),
        Question::Fairness(arguments) => fairness::run(arguments),
        Question::Figures(arguments) => figures::run(arguments),
        #[cfg(target_os = "linux")]
        Question::Nas(arguments) => nas::run(arguments),
        #[cfg(target_os = "linux")]
        Question::Nic(arguments) => nic::run(arguments),
        Question::Pingpong(arguments) => pingpong::run(arguments.clone()),
        Question::Preempt(arguments) => preempt::run(arguments),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_the_help() {
        let accepts = |words: &str| Lab::try_parse_from(words.split(' ')).is_ok();
        #[cfg(target_os = "linux")]
        for (sizes, is_right) in [("1,1073741824", true), ("0", false), ("1073741825", false)] {
            assert_eq!(accepts(&format!("lab channel --sizes {sizes}")), is_right, "{sizes}");
        }
        for flag in ["--receive", "--send"] {
            assert!(accepts(&format!("lab fairness {flag} 10.0.0.1:65534")), "{flag}");
            for wrong in ["10.0.0.1:65535", "10.0.0.1:0", "10.0.0.1"] {
                assert!(!accepts(&format!("lab fairness {flag} {wrong}")), "{flag} {wrong}");
            }
        }
    }
}
