//! How the memory of a channel's two FIFOs is laid out.
//!
//! Words first, then a ring of records for each direction, then a ring of bytes for each. Counts and
//! positions only grow; what they name lies at their remainder. A message's bytes are in one piece,
//! from a position that is a multiple of 8.
//!
//! | offset | bytes | what | written by |
//! |---|---|---|---|
//! | 0 | 8 | messages ever put into the send FIFO | process |
//! | 8 | 8 | messages ever taken out of the receive FIFO | process |
//! | 16 | 16 | what the process waits for | process |
//! | 32 | 24 | the message that it is putting in: its number and one, position, bytes | process |
//! | 64 | 16 each | send records | process |
//! | then | 16 each | receive records | NIC |
//! | then | | bytes to be sent | process |
//! | then | | bytes received | NIC |

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::names::Rank;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 16;
/// Where the records begin.
const RECORDS: usize = 64;
/// Where the count of sent messages lies.
pub(crate) const SENT: usize = 0;
/// Where it lies which message the process is putting in, where, and how long it is. It counts for as
/// long as the message is not counted as sent.
pub(crate) const UNFINISHED: [usize; 3] = [32, 40, 48];
/// Where the count of consumed messages lies.
pub(crate) const CONSUMED: usize = 8;

/// A FIFO's room.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct FifoSize {
    /// Most messages.
    pub messages: u32,
    /// Most bytes of all messages, each rounded up to 8.
    pub bytes: u32,
}

/// The sizes of a channel's FIFOs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Geometry {
    /// What is to be sent.
    pub send: FifoSize,
    /// What was received.
    pub receive: FifoSize,
    /// Most bytes of one message.
    pub message: u32,
}

/// Why a geometry is none.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum GeometryError {
    /// Nothing would fit.
    #[error("a FIFO holds 1 to 65,536 messages, not {0}")]
    Messages(u32),
    /// A message would never fit.
    #[error("a FIFO of {bytes} bytes never holds a message of {message}: make it larger")]
    Bytes {
        /// The FIFO's.
        bytes: u32,
        /// The message's.
        message: u32,
    },
}

impl Geometry {
    /// PM's (SCore-D paper, section 5): 255 messages of 240 bytes to be sent, 511 of 128 received,
    /// where every message has the size that fills them.
    pub const PM: Self = Self {
        send: FifoSize { messages: 255, bytes: 61_200 },
        receive: FifoSize { messages: 511, bytes: 65_408 },
        message: 8_192,
    };

    /// For bulk data: 256 KiB a direction, messages of up to 8 KiB.
    pub const BULK: Self = Self {
        send: FifoSize { messages: 256, bytes: 256 << 10 },
        receive: FifoSize { messages: 512, bytes: 256 << 10 },
        message: 8_192,
    };

    /// The same over UDP: messages of 1,360 bytes, which fit an Ethernet's datagram with IPv6's headers, ours and
    /// a seal's (40 + 8, 48, 40).
    pub const BULK_UDP: Self = Self { message: 1_360, ..Self::BULK };

    /// A channel for small messages: 4 KiB a direction.
    pub const SMALL: Self = Self {
        send: FifoSize { messages: 64, bytes: 4_096 },
        receive: FifoSize { messages: 64, bytes: 4_096 },
        message: 512,
    };

    /// Checks the sizes.
    ///
    /// # Errors
    /// [`GeometryError`] says what is wrong.
    pub const fn check(&self) -> Result<(), GeometryError> {
        let mut at = 0;
        let fifos = [self.send, self.receive];
        while at < fifos.len() {
            let FifoSize { messages, bytes } = fifos[at];
            if messages == 0 || messages > 65_536 {
                return Err(GeometryError::Messages(messages));
            }
            if bytes % 8 != 0 || self.message > bytes || bytes > 1 << 28 {
                return Err(GeometryError::Bytes { bytes, message: self.message });
            }
            at += 1;
        }
        Ok(())
    }

