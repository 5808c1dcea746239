//! Messages of a channel between ranks of the same host.

use super::{Channel, SendError};
use crate::names::Rank;
use crate::wait::News;

/// Consecutive messages of the host's own ranks after which messages of other hosts get a turn.
const LOCAL_IN_A_ROW: u32 = 16;

impl Channel {
    /// Puts a message into the ring to a rank on this host.
    pub(super) fn push(&mut self, to: Rank, parts: [&[u8]; 2]) -> Result<(), SendError> {
        if self.port.is_closed() {
            return Err(SendError::Closed);
        }
        let Some(rings) = &mut self.rings else { return Err(SendError::Closed) };
        if !rings.push(to, parts) {
            return Err(SendError::Full);
        }
        Ok(())
    }

    /// Returns whether the next message is in a ring. Messages in rings and in the receive FIFO take turns.
    pub(super) fn is_local_next(&mut self) -> bool {
        let Some(rings) = &mut self.rings else { return false };
        let is_turn_of_nic = self.in_a_row >= LOCAL_IN_A_ROW && !rings.has_past();
        let has_nic_turn = is_turn_of_nic && self.received > self.consumed;
        // A message of the rings that `peek` has returned stays the next one.
        if self.is_from_nic || has_nic_turn && !rings.has_current() {
            return false;
        }
        let found = rings.find();
        self.is_closed |= found.is_err();
        found.unwrap_or(false)
    }

    /// Consumes the message in a ring that `peek` returned last.
    pub(super) fn consume_local(&mut self) {
        let Some(rings) = &mut self.rings else { return };
        rings.consume();
        self.in_a_row += 1;
        if self.in_a_row.is_multiple_of(LOCAL_IN_A_ROW) {
            self.poll();
        }
    }

    /// Returns whether a message has arrived that is not consumed, as far as the NIC has reported. What a damaged ring
    /// contains does not count.
    pub(crate) fn has_message(&mut self) -> bool {
        self.received > self.consumed
            || !self.is_closed
                && self.rings.as_mut().is_some_and(|rings| rings.has_news(News::Message))
    }
}
