//! Control packets, by which two processes agree on their wires.

use midplane_simhw::region::Payload;

use crate::message::envelope::{Context, Envelope, Kind, Marks, Peer, Tag};

/// Bytes of a control packet's payload.
pub(super) const BYTES: usize = 16;

/// The highest identity accepted from a peer. Above it are enough for all increments of a process.
const HIGHEST: u64 = u64::MAX / 2;

/// The request or report of a control packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(super) enum Operation {
    /// Asks for a `Seen` on the same wire.
    Probe = 1,
    /// Answers a `Probe`: packets pass this wire in both directions.
    Seen = 2,
    /// The sender's next packets use this wire, in the epoch `epoch`.
    Begin = 3,
    /// Answers a `Begin`: `count` packets were received; packets of earlier epochs are no longer accepted.
    Go = 4,
    /// Acknowledges that `count` packets were received.
    Taken = 5,
    /// The sender leaves the network.
    Leave = 6,
    /// The sender accepts no packets of the identity `to`, only of identities above `count`.
    Refused = 7,
}

/// The fields of a control packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Control {
    pub(super) operation: Operation,
    /// The sender's identity towards this receiver.
    pub(super) from: u64,
    /// The receiver's identity; 0 if the sender does not know it.
    pub(super) to: u64,
    pub(super) epoch: u32,
    pub(super) count: u64,
    /// The sender's host; 0 if it is unknown.
    pub(super) host: u64,
}

impl Control {
    /// Returns the packet's envelope and payload.
    pub(super) fn to_packet(self, source: Peer) -> (Envelope, [u8; BYTES]) {
        let mut payload = [0; BYTES];
        payload[..8].copy_from_slice(&self.count.to_le_bytes());
        payload[8..].copy_from_slice(&self.host.to_le_bytes());
        let envelope = Envelope {
            length: BYTES as u32,
            tag: Tag(self.operation as u32),
            kind: Kind::Wire,
            marks: Marks::NONE,
            source,
            context: Context(0),
            sequence: self.epoch,
            to: self.to,
            from: self.from,
        };
        (envelope, payload)
    }

    /// Reads a packet; `None` if it is no valid control packet.
    pub(super) fn parse(envelope: &Envelope, payload: Payload<'_>) -> Option<Self> {
        use Operation::{Begin, Go, Leave, Probe, Refused, Seen, Taken};
        let operation = [Probe, Seen, Begin, Go, Taken, Leave, Refused];
        let operation = operation.into_iter().find(|one| *one as u32 == envelope.tag.0)?;
        if envelope.from == 0 || envelope.from > HIGHEST || payload.len() != BYTES {
            return None;
        }
        let bytes = payload.to_vec();
        let (words, _) = bytes.as_chunks::<8>();
        let [count, host] = [words[0], words[1]].map(u64::from_le_bytes);
        if operation == Refused && count > HIGHEST {
            return None;
        }
        let Envelope { from, to, sequence: epoch, .. } = *envelope;
        Some(Self { operation, from, to, epoch, count, host })
    }
}
