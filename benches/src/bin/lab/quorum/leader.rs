//! The leader's host, with one entry in flight.

use hdrhistogram::Histogram;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::port::{Command, Port, Status};
use midplane::simhw::time::Instant;

use super::extension::{ENTRY, PROPOSE, QUORUM};
use super::{LONGEST, entry};
use crate::calls::{Caller, MAX_CALLS, latencies};
use crate::fleet::text;

pub(crate) struct Leader {
    nodes: u16,
    end: Instant,
    next: u64,
    /// The entry in flight, and when it was proposed.
    open: Option<(u64, Instant)>,
    decided: u64,
    /// Completions at this host.
    handled: u64,
    latency: Histogram<u64>,
}

impl Leader {
    pub(crate) fn new(nodes: u16, end: Instant) -> Self {
        let (open, latency) = (None, latencies());
        Self { nodes, end, next: 0, open, decided: 0, handled: 0, latency }
    }

    const fn majority(&self) -> u16 {
        self.nodes / 2 + 1
    }

    /// Returns the next entry, if none is in flight, and time and room are left.
    fn next(&mut self, host: &impl Host) -> Option<u64> {
        let more = self.open.is_none() && self.next < LONGEST && host.now() < self.end;
        more.then(|| {
            self.open = Some((self.next, host.now()));
            self.next += 1;
            self.next - 1
        })
    }

    fn decide(&mut self, host: &impl Host, number: u64) {
        if let Some((_, since)) = self.open.take_if(|(open, _)| *open == number) {
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
        let memory = port.register(ENTRY).map_err(text)?;
        loop {
            if let Some(number) = self.next(host) {
                memory.write(0, &entry(number)).map_err(text)?;
                let (extension, opcode, region) = (QUORUM, PROPOSE, memory.whole());
                let (args, cookie) = ([number, 0, 0], number);
                let propose =
                    Command { extension, opcode, region, cookie, args, ..Command::default() };
                port.submit(&propose).map_err(text)?;
            }
            if self.open.is_none() {
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
        let mut caller = Caller::open(host, 1, ENTRY)?;
        // Acknowledgements of the entry in flight, and calls that a follower has not answered yet.
        let (mut count, mut calls) = (0, 0);
        loop {
            if calls + usize::from(self.nodes) <= MAX_CALLS
                && let Some(number) = self.next(host)
            {
                for node in (1..self.nodes).map(NodeId) {
                    caller.send(node, 0, number, &entry(number))?;
                    calls += 1;
                }
                count = 1;
            }
            if self.open.is_none() {
                return Ok(self.words());
            }
            let number = caller.sent().await?;
            calls -= 1;
            self.handled += 1;
            count += u16::from(self.open.is_some_and(|(open, _)| open == number));
            if count == self.majority() {
                self.decide(host, number);
            }
        }
    }
}
