//! The leader and its followers, with the quorum on NICs or on hosts.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use midplane::nicvm::thread::Thread;
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Command, Port, PortOptions, Status};
use midplane::simhw::region::Region;
use midplane::simhw::rng::Rng;
use midplane::simhw::time::Instant;

use crate::fleet::{Meeting, Part};
use crate::quorum::extension::{ENTRY, LOG, PROPOSE, QUORUM, replicate};
use crate::relay::{Mail, RELAY, Relay};

const LEADER: NodeId = NodeId(0);
/// Entries of a log; no more are proposed.
pub(crate) const LONGEST: u64 = 1 << 16;
/// Longest latency that is recorded, in ns; longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;
/// Time limit for the last entries to reach all nodes.
const SETTLE: Duration = Duration::from_secs(20);

/// Parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: u16,
    /// Entries in flight at the leader.
    pub(crate) depth: usize,
    /// Time for which a follower's host stalls, once in a hundred entries or milliseconds.
    pub(crate) stall: Duration,
    pub(crate) time: Duration,
    pub(crate) bar: ProgressBar,
}

/// Results of one part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) on_nic: bool,
    pub(crate) decided: u64,
    pub(crate) median_ns: u64,
    pub(crate) p99_ns: u64,
    /// Messages and completions at the leader's host.
    pub(crate) at_leader: u64,
    /// Decided entries that are missing or different in some follower's log.
    pub(crate) lacking: u64,
    pub(crate) took: Duration,
}

