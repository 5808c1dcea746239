//! Rings between the processes of one host, which their hosts write and read themselves.
//!
//! A process bypasses its NIC over them while the NIC leaves its port's [gate](crate::port::HostGate) open.

use std::fmt;
use std::task::Waker;

use thiserror::Error;

use crate::id::NodeId;
use crate::region::{Payload, Region, SharedMemory};

/// Words that precede a payload, the sender's own.
pub const WORDS: usize = 5;

/// Carries frames between the processes of one host: from one process in order, each once, until it has exited.
pub trait PeerRings: fmt::Debug + Send {
    /// Returns the most bytes of a payload.
    fn mtu(&self) -> usize;

    /// Returns whether the process with this node number is connected.
    fn has_peer(&self, node: NodeId) -> bool;

    /// Sends a frame whose payload is gathered from `parts`: the peer can read it when this returns.
    ///
    /// # Errors
    /// [`SendRefused`]; nothing is sent then.
    fn send_parts(
        &mut self,
        to: NodeId,
        words: [u64; WORDS],
        parts: &[Payload<'_>],
    ) -> Result<(), SendRefused>;

    /// Shares a region with another process, which receives it as [`News::Shown`], earlier or later than frames that
    /// are sent at the same time. The peer may read and write the region until it is dropped.
    ///
    /// # Errors
    /// [`SendRefused`], as of a frame; nothing is shared then.
    ///
    /// # Panics
    /// If other processes can't map the region: see [`Region::file`].
    fn show(&mut self, to: NodeId, name: [u64; 2], region: &Region) -> Result<(), SendRefused>;

    /// Takes the next event, if there is one. Frames of several processes take turns.
    fn poll(&mut self) -> Option<News<'_>>;

    /// Has `waker` woken at the next event, and when there is room where a frame was refused. Returns `false` if that
    /// may be so already; then nothing is armed.
    fn arm_wakeup(&mut self, waker: &Waker) -> bool;
}

/// An event of the rings.
#[derive(Debug)]
pub enum News<'a> {
    /// A frame.
    Frame {
        /// The sender.
        from: NodeId,
        /// Its words.
        words: [u64; WORDS],
        /// Its payload; the sender may be writing it.
        payload: Payload<'a>,
    },
    /// Memory that another process shares.
    Shown {
        /// The owner.
        from: NodeId,
        /// The owner's name of it.
        name: [u64; 2],
        /// The memory.
        memory: SharedMemory,
    },
    /// A process has exited, or did not connect in the time that
    /// [`ShmConfig::join_timeout`](crate::shm::ShmConfig::join_timeout) gives it: no frame comes from it, and none goes
    /// there, until [`News::Returned`].
    Left(NodeId),
    /// A process has exited, and another one has taken its number: later frames are the new one's.
    Restarted(NodeId),
    /// A process has taken the number of one that had exited.
    Returned(NodeId),
}

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SendRefused {
    /// The peer has not taken what is under way, or is not connected yet; [`PeerRings::arm_wakeup`] notifies when there
    /// is room. A peer that never connects counts as exited in the end: see
    /// [`ShmConfig::join_timeout`](crate::shm::ShmConfig::join_timeout).
    #[error("no slot is free; try again once the other process has taken a frame")]
    Full,
    /// The process has exited, or did not connect in time.
    #[error("node {0} is gone")]
    Gone(NodeId),
    /// There is no such node, or it is this one.
    #[error("there is no ring to node {0}")]
    NoRing(NodeId),
    /// A frame carries at most the MTU.
    #[error("a payload has {bytes} bytes, more than the MTU of {mtu}; cut it")]
    TooLong {
        /// Bytes of the payload.
        bytes: usize,
        /// Most bytes of one.
        mtu: usize,
    },
}
