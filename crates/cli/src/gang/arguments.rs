//! Command line of `midplane gang`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  # A daemon for this host, in a terminal of its own
  midplane gang daemon

  # Four ranks of a program; its rank before each line of output
  midplane gang run --ranks 4 --label -- sh -c 'echo $GANG_RANK of $GANG_SIZE; sleep 1'

  # An MPI program of MPICH, which needs no mpiexec; one of Open MPI, with its own mpirun in the job
  midplane gang run --ranks 4 -- ./program
  midplane gang run -- mpirun -n 4 ./program

  # A shell on a terminal, which takes turns with all other jobs
  midplane gang run --terminal --woken -- bash

  # A NAS kernel on two ranks, under `midplane gang daemon --fabric shm`, preempted at the turns of other jobs
  midplane gang run --ranks 2 -- lab nas cg S

  # Save job 1 between two of its steps and end it; resume it under daemons with other hosts and slots
  midplane gang checkpoint 1 saved --end
  midplane gang --socket other.socket restore saved

  # The jobs; and the slices of the last seconds, for a browser or for Perfetto
  midplane gang list
  midplane gang trace slices.svg
  midplane gang trace slices.json

Each rank has its number in GANG_RANK, the number of ranks in GANG_SIZE, the job's number in GANG_JOB, and the hosts
of all ranks in GANG_HOSTS. PMI_FD, PMI_RANK and PMI_SIZE are set as MPICH's mpiexec sets them (PMI-1). Input goes to rank 0.
Ctrl-C goes to all ranks; twice within a second ends the job.

Exit code: 0 done; of `run` and `restore`, the highest exit code of a rank, or 128 plus the number of the signal that
killed one; 1 no daemon answers, or it has exited; 2 bad input.";

/// Run parallel jobs that take turns on a cluster; list, save and end them.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Socket of the daemon; $XDG_RUNTIME_DIR/gangd.socket unless given
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
    Daemon(Box<super::daemon::Arguments>),
    Run(Run),
    Checkpoint(Checkpoint),
    Restore(Restore),
    /// List the jobs
    #[command(after_help = "Example: midplane gang --json list")]
    List,
    /// End a job, or signal it
    #[command(after_help = "Example: midplane gang kill 1 --signal 10")]
    Kill {
        /// Number of the job
        job: u32,
        /// Send the signal of this number, and do not end the job
        #[arg(long, value_parser = clap::value_parser!(i32).range(1..=64))]
        signal: Option<i32>,
    },
    /// Draw the last slices: as a Gantt chart (.svg) or a trace for Perfetto (.json)
    #[command(after_help = "Example: midplane gang trace slices.svg")]
    Trace {
        /// File to write; its extension chooses the format
        file: PathBuf,
    },
}

/// Save a job to a folder, at its next step
///
/// The program has to take part, as `lab nas` does.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example: midplane gang checkpoint 1 saved --end")]
pub(crate) struct Checkpoint {
    /// Number of the job
    pub(crate) job: u32,
    /// Folder for the checkpoint, made on the host of the daemon
    pub(crate) folder: PathBuf,
    /// End the job once it is saved
    #[arg(long)]
    pub(crate) end: bool,
}

/// Resume a saved job, and wait until it ends
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example: midplane gang restore saved")]
pub(crate) struct Restore {
    /// Folder of the checkpoint, on the host of the daemon
    pub(crate) checkpoint: PathBuf,
    /// Priority: slices that the job runs in a row at its turn
    #[arg(long, default_value_t = 1, value_name = "SLICES", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) priority: u8,
    /// Print the rank before each line of output
    #[arg(long)]
    pub(crate) label: bool,
}

/// Run a job, pass on its input and output, and wait until it ends
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example: midplane gang run --ranks 4 --label -- sh -c 'echo $GANG_RANK of $GANG_SIZE'"
)]
pub(crate) struct Run {
    /// Number of ranks
    #[arg(short = 'n', long, default_value_t = 1, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) ranks: u16,
    /// Priority: slices that the job runs in a row at its turn
    #[arg(long, default_value_t = 1, value_name = "SLICES", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) priority: u8,
    /// Run the job for a moment, in the middle of another job's slice, when input or a signal arrives for it
    #[arg(long)]
    pub(crate) woken: bool,
    /// Give rank 0 a terminal
    #[arg(long)]
    pub(crate) terminal: bool,
    /// Print the rank before each line of output
    #[arg(long)]
    pub(crate) label: bool,
    /// Let the other ranks continue when one fails
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Folder in which the ranks run; the current one unless given
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<std::ffi::OsString>,
}
