//! The clients: one measures, the other answers, is stopped, and is killed at the end.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::nicd::{Client, ClientConfig};
use midplane::simhw::port::PortOptions;
use midplane::via::attributes::{Address, Reliability, ViAttributes};
use midplane::via::descriptor::Descriptor;
use midplane::via::memory::{Memory, MemoryOptions};
use midplane::via::nic::{Nic, ViId, WorkQueue};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::fleet::text;

/// Time limit of every step; without a failure each is much faster.
const PATIENCE: Duration = Duration::from_secs(10);
/// Messages to the stopped process.
const BURST: usize = 64;
/// Shortest time for which it is stopped.
const STOPPED: Duration = Duration::from_millis(50);

/// Results of the measuring client.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    /// Round trips between two processes over their daemons.
    round_trips: u64,
    median_us: f64,
    p99_us: f64,
    /// Messages that were acknowledged and placed in the stopped process's memory.
    to_stopped: usize,
    to_stopped_us: f64,
    /// Messages that it found complete when it resumed.
    found: usize,
    /// Time from the kill of a process until its peer's interface reported the broken connection.
    killed_us: f64,
}

#[expect(clippy::disallowed_methods, reason = "it measures the machine")]
fn now() -> Instant {
    Instant::now()
}

/// Fails if `part` takes longer than the time limit.
async fn soon<T>(what: &str, part: impl Future<Output = T>) -> Result<T, String> {
    let done = tokio::time::timeout(PATIENCE, part).await;
    done.map_err(|_| format!("{what} took more than {PATIENCE:?}"))
}

/// A Virtual Interface between the two clients.
struct Interface {
    nic: Nic,
    vi: ViId,
    sends: Memory,
    receives: Memory,
    bytes: usize,
}

impl Interface {
    async fn open(host: &impl Host, peer: NodeId, bytes: usize) -> Result<Self, String> {
        let mut nic = Nic::open(host, PortOptions::default()).await.map_err(text)?;
        let attributes = ViAttributes {
            // A send completes once the message is in the peer's memory.
            reliability: Reliability::ReliableReception,
            ..ViAttributes::default()
        };
        let vi = nic.create_vi(attributes).await.map_err(text)?;
        let sends = nic.register(BURST * bytes, MemoryOptions::default()).map_err(text)?;
        let receives = nic.register(BURST * bytes, MemoryOptions::default()).map_err(text)?;
        let mut interface = Self { nic, vi, sends, receives, bytes };
        for slot in 0..BURST {
            interface.post(slot)?;
        }
        let name = |node: NodeId| node.0.to_le_bytes();
        let to = Address::new(peer, &name(peer)).expect("two bytes");
        let own = interface.nic.node();
        let own = Address::new(own, &name(own)).expect("two bytes").discriminator;
        let ticket = interface.nic.connect_peer(vi, to, own, Some(PATIENCE)).map_err(text)?;
        interface.nic.finish(&ticket).await.map_err(text)?;
        Ok(interface)
    }

    fn post(&mut self, slot: usize) -> Result<(), String> {
        let segment = self.receives.segment(slot * self.bytes, self.bytes).map_err(text)?;
        self.nic.post_receive(self.vi, Descriptor::of(segment)).map_err(text)
    }

    /// Posts a message that begins with `word`.
    fn send(&mut self, slot: usize, word: u64) -> Result<(), String> {
        self.sends.write(slot * self.bytes, &word.to_le_bytes()).map_err(text)?;
        let segment = self.sends.segment(slot * self.bytes, self.bytes).map_err(text)?;
        self.nic.post_send(self.vi, Descriptor::of(segment)).map_err(text)
    }

    /// Waits for the completion of the next send.
    async fn sent(&mut self) -> Result<(), String> {
        let done = self.nic.wait(self.vi, WorkQueue::Send).await.map_err(text)?;
        done.outcome.map_err(text)
    }

