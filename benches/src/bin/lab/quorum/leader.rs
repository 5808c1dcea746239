//! The leader's host, with a fixed number of entries in flight.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Command, Port, Status};
use midplane::simhw::time::Instant;

use super::extension::{ENTRY, PROPOSE, QUORUM};
use super::{LONGEST, entry};
use crate::calls::{Caller, MOST_CALLS, latencies};
use crate::fleet::text;

pub(crate) struct Leader {
    depth: usize,
    nodes: u16,
    end: Instant,
    next: u64,
    since: BTreeMap<u64, Instant>,
    decided: u64,
    /// Completions at this host.
    handled: u64,
    latency: Histogram<u64>,
}

impl Leader {
    pub(crate) fn new(depth: usize, nodes: u16, end: Instant) -> Self {
        let (since, latency) = (BTreeMap::new(), latencies());
        Self { depth, nodes, end, next: 0, since, decided: 0, handled: 0, latency }
    }

    const fn majority(&self) -> u16 {
        self.nodes / 2 + 1
    }

    /// Returns the next entry, if time and room are left.
    fn next(&mut self, host: &impl Host) -> Option<u64> {
        let more = self.since.len() < self.depth && self.next < LONGEST && host.now() < self.end;
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

    /// Returns the numbers of decisions and completions, and the latencies between them.
    fn words(&self) -> [u64; 4] {
        let at = |share| self.latency.value_at_quantile(share);
        [self.decided, at(0.5), at(0.99), self.handled]
    }

    /// Has the NIC replicate entries, until the time is over.
    pub(crate) async fn propose(
        mut self,
        host: &impl Host,
        port: &mut Port,
    ) -> Result<[u64; 4], String> {
        let memory = port.register(self.depth * ENTRY).map_err(text)?;
        loop {
            while let Some(number) = self.next(host) {
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
                return Ok(self.words());
            }
            let done = port.completion().await.map_err(text)?;
            if done.status != Status::Done || done.args[0] < self.majority().into() {
                return Err(format!("entry {} ended as {:?}", done.cookie, done.status));
            }
            self.handled += 1;
            self.decide(host, done.cookie);
        }
    }

    /// Sends entries to all other hosts and counts their acknowledgements, until the time is over.
    pub(crate) async fn propose_by_host(mut self, host: &impl Host) -> Result<[u64; 4], String> {
        let mut caller = Caller::open(host, self.depth, ENTRY)?;
        let mut counts: BTreeMap<u64, u16> = BTreeMap::new();
        // Calls that a follower has not answered yet, decided or not.
        let mut open = 0;
        loop {
            while open + usize::from(self.nodes) <= MOST_CALLS
                && let Some(number) = self.next(host)
            {
                counts.insert(number, 1);
                for node in (1..self.nodes).map(NodeId) {
                    let slot = number as usize % self.depth;
                    caller.send(node, slot, number, &entry(number))?;
                    open += 1;
                }
            }
            if self.since.is_empty() {
                return Ok(self.words());
            }
            let number = caller.sent().await?;
            open -= 1;
            self.handled += 1;
            let count = counts.entry(number).or_default();
            *count += 1;
            if *count == self.majority() {
                self.decide(host, number);
            }
        }
    }
}
