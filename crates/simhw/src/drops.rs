//! Names and counts the causes for which frames are dropped.

use std::fmt;

/// The cause for which a frame, or a piece of one, was dropped.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
#[repr(u8)]
pub enum DropCause {
    /// A switch port's buffer was full. On fabrics of one's own: the queue to a peer had no space for a frame. Over shared
    /// memory: it had no space for the peer's copy of a broadcast.
    BufferFull,
    /// A switch had lost a piece of the frame and dropped the rest (partial packet discard, PPD).
    PartialDiscard,
    /// A switch refused the whole frame because its buffer was filling up (early packet discard, EPD).
    EarlyDiscard,
    /// Some pieces of the frame arrived, but not all.
    Incomplete,
    /// The previous frame's last piece was lost, so the receiver took both frames for one (AAL5).
    Merged,
    /// The link lost the frame (a fault).
    LinkLoss,
    /// The link was down (a fault).
    LinkDown,
    /// The frame was cut short on the link (a fault).
    Truncated,
    /// A switch's table had no room for the frame's circuit (a fault).
    NoCircuit,
    /// A switch was restarting (a fault).
    SwitchDown,
    /// The frame arrived damaged, as the link's checksum showed (a fault).
    Corrupt,
    /// A partition separates the two nodes (a fault).
    Partition,
    /// The receiving NIC is down (a fault).
    NicDown,
    /// The receiving NIC's memory was full.
    NicMemory,
    /// The receiving host had posted no buffer for the packet.
    NoBuffer,
    /// The receiving socket was full, or the backlog of the listener.
    SocketFull,
    /// No route leads to the destination.
    NoRoute,
    /// The frame's hop limit reached zero.
    HopLimit,
    /// Each attempt to send the frame on a shared medium collided.
    Collisions,
    /// The bytes do not parse as a frame of this fabric's version.
    Malformed,
    /// The frame came from an unknown peer, or named another source than its sender.
    Stranger,
    /// The frame was addressed to another node.
    Misrouted,
    /// The frame was not sealed, or sealed with keys that its receiver does not know.
    Unsealed,
    /// The sealed frame had been received before, or arrived too late to check for a replay.
    Replayed,
    /// The sender could agree on no keys with the destination.
    NoKeys,
    /// The operating system refused the frame or dropped it.
    System,
}

impl DropCause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 26] = [
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
        Self::NoBuffer,
        Self::SocketFull,
        Self::NoRoute,
        Self::HopLimit,
        Self::Collisions,
        Self::Malformed,
        Self::Stranger,
        Self::Misrouted,
        Self::Unsealed,
        Self::Replayed,
        Self::NoKeys,
        Self::System,
    ];

    /// Returns the cause's name in reports and traces.
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
            Self::NoBuffer => "no_buffer",
            Self::SocketFull => "socket_full",
            Self::NoRoute => "no_route",
            Self::HopLimit => "hop_limit",
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

/// Counts of dropped frames, by cause.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct Drops([u64; DropCause::ALL.len()]);

impl Drops {
    /// Counts one dropped frame.
    #[doc(hidden)]
    pub const fn add(&mut self, cause: DropCause) {
        self.0[cause as usize] += 1;
    }

    /// Counts `count` dropped frames.
    pub(crate) const fn add_many(&mut self, cause: DropCause, count: u64) {
        self.0[cause as usize] += count;
    }

    /// Returns the number of drops for `cause`.
    #[must_use]
    pub const fn of(&self, cause: DropCause) -> u64 {
        self.0[cause as usize]
    }

    /// Returns the number of drops for all causes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Iterates over the causes that occurred, each with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropCause, u64)> + '_ {
        DropCause::ALL.into_iter().map(|cause| (cause, self.of(cause))).filter(|(_, n)| *n > 0)
    }
}

impl fmt::Debug for Drops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl std::ops::AddAssign for Drops {
    fn add_assign(&mut self, other: Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{FaultCounts, FaultKind};

    #[test]
    fn counts_show_the_names_of_what_occurred() {
        let mut drops = Drops::default();
        drops.add_many(DropCause::BufferFull, 3);
        assert_eq!(format!("{drops:?}"), "{BufferFull: 3}");
        let mut fired = FaultCounts::default();
        fired.add(FaultKind::Crash);
        assert_eq!(format!("{fired:?}"), "{Crash: 1}");
    }
}