/// Builds an entry's bytes, so that any wrong byte is detected.
fn entry(number: u64) -> [u8; ENTRY] {
    let mut bytes = [(number as u8).wrapping_mul(29) ^ 0x5A; ENTRY];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Part for Plan {
    type Outcome = Vec<Figures>;

    fn equip(&self, unit: &mut Unit) {
        let nodes = self.nodes;
        unit.install(QUORUM, Thread::new(|nic| replicate(nic, nodes))).expect("it is free");
        unit.install(RELAY, Relay::default()).expect("the number is free");
    }

    async fn play<H: Host>(self, host: H, mut meeting: Meeting) -> Result<Vec<Figures>, String> {
        let mut figures = Vec::new();
        let mut mail = Mail::open(&host)?;
        let mut log = Log::lend(&host).await?;
        for on_nic in [true, false] {
            meeting.barrier().await?;
            let begun = host.now();
            let mut words = [0; 4];
            if host.node() == LEADER {
                let mut leader = Leader::new(self.depth);
                if on_nic {
                    leader.propose(&host, &self, &mut log.port).await?;
                } else {
                    leader.propose_by_mail(&host, &self, &mut mail).await?;
                }
                words = leader.words();
                meeting.barrier().await?;
            } else if on_nic {
                stand_by(&host, &self, &mut meeting).await?;
            } else {
                log.follow_by_mail(&host, &self, &mut mail, &mut meeting).await?;
            }
            let took = Duration::from_nanos(host.now().nanos_since(begun));
            meeting.sum(&mut words).await?;
            let [decided, median_ns, p99_ns, at_leader] = words;
            let mut lacking = [0];
            if host.node() != LEADER {
                lacking = [log.lacking(&host, &mut mail, decided).await?];
                log.clear(decided)?;
            }
            meeting.sum(&mut lacking).await?;
            let [lacking] = lacking;
            let part = Figures { on_nic, decided, median_ns, p99_ns, at_leader, lacking, took };
            figures.push(part);
            self.bar.inc(1);
        }
        Ok(figures)
    }
}

/// The leader, with a fixed number of entries in flight.
struct Leader {
    depth: usize,
    next: u64,
    since: BTreeMap<u64, Instant>,
    decided: u64,
    handled: u64,
    latency: Histogram<u64>,
}

impl Leader {
    fn new(depth: usize) -> Self {
        let latency = Histogram::new_with_max(LONGEST_NS, 3).expect("three digits");
        Self { depth, next: 0, since: BTreeMap::new(), decided: 0, handled: 0, latency }
    }

    /// Returns the next entry, if time and room are left.
    fn next(&mut self, host: &impl Host, end: Instant) -> Option<u64> {
        let more = self.since.len() < self.depth && self.next < LONGEST && host.now() < end;
        more.then(|| {
            self.since.insert(self.next, host.now());
            self.next += 1;
            self.next - 1
        })
    }

    fn decide(&mut self, host: &impl Host, number: u64) {
        if let Some(since) = self.since.remove(&number) {
            self.latency.saturating_record(host.now().nanos_since(since));
            self.decided += 1;
        }
    }

    async fn propose(
        &mut self,
        host: &impl Host,
        plan: &Plan,
        port: &mut Port,
    ) -> Result<(), String> {
        let memory = port.register(self.depth * ENTRY).map_err(text)?;
        let end = host.now() + plan.time;
        loop {
            while let Some(number) = self.next(host, end) {
                let at = number as usize % self.depth * ENTRY;
                memory.write(at, &entry(number)).map_err(text)?;
                let region = memory.range(at, ENTRY).expect("within it");
                let (extension, opcode, args) = (QUORUM, PROPOSE, [number, 0, 0]);
                let cookie = number;
                let propose =
                    Command { extension, opcode, region, cookie, args, ..Command::default() };
                port.submit(&propose).map_err(text)?;
            }
            if self.since.is_empty() {
                return Ok(());
            }
            let done = port.completion().await.map_err(text)?;
            if done.status != Status::Done || done.args[0] < u64::from(plan.nodes / 2 + 1) {
                return Err(format!("entry {} ended as {:?}", done.cookie, done.status));
            }
            self.handled += 1;
            self.decide(host, done.cookie);
        }
    }

    async fn propose_by_mail(
        &mut self,
        host: &impl Host,
        plan: &Plan,
        mail: &mut Mail,
    ) -> Result<(), String> {
        let mut counts: BTreeMap<u64, u16> = BTreeMap::new();
        let end = host.now() + plan.time;
        loop {
            while let Some(number) = self.next(host, end) {
                counts.insert(number, 1);
                for node in (1..plan.nodes).map(NodeId) {
                    mail.send(node, &entry(number)).await?;
                }
            }
            if self.since.is_empty() {
                return Ok(());
            }
            let (_, acknowledged) = mail.receive().await?;
            self.handled += 1;
            let number = u64::from_le_bytes(acknowledged[..8].try_into().expect("eight bytes"));
            let count = counts.entry(number).or_default();
            *count += 1;
            if *count == plan.nodes / 2 + 1 {
                self.decide(host, number);
            }
        }
    }

    fn words(&self) -> [u64; 4] {
        let at = |share| self.latency.value_at_quantile(share);
        [self.decided, at(0.5), at(0.99), self.handled]
    }
}

/// Stalls a follower's host now and then, until the leader is done.
async fn stand_by(host: &impl Host, plan: &Plan, meeting: &mut Meeting) -> Result<(), String> {
    let mut rng = host.rng("stalls");
    let mut met = std::pin::pin!(meeting.barrier());
    loop {
        tokio::select! {
            biased;
            ended = &mut met => return ended,
            () = host.sleep_until(host.now() + Duration::from_millis(1)) => {
                stall(host, plan, &mut rng).await;
            }
        }
    }
}

async fn stall(host: &impl Host, plan: &Plan, rng: &mut Rng) {
    if rng.chance(0.01) && !plan.stall.is_zero() {
        host.sleep_until(host.now() + plan.stall).await;
    }
}

/// A node's log.
struct Log {
    port: Port,
    memory: Region,
}

impl Log {
    async fn lend(host: &impl Host) -> Result<Self, String> {
        let mut port = host.open_port_with(PortOptions::default().depth(256)).map_err(text)?;
        let memory = port.register(LONGEST as usize * ENTRY).map_err(text)?;
        let (extension, region) = (QUORUM, memory.whole());
        port.submit(&Command { extension, opcode: LOG, region, ..Command::default() })
            .map_err(text)?;
        port.completion().await.map_err(text)?;
        Ok(Self { port, memory })
    }

    async fn follow_by_mail(
        &self,
        host: &impl Host,
        plan: &Plan,
        mail: &mut Mail,
        meeting: &mut Meeting,
    ) -> Result<(), String> {
        let mut rng = host.rng("stalls");
        let mut met = std::pin::pin!(meeting.barrier());
        loop {
            tokio::select! {
                biased;
                ended = &mut met => return ended,
                come = mail.receive() => {
                    let (from, bytes) = come?;
                    self.keep(&bytes)?;
                    mail.send(from, &bytes[..8]).await?;
                    stall(host, plan, &mut rng).await;
                }
            }
        }
    }

    fn keep(&self, bytes: &[u8]) -> Result<(), String> {
        let number = u64::from_le_bytes(bytes[..8].try_into().expect("entries are longer"));
        self.memory.write(number as usize * ENTRY, bytes).map_err(text)
    }

    /// Counts the decided entries that are missing here, once the last ones had time to arrive.
    async fn lacking(
        &self,
        host: &impl Host,
        mail: &mut Mail,
        decided: u64,
    ) -> Result<u64, String> {
        let until = host.now() + SETTLE;
        loop {
            let mut lacking = 0;
            for number in 0..decided {
                let mut there = [0; ENTRY];
                self.memory.read(number as usize * ENTRY, &mut there).map_err(text)?;
                lacking += u64::from(there != entry(number));
            }
            if lacking == 0 || host.now() >= until {
                return Ok(lacking);
            }
            tokio::select! {
                biased;
                come = mail.receive() => self.keep(&come?.1)?,
                () = host.sleep_until(host.now() + Duration::from_millis(10)) => {}
            }
        }
    }

    fn clear(&self, entries: u64) -> Result<(), String> {
        self.memory.write(0, &vec![0; entries as usize * ENTRY]).map_err(text)
    }
}
