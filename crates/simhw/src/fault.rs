//! Injected faults.
//!
//! [`Faults`] apply to the links that leave the NICs, and each frame draws its own while they are set. An [`Incident`]
//! is one [`Fault`] at one place, with a begin and a duration. A script of incidents is written by hand, or drawn from
//! a seed by [`Chaos`]. [`FaultCounts`] counts how often each kind has had an effect.
//!
//! In virtual time, a [`World`](crate::sim::World) injects faults. In the links of live NICs, a
//! [`FaultInjector`](crate::nic::FaultInjector) does.

mod chaos;
mod incident;

use std::time::Duration;

use thiserror::Error;

use crate::rng::Rng;
use crate::time::nanos;
use crate::topology::LinkId;

pub use chaos::Chaos;
pub(crate) use incident::Places;
pub use incident::{Fault, FaultCounts, FaultKind, Incident};

/// Faults of the links that leave the NICs, drawn anew for each frame. Probabilities are from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that a frame arrives twice.
    pub duplicate: f64,
    /// Probability that a frame is damaged; the receiver's checksum detects it.
    pub corrupt: f64,
    /// Probability that a frame is delayed by up to [`Faults::delay`]; later frames may overtake it.
    pub reorder: f64,
    /// Longest delay of a frame.
    pub delay: Duration,
    /// Longest extra delay of each piece at the end of its NIC's link; the order is kept. At zero, senders with
    /// exact clocks stay in phase and one of them wins every free place of a full buffer, which real senders do
    /// not. The time that a piece takes on the line is a realistic value.
    pub jitter: Duration,
}

impl Faults {
    /// A network without faults.
    pub const NONE: Self = Self {
        loss: 0.0,
        duplicate: 0.0,
        corrupt: 0.0,
        reorder: 0.0,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
    };

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Checks that each probability is one.
    pub(crate) fn check(&self) -> Result<(), FaultError> {
        let Self { loss, duplicate, corrupt, reorder, .. } = *self;
        let all =
            [("loss", loss), ("duplicate", duplicate), ("corrupt", corrupt), ("reorder", reorder)];
        all.into_iter().try_for_each(|(what, value)| FaultError::check_probability(what, value))
    }

    /// Draws what happens to one frame; `None` if it is lost.
    pub(crate) fn draw(&self, rng: &mut Rng) -> Option<Drawn> {
        if rng.chance(self.loss) {
            return None;
        }
        let is_corrupt = rng.chance(self.corrupt);
        let mut delay =
            |probability| rng.chance(probability).then(|| rng.between(0, nanos(self.delay)));
        Some(Drawn { is_corrupt, delay: delay(self.reorder), copy: delay(self.duplicate) })
    }
}

/// Effect of a fault on a frame that is not lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    /// True if the frame is damaged.
    pub(crate) is_corrupt: bool,
    /// Nanoseconds by which the frame is delayed, if it is.
    pub(crate) delay: Option<u64>,
    /// Nanoseconds by which its copy is delayed, if there is one.
    pub(crate) copy: Option<u64>,
}

/// The reason why a fault was not set.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum FaultError {
    /// A probability is out of range, or NaN.
    #[error("the probability of {what:?} is {value}; it must be 0 to 1")]
    Probability {
        /// Names the fault.
        what: &'static str,
        /// The given value.
        value: f64,
    },
    /// A live NIC cannot have this fault.
    #[error(
        "the fault {0:?} exists in virtual time only; a live NIC takes loss, burst-loss, corrupt, truncate, \
         duplicate, reorder, delay-spike, slow-pair, flap, one-way and partition"
    )]
    Unsupported(FaultKind),
    /// The fault is one of a switch's output, and the link does not begin at a switch.
    #[error("the fault {kind:?} needs a link that begins at a switch; link {} begins elsewhere", .link.0)]
    NoOutput {
        /// The kind of fault.
        kind: FaultKind,
        /// The link that the fault names.
        link: LinkId,
    },
    /// The fault repeats with a period of zero.
    #[error("the fault {0:?} repeats every 0 s, so time would not pass; set a longer period")]
    Period(FaultKind),
    /// The topology has no such place.
    #[error("the fault names {what} {number}; {}", numbers(.what, *.count))]
    Place {
        /// The kind of place: node, link or switch.
        what: &'static str,
        /// The number that the fault names.
        number: u32,
        /// Number of such places.
        count: u32,
    },
}

/// Lists the numbers of `count` places.
fn numbers(what: &str, count: u32) -> String {
    match count {
        0 => format!("the topology has none: it has no {what}"),
        1 => format!("the topology has {what} 0 only"),
        _ => format!("the topology has numbers 0 to {}", count - 1),
    }
}

impl FaultError {
    pub(crate) fn check_probability(what: &'static str, value: f64) -> Result<(), Self> {
        // NaN is in no range.
        if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(Self::Probability { what, value }) }
    }
}
