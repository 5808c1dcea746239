//! One waiting message or packet, and its next frame.

use midplane_simhw::frame::{DEFAULT_HOP_LIMIT, HEADER_BYTES, Header, Kind};
use midplane_simhw::hardware::{Hardware, Source};
use midplane_simhw::id::{ExtensionId, PortId};
use midplane_simhw::port::{Completion, Status};
use midplane_simhw::region::{Payload, RegionRef};

use super::{Fragment, Message, Packet};
use crate::admission::CONTROLLED;
use crate::extension::Epoch;

/// A packet's bytes while it waits.
#[derive(Debug)]
enum Bytes {
    Region(RegionRef),
    Copied(Box<[u8]>),
}

#[derive(Debug)]
enum Form {
    Message {
        message: Message,
        number: u32,
        sent: u32,
    },
    /// `epoch`: the version of its extension.
    Packet {
        header: Header,
        epoch: Epoch,
        bytes: Bytes,
        token: Option<u64>,
        owner: Option<PortId>,
    },
}

/// An entry of a flow's queue.
#[derive(Debug)]
pub(super) struct Outgoing(Form);

impl Outgoing {
    pub(super) const fn message(message: Message, number: u32) -> Self {
        Self(Form::Message { message, number, sent: 0 })
    }

    pub(super) fn packet(header: Header, epoch: Epoch, packet: &Packet<'_>) -> Self {
        let bytes = match packet.source {
            Source::Region(region) => Bytes::Region(region),
            Source::Bytes(payload) => Bytes::Copied(payload.to_vec().into_boxed_slice()),
        };
        Self(Form::Packet { header, epoch, bytes, token: packet.token, owner: packet.owner })
    }

    /// Returns the bytes of the NIC's memory that a packet takes. Returns 0 for a message: it takes as much as its
    /// command, and ports bound their commands.
    pub(super) fn occupied(&self) -> usize {
        match &self.0 {
            Form::Message { .. } => 0,
            Form::Packet { bytes: Bytes::Region(_), .. } => size_of::<Self>(),
            Form::Packet { bytes: Bytes::Copied(bytes), .. } => size_of::<Self>() + bytes.len(),
        }
    }

    /// Returns the bytes of its next frame, without the header.
    pub(super) const fn next_length(&self, mtu: u32) -> u32 {
        match &self.0 {
            Form::Message { message, sent, .. } => {
                let left = message.source.length - *sent;
                let first = *sent == 0 && message.first > 0 && message.first < mtu;
                let limit = if first { message.first } else { mtu };
                if left < limit { left } else { limit }
            }
            Form::Packet { header, .. } => header.length as u32,
        }
    }

    /// Sets a message's number, unless a part of it has left.
    pub(super) const fn set_number(&mut self, next: u32) {
        if let Form::Message { number, sent: 0, .. } = &mut self.0 {
            *number = next;
        }
    }

    /// Returns whether a part of it has left.
    pub(super) const fn has_begun(&self) -> bool {
        matches!(&self.0, Form::Message { sent: 1.., .. })
    }

    /// Returns the bytes of all its remaining frames, headers included.
    pub(super) fn cost(&self, mtu: u32) -> u64 {
        let first = u64::from(self.next_length(mtu));
        let left = match &self.0 {
            Form::Message { message, sent, .. } => u64::from(message.source.length - *sent),
            Form::Packet { .. } => first,
        };
        let frames = 1 + (left - first).div_ceil(u64::from(mtu));
        left + frames * HEADER_BYTES as u64
    }

    /// Returns the header of its next frame.
    pub(super) fn next_header(&self, hw: &dyn Hardware) -> Header {
        match &self.0 {
            Form::Message { message, number, sent } => {
                let length = self.next_length(hw.mtu_to(message.node) as u32);
                let fragment = Fragment {
                    message: *number,
                    offset: *sent,
                    total: message.source.length,
                    tag: message.tag,
                };
                Header {
                    extension: message.extension,
                    destination: message.node,
                    length: length as u16,
                    port: message.port,
                    flags: if message.controlled { CONTROLLED } else { 0 },
                    words: fragment.words(),
                    ..blank(hw)
                }
            }
            Form::Packet { header, .. } => *header,
        }
    }

