//! Command line of `midplane gang`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  # A daemon for this host, in a terminal of its own
  midplane gang daemon

  # Four ranks of a program; its rank before each line of output
  midplane gang run --ranks 4 --label -- \\
    sh -c 'echo $GANG_RANK of $GANG_SIZE; sleep 1'

  # An MPI program of MPICH, which needs no mpiexec; one of Open MPI, with its
  # own mpirun in the job
  midplane gang run --ranks 4 -- ./program
  midplane gang run -- mpirun -n 4 ./program

  # A step of a Slurm job takes turns with the jobs here until it ends, or until
  # Ctrl-C
  midplane gang adopt --slurm-step 1234.0

  # A shell on a terminal, which takes turns with all other jobs
  midplane gang run --terminal --woken -- bash

  # A NAS kernel on two ranks, under `midplane gang daemon --fabric shm`,
  # preempted at the turns of other jobs
  midplane gang run --ranks 2 -- lab nas cg S

  # Save job 1 and end it; resume it under daemons with other hosts and slots
  midplane gang checkpoint 1 saved --end
  midplane gang --socket other.socket restore saved

  # The jobs; and the slices of the last seconds, for a browser or for Perfetto
  midplane gang list
  midplane gang trace slices.svg
  midplane gang trace slices.json

  # On another host, become the client of a job whose terminal was lost with the
  # root's host
  midplane gang attach 1

A daemon of root runs each job as the user who submits it. Only this user and root may end, signal, save and follow the job;
`list` shows all jobs.

The commands send their requests to the daemon of this host. Of one or two daemons, that of host 0 is the root, which
decides. Of three or more, each passes requests to the root, and another host takes over when the root is lost. Jobs without
ranks on the lost host continue. `run` and `restore` then search for the new root for up to 10 s; input and output in
transit are lost.

Each rank has its number in GANG_RANK, the number of ranks in GANG_SIZE, the job's number in GANG_JOB, and the hosts
of all ranks in GANG_HOSTS. PMI_FD, PMI_RANK and PMI_SIZE are set as MPICH's mpiexec sets them (PMI-1). Input goes to rank 0.
Ctrl-C goes to all ranks; twice within a second ends the job.

Exit code: 0 done; of `run`, `attach` and `restore`, the highest exit code of a rank, or 128 plus the number of the signal that
killed one; 1 no daemon or no root answers, or it has exited, or output could not be written; 2 bad input. A job whose output
is a closed pipe is ended.";

const RUN_HELP: &str = "\
Examples:
  midplane gang run --ranks 4 --label -- sh -c 'echo $GANG_RANK of $GANG_SIZE'
  midplane gang run --ranks 2 --priority 20 -- ./urgent
  midplane gang run --ranks 4 -- ./mpi_program     # of MPICH, without mpiexec

`midplane gang --help` lists the variables that ranks find in their environment.

Exit code: the highest exit code of a rank, or 128 plus the number of the signal that killed one; 1 no daemon or no root
answers, or it has exited, or output could not be written; 2 bad input, or the job is refused.";

const LIST_HELP: &str = "\
Columns:
  slots     the first and the last of the job; jobs that share slots take turns
  priority  slices in a row at the job's turn
  state     runs: this slice is the job's; waits: it is suspended until its turn
  seconds   since the job was admitted
  ran       seconds of the job's own slices
  stops     ends of slices at which the job was suspended
  memory    what each rank claims by --memory

Example: midplane gang --json list";

/// Run parallel jobs that take turns on a cluster; list, save and end them.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Socket of the daemon; unless given, $XDG_RUNTIME_DIR/gangd.socket, or /run/midplane/gangd.socket
    ///
    /// A daemon with --socket-group uses the latter. The other commands use the first of the two that is there. Without
    /// $XDG_RUNTIME_DIR, the first is in a folder of the temporary files.
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
    Adopt(Adopt),
    Checkpoint(Checkpoint),
    Restore(Restore),
    /// Become the client of a job whose client was lost with the root's host, and wait until it ends
    ///
    /// The job has continued. Its output of the meantime is lost, except for what its pipes hold. The job ends with
    /// this command.
    #[command(after_help = "Example: midplane gang attach 1")]
    Attach {
        /// Number of the job
        job: u32,
        /// Print the rank before each line of output
        #[arg(long)]
        label: bool,
    },
    /// List the jobs, and name the root's host
    #[command(after_help = LIST_HELP)]
    List,
    /// End a job, or signal it
    #[command(after_help = "Example: midplane gang kill 1 --signal 10")]
    Kill {
        /// Number of the job
        job: u32,
        /// Send the signal of this number, from 1 to 31, and do not end the job
        #[arg(long, value_parser = clap::value_parser!(i32).range(1..=31))]
        signal: Option<i32>,
    },
    /// Draw the last slices: as a Gantt chart (.svg) or a trace for Perfetto (.json)
    #[command(after_help = "Example: midplane gang trace slices.svg")]
    Trace {
        /// File to write; its extension chooses the format
        file: PathBuf,
    },
}

