//! The traffic: senders without a limit of their own, a probe of the delay, and a receiver that measures.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use midplane::time;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Failure;
use crate::network::Network;

pub const PORT: u16 = 7_000;
pub const PROBE_PORT: u16 = 7_001;

/// Time after which the receiver begins to measure: TCP has found its rate, and queues are full.
pub const WARM_UP: Duration = Duration::from_secs(1);
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of a message that hold the sender's index and the message's number.
const STAMP: usize = 12;

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Udp,
    Tcp,
}

/// A measurement of the receiver.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Measured {
    /// Bytes of complete messages of each sender, 10^6 bit/s.
    pub sender_mbps: Vec<f64>,
    /// Part of the messages that were sent and did not arrive; 0 for TCP.
    pub loss: f64,
    /// Mean time on the way of the probes that arrived.
    pub delay_ms: f64,
}

impl Measured {
    pub fn goodput_mbps(&self) -> f64 {
        self.sender_mbps.iter().sum()
    }

    /// Returns Jain's index of the senders' goodput: 1 if all have the same.
    pub fn jain(&self) -> f64 {
        let squares: f64 = self.sender_mbps.iter().map(|mbps| mbps * mbps).sum();
        let sum = self.goodput_mbps();
        if squares > 0.0 { sum * sum / (squares * self.sender_mbps.len() as f64) } else { 1.0 }
    }
}

/// A sender, as its receiver sees it during the measurement.
#[derive(Clone, Copy, Default)]
struct Seen {
    bytes: u64,
    messages: u64,
    /// The first and the last number.
    numbers: Option<(u64, u64)>,
}

/// Counts what arrives from WARM_UP after the start.
struct Counts {
    from: Duration,
    until: Duration,
    senders: BTreeMap<u32, Seen>,
    probes: Vec<Duration>,
}

impl Counts {
    fn has_begun(&self, now: Duration) -> bool {
        (self.from..self.until).contains(&now)
    }

    fn measured(&self, senders: u32) -> Measured {
        let seconds = (self.until - self.from).as_secs_f64();
        let of = |index: &u32| self.senders.get(index).copied().unwrap_or_default();
        let seen: Vec<Seen> = (0..senders).map(|index| of(&index)).collect();
        let sent = |seen: &Seen| seen.numbers.map_or(0, |(first, last)| last + 1 - first);
        let sent: u64 = seen.iter().map(sent).sum();
        let arrived: u64 = seen.iter().map(|seen| seen.messages).sum();
        let delay: Duration = self.probes.iter().sum();
        Measured {
            sender_mbps: seen.iter().map(|seen| seen.bytes as f64 * 8e-6 / seconds).collect(),
            loss: if sent > 0 { 1.0 - arrived as f64 / sent as f64 } else { 0.0 },
            delay_ms: delay.as_secs_f64() * 1e3 / self.probes.len().max(1) as f64,
        }
    }
}

type Shared = Arc<Mutex<Counts>>;

fn with<T>(counts: &Shared, use_it: impl FnOnce(&mut Counts) -> T) -> T {
    use_it(&mut counts.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Receives for `WARM_UP` and the time of the measurement.
pub async fn receive<N: Network>(
    protocol: Protocol,
    senders: u32,
    measure: Duration,
) -> Result<Measured, Failure> {
    let from = N::now() + WARM_UP;
    let until = from + measure;
    let counts = Counts { from, until, senders: BTreeMap::new(), probes: Vec::new() };
    let counts = Arc::new(Mutex::new(counts));
    let probes = tokio::spawn(receive_probes::<N>(Arc::clone(&counts)));
    let arrivals = match protocol {
        Protocol::Udp => tokio::spawn(receive_datagrams::<N>(Arc::clone(&counts))),
        Protocol::Tcp => tokio::spawn(receive_streams::<N>(Arc::clone(&counts))),
    };
    time::sleep(WARM_UP + measure).await;
    for task in [probes, arrivals] {
        if task.is_finished() {
            task.await??;
        } else {
            task.abort();
        }
    }
    Ok(with(&counts, |counts| counts.measured(senders)))
}

async fn receive_probes<N: Network>(counts: Shared) -> Result<(), Failure> {
    let (socket, mut bytes) = (N::bind(PROBE_PORT).await?, [0; 64]);
    loop {
        let length = N::receive(&socket, &mut bytes).await?;
        let now = N::now();
        let Some(sent) = bytes[..length].first_chunk() else { continue };
        let took = now.saturating_sub(Duration::from_nanos(u64::from_le_bytes(*sent)));
        with(&counts, |counts| {
            if counts.has_begun(now) {
                counts.probes.push(took);
            }
        });
    }
}

async fn receive_datagrams<N: Network>(counts: Shared) -> Result<(), Failure> {
    let (socket, mut bytes) = (N::bind(PORT).await?, vec![0; 65_536]);
    loop {
        let length = N::receive(&socket, &mut bytes).await?;
        let now = N::now();
        let Some(stamp) = bytes[..length].first_chunk::<STAMP>() else { continue };
        let (index, number) = stamp.split_at(4);
        let index = u32::from_le_bytes(index.try_into()?);
        let number = u64::from_le_bytes(number.try_into()?);
        with(&counts, |counts| {
            if counts.has_begun(now) {
                let seen = counts.senders.entry(index).or_default();
                seen.bytes += length as u64;
                seen.messages += 1;
                let (first, last) = seen.numbers.unwrap_or((number, number));
                seen.numbers = Some((first.min(number), last.max(number)));
            }
        });
    }
}

async fn receive_streams<N: Network>(counts: Shared) -> Result<(), Failure> {
    let mut listener = N::listen(PORT).await?;
    loop {
        let mut stream = N::accept(&mut listener).await?;
        let counts = Arc::clone(&counts);
        tokio::spawn(async move {
            let mut bytes = vec![0; 65_536];
            let index = stream.read_u32_le().await?;
            loop {
                let length = stream.read(&mut bytes).await?;
                if length == 0 {
                    return Ok::<_, std::io::Error>(());
                }
                let now = N::now();
                with(&counts, |counts| {
                    if counts.has_begun(now) {
                        counts.senders.entry(index).or_default().bytes += length as u64;
                    }
                });
            }
        });
    }
}

/// Sends messages without an end.
pub async fn send<N: Network>(
    protocol: Protocol,
    to: SocketAddr,
    index: u32,
    message_bytes: usize,
) -> Result<(), Failure> {
    let mut message = vec![0; message_bytes.max(STAMP)];
    message[..4].copy_from_slice(&index.to_le_bytes());
    if protocol == Protocol::Tcp {
        let mut stream = N::connect(to).await?;
        stream.write_u32_le(index).await?;
        loop {
            stream.write_all(&message).await?;
        }
    }
    let socket = N::bind(PORT).await?;
    for number in 0_u64.. {
        message[4..STAMP].copy_from_slice(&number.to_le_bytes());
        N::send(&socket, &message, to).await?;
    }
    Ok(())
}

/// Sends small datagrams, which wait in the same queue.
pub async fn probe<N: Network>(to: SocketAddr) -> Result<(), Failure> {
    let socket = N::bind(PROBE_PORT).await?;
    loop {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&(N::now().as_nanos() as u64).to_le_bytes());
        N::send(&socket, &bytes, to).await?;
        time::sleep(PROBE_INTERVAL).await;
    }
}
