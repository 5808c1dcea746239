//! Messages whose pieces have not all been received.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::piece::{PIECE_BYTES, Piece, Stamp};

/// Most messages that wait for pieces: at most 4.6 MB.
pub(super) const MOST: usize = 64;

/// The sender's address, its run, and the number of the message's first datagram.
type Id = (SocketAddr, [u8; 16], u64);

/// A message that waits for pieces.
#[derive(Debug)]
struct Partial {
    /// Counts the messages that were started before it.
    order: u64,
    last: u8,
    /// Bit `i`: piece `i` was received.
    received: u64,
    bytes: Vec<u8>,
}

/// The messages that wait for pieces.
#[derive(Debug, Default)]
pub(super) struct Joining {
    partial: BTreeMap<Id, Partial>,
    begun: u64,
}

impl Joining {
    /// Adds a piece. Returns the message if the piece completes it, and whether another message was dropped because too
    /// many wait.
    pub(super) fn add(
        &mut self,
        from: SocketAddr,
        stamp: Stamp,
        piece: Piece<'_>,
    ) -> (Option<Vec<u8>>, bool) {
        let Piece { index, last, bytes, .. } = piece;
        if last == 0 {
            return (Some(bytes.to_vec()), false);
        }
        let Some(first) = stamp.number.checked_sub(index.into()) else { return (None, false) };
        let id = (from, stamp.run, first);
        let is_dropped = !self.partial.contains_key(&id) && self.drop_oldest();
        let partial = self.partial.entry(id).or_insert_with(|| {
            self.begun += 1;
            let bytes = vec![0; (usize::from(last) + 1) * PIECE_BYTES];
            Partial { order: self.begun, last, received: 0, bytes }
        });
        // A piece that was received before is not changed.
        if partial.last != last || partial.received & (1 << index) != 0 {
            return (None, is_dropped);
        }
        partial.received |= 1 << index;
        let begin = usize::from(index) * PIECE_BYTES;
        partial.bytes[begin..begin + bytes.len()].copy_from_slice(bytes);
        if index == last {
            partial.bytes.truncate(begin + bytes.len());
        }
        if partial.received.count_ones() <= u32::from(last) {
            return (None, is_dropped);
        }
        (self.partial.remove(&id).map(|partial| partial.bytes), is_dropped)
    }

    /// Drops the oldest message if too many wait; returns whether one was dropped.
    fn drop_oldest(&mut self) -> bool {
        if self.partial.len() < MOST {
            return false;
        }
        let oldest = self.partial.iter().min_by_key(|(_, partial)| partial.order);
        let oldest = oldest.map(|(id, _)| *id);
        oldest.is_some_and(|id| self.partial.remove(&id).is_some())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.partial.len()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.partial.values().map(|partial| partial.bytes.capacity()).sum()
    }
}
