//! Three of the NAS Parallel Benchmarks over messages, written from their definition (reference: the
//! NAS Parallel Benchmarks 3.4; Bailey, Harris, Saphir, van der Wijngaart, Woo and Yarrow, NAS-95-020).
//!
//! Sums over ranks are made in one fixed order, so that a run gives the same bits however often it was
//! preempted. Between two steps a kernel's state is plain data ([`Kernel::save`]).

mod cg;
mod ep;
mod ft;
mod pace;
mod random;

use std::fmt;
use std::future::Future;
use std::str::FromStr;

use midplane_via::message::communicator::Communicator;
use midplane_via::message::process::MessageError;
use midplane_via::message::progression::Progression;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use cg::Cg;
pub use ep::Ep;
pub use ft::Ft;
pub use pace::{Pace, RealTime, VirtualTime};

/// How large a problem is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub enum Class {
    /// For trying out.
    S,
    /// For a workstation of the nineties.
    W,
    /// The smallest that is measured with.
    A,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::S, Self::W, Self::A];
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "S" | "s" => Ok(Self::S),
            "W" | "w" => Ok(Self::W),
            "A" | "a" => Ok(Self::A),
            _ => Err(format!("no class is called {text}: S, W or A")),
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why a kernel did not come to its end.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum KernelError {
    /// The problem can't be cut for so many ranks.
    #[error("{kernel} of class {class} runs on {allowed} ranks, not {ranks}")]
    Ranks {
        /// Which kernel.
        kernel: &'static str,
        /// Which problem.
        class: Class,
        /// How many ranks there are.
        ranks: u32,
        /// What it runs on.
        allowed: &'static str,
    },
    /// A message did not arrive.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// What was saved is another kernel's, or damaged.
    #[error("the saved state is no state of this kernel, class and rank")]
    Saved,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whether the results are the official ones.
    pub verified: bool,
    /// The bits of all results: equal runs have equal ones.
    pub checksum: u64,
    /// The results, in the order of the official ones.
    pub values: Vec<f64>,
}

impl Verdict {
    /// Compares results with the official ones, each within a relative error.
    fn of(values: Vec<f64>, official: &[f64], tolerance: f64) -> Self {
        let close =
            |(value, official): (&f64, &f64)| ((value - official) / official).abs() <= tolerance;
        let verified = values.len() == official.len() && values.iter().zip(official).all(close);
        let mix = |sum: u64, value: &f64| {
            (sum.rotate_left(5) ^ value.to_bits()).wrapping_mul(0x100_0000_01B3)
        };
        let checksum = values.iter().fold(0xCBF2_9CE4_8422_2325, mix);
        Self { verified, checksum, values }
    }
}

/// A parallel program that goes on in steps, and whose state between two steps is plain data.
pub trait Kernel: Sized + Send {
    /// Its name.
    const NAME: &'static str;

    /// Begins a problem.
    ///
    /// # Errors
    /// [`KernelError::Ranks`].
    fn begin(class: Class, rank: u32, ranks: u32) -> Result<Self, KernelError>;

    /// Makes one step together with all other ranks; `true` after the last.
    ///
    /// # Errors
    /// [`KernelError::Message`].
    fn step<P: Progression>(
        &mut self,
        world: &Communicator<P>,
        pace: &impl Pace,
    ) -> impl Future<Output = Result<bool, KernelError>> + Send
    where
        Communicator<P>: Send + Sync;

    /// What came of it, after the last step.
    fn verdict(&self) -> Verdict;

    /// All that the rest depends on.
    fn save(&self) -> Vec<u8>;

    /// Goes on from what was saved.
    ///
    /// # Errors
    /// [`KernelError`] if it was saved from something else.
    fn restore(class: Class, rank: u32, ranks: u32, saved: &[u8]) -> Result<Self, KernelError>;
}

/// Runs a kernel from beginning to end.
///
/// # Errors
/// [`KernelError`].
///
/// # Cancel safety
/// None: the other ranks wait for this one.
pub async fn run<K: Kernel, P: Progression>(
    class: Class,
    world: &Communicator<P>,
    pace: &impl Pace,
) -> Result<Verdict, KernelError>
where
    Communicator<P>: Send + Sync,
{
    let mut kernel = K::begin(class, world.rank().0, world.size())?;
    while !kernel.step(world, pace).await? {}
    Ok(kernel.verdict())
}

/// Adds vectors of all ranks, by their ranks' order.
async fn sum<P: Progression>(
    world: &Communicator<P>,
    values: &[f64],
) -> Result<Vec<f64>, MessageError>
where
    Communicator<P>: Send + Sync,
{
    world.all_reduce_slice(values, |a, b| *a += *b).await
}
