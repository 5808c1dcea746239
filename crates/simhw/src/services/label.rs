//! Packets between hosts, and the labels that their frames carry.

use crate::id::NodeId;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// A datagram of UDP.
    Datagram,
    /// The report that no socket has the UDP port that a datagram was sent to.
    Unreachable,
    /// A TCP segment: its bytes after the ports and the sequence number.
    Segment,
}

/// The place of a fragment in its datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Fragment {
    /// Position in the datagram, from 0.
    pub(super) index: u8,
    /// Number of fragments of the datagram.
    pub(super) count: u8,
}

/// Fields of a packet's IP and transport headers, which its frame carries in its own header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Label {
    pub(super) kind: Kind,
    /// Port of the sender.
    pub(super) from: u16,
    /// Port of the receiver.
    pub(super) to: u16,
    /// The two bits of explicit congestion notification.
    pub(super) ecn: u8,
    /// True if both addresses are the loopback address.
    pub(super) is_loopback: bool,
    /// The sequence number of a segment, or the number of the datagram that a fragment belongs to.
    pub(super) sequence: u32,
    /// `None` for a whole packet.
    pub(super) fragment: Option<Fragment>,
}

impl Label {
    /// Returns the label as the words of a frame.
    pub(super) fn to_words(self) -> [u64; 2] {
        let kind = match self.kind {
            Kind::Datagram => 0,
            Kind::Unreachable => 1,
            Kind::Segment => 2,
        };
        let ports = u64::from(self.from) | u64::from(self.to) << 16;
        let flags = kind | u64::from(self.ecn & 3) << 2 | u64::from(self.is_loopback) << 4;
        let fragment = self
            .fragment
            .map_or(0, |Fragment { index, count }| u64::from(index) << 32 | u64::from(count) << 40);
        [ports | flags << 32, u64::from(self.sequence) | fragment]
    }

    /// Reads a label; `None` for a kind that is unknown.
    pub(super) const fn from_words([word, second]: [u64; 2]) -> Option<Self> {
        let flags = word >> 32;
        let kind = match flags & 3 {
            0 => Kind::Datagram,
            1 => Kind::Unreachable,
            2 => Kind::Segment,
            _ => return None,
        };
        let (index, count) = ((second >> 32) as u8, (second >> 40) as u8);
        let fragment = if count == 0 { None } else { Some(Fragment { index, count }) };
        Some(Self {
            kind,
            from: word as u16,
            to: (word >> 16) as u16,
            ecn: (flags >> 2 & 3) as u8,
            is_loopback: flags >> 4 & 1 == 1,
            sequence: second as u32,
            fragment,
        })
    }
}

/// A packet on its way from a socket to the NIC.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) to: NodeId,
    pub(super) label: Label,
    pub(super) bytes: Vec<u8>,
}

/// A packet that the NIC has received.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) from: NodeId,
    pub(super) label: Label,
    pub(super) bytes: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_survives_its_encoding() {
        for kind in [Kind::Datagram, Kind::Unreachable, Kind::Segment] {
            for (ecn, is_loopback) in [(0, false), (3, true), (1, true), (2, false)] {
                let (from, to, sequence) = (65_535, 1, u32::MAX - u32::from(ecn));
                for fragment in [None, Some(Fragment { index: 44, count: 45 })] {
                    let label = Label { kind, from, to, ecn, is_loopback, sequence, fragment };
                    assert_eq!(Label::from_words(label.to_words()), Some(label));
                }
            }
        }
        assert_eq!(Label::from_words([3 << 32, 0]), None);
    }
}
