//! A descriptor on its way to another process: words, and the file that the FIFOs lie in.

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

/// A descriptor's words. As text they are hexadecimal digits, for an environment variable.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Ticket {
    handle: u64,
    key: u64,
    geometry: Geometry,
    rank: Rank,
    ranks: u16,
}

/// Why a ticket is none.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum TicketError {
    /// It is no text of a ticket.
    #[error("this is no ticket of a channel: hand on the text that the daemon gave, unchanged")]
    Text,
    /// The file is no memory of such a channel.
    #[error("the file is no memory of this channel: {0}")]
    File(std::io::ErrorKind),
}

impl Descriptor {
    /// What another process needs of it, beside the file.
    #[must_use]
    pub const fn ticket(&self) -> Ticket {
        let Self { handle, key, geometry, rank, ranks, .. } = *self;
        Ticket { handle, key, geometry, rank, ranks }
    }
}

impl Ticket {
    /// The descriptor, with the FIFOs mapped.
    ///
    /// # Errors
    /// [`TicketError::File`].
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
