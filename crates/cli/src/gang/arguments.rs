//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  # Beside `gangd` in another terminal: four ranks of a program, each line with its rank before it
  gang run --ranks 4 --label -- sh -c 'echo $GANG_RANK of $GANG_SIZE; sleep 1'

  # A shell on a terminal of its own, which takes turns with everything else
  gang run --terminal --woken -- bash

  # A NAS kernel on two ranks, under `gangd --fabric shm`: preempted as often as others want their turn
  gang run --ranks 2 -- lab nas cg S

  # Save job 1 between two steps and end it; go on with it elsewhere, under daemons with other hosts and slots
  gang checkpoint 1 saved --end
  gang --socket other.socket restore saved

  # What runs, again and again; and the slices of the last seconds, for a browser or for Perfetto
  gang top
  gang trace slices.svg
  gang trace slices.json

Ranks find their number in GANG_RANK, how many there are in GANG_SIZE, the job's in GANG_JOB, and the hosts of
all ranks in GANG_HOSTS. Input goes to rank 0. Ctrl-C goes to all ranks; twice within a second ends the job.
Exit code: the highest that a rank has ended with, or else 128 and the signal that killed one; 1 a
daemon, or what was asked for, is gone; 2 bad input.";

/// Runs parallel jobs that take turns on a cluster, and says what runs.
#[derive(Debug, Parser)]
#[command(name = "gang", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The daemon's socket; that of your own daemon unless given
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) what: What,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum What {
    /// Serve this host: run the ranks of jobs here, and stop and start them with those of all other hosts
    Daemon(Box<super::daemon::Arguments>),
    /// Run a job, and stay with it until it ends
    Run(Run),
    /// Save a job whose program can be saved (the NAS kernels here can), at its next step
    Checkpoint {
        /// The job's number
        job: u32,
        /// A folder for the checkpoint, on the host of the daemon; it is made
        folder: PathBuf,
        /// End the job once it is saved
        #[arg(long)]
        end: bool,
    },
    /// Go on with a job that was saved, and stay with it until it ends
    Restore(Restore),
    /// What runs
    List,
    /// End a job, or signal it
    Kill {
        /// The job's number
        job: u32,
        /// The signal's number; the job is ended without
        #[arg(long, value_parser = clap::value_parser!(i32).range(1..=64))]
        signal: Option<i32>,
    },
    /// What runs, twice a second, until Ctrl-C
    Top {
        /// How many times; for ever unless given
        #[arg(long, value_name = "COUNT")]
        times: Option<u32>,
    },
    /// Draw the last slices: .svg a Gantt chart, .json a trace for Perfetto
    Trace {
        /// The file
        file: PathBuf,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Restore {
    /// The checkpoint's folder, on the host of the daemon
    pub(crate) checkpoint: PathBuf,
    /// Slices in a row at its turn: its priority
    #[arg(long, default_value_t = 1, value_name = "SLICES", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) priority: u8,
    /// Each line of output says which rank has written it
    #[arg(long)]
    pub(crate) label: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Run {
    /// Ranks
    #[arg(short = 'n', long, default_value_t = 1, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) ranks: u16,
    /// Slices in a row at its turn: its priority
    #[arg(long, default_value_t = 1, value_name = "SLICES", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) priority: u8,
    /// What arrives for it, input or a signal, wakes it: it runs for a moment in the middle of others' slice
    #[arg(long)]
    pub(crate) woken: bool,
    /// Rank 0 has a terminal
    #[arg(long)]
    pub(crate) terminal: bool,
    /// Each line of output says which rank has written it
    #[arg(long)]
    pub(crate) label: bool,
    /// When a rank fails, the others go on
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Where it runs; here unless given
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<std::ffi::OsString>,
}