    /// Receives the next message; returns its first word, and posts its buffer again.
    async fn receive(&mut self) -> Result<u64, String> {
        let done = self.nic.wait(self.vi, WorkQueue::Receive).await.map_err(text)?;
        done.outcome.map_err(text)?;
        let mut word = [0; 8];
        let segment = &done.descriptor.segments[0];
        segment.memory().read(segment.offset(), &mut word).map_err(text)?;
        self.nic.post_receive(self.vi, done.descriptor).map_err(text)?;
        Ok(u64::from_le_bytes(word))
    }
}

async fn connect(name: &str, node: NodeId, bytes: usize) -> Result<Interface, String> {
    let client = Client::meet(ClientConfig::new(name, node), PATIENCE).await.map_err(text)?;
    let peer = NodeId(1 - node.0);
    soon("connecting", Interface::open(&client.host(), peer, bytes)).await?
}

/// Runs the second client until it is killed: it sends its process number, echoes messages, and reports how many of a
/// burst it found.
pub(crate) async fn answer(name: &str, bytes: usize) -> Result<(), String> {
    let mut interface = connect(name, NodeId(1), bytes).await?;
    interface.send(0, std::process::id().into())?;
    interface.sent().await?;
    let mut next = 1;
    loop {
        let word = interface.receive().await?;
        // A burst is acknowledged once, when all of it has arrived.
        if word == next {
            next += 1;
        }
        if word == 0 || word as usize == BURST {
            interface.send(0, next - 1)?;
            interface.sent().await?;
        }
        if word as usize == BURST {
            next = 1;
        }
    }
}

/// Runs the first client, which measures.
pub(crate) async fn ask(name: &str, bytes: usize, time: Duration) -> Result<Figures, String> {
    let mut interface = connect(name, NodeId(0), bytes).await?;
    let peer = soon("the other client", interface.receive()).await??;
    let trips = soon("round trips", round_trips(&mut interface, time)).await??;
    let peer = i32::try_from(peer).ok().and_then(Pid::from_raw).ok_or("a process has no number")?;
    kill_process(peer, Signal::STOP).map_err(text)?;
    let begin = now();
    let sent = soon("sending to a stopped process", burst(&mut interface)).await?;
    let to_stopped_us = begin.elapsed().as_secs_f64() * 1e6;
    tokio::time::sleep(STOPPED).await;
    kill_process(peer, Signal::CONT).map_err(text)?;
    let to_stopped = sent?;
    let found = soon("going on", interface.receive()).await??;
    kill_process(peer, Signal::KILL).map_err(text)?;
    let begin = now();
    soon("the news of its end", until_broken(&mut interface)).await?;
    Ok(Figures {
        round_trips: trips.len(),
        median_us: trips.value_at_quantile(0.5) as f64 / 1e3,
        p99_us: trips.value_at_quantile(0.99) as f64 / 1e3,
        to_stopped,
        to_stopped_us,
        found: usize::try_from(found).unwrap_or(0),
        killed_us: begin.elapsed().as_secs_f64() * 1e6,
    })
}

async fn round_trips(interface: &mut Interface, time: Duration) -> Result<Histogram<u64>, String> {
    let mut trips = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constants");
    let until = now() + time;
    while now() < until || trips.is_empty() {
        let begin = now();
        interface.send(0, 0)?;
        interface.receive().await?;
        trips.saturating_record(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        interface.sent().await?;
    }
    Ok(trips)
}

/// Sends as many messages as the peer has posted buffers; returns how many were placed in its memory.
async fn burst(interface: &mut Interface) -> Result<usize, String> {
    for slot in 0..BURST {
        interface.send(slot, slot as u64 + 1)?;
    }
    for _ in 0..BURST {
        interface.sent().await?;
    }
    Ok(BURST)
}

/// Sends until a send fails.
async fn until_broken(interface: &mut Interface) {
    while interface.send(0, 0).is_ok() && interface.sent().await.is_ok() {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}
