//! What can go wrong at a NIC.

use midplane_simhw::host::OpenError;
use midplane_simhw::id::NodeId;
use midplane_simhw::port::{PortClosed, PostError, RegisterError};
use thiserror::Error;

use super::MAX_SEGMENTS;

/// Why a NIC does not do what it was asked for.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum NicError {
    /// There is no NIC any more.
    #[error("the NIC has stopped")]
    Closed,
    /// The NIC does not run the extension.
    #[error("the NIC does not run the extension for Virtual Interfaces: install it in its unit")]
    NoExtension,
    /// The NIC has as many interfaces as it may.
    #[error("the NIC has no Virtual Interface left: destroy one first")]
    TooManyVis,
    /// Take completions first.
    #[error("as many commands are under way as the NIC takes: take completions first")]
    QueueFull,
    /// No port to be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No memory to be had.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A descriptor has at most [`MAX_SEGMENTS`].
    #[error("a descriptor has at most {MAX_SEGMENTS} segments, not {0}")]
    TooManySegments(usize),
    /// The interface was destroyed.
    #[error("no such Virtual Interface: it was destroyed")]
    NoSuchVi,
    /// The interface is connected.
    #[error("the Virtual Interface is connected: disconnect it first")]
    InUse,
    /// A direct interface needs a lane.
    #[error("the NIC has no lane for direct Virtual Interfaces: open it with one")]
    NoLane,
    /// The lane is that of another node.
    #[error("the lane is node {lane}'s, and the NIC node {nic}'s: give both the same number")]
    LaneOfAnother {
        /// The lane's node.
        lane: NodeId,
        /// The NIC's.
        nic: NodeId,
    },
    /// No direct interface is like that.
    #[error("a direct Virtual Interface has reliable delivery and no remote reads: ask for that")]
    NotDirect,
}

impl From<PortClosed> for NicError {
    fn from(_: PortClosed) -> Self {
        Self::Closed
    }
}

impl From<PostError> for NicError {
    fn from(error: PostError) -> Self {
        match error {
            PostError::QueueFull { .. } => Self::QueueFull,
            _ => Self::Closed,
        }
    }
}
