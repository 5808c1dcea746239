//! Commands between the host's half and the NIC's: their layout in a port's rings.

use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::RegionRef;
use serde::{Deserialize, Serialize};

use crate::attributes::Discriminator;
use crate::outcome::{DescriptorError, Operation};

/// The number of the extension for Virtual Interfaces, which its commands carry.
pub const VIA: ExtensionId = ExtensionId(3);

/// Most data segments of one descriptor.
pub const MAX_SEGMENTS: usize = 64;
/// Bytes of one segment in a descriptor's table.
pub(crate) const SEGMENT_BYTES: usize = 16;

/// Creates an interface; completes with its number.
pub(crate) const CREATE: u8 = 1;
pub(crate) const DESTROY: u8 = 2;
/// Completes with the interface's state and attributes.
pub(crate) const QUERY: u8 = 3;
pub(crate) const POST_SEND: u8 = 4;
pub(crate) const POST_RECEIVE: u8 = 5;
pub(crate) const CONNECT_REQUEST: u8 = 6;
/// Completes with a connection request.
pub(crate) const CONNECT_WAIT: u8 = 7;
pub(crate) const CONNECT_ACCEPT: u8 = 8;
pub(crate) const CONNECT_REJECT: u8 = 9;
pub(crate) const CONNECT_PEER: u8 = 10;
pub(crate) const DISCONNECT: u8 = 11;
/// Completes with the next asynchronous error.
pub(crate) const EVENT: u8 = 12;
/// Cancels a waiting command, named by its cookie.
pub(crate) const CANCEL: u8 = 13;
/// Completes with the NIC's resources.
pub(crate) const QUERY_NIC: u8 = 14;
/// Registers interest in a descriptor of a context that is to be restored: completes when the descriptor does.
pub(crate) const AWAIT: u8 = 15;

/// Offers that the host takes over a queue of an interface, which the cookie names as a
/// [`WorkQueue`](crate::nic::WorkQueue). Completes once the NIC grants the queue, with the gate's number and both ends
/// of the connection; or with [`Status::Cancelled`].
pub(crate) const OFFER: u8 = 20;
/// Completes when the NIC recalls a granted queue; or with [`Status::Cancelled`] if the host does not have it.
pub(crate) const RECALL: u8 = 21;
/// Returns a queue to the NIC: how many bytes of its first message were sent or received, and how many descriptors the
/// host then posts again.
pub(crate) const RETURN: u8 = 22;

/// Saves a port's interfaces into the region: port. Completes with their length in bytes; writes nothing if the
/// region is smaller. Only from the checkpointer's port.
pub(crate) const SAVE: u8 = 16;
/// Removes a port's interfaces if the region holds exactly their saved state: port. Only from the checkpointer's
/// port.
pub(crate) const FORGET: u8 = 17;
/// Restores the interfaces in the region, and writes the NIC's names of them into it: port. Completes with the
/// length in bytes. Only from the checkpointer's port.
pub(crate) const RESTORE: u8 = 18;
/// Connects restored interfaces with the other ends in the region: port. Only from the checkpointer's port.
pub(crate) const JOIN: u8 = 19;

/// Flags of posted descriptors.
pub(crate) const OPERATION: u16 = 3;
pub(crate) const OPERATION_WRITE: u16 = 1;
pub(crate) const OPERATION_READ: u16 = 2;
pub(crate) const IMMEDIATE: u16 = 4;
pub(crate) const FENCE: u16 = 8;
/// The region holds a table of segments, not the data.
pub(crate) const TABLE: u16 = 16;

/// The parameters of a connection request, in registered memory that the command names.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct ConnectParameters {
    pub(crate) node: u16,
    pub(crate) remote: Discriminator,
    pub(crate) local: Discriminator,
    /// Timeout in nanoseconds; 0 waits for ever.
    pub(crate) timeout_ns: u64,
}

/// Most bytes of encoded [`ConnectParameters`].
pub(crate) const PARAMETER_BYTES: usize = 64;

/// Both ends of a connection, as the completion of the connecting command reports them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ends {
    /// The number of the connection at this end.
    pub(crate) connection: u16,
    pub(crate) node: NodeId,
    pub(crate) remote_vi: PortId,
    pub(crate) remote_connection: u16,
}