    /// Bytes of the memory.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.receive_bytes_at() + self.receive.bytes as usize
    }

    pub(crate) const fn send_record(&self, number: u64) -> usize {
        RECORDS + (number % self.send.messages as u64) as usize * RECORD_BYTES
    }

    pub(crate) const fn receive_record(&self, number: u64) -> usize {
        let base = RECORDS + self.send.messages as usize * RECORD_BYTES;
        base + (number % self.receive.messages as u64) as usize * RECORD_BYTES
    }

    const fn send_bytes_at(&self) -> usize {
        RECORDS + (self.send.messages as usize + self.receive.messages as usize) * RECORD_BYTES
    }

    const fn receive_bytes_at(&self) -> usize {
        self.send_bytes_at() + self.send.bytes as usize
    }

    /// Where the byte at a position of the send FIFO lies.
    pub(crate) const fn send_byte(&self, position: u64) -> usize {
        self.send_bytes_at() + (position % self.send.bytes as u64) as usize
    }

    /// Where the byte at a position of the receive FIFO lies.
    pub(crate) const fn receive_byte(&self, position: u64) -> usize {
        self.receive_bytes_at() + (position % self.receive.bytes as u64) as usize
    }
}

/// One message in a FIFO.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The other rank.
    pub peer: Rank,
    /// Its bytes.
    pub length: u32,
    /// Where they begin.
    pub position: u64,
}

impl Record {
    pub(crate) fn emit(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.peer.0.to_le_bytes());
        bytes[8..].copy_from_slice(&self.position.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: [u8; RECORD_BYTES]) -> Self {
        let [a, b, c, d, e, f, _, _, position @ ..] = bytes;
        Self {
            length: u32::from_le_bytes([a, b, c, d]),
            peer: Rank(u16::from_le_bytes([e, f])),
            position: u64::from_le_bytes(position),
        }
    }
}

/// Which part of a ring of bytes is taken: from `head` to `tail`, positions that only grow.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ByteRing {
    pub(crate) head: u64,
    pub(crate) tail: u64,
}

impl ByteRing {
    /// Where `length` bytes could be put in one piece.
    pub(crate) const fn place(&self, size: u32, length: u32) -> Option<u64> {
        let (size, length) = (size as u64, (length as u64 + 7) & !7);
        if length > size {
            return None;
        }
        let to_end = size - self.tail % size;
        let position = if length > to_end { self.tail + to_end } else { self.tail };
        // Nothing is taken: what lies before the end is given up.
        let head = if self.head == self.tail { position } else { self.head };
        if position + length <= head + size { Some(position) } else { None }
    }

    /// Takes the bytes that [`ByteRing::place`] found.
    pub(crate) const fn take(&mut self, position: u64, length: u32) {
        if self.head == self.tail {
            self.head = position;
        }
        self.tail = position + ((length as u64 + 7) & !7);
    }

    /// Gives back all before `position`, the first that is still taken.
    pub(crate) const fn release(&mut self, position: Option<u64>) {
        self.head = match position {
            Some(position) => position,
            None => self.tail,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn the_papers_fifos_hold_what_the_paper_says() {
        Geometry::PM.check().unwrap();
        for (size, messages, length) in
            [(Geometry::PM.send, 255, 240), (Geometry::PM.receive, 511, 128)]
        {
            let mut ring = ByteRing::default();
            let mut count = 0;
            while let Some(position) = ring.place(size.bytes, length) {
                ring.take(position, length);
                count += 1;
            }
            assert_eq!((count, size.messages), (messages, messages));
        }
    }

    #[test]
    fn an_empty_ring_holds_the_longest_message_wherever_it_begins() {
        for size in [64, 72, 128] {
            let mut ring = ByteRing::default();
            for length in [8, 64, 40, 64, 0, 64, 24, 48, 64] {
                let position = ring.place(size, length).expect("nothing is in it");
                ring.take(position, length);
                ring.release(None);
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_of_a_ring_never_overlap_and_never_wrap(
            lengths in proptest::collection::vec(0_u32..600, 1..200), keep in 0_usize..8,
        ) {
            const SIZE: u32 = 1024;
            let mut ring = ByteRing::default();
            let mut live: VecDeque<(u64, u32)> = VecDeque::new();
            for length in lengths {
                while live.len() > keep {
                    live.pop_front();
                }
                ring.release(live.front().map(|(position, _)| *position));
                let Some(position) = ring.place(SIZE, length) else { continue };
                ring.take(position, length);
                let at = position % u64::from(SIZE);
                prop_assert!(at + u64::from(length) <= u64::from(SIZE));
                for (other, its) in &live {
                    let other = other % u64::from(SIZE);
                    let apart = at + u64::from(length) <= other || other + u64::from(*its) <= at;
                    prop_assert!(apart || length == 0 || *its == 0);
                }
                live.push_back((position, length));
            }
        }
    }
}
