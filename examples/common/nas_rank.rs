//! One rank of a NAS kernel, as a real process: over the channel that its daemon has given it.

use std::str::FromStr;

use midplane::gang::carrier::ChannelCarrier;
use midplane::gang::live::clock::now;
use midplane::gang::live::rank::join;
use midplane::gang::live::snapshot::Snapshots;
use midplane::gang::nas::{Cg, Class, Ep, Ft, Kernel, RealTime, Verdict};
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::process::Process;
use midplane::via::message::progression::Progression;
use serde::{Deserialize, Serialize};

/// What rank 0 says in the end.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Said {
    pub(crate) kernel: String,
    pub(crate) class: String,
    pub(crate) ranks: u32,
    /// Of the official results.
    pub(crate) verified: bool,
    /// Of all bits of the results.
    pub(crate) checksum: String,
    /// From when all ranks were there until the results were, frozen time included.
    pub(crate) seconds: f64,
}

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Name {
    Ep,
    Cg,
    Ft,
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ep" => Ok(Self::Ep),
            "cg" => Ok(Self::Cg),
            "ft" => Ok(Self::Ft),
            _ => Err(format!("no kernel is called {text}: ep, cg or ft")),
        }
    }
}

/// Runs this process's rank; what is to be said, on rank 0.
pub(crate) async fn run(name: Name, class: Class) -> Result<Option<Said>, String> {
    let (_, channel) = join().await.map_err(|error| error.to_string())?;
    let mut snapshots = Snapshots::join().map_err(|error| error.to_string())?;
    let saved = snapshots.take_restored();
    let (rank, ranks) = (channel.rank(), u32::from(channel.ranks()));
    // Between two steps a kernel has had all that it waits for: what was on its way is of the message
    // layer alone, which begins anew.
    let carrier = match saved {
        Some(_) => ChannelCarrier::anew(channel),
        None => ChannelCarrier::new(channel),
    };
    let engine = Engine::new(carrier, Config::default());
    let (process, scope) = Process::new(engine, ranks).map_err(|error| error.to_string())?;
    let world = Communicator::world(process, scope);
    world.barrier().await.map_err(|error| error.to_string())?;
    let began = now();
    let verdict = match name {
        Name::Ep => kernel::<Ep, _>(class, &world, saved, &mut snapshots).await,
        Name::Cg => kernel::<Cg, _>(class, &world, saved, &mut snapshots).await,
        Name::Ft => kernel::<Ft, _>(class, &world, saved, &mut snapshots).await,
    }?;
    let seconds = now().nanos_since(began) as f64 / 1e9;
    world.finalize().await;
    Ok((rank.0 == 0).then(|| Said {
        kernel: format!("{name:?}").to_lowercase(),
        class: class.to_string(),
        ranks,
        verified: verdict.verified,
        checksum: format!("{:016x}", verdict.checksum),
        seconds,
    }))
}

/// Runs a kernel from its beginning, or from what was saved; is saved between two steps when it is asked
/// to, all ranks between the same two.
async fn kernel<K: Kernel, P: Progression>(
    class: Class,
    world: &Communicator<P>,
    saved: Option<Vec<u8>>,
    snapshots: &mut Snapshots,
) -> Result<Verdict, String>
where
    Communicator<P>: Send + Sync,
{
    let (rank, ranks) = (world.rank().0, world.size());
    let kernel = match saved {
        Some(saved) => K::restore(class, rank, ranks, &saved),
        None => K::begin(class, rank, ranks),
    };
    let mut kernel = kernel.map_err(|error| error.to_string())?;
    while !kernel.step(world, &RealTime).await.map_err(|error| error.to_string())? {
        let asked = [u32::from(snapshots.is_asked())];
        let all = world.all_reduce_slice(&asked, |sum, more| *sum += *more).await;
        if all.map_err(|error| error.to_string())?[0] > 0 {
            snapshots.save(&kernel.save()).map_err(|error| error.to_string())?;
        }
    }
    Ok(kernel.verdict())
}
