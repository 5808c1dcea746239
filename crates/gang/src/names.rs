//! Identifiers of jobs, ranks, channels, and epochs (the periods in which a job runs).

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
    /// A parallel job. A root never reuses a job's number.
    JobId(u32)
);
name!(
    /// A process of a job, numbered from 0.
    Rank(u16)
);
name!(
    /// One of a NIC's channels. It runs one job's context at a time.
    ChannelId(u16)
);
name!(
    /// Number of starts of a job, from 1. Frames of another epoch are dropped.
    Epoch(u32)
);

impl Rank {
    /// Returns the rank as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Epoch {
    /// Returns the next epoch.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns whether this epoch is newer than `other`: ahead of it by less than half the range.
    #[must_use]
    #[doc(hidden)]
    pub const fn is_newer_than(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) as i32 > 0
    }
}

/// The node and channel of a rank. A saved context never contains one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct ChannelAddress {
    /// The rank's node.
    pub node: NodeId,
    /// The rank's channel on that node.
    pub channel: ChannelId,
}
