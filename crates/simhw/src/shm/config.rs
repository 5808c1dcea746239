//! What a NIC over shared memory is like.

use std::time::Duration;

use thiserror::Error;

use super::lane::Shape;
use crate::frame::MAX_PAYLOAD;
use crate::id::{Incarnation, NodeId};
use crate::port;
use crate::segment::LINE;
use crate::time::LineRate;

/// 16 KiB: large enough that what a frame costs beside its copy is a tenth of it, small enough that
/// the two copies of a longer message overlap.
pub const DEFAULT_MTU: usize = 16 << 10;
/// 64 frames: 8 KiB a direction.
pub const DEFAULT_SLOTS: usize = 64;
/// 2 MiB of longer frames a direction: more than a core's own cache, so that what is written next has left the
/// reader's. A line that is there still must be taken from it first: with 256 KiB, frames of 64 KiB take twice as long
/// (Zen 4, 1 MiB a core); with 8 MiB they take longer again.
pub const DEFAULT_AREA_BYTES: usize = 2 << 20;
/// 16 MiB of them to all peers: with more than eight, each has less.
pub const DEFAULT_AREA_BYTES_OF_ALL: usize = 16 << 20;
/// Longer frames a direction that there are at least, unless fewer are asked for.
pub const MIN_AREAS: usize = 16;
/// 100 Gb/s: about what one core copies.
pub const DEFAULT_RATE: LineRate = LineRate::mbps(100_000);
/// 20 us: about what parking and being woken costs.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(20);
/// A minute: what people start by hand one after the other is together by then.
pub const DEFAULT_JOIN_WITHIN: Duration = Duration::from_secs(60);
/// Most nodes of one fabric.
pub const MAX_NODES: u16 = 1_024;
/// Most slots, and most areas, of one direction.
pub const MAX_SLOTS: usize = 65_536;
/// Most bytes of a fabric's name.
pub const MAX_NAME: usize = 64;

/// What a NIC over shared memory is like, and which fabric it is of.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    pub(super) node: NodeId,
    pub(super) nodes: u16,
    pub(super) name: String,
    pub(super) seed: u64,
    pub(super) incarnation: Option<Incarnation>,
    pub(super) mtu: usize,
    pub(super) slots: usize,
    pub(super) areas: Option<usize>,
    pub(super) rate: LineRate,
    pub(super) port_depth: usize,
    pub(super) spin: Duration,
    pub(super) join_within: Duration,
    pub(super) admitted: Vec<u32>,
}

impl ShmConfig {
    /// The NIC of `node`, one of `nodes`, of the fabric `name`: processes of this host (and of its
    /// network namespace) with one name meet.
    #[must_use]
    pub fn new(name: impl Into<String>, node: NodeId, nodes: u16) -> Self {
        Self {
            node,
            nodes,
            name: name.into(),
            seed: 0,
            incarnation: None,
            mtu: DEFAULT_MTU,
            slots: DEFAULT_SLOTS,
            areas: None,
            rate: DEFAULT_RATE,
            port_depth: port::DEFAULT_DEPTH,
            spin: DEFAULT_SPIN,
            join_within: DEFAULT_JOIN_WITHIN,
            admitted: Vec::new(),
        }
    }

    /// What the host's random streams are drawn from, together with the node. Default: 0.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Which life of the NIC this is. Default: from the time of day in units of 64 ms, so that it
    /// is newer than that of any process before; a clock that was set back breaks that.
    #[must_use]
    pub const fn incarnation(mut self, incarnation: Incarnation) -> Self {
        self.incarnation = Some(incarnation);
        self
    }

    /// Most payload bytes of one frame, from 1 to [`MAX_PAYLOAD`]; the same on all nodes. Default:
    /// [`DEFAULT_MTU`].
    #[must_use]
    pub const fn mtu(mut self, bytes: usize) -> Self {
        self.mtu = bytes;
        self
    }

    /// Frames that may be under way to one peer, from 4 to [`MAX_SLOTS`], rounded up to a power of
    /// two; the same on all nodes. Memory: 128 bytes each. Default: [`DEFAULT_SLOTS`].
    #[must_use]
    pub const fn slots(mut self, frames: usize) -> Self {
        self.slots = frames;
        self
    }

    /// Frames of more than 64 bytes that may be under way to one peer, from 4 to [`MAX_SLOTS`],
    /// rounded up to a power of two; the same on all nodes. Memory: the MTU each, once it is used.
    /// Default: as many as [`DEFAULT_AREA_BYTES`] hold, and [`DEFAULT_AREA_BYTES_OF_ALL`] to all peers together, but
    /// [`MIN_AREAS`].
    #[must_use]
    pub const fn areas(mut self, frames: usize) -> Self {
        self.areas = Some(frames);
        self
    }

    /// The rate that the firmware takes the line to have; nothing is held back to it. Default:
    /// [`DEFAULT_RATE`].
    #[must_use]
    pub const fn rate(mut self, rate: LineRate) -> Self {
        self.rate = rate;
        self
    }

    /// Commands that may be under way on one port. Default: [`port::DEFAULT_DEPTH`].
    #[must_use]
    pub const fn port_depth(mut self, commands: usize) -> Self {
        self.port_depth = commands;
        self
    }

