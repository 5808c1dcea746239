//! The reasons for which a NIC refuses a checkpointer's command.

use thiserror::Error;

/// Why a NIC refused a checkpointer's command.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refused {
    /// The command did not come from the port that the NIC's configuration names.
    #[error("only the checkpointer's port may do that")]
    NotCheckpointer = 1,
    /// The process behind the port is not suspended.
    #[error("the process runs: stop its port first")]
    Running = 2,
    /// A connection is being made or requested.
    #[error("a connection is being made: let the process run until it is made, or cancel it")]
    Connecting = 3,
    /// The NIC has not counted all withdrawn descriptors yet, or a gate is being closed.
    #[error(
        "the NIC has not counted all withdrawn descriptors yet, or is closing a gate: try again"
    )]
    Unsteady = 5,
    /// The interfaces have changed since they were saved.
    #[error("it has changed since it was saved: save again")]
    Changed = 6,
    /// The process has interfaces already.
    #[error("the process has interfaces already: close them, or have them forgotten")]
    Occupied = 7,
    /// The NIC has too few interfaces left.
    #[error("the NIC has too few interfaces left")]
    NoRoom = 8,
    /// The process does not await one of the descriptors.
    #[error(
        "the process does not wait for one of its descriptors: the context is not its own, or old"
    )]
    NotAwaited = 9,
    /// Memory is not registered, or without the required rights.
    #[error(
        "memory of a descriptor is not registered as it was: keep its order, sizes, tags and rights"
    )]
    Memory = 10,
    /// A frame on the way is longer than this NIC's frames.
    #[error("a frame on the way is longer than this NIC's frames")]
    FrameTooLong = 11,
    /// The data is no valid encoding.
    #[error("the data is damaged, or contradicts itself")]
    Malformed = 12,
    /// The checkpointer's own memory can't be read or written.
    #[error("the checkpointer's memory can't be read or written")]
    Scratch = 13,
    /// These are not the interfaces that were restored, or they were joined before.
    #[error("these are not the interfaces that were restored, or they were joined already")]
    NotRestored = 14,
    /// The connection ended while its process was suspended.
    #[error(
        "its connection has ended, and the process has not received the event yet: resume it first"
    )]
    Ended = 15,
    /// The NIC does not run the extension, or runs another version of it.
    #[error("the NIC does not run this version of the extension for Virtual Interfaces")]
    Unknown = 0,
}

impl Refused {
    const ALL: [Self; 14] = [
        Self::NotCheckpointer,
        Self::Running,
        Self::Connecting,
        Self::Unsteady,
        Self::Changed,
        Self::Occupied,
        Self::NoRoom,
        Self::NotAwaited,
        Self::Memory,
        Self::FrameTooLong,
        Self::Malformed,
        Self::Scratch,
        Self::NotRestored,
        Self::Ended,
    ];

    pub(super) fn of(code: u64) -> Self {
        let of = |why: &&Self| **why as u64 == code;
        Self::ALL.iter().find(of).copied().unwrap_or(Self::Unknown)
    }
}
