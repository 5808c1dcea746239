//! One rank of a NAS kernel as a real process, over the channel that its daemon has given it.

use clap::ValueEnum;
use midplane::gang::carrier::ChannelCarrier;
use midplane::gang::live::clock::now;
use midplane::gang::live::rank::join;
use midplane::gang::live::snapshot::Snapshots;
use midplane::via::message::collective::Operation;
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane_nas::{Cg, Class, Ep, Ft, Kernel, Pace, Verdict};
use serde::{Deserialize, Serialize};

/// Rank 0's result.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct KernelResult {
    pub kernel: String,
    pub class: String,
    pub ranks: u32,
    /// True if the results are the official ones.
    pub verified: bool,
    /// Checksum of all bits of the results.
    pub checksum: String,
    /// Seconds of the last run, from when all ranks had started until the results, frozen time included.
    pub seconds: f64,
}

/// A NAS kernel.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Name {
    Ep,
    Cg,
    Ft,
}

impl Name {
    /// Returns its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ep => "ep",
            Self::Cg => "cg",
            Self::Ft => "ft",
        }
    }
}

/// Runs this process's rank `times` times; rank 0 returns its result. Between two runs, reports work of 0 operations
/// to `pace`.
pub async fn run(
    (name, class): (Name, Class),
    times: u32,
    pace: &impl Pace,
) -> Result<Option<KernelResult>, String> {
    let (_, channel) = join().await.map_err(|error| error.to_string())?;
    let mut snapshots = Snapshots::join().map_err(|error| error.to_string())?;
    let mut saved = snapshots.take_restored();
    let (rank, ranks) = (channel.rank(), u32::from(channel.ranks()));
    // Between two steps a kernel waits for no message; what was in flight belongs to the message layer alone, which
    // starts anew.
    let carrier = match saved {
        Some(_) => ChannelCarrier::restored(channel),
        None => ChannelCarrier::new(channel),
    };
    // A kernel does nothing while it waits for messages.
    let engine = Engine::new(carrier.publish_waits(), Config::default());
    let world = Communicator::world(engine, ranks).map_err(|error| error.to_string())?;
    let mut result: Option<KernelResult> = None;
    for _ in 0..times {
        world.barrier().await.map_err(|error| error.to_string())?;
        let began = now();
        let saved = saved.take();
        let verdict = match name {
            Name::Ep => kernel::<Ep>(class, &world, saved, &mut snapshots, pace).await,
            Name::Cg => kernel::<Cg>(class, &world, saved, &mut snapshots, pace).await,
            Name::Ft => kernel::<Ft>(class, &world, saved, &mut snapshots, pace).await,
        }?;
        pace.work(0).await;
        let seconds = now().nanos_since(began) as f64 / 1e9;
        let checksum = format!("{:016x}", verdict.checksum);
        if result.as_ref().is_some_and(|before| before.checksum != checksum) {
            return Err(format!("{name:?} computed other bits than in the run before"));
        }
        let verified = verdict.verified && result.is_none_or(|before| before.verified);
        let kernel = name.name().to_owned();
        let class = class.to_string();
        result = Some(KernelResult { kernel, class, ranks, verified, checksum, seconds });
    }
    world.finalize().await;
    Ok(result.filter(|_| rank.0 == 0))
}

/// Runs a kernel from its beginning, or from a saved state. On request it saves its state between two steps, the same
/// two on all ranks.
async fn kernel<K: Kernel>(
    class: Class,
    world: &Communicator,
    saved: Option<Vec<u8>>,
    snapshots: &mut Snapshots,
    pace: &impl Pace,
) -> Result<Verdict, String>
where
    Communicator: Send + Sync,
{
    let (rank, ranks) = (world.rank().0, world.size());
    let kernel = match saved {
        Some(saved) => K::restore(class, rank, ranks, &saved),
        None => K::begin(class, rank, ranks),
    };
    let mut kernel = kernel.map_err(|error| error.to_string())?;
    while !kernel.step(world, pace).await.map_err(|error| error.to_string())? {
        let asked = [u32::from(snapshots.is_asked())];
        let all = world.all_reduce(&asked, Operation::Sum).await;
        if all.map_err(|error| error.to_string())?[0] > 0 {
            snapshots.save(&kernel.save()).map_err(|error| error.to_string())?;
        }
    }
    Ok(kernel.verdict())
}
