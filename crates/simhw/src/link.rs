//! Links: their rate, their length, and how they cut frames into pieces.

use std::time::Duration;

use crate::time::LineRate;

/// Payload bytes of an ATM cell.
pub(crate) const CELL_PAYLOAD: u32 = 48;
/// Bytes of an ATM cell on the wire.
#[doc(hidden)]
pub const CELL_BYTES: u32 = 53;
/// Bytes of an AAL5 trailer, at the end of a packet's last cell.
pub(crate) const AAL5_TRAILER: u32 = 8;

/// The pieces into which a link cuts a frame. The loss of one piece loses the frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Framing {
    /// IP packets of at most `mtu` bytes of the frame, each with `overhead` bytes of headers.
    Packets {
        /// Most bytes of the frame in one packet.
        mtu: u32,
        /// Bytes of headers and framing of each packet on the wire.
        overhead: u32,
    },
    /// ATM cells of AAL5 packets.
    Cells,
}

impl Framing {
    /// Every frame is one packet without overhead.
    pub const PLAIN: Self = Self::Packets { mtu: u32::MAX, overhead: 0 };
    /// UDP over IPv4 over Ethernet with an MTU of 1,500 bytes. Preamble, header, checksum and gap take 38
    /// bytes, IP and UDP headers 28.
    pub const ETHERNET: Self = Self::Packets { mtu: 1472, overhead: 66 };

    /// Returns the number of pieces of a frame.
    #[must_use]
    #[doc(hidden)]
    pub const fn pieces(self, frame: u32) -> u32 {
        match self {
            Self::Packets { mtu, .. } => {
                if frame <= mtu {
                    1
                } else {
                    frame.div_ceil(mtu)
                }
            }
            Self::Cells => (frame + AAL5_TRAILER).div_ceil(CELL_PAYLOAD),
        }
    }

    /// Returns the bytes on the wire of piece `index` of a frame.
    #[must_use]
    #[doc(hidden)]
    pub const fn piece_bytes(self, frame: u32, index: u32) -> u32 {
        match self {
            Self::Packets { mtu, overhead } => {
                let left = frame - index * if frame <= mtu { 0 } else { mtu };
                overhead + if left < mtu { left } else { mtu }
            }
            Self::Cells => CELL_BYTES,
        }
    }

    /// Returns the bytes on the wire of all pieces of a frame.
    #[must_use]
    #[doc(hidden)]
    pub const fn wire_bytes(self, frame: u32) -> u32 {
        match self {
            Self::Packets { overhead, .. } => frame + self.pieces(frame) * overhead,
            Self::Cells => self.pieces(frame) * CELL_BYTES,
        }
    }
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkProfile {
    /// Rate in bits per second.
    pub rate: LineRate,
    /// Propagation delay of a bit from one end to the other.
    pub propagation: Duration,
    /// The pieces into which frames are cut.
    pub framing: Framing,
}

impl LinkProfile {
    /// Creates a link without framing.
    #[must_use]
    pub const fn plain(rate: LineRate, propagation: Duration) -> Self {
        Self { rate, propagation, framing: Framing::PLAIN }
    }

    /// Creates a link of Ethernet frames that carry IP packets.
    #[must_use]
    pub const fn ethernet(rate: LineRate, propagation: Duration) -> Self {
        Self { rate, propagation, framing: Framing::ETHERNET }
    }

    /// Creates a link of ATM cells. `rate` is that of the cells: 149.76 Mb/s of an OC-3's 155.52.
    #[must_use]
    pub const fn atm(rate: LineRate, propagation: Duration) -> Self {
        Self { rate, propagation, framing: Framing::Cells }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_10_kb_frame_is_214_cells() {
        assert_eq!(Framing::Cells.pieces(10_240), 214);
        assert_eq!(Framing::Cells.wire_bytes(40), 53);
        assert_eq!(Framing::Cells.wire_bytes(41), 106);
    }

    proptest! {
        #[test]
        fn pieces_sum_to_the_frame(frame in 1_u32..70_000, mtu in 1_u32..70_000, overhead in 0_u32..100) {
            for framing in [Framing::Packets { mtu, overhead }, Framing::Cells, Framing::PLAIN] {
                let pieces = framing.pieces(frame);
                let bytes: u64 =
                    (0..pieces).map(|i| u64::from(framing.piece_bytes(frame, i))).sum();
                prop_assert_eq!(bytes, u64::from(framing.wire_bytes(frame)));
                prop_assert!(pieces >= 1);
            }
        }
    }
}
