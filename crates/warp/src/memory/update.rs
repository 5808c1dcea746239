//! The messages from one node's memory to another's.

use serde::{Deserialize, Serialize};

use super::Location;
use super::coherent::Coherence;
use crate::latest::{Ack, Copy};

/// A message from one node's memory to another's.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) enum Update<V> {
    /// A slow write; may be lost.
    Slow {
        /// The location that is written.
        location: Location,
        /// Number of the write among the writer's slow writes to this location, from 1.
        order: u64,
        /// Number of the copy among all copies sent; its acknowledgement repeats it.
        number: u64,
        /// The writer's Lamport clock: the version of the value.
        clock: u64,
        /// The value that is written.
        value: V,
    },
    /// The acknowledgement of a slow write, or the refusal of a PRAM write; may be lost.
    SlowAck {
        /// The acknowledgement. Its version is the clock of the writer's newest slow write to the
        /// location; 0 for a PRAM write.
        ack: Ack<Location>,
        /// The write's fate at the receiver.
        fate: Fate,
    },
    /// A PRAM write; must arrive once and in order.
    Pram {
        /// The location that is written.
        location: Location,
        /// Number of the write among the writer's PRAM writes, from 1.
        order: u64,
        /// The writer's Lamport clock.
        clock: u64,
        /// The value that is written.
        value: V,
    },
    /// A message of the ordering protocol for coherent writes; must arrive once and in order.
    Coherent(Coherence<V>),
}

/// The outcome of a slow write at its receiver.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Fate {
    /// It shows the write, or has shown it.
    Shown,
    /// It shows a later value of another node. It has this clock.
    Older(u64),
    /// It ignores the write: the writer has restarted, and had made writes with this clock or a later
    /// one before. It has this clock.
    Repeated(u64),
    /// It has no room for the location.
    Refused,
}

impl<V> Update<V> {
    /// Makes the update that carries a copy of a slow write.
    pub(super) fn of(copy: &Copy<'_, Location, (u64, V)>) -> Self
    where
        V: Clone,
    {
        let (order, value) = copy.value.clone();
        Self::Slow { location: *copy.key, order, number: copy.number, clock: copy.version, value }
    }

    /// Returns true if the update must arrive once and in order, as nicvm's control messages do.
    /// Others may be lost, and are sent when the gate is open.
    #[must_use]
    pub(crate) const fn is_reliable(&self) -> bool {
        matches!(self, Self::Pram { .. } | Self::Coherent(_))
    }
}
