//! Command line of the example.

use clap::Parser;

use crate::ranks::Ranks;

const EXAMPLES: &str = "\
Examples:
  cluster                                   four processes and a switch, on this host
  cluster --only fresh,fan-in --rounds 1    two of the rows' groups, once each
  cluster --rank 0 --peers hosts.txt        and --rank 1, --rank 2, ... on the other hosts

Every row is measured in this run, ours and theirs in turns. Theirs is plain tokio: TCP sockets with
TCP_NODELAY, or UDP sockets where the row says so. The narrow port is the switch's port to rank 0: 100 Mb/s and
32 KiB. UDP frames pass it in a switch in software. TCP passes a relay of the same rate and buffer, which
loses nothing. A ratio above 1 is ours ahead: the median of the rounds,
their lowest and their highest. A row that is missed or unclear is measured for twice as many rounds
more; then all of its rounds count, except the lowest and the highest of each four.

Verdicts, by the same bounds on one host and across several:
  holds          the ratio is at least what is wanted, and ours is ahead
  slower         it is at least what is wanted, and theirs is ahead
  missed         it is less than what is wanted
  unclear        theirs is more than 1.5 times as fast in one round as in another, and the rounds' ratios
                 lie on both sides of the bound
  not judged     fewer than 3 rounds, or a build without optimization
  no number      it could not be measured in some round

  latency   64 bytes there and back: shared memory on one host, UDP across hosts
  fan-in    all others send messages of 10 KB to rank 0: with tokens between the senders'
            NICs, and each at the rate that Warp finds
  bulk      4 MiB from disk to link to disk (rates of a small cloud machine), cut by the planner, which
            measures the stages itself, compared with pieces of 64 KiB
  fresh     all others change state faster than the port carries it: the age of rank 0's replicas. Slow
            memory sends the latest values when Warp's gate is open; TCP sends all values
  together  a barrier, and a sum of all, on the NICs
  job       a job of four processes is preempted by another one, saved to disk with the messages in flight
            between them, moved to other daemons and finished there without a lost message: compared with
            a job that starts from the beginning there. On Linux

Exit code: 0 no row was missed; 1 one was, or a process was lost; 2 bad input; 3 rows were missed or are
unclear, and the machine was too busy to tell the cause: the evidence is on standard error.";

/// Compare the crates with plain TCP and UDP on one small cluster, in a minute.
#[derive(Clone, Debug, Parser)]
#[command(name = "cluster", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Processes on this host, from 2 to 16, unless --peers names them
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=16))]
    pub(crate) processes: u16,

    /// Measure only these, with commas between
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<Question>,

    /// Rounds, in each of which everything is measured once, from 1 to 100
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,

    /// Milliseconds of each measurement, from 50 to 60000
    #[arg(long, value_name = "MS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    pub(crate) milliseconds: u64,

    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Seconds to wait for processes that are not up yet, from 1 to 3600
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) wait: u64,

    /// Print one JSON document, at rank 0, and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ranks: Ranks,

    /// End when standard input does
    #[arg(long, hide = true)]
    pub(crate) child: bool,

    /// Run the switch, at the first of the peers, and the relay to this address
    #[arg(long, hide = true)]
    pub(crate) serve_switch: Option<std::net::SocketAddr>,
}

/// Group of rows: one property that a service needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Question {
    /// Request and reply
    Latency,
    /// Many senders, one receiver
    FanIn,
    /// One large message
    Bulk,
    /// Age of replicated state
    Fresh,
    /// Barriers and sums
    Together,
    /// A background job
    Job,
}

impl Arguments {
    /// Returns true if the question's rows are to be measured.
    pub(crate) fn asks(&self, question: Question) -> bool {
        self.only.is_empty() || self.only.contains(&question)
    }
}
