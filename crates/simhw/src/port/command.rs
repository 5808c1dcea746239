//! The entries of a port's rings: commands in one direction, completions in the other.

use crate::id::{ExtensionId, NodeId, PortId};
use crate::region::RegionRef;
use crate::ring::Entry;

/// A request of an application to its NIC: 56 bytes in the submission ring.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Command {
    /// The extension that executes it.
    pub extension: ExtensionId,
    /// Selects one of the extension's commands.
    pub opcode: u8,
    /// Flags that the extension defines.
    pub flags: u16,
    /// The other node, where there is one.
    pub node: NodeId,
    /// The other node's port, where there is one.
    pub port: PortId,
    /// Returned unchanged in the completion.
    pub cookie: u64,
    /// The memory that the command reads or writes.
    pub region: RegionRef,
    /// Arguments that the extension defines.
    pub args: [u64; 3],
}

/// The result of a command.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Status {
    /// The command has succeeded.
    #[default]
    Done = 0,
    /// There is no such extension or command, or it does not take these arguments.
    Invalid = 1,
    /// The region does not belong to the port, or is too small.
    Region = 2,
    /// The message was longer than its buffer, which holds its beginning.
    Truncated = 3,
    /// The peer has failed, or has restarted since.
    PeerLost = 4,
    /// The NIC has no resources for the command now; try again later.
    Refused = 5,
    /// The extension failed or was removed.
    ExtensionDown = 6,
    /// The command was cancelled before it was done.
    Cancelled = 7,
}

impl Status {
    const ALL: [Self; 8] = [
        Self::Done,
        Self::Invalid,
        Self::Region,
        Self::Truncated,
        Self::PeerLost,
        Self::Refused,
        Self::ExtensionDown,
        Self::Cancelled,
    ];

    /// Returns the status with this number; `None` if there is none.
    #[must_use]
    #[doc(hidden)]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// The result of a command: 56 bytes in the completion ring.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Completion {
    /// The result of the command.
    pub status: Status,
    /// The opcode of the command.
    pub opcode: u8,
    /// Flags that the extension defines.
    pub flags: u16,
    /// The other node, where there is one.
    pub node: NodeId,
    /// The other node's port, where there is one.
    pub port: PortId,
    /// The cookie of the command.
    pub cookie: u64,
    /// Number of transferred bytes.
    pub length: u64,
    /// Results that the extension defines.
    pub args: [u64; 4],
}

impl Command {
    #[inline]
    pub(super) fn emit(&self) -> Entry {
        let region = self.region;
        [
            u64::from(self.extension.0)
                | u64::from(self.opcode) << 8
                | u64::from(self.flags) << 16
                | u64::from(self.node.0) << 32
                | u64::from(self.port.0) << 48,
            self.cookie,
            u64::from(region.port.0)
                | u64::from(region.slot) << 16
                | u64::from(region.generation) << 32,
            u64::from(region.offset) | u64::from(region.length) << 32,
            self.args[0],
            self.args[1],
            self.args[2],
        ]
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    pub(super) fn parse(entry: &Entry) -> Self {
        let [head, cookie, handle, range, args @ ..] = *entry;
        Self {
            extension: ExtensionId(head as u8),
            opcode: (head >> 8) as u8,
            flags: (head >> 16) as u16,
            node: NodeId((head >> 32) as u16),
            port: PortId((head >> 48) as u16),
            cookie,
            region: RegionRef {
                port: PortId(handle as u16),
                slot: (handle >> 16) as u16,
                generation: (handle >> 32) as u32,
                offset: range as u32,
                length: (range >> 32) as u32,
            },
            args,
        }
    }
}

impl Completion {
    /// Creates a completion with the command's opcode, flags, node, port and cookie; its length and arguments
    /// are zero.
    #[inline]
    #[must_use]
    pub const fn of(command: &Command, status: Status) -> Self {
        let Command { opcode, flags, node, port, cookie, .. } = *command;
        Self { status, opcode, flags, node, port, cookie, length: 0, args: [0; 4] }
    }

    #[inline]
    pub(super) fn emit(&self) -> Entry {
        [
            u64::from(self.status as u8)
                | u64::from(self.opcode) << 8
                | u64::from(self.flags) << 16
                | u64::from(self.node.0) << 32
                | u64::from(self.port.0) << 48,
            self.cookie,
            self.length,
            self.args[0],
            self.args[1],
            self.args[2],
            self.args[3],
        ]
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    pub(super) fn parse(entry: &Entry) -> Self {
        let [head, cookie, length, args @ ..] = *entry;
        Self {
            status: Status::from_number(head as u8).unwrap_or(Status::Invalid),
            opcode: (head >> 8) as u8,
            flags: (head >> 16) as u16,
            node: NodeId((head >> 32) as u16),
            port: PortId((head >> 48) as u16),
            cookie,
            length,
            args,
        }
    }
}
