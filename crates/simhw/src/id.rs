//! Identifiers of nodes, ports, extensions and timers.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        impl $name {
            /// Returns the number as an index into a table.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A NIC on the fabric, from 0; up to 65,535 of them.
    NodeId(u16)
);
id!(
    /// A process's access to one NIC; unique on that NIC only.
    PortId(u16)
);
id!(
    /// The extension of the firmware that a command or a frame is for.
    ExtensionId(u8)
);
id!(
    /// One of a NIC's hardware alarms, from 0 to [`crate::hardware::TIMERS`] - 1.
    TimerId(u8)
);
id!(
    /// One transfer of a NIC's DMA engine, until its end is reported.
    DmaId(u32)
);

impl NodeId {
    /// The broadcast destination: every other node of the fabric, once each. A shared medium carries such a
    /// frame once, and a switch copies it. Elsewhere the sender's NIC sends a copy to each node. Each copy's
    /// header names its receiver as the destination.
    pub const BROADCAST: Self = Self(u16::MAX);
}

/// The restart generation of a NIC: each restart gives it a new one.
///
/// Numbers of one node only grow, with wrap-around: of two, the newer is ahead by less than half the range. 0
/// means "not known yet" and is never a NIC's own.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize, Deserialize)]
pub struct Incarnation(pub u32);

impl Incarnation {
    /// The incarnation is not known yet.
    #[doc(hidden)]
    pub const UNKNOWN: Self = Self(0);
    /// The incarnation of a NIC that has never run before.
    pub const FIRST: Self = Self(1);

    /// Returns whether this incarnation is later than `other`. A known one is later than an unknown one.
    #[must_use]
    #[doc(hidden)]
    pub const fn is_newer_than(self, other: Self) -> bool {
        if other.0 == 0 || self.0 == 0 {
            return self.0 != 0 && other.0 == 0;
        }
        (self.0.wrapping_sub(other.0) as i32) > 0
    }

    /// Returns the incarnation after this one.
    #[must_use]
    #[doc(hidden)]
    pub const fn next(self) -> Self {
        let next = self.0.wrapping_add(1);
        Self(if next == 0 { 1 } else { next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_incarnation_is_newer_across_the_wrap() {
        let old = Incarnation(u32::MAX);
        assert!(old.next().is_newer_than(old));
        assert!(!old.is_newer_than(old.next()));
        assert!(Incarnation::FIRST.is_newer_than(Incarnation::UNKNOWN));
        assert!(!Incarnation::UNKNOWN.is_newer_than(Incarnation::FIRST));
        assert!(!old.is_newer_than(old));
    }
}
