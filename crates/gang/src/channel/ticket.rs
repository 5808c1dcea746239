//! A descriptor in a form for other processes: text, and the file that holds the FIFOs.

use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;

use midplane_simhw::region::SharedMemory;
use midplane_simhw::wire;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Descriptor;
use super::geometry::Geometry;
use super::memory::Memory;
use crate::names::Rank;

/// The text form of a descriptor: hexadecimal digits, for an environment variable.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Ticket {
    handle: u64,
    key: u64,
    geometry: Geometry,
    rank: Rank,
    ranks: u16,
}

/// Errors of reading a ticket.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum TicketError {
    /// The text is no ticket.
    #[error("this is not a channel's ticket: pass on the daemon's text unchanged")]
    Text,
    /// The file does not hold the FIFOs of such a channel.
    #[error("the file does not hold this channel's FIFOs: {0}")]
    File(std::io::ErrorKind),
}

impl Descriptor {
    /// Returns the ticket that another process needs, along with the file, to attach.
    #[must_use]
    pub const fn ticket(&self) -> Ticket {
        let Self { handle, key, geometry, rank, ranks, .. } = *self;
        Ticket { handle, key, geometry, rank, ranks }
    }
}

impl Ticket {
    /// Maps the FIFOs, and returns the descriptor.
    ///
    /// # Errors
    /// [`TicketError::File`] if the file can't be mapped; [`TicketError::Text`] if the geometry is invalid.
    pub fn open(self, file: &OwnedFd) -> Result<Descriptor, TicketError> {
        let Self { handle, key, geometry, rank, ranks } = self;
        geometry.check().map_err(|_| TicketError::Text)?;
        let memory = SharedMemory::map(file, geometry.bytes());
        let memory = memory.map_err(|error| TicketError::File(error.kind()))?;
        let memory = Memory::Mapped(Arc::new(memory));
        Ok(Descriptor { handle, key, memory, geometry, rank, ranks })
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = wire::encode(self).map_err(|_| fmt::Error)?;
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        if !text.is_ascii() || !text.len().is_multiple_of(2) {
            return Err(TicketError::Text);
        }
        let pair = |at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| TicketError::Text);
        let bytes: Vec<u8> = (0..text.len()).step_by(2).map(pair).collect::<Result<_, _>>()?;
        wire::decode(&bytes).map_err(|_| TicketError::Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_read_as_it_was_written_and_nothing_else_is_one() {
        let (rank, ranks) = (Rank(3), 5);
        let ticket = Ticket { handle: 7, key: u64::MAX, geometry: Geometry::PM, rank, ranks };
        let text = ticket.to_string();
        assert_eq!(text.parse(), Ok(ticket));
        for wrong in ["", "0", "xy", &text[2..], "\u{e4}\u{e4}"] {
            assert_eq!(wrong.parse::<Ticket>(), Err(TicketError::Text), "{wrong:?}");
        }
    }
}
