//! Why frames never arrived, by name, and how many.

use std::fmt;

/// Why a frame, or a piece of one, went no further.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
#[repr(u8)]
pub enum DropCause {
    /// A switch port's buffer was full.
    BufferFull,
    /// A switch had lost a piece of the frame and threw the rest away (PPD).
    PartialDiscard,
    /// A switch refused the whole frame early, for its buffer was filling up (EPD).
    EarlyDiscard,
    /// Some pieces arrived, not all.
    Incomplete,
    /// The last piece of the frame before was lost, so that the two looked like one (AAL5).
    Merged,
    /// The link lost it (a fault).
    LinkLoss,
    /// The link was down (a fault).
    LinkDown,
    /// It was cut short on its way (a fault).
    Truncated,
    /// A switch's table had no room for its circuit (a fault).
    NoCircuit,
    /// A switch was starting anew (a fault).
    SwitchDown,
    /// It arrived damaged, which the link's checksum told (a fault).
    Corrupt,
    /// The two nodes are cut off from each other (a fault).
    Partition,
    /// The receiving NIC is down (a fault).
    NicDown,
    /// The receiving NIC's memory was full.
    NicMemory,
    /// There is no way to the destination.
    NoRoute,
    /// It met a collision each time that it was sent over a shared medium.
    Collisions,
    /// The bytes are no frame of this fabric's version.
    Malformed,
    /// It came from no peer, or claimed to be from another one.
    Stranger,
    /// It was for another node.
    Misrouted,
    /// It was not sealed, or with no keys that its receiver knows.
    Unsealed,
    /// It was sealed, and had been received before, or came too late to tell.
    Replayed,
    /// No keys could be agreed on with its destination.
    NoKeys,
    /// The operating system did not take or keep it.
    System,
}

impl DropCause {
    /// Every cause.
    pub const ALL: [Self; 23] = [
        Self::BufferFull,
        Self::PartialDiscard,
        Self::EarlyDiscard,
        Self::Incomplete,
        Self::Merged,
        Self::LinkLoss,
        Self::LinkDown,
        Self::Truncated,
        Self::NoCircuit,
        Self::SwitchDown,
        Self::Corrupt,
        Self::Partition,
        Self::NicDown,
        Self::NicMemory,
        Self::NoRoute,
        Self::Collisions,
        Self::Malformed,
        Self::Stranger,
        Self::Misrouted,
        Self::Unsealed,
        Self::Replayed,
        Self::NoKeys,
        Self::System,
    ];

    /// The cause's name in reports and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BufferFull => "buffer_full",
            Self::PartialDiscard => "partial_discard",
            Self::EarlyDiscard => "early_discard",
            Self::Incomplete => "incomplete",
            Self::Merged => "merged",
            Self::LinkLoss => "link_loss",
            Self::LinkDown => "link_down",
            Self::Truncated => "truncated",
            Self::NoCircuit => "no_circuit",
            Self::SwitchDown => "switch_down",
            Self::Corrupt => "corrupt",
            Self::Partition => "partition",
            Self::NicDown => "nic_down",
            Self::NicMemory => "nic_memory",
            Self::NoRoute => "no_route",
            Self::Collisions => "collisions",
            Self::Malformed => "malformed",
            Self::Stranger => "stranger",
            Self::Misrouted => "misrouted",
            Self::Unsealed => "unsealed",
            Self::Replayed => "replayed",
            Self::NoKeys => "no_keys",
            Self::System => "system",
        }
    }
}

impl fmt::Display for DropCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How many were dropped, by cause.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Drops([u64; DropCause::ALL.len()]);

impl Drops {
    /// Counts one more.
    pub const fn add(&mut self, cause: DropCause) {
        self.0[cause as usize] += 1;
    }

    /// Counts `count` more.
    pub const fn add_many(&mut self, cause: DropCause, count: u64) {
        self.0[cause as usize] += count;
    }

    /// How many for `cause`.
    #[must_use]
    pub const fn of(&self, cause: DropCause) -> u64 {
        self.0[cause as usize]
    }

    /// How many in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Causes that occurred, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (DropCause, u64)> + '_ {
        DropCause::ALL.into_iter().map(|cause| (cause, self.of(cause))).filter(|(_, n)| *n > 0)
    }
}

impl std::ops::AddAssign for Drops {
    fn add_assign(&mut self, other: Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }
}
