//! The time of saving and restoring one channel on this machine, both of its FIFOs full: 511 received messages of 128
//! bytes and 255 unsent ones of 240, as in the paper's Table 3.

use std::time::Duration;

use midplane::gang::channel::geometry::Geometry;
use midplane::gang::channel::{Channel, SendError};
use midplane::gang::controller::{ContextId, ContextOptions, Controller};
use midplane::gang::firmware::Gang;
use midplane::gang::live::clock::now;
use midplane::gang::names::{ChannelId, Epoch, JobId, Place, Rank};
use midplane::gang::{GANG, GangConfig};
use midplane::nicvm::unit::Unit;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::shm::{ShmConfig, ShmNic};
use midplane::simhw::time::Instant;
use serde::Serialize;

const JOB: JobId = JobId(1);
/// Number and length of the messages that fill PM's FIFOs.
const SENT: (u32, usize) = (255, 240);
const RECEIVED: (u32, usize) = (511, 128);

/// Times in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) mode: &'static str,
    pub(crate) rounds: usize,
    pub(crate) bytes: usize,
    pub(crate) median_stop_us: f64,
    pub(crate) median_save_us: f64,
    pub(crate) p99_save_us: f64,
    pub(crate) median_restore_us: f64,
    pub(crate) p99_restore_us: f64,
    /// Time of starting a channel; a resident one needs nothing else for its restoration.
    pub(crate) median_start_us: f64,
    pub(crate) p99_start_us: f64,
}

/// One rank's end of the channel.
struct End {
    controller: Controller,
    context: ContextId,
    channel: Channel,
}

async fn open(host: &impl Host, shared: bool, rank: u16) -> Result<End, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let geometry = Geometry::PM;
    let number = ChannelId(1 + rank);
    let opened = Controller::open_mapped(host, number, geometry, shared);
    let mut controller = opened.map_err(|error| text(&error))?;
    let place = |channel| Place { node: NodeId(0), channel: ChannelId(channel) };
    let options = ContextOptions { job: JOB, rank: Rank(rank), places: vec![place(1), place(2)] };
    let context = controller.open_context(options).await.map_err(|error| text(&error))?;
    controller.start(context, Epoch(1)).await.map_err(|error| text(&error))?;
    let descriptor = controller.descriptor(context);
    let channel = Channel::attach(host, descriptor).await.map_err(|error| text(&error))?;
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
            Err(error) => return Err(error.to_string()),
        }
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}

/// Measures one mode over `rounds` rounds.
///
/// # Errors
/// One line: the error.
pub(crate) async fn measure(copies: bool, rounds: u32) -> Result<Row, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut unit = Unit::default();
    unit.install(GANG, Gang::new(GangConfig::default())).map_err(|error| text(&error))?;
    let name = format!("preempt channel {}", std::process::id());
    let nic = ShmNic::start(ShmConfig::new(name, NodeId(0), 2), unit);
    let nic = nic.map_err(|error| text(&error))?;
    let host = nic.host();
    let (mut own, mut other) = (open(&host, copies, 0).await?, open(&host, copies, 1).await?);
    // Fill the other's receive FIFO first, so that later messages stay in this send FIFO.
    fill(&mut own.channel, Rank(1), RECEIVED).await?;
    fill(&mut other.channel, Rank(0), RECEIVED).await?;
    fill(&mut own.channel, Rank(1), SENT).await?;
    let full = RECEIVED.0 as usize * RECEIVED.1 + SENT.0 as usize * SENT.1;
    let mut took = Took::default();
    let mut bytes = full;
    let mut saved = None;
    for round in 0..rounds {
        let mut at = now();
        own.controller.stop(own.context).await.map_err(|error| text(&error))?;
        lap(&mut at, &mut took.stop);
        if copies {
            let context = own.controller.save(own.context, true).await;
            let context = context.map_err(|error| text(&error))?;
            lap(&mut at, &mut took.save);
            own.controller.restore(own.context, &context).await.map_err(|error| text(&error))?;
            lap(&mut at, &mut took.restore);
            bytes = context.bytes();
            let held = (context.send, context.receive);
            if saved.replace(held.clone()).is_some_and(|before| before != held) {
                return Err("a context holds other messages after it was restored".into());
            }
            at = now();
        }
        let started = own.controller.start(own.context, Epoch(2 + round)).await;
        lap(&mut at, &mut took.start);
        started.map_err(|error| text(&error))?;
    }
    // The last message may not fit with its record.
    if copies && bytes + 2 * SENT.1 < full {
        return Err(format!("the FIFOs hold {bytes} bytes, not {full}"));
    }
    Ok(took.row(copies, bytes))
}

/// Times of each round, in microseconds.
#[derive(Debug, Default)]
struct Took {
    stop: Vec<f64>,
    save: Vec<f64>,
    restore: Vec<f64>,
    start: Vec<f64>,
}

impl Took {
    fn row(&self, copies: bool, bytes: usize) -> Row {
        Row {
            mode: if copies { "copy" } else { "resident" },
            rounds: self.stop.len(),
            bytes,
            median_stop_us: quantile(&self.stop, 0.5),
            median_save_us: quantile(&self.save, 0.5),
            p99_save_us: quantile(&self.save, 0.99),
            median_restore_us: quantile(&self.restore, 0.5),
            p99_restore_us: quantile(&self.restore, 0.99),
            median_start_us: quantile(&self.start, 0.5),
            p99_start_us: quantile(&self.start, 0.99),
        }
    }
}

/// Records the time since `at`, and sets `at` to now.
fn lap(at: &mut Instant, of: &mut Vec<f64>) {
    let since = now().nanos_since(*at);
    of.push(since as f64 / 1e3);
    *at = now();
}

fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() as f64 * part) as usize).copied().unwrap_or(0.0)
}

#[derive(Serialize)]
struct Document {
    channels: Vec<Row>,
}

/// Measures both modes and prints the results.
///
/// # Errors
/// One line: the error.
pub(crate) fn run(json: bool) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let channels = [true, false].map(|copies| runtime.block_on(measure(copies, 2_000)));
    let channels = channels.into_iter().collect::<Result<Vec<_>, _>>()?;
    if json {
        midplane_kit::report::print_json(&Document { channels });
        return Ok(());
    }
    let mut text = format!(
        "{:<9} {:>9} {:>15} {:>15} {:>15}\n",
        "", "stop", "save (99 %)", "restore", "start"
    );
    for row in &channels {
        text += &format!(
            "{:<9} {:>6.2} us {:>5.1} ({:>4.1}) us {:>5.1} ({:>4.1}) us {:>5.2} ({:>4.1}) us\n",
            row.mode,
            row.median_stop_us,
            row.median_save_us,
            row.p99_save_us,
            row.median_restore_us,
            row.p99_restore_us,
            row.median_start_us,
            row.p99_start_us,
        );
    }
    midplane_kit::report::print(&text);
    Ok(())
}
