//! Three NAS Parallel Benchmarks over messages, written from their definition (reference: the NAS Parallel Benchmarks
//! 3.4; Bailey, Harris, Saphir, van der Wijngaart, Woo and Yarrow, NAS-95-020).
//!
//! Sums over ranks are computed in one fixed order, so a run's results are bit-identical however often it was
//! preempted. Between two steps, a kernel's state is plain data ([`Kernel::save`]).

#![forbid(unsafe_code)]

mod cg;
mod ep;
mod ft;
mod pace;
mod random;

use std::fmt;
use std::future::Future;
use std::str::FromStr;

use midplane_via::message::collective::Operation;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::process::MessageError;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use cg::Cg;
pub use ep::Ep;
pub use ft::Ft;
pub use pace::{Pace, RealTime};

/// Size of a kernel's problem.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub enum Class {
    /// Sample: for short tests.
    S,
    /// Workstation, of the 1990s.
    W,
    /// The smallest class for measurements.
    A,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::S, Self::W, Self::A];
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "S" | "s" => Ok(Self::S),
            "W" | "w" => Ok(Self::W),
            "A" | "a" => Ok(Self::A),
            _ => Err(format!("unknown class {text}: take S, W or A")),
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Errors of a kernel.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum KernelError {
    /// The problem can't be divided among this many ranks.
    #[error("{kernel} of class {class} runs on {allowed} ranks, not {ranks}")]
    Ranks {
        /// The kernel's name.
        kernel: &'static str,
        /// The problem's class.
        class: Class,
        /// The number of ranks.
        ranks: u32,
        /// The numbers of ranks that the kernel supports.
        allowed: &'static str,
    },
    /// A message could not be sent or received.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The saved state is of another kernel, class or rank, or damaged.
    #[error("the saved state is damaged, or of another kernel, class or rank")]
    Saved,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// True if the values agree with the official ones.
    pub verified: bool,
    /// Hash of the bits of all values: equal in runs with equal values.
    pub checksum: u64,
    /// The values, in the order of the official ones.
    pub values: Vec<f64>,
}

impl Verdict {
    /// Compares values with the official ones, each within a relative error of `tolerance`.
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

/// A parallel program that runs in steps, and whose state between two steps is plain data.
pub trait Kernel: Sized + Send {
    /// The kernel's name.
    const NAME: &'static str;

    /// Creates the state of a rank before the first step.
    ///
    /// # Errors
    /// [`KernelError::Ranks`].
    fn begin(class: Class, rank: u32, ranks: u32) -> Result<Self, KernelError>;

    /// Runs one step, together with all other ranks; returns `true` after the last.
    ///
    /// # Errors
    /// [`KernelError::Message`].
    fn step(
        &mut self,
        world: &Communicator,
        pace: &impl Pace,
    ) -> impl Future<Output = Result<bool, KernelError>> + Send
    where
        Communicator: Send + Sync;

    /// Returns the result, after the last step.
    fn verdict(&self) -> Verdict;

    /// Saves the state between two steps.
    fn save(&self) -> Vec<u8>;

    /// Restores a saved state.
    ///
    /// # Errors
    /// [`KernelError`] if the state was saved for other arguments.
    fn restore(class: Class, rank: u32, ranks: u32, saved: &[u8]) -> Result<Self, KernelError>;
}

/// Runs a kernel from beginning to end.
///
/// # Errors
/// [`KernelError`].
///
/// # Cancel safety
/// None: the other ranks wait for this one.
pub async fn run<K: Kernel>(
    class: Class,
    world: &Communicator,
    pace: &impl Pace,
) -> Result<Verdict, KernelError>
where
    Communicator: Send + Sync,
{
    let mut kernel = K::begin(class, world.rank().0, world.size())?;
    while !kernel.step(world, pace).await? {}
    Ok(kernel.verdict())
}

/// Sums vectors over all ranks, in the order of the ranks.
async fn sum(world: &Communicator, values: &[f64]) -> Result<Vec<f64>, MessageError>
where
    Communicator: Send + Sync,
{
    world.all_reduce(values, Operation::Sum).await
}

/// Parses a list of numbers such as "1, 2 or 4".
#[cfg(test)]
fn numbers(list: &str) -> Vec<u32> {
    let numbers = list.split(|letter: char| !letter.is_ascii_digit());
    numbers.filter_map(|number| number.parse().ok()).collect()
}
