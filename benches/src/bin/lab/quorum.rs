//! Majority decisions that do not wait for busy hosts.

mod extension;
mod leader;
mod log;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use midplane::nicvm::thread::Thread;
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use serde::Serialize;

use crate::calls::{CALLS, Calls, Pass};
use crate::fleet::{self, Fleet, Meeting, Part, Question};
use extension::{ENTRY, QUORUM, replicate};
use leader::Leader;
use log::Log;

const EXAMPLES: &str = "\
Examples:
  lab quorum                                   four processes over UDP
  lab quorum --fabric shm --nodes 5
  lab quorum --fabric udp --rank 0 --peers hosts.txt    and --rank 1, --rank 2, ... on the others

Rank 0 proposes entries of 64 bytes, for --seconds or up to 65536 of them; the other ranks write them into their
logs. A follower's host stalls for 1 ms, once in a hundred entries. Afterwards all logs are compared with
the decided entries.

Exit code: 0 it ran, and every follower's log has every decided entry; 1 one lacks some, or a process was
lost; 2 bad input.";

/// Measure quorum acknowledgement by NICs, and the same by hosts
///
/// By NICs, the leader's host gets one completion per entry, when a majority has it. Followers' hosts do nothing:
/// their NICs write into their logs. The extension is an `async fn`.
#[derive(Clone, Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: Fleet,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    #[serde(rename = "where")]
    place: &'static str,
    seconds: f64,
    decided_per_s: f64,
    decided: u64,
    median_us: f64,
    p99_us: f64,
    /// Completions at the leader's host per decision.
    leader_wakes: f64,
    /// Decided entries that are missing in a follower's log.
    lacking: u64,
}

const LEADER: NodeId = NodeId(0);
/// Entries of a log; no more are proposed.
const LONGEST: u64 = 1 << 16;

/// Builds an entry's bytes, so that any wrong byte is detected.
fn entry(number: u64) -> [u8; ENTRY] {
    let mut bytes = [(number as u8).wrapping_mul(29) ^ 0x5A; ENTRY];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

pub(crate) fn main(arguments: Arguments) -> ExitCode {
    fleet::conduct(arguments, |_| Ok(()))
}

impl Question for Arguments {
    type Run = Run;

    fn fleet(&mut self) -> &mut Fleet {
        &mut self.fleet
    }

    fn holds(runs: &[Run]) -> bool {
        runs.iter().all(|run| run.decided > 0 && run.lacking == 0)
    }
}

impl Part for Arguments {
    type Outcome = Vec<Run>;

    fn equip(&self, unit: &mut Unit) {
        let nodes = self.fleet.nodes;
        unit.install(QUORUM, Thread::new(move |nic| replicate(nic, nodes))).expect("it is free");
        unit.install(CALLS, Calls::<Pass>::default()).expect("the number is free");
    }

    async fn play<H: Host>(self, host: H) -> Result<Vec<Run>, String> {
        let mut meeting = Meeting::new(&host, self.fleet.nodes).await?;
        let mut log = Log::open(&host).await?;
        let mut runs = Vec::new();
        for on_nic in [true, false] {
            meeting.barrier().await?;
            let begun = host.now();
            let end = begun + self.fleet.time();
            let mut words = [0; 4];
            if host.node() == LEADER {
                let leader = Leader::new(self.fleet.nodes, end);
                words = match on_nic {
                    true => leader.propose(&host, &mut log.port).await?,
                    false => leader.propose_by_host(&host).await?,
                };
                meeting.barrier().await?;
            } else {
                log.follow(&host, &mut meeting).await?;
            }
            let took = Duration::from_nanos(host.now().nanos_since(begun));
            meeting.sum(&mut words).await?;
            let mut lacking = [0];
            if host.node() != LEADER {
                lacking = [log.lacking(&host, words[0]).await?];
                log.clear(words[0])?;
            }
            meeting.sum(&mut lacking).await?;
            runs.push(run(on_nic, words, lacking[0], took));
        }
        Ok(runs)
    }
}

fn run(on_nic: bool, words: [u64; 4], lacking: u64, took: Duration) -> Run {
    let [decided, median_ns, p99_ns, at_leader] = words;
    let seconds = took.as_secs_f64();
    Run {
        place: if on_nic { "nic" } else { "host" },
        seconds,
        decided_per_s: decided as f64 / seconds,
        decided,
        median_us: median_ns as f64 / 1e3,
        p99_us: p99_ns as f64 / 1e3,
        leader_wakes: at_leader as f64 / decided.max(1) as f64,
        lacking,
    }
}
