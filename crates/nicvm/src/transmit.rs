//! What waits to leave a unit: lanes of messages and packets, cut into frames, which leave when
//! they may.
//!
//! An extension sends *messages*, which the scheduler cuts into frames and names in each frame's
//! words ([`Fragment`]), or *packets*, single frames whose header fields are the extension's own.
//! What one [`Lane`] of an extension holds for one node leaves in the order in which it was sent;
//! lanes take turns, frame by frame, so that what is stuck in one stops no other.

mod lanes;
mod outgoing;
mod scheduler;

use midplane_simhw::frame::Header;
use midplane_simhw::hardware::Source;
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::{Completion, Status};
use midplane_simhw::region::RegionRef;
use midplane_simhw::time::Instant;

pub(crate) use scheduler::{News, TRANSMIT_INSTRUCTIONS, Transmit, WaitingPacket};

/// One of an extension's ways to a node: frames keep their order within it, and within it alone.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Lane(pub u16);

/// A message of an extension to the same extension of another node.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The extension that is handed its frames.
    pub extension: ExtensionId,
    /// The node that it is for.
    pub node: NodeId,
    /// What it leaves in order with.
    pub lane: Lane,
    /// The port that it is for, or what the extension makes of it.
    pub port: PortId,
    /// Its bytes; they are read when they are sent.
    pub source: RegionRef,
    /// The extension's own: comes with every frame.
    pub tag: u32,
    /// Whether the gate decides when it leaves.
    pub controlled: bool,
    /// Most bytes of its first frame: what may go ahead of the rest. 0 for no such limit.
    pub first: u32,
    /// Completes a command once all bytes have been read.
    pub completion: Option<(PortId, Completion)>,
}

/// One frame of an extension to the same extension of another node; all that its header leaves
/// free is the extension's own.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The node that it is for.
    pub node: NodeId,
    /// Which life of that node's unit it is for: another one never sees it, and answers with what
    /// life it is in. [`Incarnation::UNKNOWN`] for whichever it meets.
    pub life: Incarnation,
    /// What it leaves in order with.
    pub lane: Lane,
    /// Whether the gate decides when it leaves.
    pub controlled: bool,
    /// The port whose it is, if it is one's: while that is stopped, it is not sent.
    pub owner: Option<PortId>,
    /// Header field: a port of the destination, or what the extension makes of it.
    pub port: PortId,
    /// Header field: the low seven bits; the highest says that it is controlled.
    pub flags: u8,
    /// Header field.
    pub sequence: u32,
    /// Header field.
    pub acknowledgement: u32,
    /// Header field.
    pub words: [u64; 2],
    /// Its bytes, up to the hardware's MTU. A region is read when the frame leaves.
    pub source: Source<'a>,
    /// If it can't leave at once, [`Extension::on_sent`](crate::extension::Extension::on_sent) tells
    /// with this token when it has, or that it never will.
    pub token: Option<u64>,
}

impl Packet<'_> {
    /// A packet without bytes, all of its own fields 0.
    #[must_use]
    pub const fn to(node: NodeId) -> Self {
        Packet {
            node,
            life: Incarnation::UNKNOWN,
            lane: Lane(0),
            controlled: false,
            owner: None,
            port: PortId(0),
            flags: 0,
            sequence: 0,
            acknowledgement: 0,
            words: [0; 2],
            source: Source::Bytes(midplane_simhw::region::Payload::EMPTY),
            token: None,
        }
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sending {
    /// It is handed to the line when the handler returns, and leaves it then. A command that is
    /// completed from now on is completed after its memory has been read.
    Now(Instant),
    /// It waits for its turn, for the line, or for an admission.
    Queued,
}

/// How a packet's waiting ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sent {
    /// The packet's.
    pub token: u64,
    /// [`Status::Done`], or why it never leaves.
    pub status: Status,
    /// When its last bit leaves the line; now, if it never does.
    pub leaves: Instant,
}

/// How much of what waits is asked for: as many whole messages as pass `bytes`, at most `messages`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BacklogLimit {
    /// Bytes of frames, headers included.
    pub bytes: u64,
    /// Messages.
    pub messages: u32,
}

/// What waits for the gate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Backlog {
    /// Bytes of its frames, headers included.
    pub bytes: u64,
    /// Messages and packets.
    pub messages: u32,
}

/// Where a frame lies in its message: what the scheduler puts into the words of a message's frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fragment {
    /// Number of the message, counted by its sender.
    pub message: u32,
    /// First byte of the frame within the message.
    pub offset: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// The sending extension's own.
    pub tag: u32,
}

impl Fragment {
    const fn words(self) -> [u64; 2] {
        [
            self.message as u64 | (self.offset as u64) << 32,
            self.total as u64 | (self.tag as u64) << 32,
        ]
    }

    /// Reads what [`Message`]'s sender wrote; any words are some fragment.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    pub const fn of(header: &Header) -> Self {
        let [first, second] = header.words;
        Self {
            message: first as u32,
            offset: (first >> 32) as u32,
            total: second as u32,
            tag: (second >> 32) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fragment_survives_its_header() {
        let fragment = Fragment { message: 7, offset: u32::MAX, total: 9, tag: u32::MAX - 1 };
        let header = Header { words: fragment.words(), ..Header::default() };
        assert_eq!(Fragment::of(&header), fragment);
    }
}
