//! Results of descriptors and connections, and asynchronous errors.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The operation that a descriptor performed.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[repr(u8)]
pub enum Operation {
    /// It sent a message.
    #[default]
    Send = 0,
    /// It received a message.
    Receive = 1,
    /// It wrote the other end's memory.
    RdmaWrite = 2,
    /// A remote write with immediate data consumed it.
    RemoteRdmaWrite = 3,
    /// It read the other end's memory.
    RdmaRead = 4,
}

impl Operation {
    pub(crate) const fn of(bits: u8) -> Self {
        match bits {
            1 => Self::Receive,
            2 => Self::RdmaWrite,
            3 => Self::RemoteRdmaWrite,
            4 => Self::RdmaRead,
            _ => Self::Send,
        }
    }
}

/// Why a descriptor failed.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Error, Hash, PartialEq, Serialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The descriptor contradicts itself, or does not suit this queue.
    #[error("the descriptor is malformed")]
    Format = 1,
    /// A segment's memory belongs to another port, has another protection tag, or was deregistered.
    #[error(
        "a segment's memory is not registered here, has another protection tag, or was deregistered"
    )]
    Protection = 2,
    /// The message is longer than the receive descriptor, or than the interface's largest transfer.
    #[error(
        "the message is longer than the descriptor, or than the interface's largest transfer: post longer receives, \
         or raise `max_transfer`"
    )]
    Length = 3,
    /// The interface is not connected, or the connection ended before the descriptor was started or finished.
    #[error(
        "the interface is not connected, or the connection ended before the descriptor was done: disconnect it, and \
         connect it again"
    )]
    Flushed = 4,
    /// The other end does not answer.
    #[error("the other end no longer answers: disconnect the interface, and connect it again")]
    Transport = 5,
    /// The other end's memory does not permit this access.
    #[error(
        "the other end's memory does not permit this access: set `rdma_write` or `rdma_read` of its memory and of its \
         interface, and stay within its length"
    )]
    RdmaProtection = 6,
    /// The other end had no receive descriptor for the message, or one that was too short.
    #[error(
        "the other end had no receive descriptor for the message, or one that was too short: it must post receives \
         that are long enough before the message arrives"
    )]
    RemoteDescriptor = 7,
}

impl DescriptorError {
    const ALL: [Self; 7] = [
        Self::Format,
        Self::Protection,
        Self::Length,
        Self::Flushed,
        Self::Transport,
        Self::RdmaProtection,
        Self::RemoteDescriptor,
    ];

    pub(crate) fn to_bits(outcome: Result<(), Self>) -> u8 {
        outcome.map_or_else(|error| error as u8, |()| 0)
    }

    pub(crate) fn of(bits: u8) -> Result<(), Self> {
        match usize::from(bits).checked_sub(1).map(|at| Self::ALL.get(at)) {
            None => Ok(()),
            Some(error) => Err(error.copied().unwrap_or(Self::Format)),
        }
    }
}

/// An error of a Virtual Interface that belongs to no descriptor.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[repr(u8)]
#[non_exhaustive]
pub enum AsyncError {
    /// The connection is lost; the interface is in the error state.
    ConnectionLost = 1,
    /// A message arrived while no receive was posted, and was lost.
    ReceiveQueueEmpty = 2,
    /// A remote write was refused, and its data lost.
    RdmaWriteProtection = 3,
    /// Part of a remote write was lost.
    RdmaWriteData = 4,
    /// The node of the other end was started again, and the connection is lost with its former incarnation. The
    /// interface is in the error state.
    PeerRestarted = 5,
}

/// Most asynchronous errors that end no connection and wait to be taken, of one process. Further ones are dropped.
const MAX_ERRORS: usize = 256;

impl AsyncError {
    /// Returns whether a queue of `length` errors keeps this one as well. An error that ends a connection is always
    /// kept: there is one for each connection.
    pub(crate) const fn is_kept(self, length: usize) -> bool {
        self.ends_connection() || length < MAX_ERRORS
    }

    /// Returns whether this error ends the connection.
    pub(crate) const fn ends_connection(self) -> bool {
        matches!(self, Self::ConnectionLost | Self::PeerRestarted)
    }

    pub(crate) const fn of(bits: u64) -> Option<Self> {
        match bits {
            1 => Some(Self::ConnectionLost),
            2 => Some(Self::ReceiveQueueEmpty),
            3 => Some(Self::RdmaWriteProtection),
            4 => Some(Self::RdmaWriteData),
            5 => Some(Self::PeerRestarted),
            _ => None,
        }
    }
}

/// Why a connection was not made.
#[derive(Clone, Copy, Debug, Eq, Error, Hash, PartialEq)]
#[repr(u8)]
#[non_exhaustive]
pub enum ConnectError {
    /// No process waits at that address now.
    #[error(
        "no process waits for a connection at that address: start the other end first, or try again"
    )]
    NoMatch = 1,
    /// The other side refused.
    #[error("the other side has refused the connection")]
    Rejected = 2,
    /// The other side did not answer in time.
    #[error("the other side has not answered in time")]
    TimedOut = 3,
    /// The interface is not in the required state.
    #[error("the interface is not idle: disconnect it first")]
    InvalidState = 4,
    /// The two ends differ in reliability.
    #[error("the two ends differ in reliability: give both the same")]
    Reliability = 5,
    /// The two ends differ in the largest transfer.
    #[error("the two ends differ in their largest transfer: give both the same")]
    MaxTransfer = 6,
    /// There is no such interface or request, or no longer.
    #[error("no such interface or request")]
    Gone = 7,
    /// The NIC's table of interfaces or requests is full.
    #[error("the NIC has no room for more: destroy an interface, or cancel a request")]
    Resources = 8,
    /// The other node does not answer.
    #[error("the other node does not answer")]
    Unreachable = 9,
}

impl ConnectError {
    const ALL: [Self; 9] = [
        Self::NoMatch,
        Self::Rejected,
        Self::TimedOut,
        Self::InvalidState,
        Self::Reliability,
        Self::MaxTransfer,
        Self::Gone,
        Self::Resources,
        Self::Unreachable,
    ];

    pub(crate) fn of(bits: u64) -> Result<(), Self> {
        match usize::try_from(bits).unwrap_or(usize::MAX).checked_sub(1) {
            None => Ok(()),
            Some(at) => Err(Self::ALL.get(at).copied().unwrap_or(Self::Gone)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive() {
        for error in DescriptorError::ALL {
            assert_eq!(DescriptorError::of(DescriptorError::to_bits(Err(error))), Err(error));
        }
        assert_eq!(DescriptorError::of(DescriptorError::to_bits(Ok(()))), Ok(()));
        for error in ConnectError::ALL {
            assert_eq!(ConnectError::of(error as u64), Err(error));
        }
        for operation in 0..5 {
            assert_eq!(Operation::of(operation) as u8, operation);
        }
    }
}
