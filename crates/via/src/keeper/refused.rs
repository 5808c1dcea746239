//! Why a NIC does not do what a keeper asks.

use thiserror::Error;

/// Why a NIC does not do what a keeper asks.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Refused {
    /// The port is not the one that the NIC's configuration names.
    #[error("only its keeper's port may ask that")]
    NotKeeper = 1,
    /// The process behind the port runs.
    #[error("the process runs: stop its port first")]
    Running = 2,
    /// A connection is being made, or asked for.
    #[error("a connection is being made: let the process go on until it is, or take it back")]
    Connecting = 3,
    /// The interface's data goes past the NIC.
    #[error("its data goes past the NIC, which can't save it")]
    Direct = 4,
    /// What was withdrawn is not counted yet.
    #[error("what was withdrawn is not counted yet: ask again")]
    Unsteady = 5,
    /// It is not what was saved.
    #[error("it has changed since it was saved: save again")]
    Changed = 6,
    /// The process has interfaces already.
    #[error("the process has interfaces already: close them, or have them forgotten")]
    Occupied = 7,
    /// The NIC has too few interfaces left.
    #[error("the NIC has too few interfaces left")]
    NoRoom = 8,
    /// The process does not wait for one of the descriptors.
    #[error("the process does not wait for a descriptor of it: it is another process's, or old")]
    NotAwaited = 9,
    /// Memory is not registered, or not so that this may be done with it.
    #[error(
        "memory of a descriptor is not registered like that: same order, sizes, tags and rights"
    )]
    Memory = 10,
    /// A frame on the way is longer than this NIC's.
    #[error("a frame on the way is longer than this NIC's frames")]
    FrameTooLong = 11,
    /// What was handed over is no such thing.
    #[error("what was handed over is damaged, or contradicts itself")]
    Malformed = 12,
    /// The keeper's own memory may not be read or written.
    #[error("the keeper's memory may not be touched")]
    Scratch = 13,
    /// They are not the interfaces that were restored.
    #[error("these are not the interfaces that were restored, or they are whole already")]
    NotRestored = 14,
    /// The connection has ended while its process stood still.
    #[error("its connection has ended, and the process is yet to be told: let it go on first")]
    Ended = 15,
    /// The NIC does not run the extension, or another version of it.
    #[error("the NIC does not run this version of the extension for Virtual Interfaces")]
    Unknown = 0,
}

impl Refused {
    const ALL: [Self; 15] = [
        Self::NotKeeper,
        Self::Running,
        Self::Connecting,
        Self::Direct,
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
