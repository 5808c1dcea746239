//! One rank of a NAS kernel, as a real process: over the channel that its daemon has given it.

use std::str::FromStr;

use midplane::gang::carrier::ChannelCarrier;
use midplane::gang::live::clock::now;
use midplane::gang::live::rank::join;
use midplane::gang::nas::{self, Cg, Class, Ep, Ft, Kernel, RealTime, Verdict};
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::process::Process;
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
    let (rank, ranks) = (channel.rank(), u32::from(channel.ranks()));
    let engine = Engine::new(ChannelCarrier::new(channel), Config::default());
    let (process, scope) = Process::new(engine, ranks).map_err(|error| error.to_string())?;
    let world = Communicator::world(process, scope);
    world.barrier().await.map_err(|error| error.to_string())?;
    let began = now();
    let verdict = match name {
        Name::Ep => kernel::<Ep, _>(class, &world).await,
        Name::Cg => kernel::<Cg, _>(class, &world).await,
        Name::Ft => kernel::<Ft, _>(class, &world).await,
    };
    let verdict = verdict.map_err(|error| error.to_string())?;
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

async fn kernel<K: Kernel, P: midplane::via::message::progression::Progression>(
    class: Class,
    world: &Communicator<P>,
) -> Result<Verdict, nas::KernelError>
where
    Communicator<P>: Send + Sync,
{
    nas::run::<K, _>(class, world, &RealTime).await
}
