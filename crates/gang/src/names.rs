//! Names of things: jobs, ranks, channels, the lives of a job between two preemptions.

use std::fmt;

use midplane_simhw::id::NodeId;
use serde::{Deserialize, Serialize};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

name!(
    /// A parallel job; never used again for another one.
    JobId(u32)
);
name!(
    /// A process of a job, from 0.
    Rank(u16)
);
name!(
    /// One of a NIC's channels. Channels do not talk to each other.
    ChannelId(u16)
);
name!(
    /// Counts the times that a job was started or resumed, from 1: frames of another epoch are nobody's.
    Epoch(u32)
);

impl Rank {
    /// As an index into a table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether this one came after `other`: it is ahead by less than half the range.
    #[must_use]
    pub const fn is_newer_than(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) as i32 > 0
    }
}

/// Where a rank's channel is: what a job's ranks are looked up in, and what a saved context never
/// holds.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Place {
    /// The node.
    pub node: NodeId,
    /// Its channel there.
    pub channel: ChannelId,
}
