//! Rings between the processes of one host, which the processes write and read themselves.
//!
//! A process bypasses its NIC over them while the NIC leaves its port's [gate](crate::port::HostGate) open.

use std::fmt;
use std::task::Waker;

use thiserror::Error;

use crate::id::NodeId;
use crate::region::{Payload, Region, SharedMemory};

/// Number of words before a payload; the sender defines them.
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

    /// Shares a region with another process, which may read and write it until the region is dropped. The peer receives
    /// it as [`News::Shown`], earlier or later than frames that are sent at the same time.
    ///
    /// # Errors
    /// [`SendRefused`], as of a frame; nothing is shared then.
    ///
    /// # Panics
    /// If other processes cannot map the region: see [`Region::file`].
    fn show(&mut self, to: NodeId, name: [u64; 2], region: &Region) -> Result<(), SendRefused>;

    /// Takes the next event, if there is one. Frames of several processes take turns.
    fn poll(&mut self) -> Option<News<'_>>;

    /// Arms `waker`, which is woken at the next event, or once there is space where a frame was refused. Returns
    /// `false` if that may be so already; then poll again, because `waker` may not be woken.
    fn arm_wakeup(&mut self, waker: &Waker) -> bool;
}

/// An event of the rings.
#[derive(Debug)]
pub enum News<'a> {
    /// A frame of another process.
    Frame {
        /// Node of the sender.
        from: NodeId,
        /// Words before the payload.
        words: [u64; WORDS],
        /// The payload; the sender may still write to it.
        payload: Payload<'a>,
    },
    /// Memory that another process shares.
    Shown {
        /// Node of the owner.
        from: NodeId,
        /// The owner's name for the memory.
        name: [u64; 2],
        /// The memory, mapped into this process.
        memory: SharedMemory,
    },
    /// A process has exited, or did not connect within
    /// [`ShmConfig::join_timeout`](crate::shm::ShmConfig::join_timeout). No frame is received from it or sent to it
    /// until [`News::Returned`].
    Left(NodeId),
    /// A process has exited, and another one has taken its number: later frames are from the new process.
    Restarted(NodeId),
    /// A process has taken the number of one that had exited.
    Returned(NodeId),
}

/// The reason why a frame was not sent.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SendRefused {
    /// All slots are in use, or the peer has not connected yet; [`PeerRings::arm_wakeup`] reports when to try again. A
    /// peer that never connects counts as exited in the end: see
    /// [`ShmConfig::join_timeout`](crate::shm::ShmConfig::join_timeout).
    #[error("no slot is free; try again once the other process has taken a frame")]
    Full,
    /// The process has exited, or did not connect in time.
    #[error("node {0} has exited, or did not connect in time")]
    Gone(NodeId),
    /// There is no such node, or it is this one.
    #[error("there is no ring to node {0}")]
    NoRing(NodeId),
    /// The payload is longer than the MTU.
    #[error("a payload has {bytes} bytes, more than the MTU of {mtu}; cut it")]
    TooLong {
        /// Bytes of the payload.
        bytes: usize,
        /// Most bytes of a payload.
        mtu: usize,
    },
}
