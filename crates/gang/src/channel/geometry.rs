//! Memory layout of a channel's two FIFOs.
//!
//! Words come first, then a ring of records for each direction, then a ring of bytes for each. Counts and positions
//! only grow; the index into a ring is their remainder. A message's bytes are contiguous, from a position that is a
//! multiple of 8.
//!
//! | offset | bytes | content | written by |
//! |---|---|---|---|
//! | 0 | 8 | messages ever put into the send FIFO | process |
//! | 8 | 8 | messages ever taken out of the receive FIFO | process |
//! | 16 | 16 | the process's wait state | process |
//! | 32 | 32 | unused | |
//! | 64 | 16 each | send records | process |
//! | then | 16 each | receive records | NIC |
//! | then | | bytes to be sent | process |
//! | then | | bytes received | NIC |

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::names::Rank;

/// Size of a [`Record`].
pub(crate) const RECORD_BYTES: usize = 16;
/// Offset of the records.
const RECORDS: usize = 64;
/// Offset of the count of sent messages.
pub(crate) const SENT: usize = 0;
/// Offset of the count of consumed messages.
pub(crate) const CONSUMED: usize = 8;

/// Capacity of a FIFO.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct FifoSize {
    /// Most messages at a time.
    pub messages: u32,
    /// Most bytes of all messages, each rounded up to a multiple of 8.
    pub bytes: u32,
}

/// The sizes of a channel's FIFOs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Geometry {
    /// Capacity of the send FIFO.
    pub send: FifoSize,
    /// Capacity of the receive FIFO.
    pub receive: FifoSize,
    /// Longest message, in bytes.
    pub message: u32,
}

/// Errors of a [`Geometry`].
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum GeometryError {
    /// A FIFO holds no message, or more than 65,536.
    #[error("a FIFO holds 1 to 65,536 messages, not {0}")]
    Messages(u32),
    /// A FIFO's bytes are no multiple of 8, too few for a message, or more than 256 MiB.
    #[error(
        "a FIFO of {bytes} bytes is invalid: take a multiple of 8, at least {message} (a message) and at most 256 MiB"
    )]
    Bytes {
        /// The FIFO's bytes.
        bytes: u32,
        /// The longest message, in bytes.
        message: u32,
    },
}

impl Geometry {
    /// PM's FIFOs (SCore-D paper, section 5): 255 messages of 240 bytes to be sent, 511 of 128 bytes received. Messages
    /// of exactly these sizes fill them.
    pub const PM: Self = Self {
        send: FifoSize { messages: 255, bytes: 61_200 },
        receive: FifoSize { messages: 511, bytes: 65_408 },
        message: 8_192,
    };

    /// FIFOs for bulk data: 256 KiB per direction, messages of up to 8 KiB.
    pub const BULK: Self = Self {
        send: FifoSize { messages: 256, bytes: 256 << 10 },
        receive: FifoSize { messages: 512, bytes: 256 << 10 },
        message: 8_192,
    };

    /// [`Geometry::BULK`] over UDP: messages of 1,360 bytes. With the headers of IPv6 and UDP (40 + 8 bytes), of the
    /// frame (48) and of a seal (40), they fit an Ethernet datagram.
    pub const BULK_UDP: Self = Self { message: 1_360, ..Self::BULK };

    /// FIFOs for small messages: 4 KiB per direction.
    pub const SMALL: Self = Self {
        send: FifoSize { messages: 64, bytes: 4_096 },
        receive: FifoSize { messages: 64, bytes: 4_096 },
        message: 512,
    };

    /// Checks that the sizes are valid.
    ///
    /// # Errors
    /// [`GeometryError`] for the first invalid FIFO.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), GeometryError> {
        for FifoSize { messages, bytes } in [self.send, self.receive] {
            if messages == 0 || messages > 65_536 {
                return Err(GeometryError::Messages(messages));
            }
            if bytes % 8 != 0 || self.message > bytes || bytes > 1 << 28 {
                return Err(GeometryError::Bytes { bytes, message: self.message });
            }
        }
        Ok(())
    }

    /// Returns the size of the FIFOs' memory, in bytes.
    #[must_use]
    #[doc(hidden)]
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

    /// Returns the offset of a position of the send FIFO.
    pub(crate) const fn send_byte(&self, position: u64) -> usize {
        self.send_bytes_at() + (position % self.send.bytes as u64) as usize
    }

    /// Returns the offset of a position of the receive FIFO.
    pub(crate) const fn receive_byte(&self, position: u64) -> usize {
        self.receive_bytes_at() + (position % self.receive.bytes as u64) as usize
    }
}

/// Describes one message in a FIFO.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[doc(hidden)]
pub struct Record {
    /// The receiving rank in a send FIFO, the sending rank in a receive FIFO.
    pub peer: Rank,
    /// The message's length, in bytes.
    pub length: u32,
    /// Position of the message's first byte.
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

/// The used part of a ring of bytes, from `head` to `tail`. Both positions only grow.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ByteRing {
    pub(crate) head: u64,
    pub(crate) tail: u64,
}

impl ByteRing {
    /// Returns a position with `length` contiguous free bytes.
    pub(crate) const fn place(&self, size: u32, length: u32) -> Option<u64> {
        let (size, length) = (size as u64, (length as u64 + 7) & !7);
        if length > size {
            return None;
        }
        let to_end = size - self.tail % size;
        let position = if length > to_end { self.tail + to_end } else { self.tail };
        // If the ring is empty, the skipped bytes before its end count as free.
        let head = if self.head == self.tail { position } else { self.head };
        if position + length <= head + size { Some(position) } else { None }
    }

    /// Marks the bytes that [`ByteRing::place`] found as used.
    pub(crate) const fn take(&mut self, position: u64, length: u32) {
        if self.head == self.tail {
            self.head = position;
        }
        self.tail = position + ((length as u64 + 7) & !7);
    }

    /// Frees all bytes before `position`, the first byte that is still used; `None` frees all bytes.
    pub(crate) fn release(&mut self, position: Option<u64>) {
        self.head = position.unwrap_or(self.tail);
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
