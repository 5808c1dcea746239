//! Measures the age of the replicas that rank 0 has of the other ranks' state.

use std::time::Duration;

use midplane::nicvm::messages::{MESSAGES, Messages};
use midplane::nicvm::unit::Unit;
use midplane::simhw::id::NodeId;
use midplane::simhw::nic::LiveHost;
use midplane::simhw::time::LineRate;
use midplane::warp::firmware::{WARP, Warp, WarpConfig};
use midplane::warp::memory::extension::{MERMERA, Mermera, MermeraConfig};
use midplane::warp::memory::{Location, MemoryHandle};
use midplane_kit::clock::{now, time_of_day};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::claims::median;
use crate::contest::{Fabric, Side, Site};
use crate::fan_in::LINK_MBPS;

/// Pieces of state of each other rank.
const PIECES: u32 = 4;
/// Bytes of a piece, which include the time of its making.
const PIECE: usize = 1_000;
/// State that all other ranks make together, in 10^6 bit/s: 1.5 times the port's rate.
const MADE_MBPS: u64 = 150;
/// Interval at which rank 0 reads all pieces.
const READ: Duration = Duration::from_millis(3);
/// Bytes that Warp lets wait before the port; they grow stale there.
const QUEUE: u32 = 8 << 10;
/// Delay of feedback that slow memory assumes.
const DELAY: Duration = Duration::from_millis(2);
/// Time before the measurement.
const WARM_UP: Duration = Duration::from_millis(250);

/// Piece of state.
#[derive(Deserialize, Serialize)]
struct Piece {
    made_ns: u64,
    rest: Vec<u8>,
}

impl Piece {
    fn new() -> Self {
        Self { made_ns: time_of_day().as_nanos() as u64, rest: vec![7; PIECE - 16] }
    }
}

/// Measures the median age of the pieces that rank 0 reads, in ms.
pub(crate) async fn measure(site: &Site<'_>, side: Side, number: u32) -> Result<Vec<f64>, String> {
    match side {
        Side::Ours => {
            let work = async |host| slow(site, &host).await;
            site.with_nic((Fabric::Switch, site.ranks()), number, unit(site)?, work).await
        }
        Side::Theirs if site.rank == 0 => read_tcp(site).await,
        Side::Theirs => write_tcp(site).await,
    }
}

fn until(site: &Site<'_>) -> std::time::Instant {
    now() + WARM_UP + site.time()
}

/// Returns the interval at which a rank makes all of its pieces anew.
fn every(site: &Site<'_>) -> Duration {
    let bits = u64::from(site.ranks() - 1) * u64::from(PIECES) * PIECE as u64 * 8;
    Duration::from_nanos(bits * 1_000 / MADE_MBPS)
}

fn age_ms(made_ns: u64) -> f64 {
    (time_of_day().as_nanos() as f64 - made_ns as f64) / 1e6
}

/// Creates the firmware: every rank shares memory with rank 0.
fn unit(site: &Site<'_>) -> Result<Unit, String> {
    let others: Vec<NodeId> = match site.rank {
        0 => (1..site.ranks()).map(NodeId).collect(),
        _ => vec![NodeId(0)],
    };
    let rate = LineRate::mbps(LINK_MBPS.into());
    let mut config = WarpConfig::new(&others, rate, QUEUE, site.ranks() - 1);
    config = config.paces_others(true);
    let (warp, gates) = Warp::new(config);
    let mut nodes = others;
    nodes.push(NodeId(site.rank));
    nodes.sort_unstable();
    let mut config = MermeraConfig::new(&nodes, DELAY);
    config = config.gates(gates);
    let mut unit = Unit::default();
    unit.install(MESSAGES, Messages::new()).map_err(|error| error.to_string())?;
    unit.install(WARP, warp).map_err(|error| error.to_string())?;
    unit.install(MERMERA, Mermera::new(config)).map_err(|error| error.to_string())?;
    Ok(unit)
}

/// Writes this rank's pieces to slow memory, or reads those of the others.
async fn slow(site: &Site<'_>, host: &LiveHost) -> Result<Vec<f64>, String> {
    let mut memory = MemoryHandle::<Piece>::open(host).map_err(|error| error.to_string())?;
    let place = |rank: u16, piece: u32| -> Location { u32::from(rank) * PIECES + piece };
    let every = if site.rank > 0 { every(site) } else { READ };
    let (until, mut ticks) = (until(site), tokio::time::interval(every));
    let from = until - site.time();
    let mut ages = Vec::new();
    while now() < until {
        ticks.tick().await;
        if site.rank > 0 {
            for piece in 0..PIECES {
                let written = memory.slow_write(place(site.rank, piece), &Piece::new()).await;
                written.map_err(|error| error.to_string())?;
            }
            continue;
        }
        for rank in 1..site.ranks() {
            for piece in 0..PIECES {
                let seen = memory.read(place(rank, piece)).await;
                let seen = seen.map_err(|error| error.to_string())?;
                if let Some(piece) = seen
                    && now() >= from
                {
                    ages.push(age_ms(piece.made_ns));
                }
            }
        }
    }
    let wanted = f64::from(site.ranks() - 1) * f64::from(PIECES);
    if site.rank == 0 && (ages.len() as f64) < wanted {
        return Err("fewer pieces arrived than there are".into());
    }
    Ok(if site.rank == 0 { vec![median(ages)] } else { Vec::new() })
}

async fn write_tcp(site: &Site<'_>) -> Result<Vec<f64>, String> {
    let mut stream = site.connect(site.cluster.switch).await?;
    let (until, mut ticks) = (until(site), tokio::time::interval(every(site)));
    while now() < until {
        ticks.tick().await;
        for piece in 0..PIECES {
            let mut bytes = [7; PIECE];
            let made = (time_of_day().as_nanos() as u64).to_le_bytes();
            bytes[..4].copy_from_slice(&piece.to_le_bytes());
            bytes[4..12].copy_from_slice(&made);
            // The reader closes the stream when the measurement ends.
            if stream.write_all(&bytes).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }
    Ok(Vec::new())
}

async fn read_tcp(site: &Site<'_>) -> Result<Vec<f64>, String> {
    let count = usize::from(site.ranks() - 1) * PIECES as usize;
    let state = Arc::new(Mutex::new(vec![None; count]));
    let mut readers = JoinSet::new();
    for rank in 0..site.ranks() - 1 {
        let (mut stream, state) = (site.accept().await?, Arc::clone(&state));
        readers.spawn(async move {
            let mut bytes = [0; PIECE];
            while stream.read_exact(&mut bytes).await.is_ok() {
                let piece = bytes[0] as usize % PIECES as usize;
                let made = bytes[4..12].try_into().map_or(0, u64::from_le_bytes);
                let at = usize::from(rank) * PIECES as usize + piece;
                state.lock().expect("no holder panics")[at] = Some(made);
            }
        });
    }
    let (until, mut ticks) = (until(site), tokio::time::interval(READ));
    let from = until - site.time();
    let mut ages = Vec::new();
    while now() < until {
        ticks.tick().await;
        if now() >= from {
            let state = state.lock().expect("no holder panics");
            ages.extend(state.iter().flatten().map(|made| age_ms(*made)));
        }
    }
    Ok(vec![median(ages)])
}