impl Ends {
    pub(crate) const fn to_word(self) -> u64 {
        self.connection as u64
            | (self.node.0 as u64) << 16
            | (self.remote_vi.0 as u64) << 32
            | (self.remote_connection as u64) << 48
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    pub(crate) const fn of(word: u64) -> Self {
        Self {
            connection: word as u16,
            node: NodeId((word >> 16) as u16),
            remote_vi: PortId((word >> 32) as u16),
            remote_connection: (word >> 48) as u16,
        }
    }
}

/// Makes a command about an interface.
pub(crate) fn about(vi: PortId, opcode: u8, cookie: u64) -> Command {
    Command { extension: VIA, opcode, port: vi, cookie, ..Command::default() }
}

/// Encodes a segment for a descriptor's table.
pub(crate) fn segment_bytes(segment: RegionRef) -> [u8; SEGMENT_BYTES] {
    let [handle, range] = segment.to_words();
    let mut bytes = [0; SEGMENT_BYTES];
    bytes[..8].copy_from_slice(&handle.to_le_bytes());
    bytes[8..].copy_from_slice(&range.to_le_bytes());
    bytes
}

/// Decodes a segment of a table; any bytes are a valid one.
pub(crate) fn segment_of(bytes: [u8; SEGMENT_BYTES]) -> RegionRef {
    let (words, _) = bytes.as_chunks::<8>();
    RegionRef::from_words([u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])])
}

/// The result of a descriptor, as its completion reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) opcode: u8,
    pub(crate) vi: PortId,
    pub(crate) cookie: u64,
    pub(crate) operation: Operation,
    pub(crate) outcome: Result<(), DescriptorError>,
    pub(crate) length: u32,
    pub(crate) immediate: Option<u32>,
}

impl Ended {
    pub(crate) fn completion(&self) -> Completion {
        let immediate = self.immediate.map_or(0, |value| 1 << 32 | u64::from(value));
        Completion {
            opcode: self.opcode,
            flags: u16::from(DescriptorError::to_bits(self.outcome)) | (self.operation as u16) << 8,
            port: self.vi,
            cookie: self.cookie,
            length: u64::from(self.length),
            args: [immediate, 0, 0, 0],
            ..Completion::default()
        }
    }

    /// Decodes a completion. If the unit refused the command, for instance because the extension was removed, the
    /// descriptor counts as flushed.
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    pub(crate) fn of(completion: &Completion) -> Self {
        let [immediate, ..] = completion.args;
        let is_refused = completion.status != Status::Done;
        let operation = Operation::of((completion.flags >> 8) as u8);
        let refused =
            if completion.opcode == POST_RECEIVE { Operation::Receive } else { Operation::Send };
        Self {
            opcode: completion.opcode,
            vi: completion.port,
            cookie: completion.cookie,
            operation: if is_refused { refused } else { operation },
            outcome: match is_refused {
                true => Err(DescriptorError::Flushed),
                false => DescriptorError::of(completion.flags as u8),
            },
            length: completion.length as u32,
            immediate: (immediate >> 32 != 0).then_some(immediate as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_that_the_unit_refuses_are_flushed() {
        for (opcode, operation) in
            [(POST_SEND, Operation::Send), (POST_RECEIVE, Operation::Receive)]
        {
            let command = about(PortId(3), opcode, 77);
            for status in [Status::Invalid, Status::ExtensionDown, Status::Refused] {
                let ended = Ended::of(&Completion::of(&command, status));
                assert_eq!(ended.outcome, Err(DescriptorError::Flushed));
                assert_eq!((ended.operation, ended.cookie, ended.vi), (operation, 77, PortId(3)));
            }
        }
    }

    #[test]
    fn the_result_of_a_descriptor_survives_its_completion() {
        let outcomes = [Ok(()), Err(DescriptorError::Length), Err(DescriptorError::Transport)];
        for (outcome, immediate) in outcomes.into_iter().zip([None, Some(0), Some(u32::MAX)]) {
            let (operation, vi) = (Operation::RemoteRdmaWrite, PortId(9));
            let cookie = 1 << 40;
            let ended = Ended {
                opcode: POST_RECEIVE,
                vi,
                cookie,
                operation,
                outcome,
                length: 5,
                immediate,
            };
            let read = Ended::of(&ended.completion());
            assert_eq!((read.opcode, read.vi, read.cookie), (POST_RECEIVE, vi, cookie));
            assert_eq!((read.operation, read.outcome), (operation, outcome));
            assert_eq!((read.length, read.immediate), (5, immediate));
        }
    }
}
