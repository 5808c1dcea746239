//! The time of saving and restoring one channel on this machine, both of its FIFOs full: 511 received messages of 128
//! bytes and 255 unsent ones of 240, as in the paper's Table 3.

use std::process::ExitCode;
use std::time::Duration;

use midplane::gang::channel::geometry::Geometry;
use midplane::gang::channel::{Channel, SendError};
use midplane::gang::controller::{ContextId, ContextOptions, Controller};
use midplane::gang::firmware::Gang;
use midplane::gang::live::clock::now;
use midplane::gang::names::{ChannelAddress, ChannelId, Epoch, JobId, Rank};
use midplane::gang::{GANG, GangConfig};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::time::Instant;
use serde::Serialize;

use crate::daemons::parts::runtime;
use crate::fleet::{Failure, text};
use crate::report::{self, quantile};

const JOB: JobId = JobId(1);
/// Number and length of the messages that fill PM's FIFOs.
const SENT: (u32, usize) = (255, 240);
const RECEIVED: (u32, usize) = (511, 128);
/// Measured switches of each mode.
const ROUNDS: u32 = 2_000;

/// Median and 99 % quantile of times, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Spread {
    median_us: f64,
    p99_us: f64,
}

impl Spread {
    /// Summarizes times; `None` if there are none.
    fn of(times: Vec<f64>) -> Option<Self> {
        let any = !times.is_empty();
        any.then(|| Self { median_us: quantile(times.clone(), 0.5), p99_us: quantile(times, 0.99) })
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    mode: &'static str,
    rounds: u32,
    bytes: usize,
    stop: Option<Spread>,
    /// A channel that is kept on the NIC is neither saved nor restored.
    save: Option<Spread>,
    restore: Option<Spread>,
    start: Option<Spread>,
}

/// One rank's end of the channel.
struct End {
    controller: Controller,
    context: ContextId,
    channel: Channel,
}

async fn open(host: &impl Host, shared: bool, rank: u16) -> Result<End, String> {
    let geometry = Geometry::PM;
    let number = ChannelId(1 + rank);
    let opened = Controller::open_mapped(host, number, geometry, shared);
    let mut controller = opened.map_err(text)?;
    let place = |channel| ChannelAddress { node: NodeId(0), channel: ChannelId(channel) };
    let options = ContextOptions { job: JOB, rank: Rank(rank), places: vec![place(1), place(2)] };
    let context = controller.open_context(options).await.map_err(text)?;
    controller.start(context, Epoch(1)).await.map_err(text)?;
    let descriptor = controller.descriptor(context);
    let channel = Channel::attach(host, descriptor).await.map_err(text)?;
    Ok(End { controller, context, channel })
}

/// Sends `count` messages, or until none fits for a while.
async fn fill(from: &mut Channel, to: Rank, (count, bytes): (u32, usize)) -> Result<(), String> {
    let message = vec![0x5A; bytes];
    let (mut sent, mut full) = (0, 0);
    while sent < count && full < 20 {
        match from.try_send(to, &message) {
            Ok(()) => (sent, full) = (sent + 1, 0),
            Err(SendError::Full) => {
                full += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(error) => return Err(text(error)),
        }
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}

/// Measures one mode.
async fn measure(copies: bool) -> Result<Row, String> {
    let mut unit = Unit::default();
    unit.install(GANG, Gang::new(GangConfig::default())).map_err(text)?;
    let name = format!("preempt channel {}", std::process::id());
    let nic = ShmNic::start(ShmConfig::new(name, NodeId(0), 2), unit);
    let nic = nic.map_err(text)?;
    let host = nic.host();
    let (mut own, mut other) = (open(&host, copies, 0).await?, open(&host, copies, 1).await?);
    // Fill the other's receive FIFO first, so that later messages stay in this send FIFO.
    fill(&mut own.channel, Rank(1), RECEIVED).await?;
    fill(&mut other.channel, Rank(0), RECEIVED).await?;
    fill(&mut own.channel, Rank(1), SENT).await?;
    let full = RECEIVED.0 as usize * RECEIVED.1 + SENT.0 as usize * SENT.1;
    let [mut stop, mut save, mut restore, mut start] = [const { Vec::new() }; 4];
    let mut bytes = full;
    let mut saved = None;
    for round in 0..ROUNDS {
        let mut at = now();
        own.controller.stop(own.context).await.map_err(text)?;
        lap(&mut at, &mut stop);
        if copies {
            let context = own.controller.save(own.context, true).await;
            let context = context.map_err(text)?;
            lap(&mut at, &mut save);
            own.controller.restore(own.context, &context).await.map_err(text)?;
            lap(&mut at, &mut restore);
            bytes = context.bytes();
            let held = (context.send, context.receive);
            if saved.replace(held.clone()).is_some_and(|before| before != held) {
                return Err("a context holds other messages after it was restored".into());
            }
            at = now();
        }
        let started = own.controller.start(own.context, Epoch(2 + round)).await;
        lap(&mut at, &mut start);
        started.map_err(text)?;
    }
    // The last message may not fit with its record.
    if copies && bytes + 2 * SENT.1 < full {
        return Err(format!("the FIFOs hold {bytes} bytes, not {full}"));
    }
    let [stop, save, restore, start] = [stop, save, restore, start].map(Spread::of);
    let mode = if copies { "copy" } else { "resident" };
    Ok(Row { mode, rounds: ROUNDS, bytes, stop, save, restore, start })
}

/// Records the time since `at`, and sets `at` to now.
fn lap(at: &mut Instant, of: &mut Vec<f64>) {
    let since = now().nanos_since(*at);
    of.push(since as f64 / 1e3);
    *at = now();
}

#[derive(Serialize)]
struct Document {
    channels: Vec<Row>,
}

/// Measures both modes and prints the results.
pub(crate) fn run(json: bool) -> Result<ExitCode, Failure> {
    let runtime = runtime()?;
    let channels = [true, false].map(|copies| runtime.block_on(measure(copies)));
    let document = Document { channels: channels.into_iter().collect::<Result<_, _>>()? };
    Ok(report::conclude(json, &document, true))
}