    /// How long who waits for a completion looks for it before it parks, at most; less where
    /// looking was in vain lately. Zero parks at once. Default: [`DEFAULT_SPIN`].
    #[must_use]
    pub const fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }

    /// How long [lanes](super::lanes::Lanes) wait for a process that something is sent to, or waited for from, and
    /// that is not there yet; then it is gone for good. NICs have no such limit: their extensions see to it. Default:
    /// [`DEFAULT_JOIN_WITHIN`].
    #[must_use]
    pub const fn join_within(mut self, time: Duration) -> Self {
        self.join_within = time;
        self
    }

    /// Admits processes of this user, too. Default: those of the own user only.
    #[must_use]
    pub fn admit(mut self, user: u32) -> Self {
        self.admitted.push(user);
        self
    }

    pub(super) const fn shape(&self) -> Shape {
        let areas = match self.areas {
            Some(areas) => areas.next_power_of_two(),
            None => self.usual_areas(),
        };
        Shape { slots: self.slots.next_power_of_two(), areas, mtu: self.mtu }
    }

    const fn usual_areas(&self) -> usize {
        let peers = if self.nodes > 1 { self.nodes as usize - 1 } else { 1 };
        let share = DEFAULT_AREA_BYTES_OF_ALL / peers;
        let bytes = if share < DEFAULT_AREA_BYTES { share } else { DEFAULT_AREA_BYTES };
        let areas = bytes / self.mtu.next_multiple_of(LINE);
        if areas < MIN_AREAS { MIN_AREAS } else { (areas + 1).next_power_of_two() / 2 }
    }

    /// Whether everything is in order.
    pub(super) fn check(&self) -> Result<(), StartError> {
        if self.nodes > MAX_NODES {
            return Err(StartError::TooManyNodes(self.nodes));
        }
        if self.node.0 >= self.nodes {
            return Err(StartError::Rank { node: self.node, nodes: self.nodes });
        }
        if self.name.is_empty() || self.name.len() > MAX_NAME {
            return Err(StartError::Name(self.name.len()));
        }
        if self.mtu == 0 || self.mtu > MAX_PAYLOAD {
            return Err(StartError::Mtu(self.mtu));
        }
        let asked = [Some(self.slots), self.areas];
        match asked.into_iter().flatten().find(|n| !(4..=MAX_SLOTS).contains(n)) {
            Some(wrong) => Err(StartError::Slots(wrong)),
            None => Ok(()),
        }
    }
}

/// Why a NIC did not start.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum StartError {
    /// The rank is outside of the fabric.
    #[error("rank {node} is outside a fabric of {nodes} nodes; ranks count from 0")]
    Rank {
        /// The rank.
        node: NodeId,
        /// Nodes of the fabric.
        nodes: u16,
    },
    /// Every NIC has a segment with every other.
    #[error("{0} nodes are too many for one host; name at most {MAX_NODES}")]
    TooManyNodes(u16),
    /// The name is part of an address.
    #[error("the fabric's name has {0} bytes; it must have 1 to {MAX_NAME}")]
    Name(usize),
    /// No frame may be that long, or none would fit.
    #[error("a payload of {0} bytes is outside 1 to {MAX_PAYLOAD}")]
    Mtu(usize),
    /// Slots come back in quarters.
    #[error("{0} slots or areas are outside 4 to {MAX_SLOTS}")]
    Slots(usize),
    /// Another process is that node.
    #[error("node {node} of fabric {name:?} runs already; stop it or choose another name")]
    Occupied {
        /// The rank.
        node: NodeId,
        /// The fabric.
        name: String,
    },
    /// There is no tokio runtime here.
    #[error("no tokio runtime here; call it from a task, or inside Runtime::enter")]
    NoRuntime,
    /// The operating system failed otherwise.
    #[error("the system refused a socket, an event or a thread: {0}")]
    System(std::io::ErrorKind),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contradictory_configuration_is_refused() {
        let config = |node| ShmConfig::new("test", NodeId(node), 2);
        assert_eq!(config(1).check(), Ok(()));
        assert_eq!(config(2).check(), Err(StartError::Rank { node: NodeId(2), nodes: 2 }));
        assert_eq!(config(0).mtu(0).check(), Err(StartError::Mtu(0)));
        assert_eq!(config(0).mtu(70_000).check(), Err(StartError::Mtu(70_000)));
        assert_eq!(config(0).slots(3).check(), Err(StartError::Slots(3)));
        assert_eq!(config(0).areas(65_537).check(), Err(StartError::Slots(65_537)));
        let crowd = ShmConfig::new("test", NodeId(0), MAX_NODES + 1);
        assert_eq!(crowd.check(), Err(StartError::TooManyNodes(MAX_NODES + 1)));
        for length in [0, MAX_NAME + 1] {
            let named = ShmConfig::new("x".repeat(length), NodeId(0), 1);
            assert_eq!(named.check(), Err(StartError::Name(length)));
        }
    }

    #[test]
    fn areas_pass_a_cores_own_cache_and_many_peers_share_what_there_is() {
        let areas = |nodes, mtu| ShmConfig::new("test", NodeId(0), nodes).mtu(mtu).shape().areas;
        assert_eq!(areas(2, DEFAULT_MTU), 128);
        assert_eq!(areas(9, DEFAULT_MTU), 128);
        assert_eq!(areas(10, DEFAULT_MTU), 64, "a power of two, and no more than there is");
        assert_eq!(areas(MAX_NODES, DEFAULT_MTU), MIN_AREAS);
        assert_eq!(areas(1, MAX_PAYLOAD), 32);
        assert_eq!(areas(2, 1), 32_768);
        assert_eq!(ShmConfig::new("test", NodeId(0), 2).areas(5).shape().areas, 8);
    }
}
