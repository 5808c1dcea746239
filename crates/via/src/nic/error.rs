//! Errors of a NIC.

use midplane_simhw::host::OpenError;
use midplane_simhw::port::{PortClosed, PostError, RegisterError};
use thiserror::Error;

use super::MAX_SEGMENTS;

/// The reason why a NIC has not carried out a call.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum NicError {
    /// The NIC has stopped.
    #[error("the NIC has stopped")]
    Closed,
    /// The NIC does not run the extension for Virtual Interfaces.
    #[error("the NIC does not run the extension for Virtual Interfaces: install it in its unit")]
    NoExtension,
    /// The NIC has as many interfaces as it can.
    #[error("the NIC has no Virtual Interface left: destroy one first")]
    TooManyVis,
    /// The NIC accepts no more commands: take completions first.
    #[error("the NIC accepts no more commands: take completions first")]
    QueueFull,
    /// The port could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A descriptor has at most [`MAX_SEGMENTS`] segments.
    #[error("a descriptor has at most {MAX_SEGMENTS} segments, not {0}")]
    TooManySegments(usize),
    /// The interface was destroyed.
    #[error("no such Virtual Interface: it was destroyed")]
    NoSuchVi,
    /// The interface is connected.
    #[error("the Virtual Interface is connected: disconnect it first")]
    InUse,
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