/// Let processes that another program has started take turns with the jobs
///
/// All processes in the control group (version 2) are suspended and resumed together. The adoption ends at Ctrl-C, at
/// `gang kill`, and if a daemon dies; then they continue for good. The group is looked up on every host; the job takes
/// all slots. Under a daemon of root, only root may do this.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  midplane gang adopt --cgroup /sys/fs/cgroup/system.slice/render.service
  midplane gang adopt --slurm-step 1234.0 --priority 2
  midplane gang adopt --pod 7d4a1c0e-52b1-4b0e-9d3f-0c2c5a1f6e11

Exit code: 0 the group is empty, or was left by Ctrl-C; 1 the job was ended; 2 bad input, or no host has such a group.")]
pub(crate) struct Adopt {
    #[command(flatten)]
    pub(crate) group: AdoptedGroup,
    /// Priority: slices that the processes run in a row at their turn
    #[arg(long, default_value_t = 1, value_name = "SLICES", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) priority: u8,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct AdoptedGroup {
    /// Folder of a control group, the same on each host that has it
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cgroup: Option<String>,
    /// A Slurm job, or a step of it, such as 1234.0 or 1234.batch
    #[arg(long, value_name = "JOB[.STEP]", value_parser = parse_step)]
    pub(crate) slurm_step: Option<(u32, Option<String>)>,
    /// UID of a Kubernetes pod: `kubectl get pod NAME -o jsonpath={.metadata.uid}`
    #[arg(long, value_name = "UID")]
    pub(crate) pod: Option<String>,
}

/// Parses the number of a Slurm job and the name of its step.
fn parse_step(text: &str) -> Result<(u32, Option<String>), String> {
    let (job, step) = text.split_once('.').map_or((text, None), |(job, step)| (job, Some(step)));
    let job = job.parse().map_err(|_| format!("{job:?} is no number of a job, such as 1234"))?;
    Ok((job, step.map(str::to_owned)))
}

/// Parses a number of bytes, in units of 2^10 (K), 2^20 (M), 2^30 (G) or 2^40 (T).
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let shift = match &text[digits.len()..].to_ascii_uppercase()[..] {
        "" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => return Err("its unit is none of K, M, G and T (of 1024)".to_owned()),
    };
    let wrong = "it is no number of bytes from 1 to 16 EiB, such as 512M or 2G";
    let count: u64 = digits.parse().map_err(|_| wrong)?;
    let bytes = count.checked_mul(1 << shift).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| wrong.to_owned())
}

/// Save a job to a folder
///
/// A program that takes part, as `lab nas` does, is saved at its next step; this needs daemons with a --fabric. Other
/// programs are saved as they are, by CRIU; this needs daemons of root, and `midplane doctor` says whether it works here.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example: midplane gang checkpoint 1 saved --end")]
pub(crate) struct Checkpoint {
    /// Number of the job
    pub(crate) job: u32,
    /// Folder for the checkpoint, made on the root's host with your rights
    pub(crate) folder: PathBuf,
    /// End the job once it is saved
    #[arg(long)]
    pub(crate) end: bool,
}

/// Resume a saved job, and wait until it ends
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example: midplane gang restore saved")]
pub(crate) struct Restore {
    /// Folder of the checkpoint, on the root's host, which you must be able to read
    ///
    /// The job is yours then. Root can't restore a checkpoint of another user from a daemon of root.
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
#[command(after_help = RUN_HELP)]
pub(crate) struct Run {
    /// Number of ranks
    #[arg(short = 'n', long, default_value_t = 1, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) ranks: u16,
    /// Priority: slices that the job runs in a row at its turn
    #[arg(long, default_value_t = 1, value_name = "SLICES", value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) priority: u8,
    /// Run the job for a moment, in the middle of another job's slice, when input, a signal or a message arrives for it
    ///
    /// Messages are those on the daemon's NIC (`gang daemon --fabric`), from outside of the job's slices. The job's own
    /// next slices are shorter by the time that it runs early, and it runs at most one slice ahead of its turn; then it
    /// waits for that.
    #[arg(long)]
    pub(crate) woken: bool,
    /// Memory that each rank needs, such as 512M or 2G
    ///
    /// If the claims of other jobs leave a host less, it refuses the job, and reports the numbers. Where control groups
    /// have the memory controller, the job's ranks on a host may use as much together, and the kernel ends them if they
    /// need more.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
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

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn bytes_have_units_of_1024() {
        for (text, bytes) in
            [("4096", 4_096), ("3k", 3 << 10), ("512M", 512 << 20), ("2GiB", 2 << 30)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        for text in ["", "0", "0G", "G", "-1", "1.5G", "2 G", "2X", "2GG", "16777216T", "é"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
