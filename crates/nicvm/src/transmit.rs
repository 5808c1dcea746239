//! The transmit queue of a unit: messages and packets, cut into frames, which leave when the admissions allow.
//!
//! An extension sends *messages*, which the scheduler cuts into frames and describes in each frame's words
//! (`Fragment`), or *packets*, single frames whose header fields are the extension's own. Within one [`FlowId`] of an
//! extension to one node, frames leave in the order in which they were sent; but those of other ports pass a message of
//! a suspended port, unless a part of it has left. Flows take turns, frame by frame, so that a blocked flow blocks no
//! other.

mod flows;
mod outgoing;
mod scheduler;

use midplane_simhw::frame::Header;
use midplane_simhw::hardware::Source;
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::{Completion, Status};
use midplane_simhw::region::RegionRef;
use midplane_simhw::time::Instant;

pub(crate) use scheduler::{News, TRANSMIT_INSTRUCTIONS, Transmit, WaitingPacket};

/// One of an extension's flows to a node: frames keep their order within a flow, and only there.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct FlowId(pub u16);

/// A message of an extension to the same extension of another node.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The extension that receives its frames.
    pub extension: ExtensionId,
    /// The destination node.
    pub node: NodeId,
    /// The flow in which it keeps its order.
    pub flow: FlowId,
    /// The port that it is for; an extension may use it otherwise.
    pub port: PortId,
    /// Its bytes; they are read when they are sent.
    pub source: RegionRef,
    /// A value of the extension's own that every frame carries.
    pub tag: u32,
    /// True if the gate decides when it leaves.
    pub controlled: bool,
    /// Most bytes of its first frame, which may be allowed to leave before the rest. 0 for no such limit.
    pub first: u32,
    /// Completes a command once all bytes have been read.
    pub completion: Option<(PortId, Completion)>,
}

/// One frame of an extension to the same extension of another node; the extension owns all header fields listed here.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The destination node.
    pub node: NodeId,
    /// The incarnation of that node's unit that it is for: another incarnation drops it, and answers with its own
    /// number. [`Incarnation::UNKNOWN`] addresses any incarnation.
    pub incarnation: Incarnation,
    /// The flow in which it keeps its order.
    pub flow: FlowId,
    /// True if the gate decides when it leaves.
    pub controlled: bool,
    /// The port that it belongs to, if any: while that port is suspended, it is not sent.
    pub owner: Option<PortId>,
    /// Header field: a port of the destination; an extension may use it otherwise.
    pub port: PortId,
    /// Header field: the low seven bits; the highest bit marks it as controlled.
    pub flags: u8,
    /// Header field of the extension's own.
    pub sequence: u32,
    /// Header field of the extension's own.
    pub acknowledgement: u32,
    /// Header field of the extension's own.
    pub words: [u64; 2],
    /// Its bytes, up to the hardware's MTU. A region is read when the frame leaves.
    pub source: Source<'a>,
    /// If it can't leave at once, [`Extension::on_sent`](crate::extension::Extension::on_sent) receives this token when
    /// it has left, or when it never will. The unit never drops such a packet for want of memory, so the extension must
    /// bound how many of them wait.
    pub token: Option<u64>,
}

impl Packet<'_> {
    /// Creates a packet without bytes, with all of its own fields 0.
    #[must_use]
    pub const fn to(node: NodeId) -> Self {
        Packet {
            node,
            incarnation: Incarnation::UNKNOWN,
            flow: FlowId(0),
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

/// The result of sending a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sending {
    /// It is handed to the line when the handler returns, and its last bit leaves at this instant. A command that is
    /// completed from now on is completed after its memory has been read.
    Now(Instant),
    /// It waits for its turn, for the line, or for an admission.
    Queued,
}

/// Report that a queued packet has left, or never will.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sent {
    /// The packet's token.
    pub token: u64,
    /// [`Status::Done`], or the reason for which it never leaves.
    pub status: Status,
    /// When its last bit leaves the line; the present time, if it never does.
    pub leaves: Instant,
}

/// The limit of a backlog count: it stops at the first whole message at which `bytes` are reached, and after `messages`
/// at most. Messages of which a part has left count with their remaining bytes alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct BacklogLimit {
    /// Bytes of frames, headers included.
    pub bytes: u64,
    /// Number of messages of which no frame has left.
    pub messages: u32,
}

/// The frames that wait for the gate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct Backlog {
    /// Bytes of the frames, headers included.
    pub bytes: u64,
    /// Number of messages and packets of which no frame has left.
    pub messages: u32,
}

/// The place of a frame in its message, as the scheduler writes it into the words of the frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct Fragment {
    /// Number of the message, counted by its sender.
    pub message: u32,
    /// First byte of the frame within the message.
    pub offset: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// The sending extension's own value.
    pub tag: u32,
}

impl Fragment {
    pub(crate) const fn words(self) -> [u64; 2] {
        [
            self.message as u64 | (self.offset as u64) << 32,
            self.total as u64 | (self.tag as u64) << 32,
        ]
    }

    /// Reads the words that a [`Message`]'s sender wrote; any words are a valid fragment.
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