    /// Returns the bytes of its next frame, which has `length`.
    pub(super) fn next_source(&self, length: u16) -> Source<'_> {
        match &self.0 {
            // A message without bytes needs no memory.
            Form::Message { .. } if length == 0 => Source::Bytes(Payload::EMPTY),
            Form::Message { message, sent, .. } => {
                let part = message.source.part(*sent, u32::from(length));
                Source::Region(part.expect("frames are cut within their message"))
            }
            Form::Packet { bytes: Bytes::Region(region), .. } => Source::Region(*region),
            Form::Packet { bytes: Bytes::Copied(bytes), .. } => {
                Source::Bytes(Payload::from(&bytes[..]))
            }
        }
    }

    /// Notes that its next frame of `length` bytes is on the line. Returns whether that was the last.
    pub(super) const fn on_sent(&mut self, length: u16) -> bool {
        match &mut self.0 {
            Form::Message { message, sent, .. } => {
                *sent += length as u32;
                *sent == message.source.length
            }
            Form::Packet { .. } => true,
        }
    }

    /// Completes its command, if it has one.
    pub(super) fn complete(&self, hw: &mut dyn Hardware, status: Status) {
        if let Some((port, completion)) = self.completion() {
            let length = if status == Status::Done { completion.length } else { 0 };
            hw.complete(port, &Completion { status, length, ..completion });
        }
    }

    /// Returns the port whose command it completes.
    pub(super) fn port(&self) -> Option<PortId> {
        self.completion().map(|(port, _)| port)
    }

    /// Returns the port that it belongs to: while that port is suspended, it does not leave.
    pub(super) const fn owner(&self) -> Option<PortId> {
        match &self.0 {
            Form::Message { message, .. } => match message.completion {
                Some((port, _)) => Some(port),
                None => None,
            },
            Form::Packet { owner, .. } => *owner,
        }
    }

    /// Returns the memory that a packet's bytes are read from when it leaves.
    pub(super) const fn region(&self) -> Option<RegionRef> {
        match self.0 {
            Form::Packet { bytes: Bytes::Region(region), .. } => Some(region),
            _ => None,
        }
    }

    /// Returns whether it is a packet.
    pub(super) const fn is_packet(&self) -> bool {
        matches!(self.0, Form::Packet { .. })
    }

    const fn completion(&self) -> Option<(PortId, Completion)> {
        match &self.0 {
            Form::Message { message, .. } => message.completion,
            Form::Packet { .. } => None,
        }
    }

    /// Returns the version of the extension to notify of its end, and the token for it.
    pub(super) fn token(&self) -> Option<(ExtensionId, Epoch, u64)> {
        match &self.0 {
            Form::Message { .. } => None,
            Form::Packet { header, epoch, token, .. } => {
                token.map(|token| (header.extension, *epoch, token))
            }
        }
    }
}

/// Returns a data frame's header with the fields that are the same in all of them.
fn blank(hw: &dyn Hardware) -> Header {
    Header {
        kind: Kind::Data,
        source: hw.node(),
        incarnation: hw.incarnation(),
        hop_limit: DEFAULT_HOP_LIMIT,
        ..Header::default()
    }
}

/// Returns the header of a packet with `length` bytes.
pub(super) fn packet_header(
    hw: &dyn Hardware,
    extension: ExtensionId,
    packet: &Packet<'_>,
    length: u16,
) -> Header {
    let controlled = if packet.controlled { CONTROLLED } else { 0 };
    Header {
        extension,
        destination: packet.node,
        destination_incarnation: packet.incarnation,
        length,
        port: packet.port,
        sequence: packet.sequence,
        acknowledgement: packet.acknowledgement,
        flags: packet.flags & !CONTROLLED | controlled,
        words: packet.words,
        ..blank(hw)
    }
}

#[cfg(test)]
mod tests {
    use midplane_simhw::id::NodeId;

    use super::super::FlowId;
    use super::*;

    #[test]
    fn the_cost_of_a_message_is_that_of_its_frames() {
        let source = RegionRef { length: 2500, ..RegionRef::default() };
        let message = Message {
            extension: ExtensionId(1),
            node: NodeId(1),
            flow: FlowId(0),
            port: PortId(0),
            source,
            tag: 0,
            controlled: true,
            first: 480,
            completion: None,
        };
        let mut outgoing = Outgoing::message(message, 0);
        // 480, 1000, 1000 and 20 bytes.
        assert_eq!(outgoing.cost(1000), 2500 + 4 * 48);
        assert!(!outgoing.on_sent(480));
        assert_eq!(outgoing.cost(1000), 2020 + 3 * 48);
    }
}
