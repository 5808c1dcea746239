//! A descriptor in a form for other processes: a text, and the files of the FIFOs and rings.

use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;

use midplane_simhw::region::SharedMemory;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Descriptor;
use super::geometry::Geometry;
use super::local_rings::{Bells, Layout, LocalRings};
use super::memory::Memory;
use crate::names::Rank;

/// The text form of a descriptor: JSON, for an environment variable.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[doc(hidden)]
pub struct Ticket {
    handle: u64,
    key: u64,
    geometry: Geometry,
    rank: Rank,
    ranks: u16,
    /// The layout of the job's rings on this host, if it has any.
    rings: Option<Layout>,
}

/// Errors of parsing and opening a ticket.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum TicketError {
    /// The text is no valid ticket.
    #[error("this is not a channel's ticket: pass on the daemon's text unchanged")]
    Text,
    /// The file does not have the FIFOs of this channel.
    #[error("the file does not hold this channel's FIFOs: {0}")]
    File(std::io::ErrorKind),
}

impl Descriptor {
    /// Returns the ticket that another process needs in order to attach, together with the files.
    #[must_use]
    #[doc(hidden)]
    pub fn ticket(&self) -> Ticket {
        let Self { handle, key, geometry, rank, ranks, .. } = *self;
        let rings = self.rings.as_ref().map(|rings| rings.layout.clone());
        Ticket { handle, key, geometry, rank, ranks, rings }
    }
}

impl Ticket {
    /// Maps the FIFOs and the job's rings on this host, and returns the descriptor. `files` are the
    /// [memory](crate::controller::Controller::files), followed by the
    /// [events](crate::controller::Controller::events).
    ///
    /// # Errors
    /// [`TicketError::File`] if a file can't be mapped; [`TicketError::Text`] if the geometry is invalid or the files
    /// don't match the ticket.
    pub fn open(self, files: Vec<OwnedFd>) -> Result<Descriptor, TicketError> {
        let Self { handle, key, geometry, rank, ranks, rings: layout } = self;
        geometry.check().map_err(|_| TicketError::Text)?;
        let mut files = files.into_iter();
        let fifos = files.next().ok_or(TicketError::Text)?;
        let memory = map(&fifos, geometry.bytes())?;
        let rings = match layout {
            Some(layout) if layout.check() && layout.longest() == geometry.message => {
                let memory = files.next().ok_or(TicketError::Text)?;
                let memory = map(&memory, layout.bytes())?;
                let bells = Bells::Far(files.by_ref().map(Arc::new).collect());
                if bells.events().len() != layout.ranks().len() {
                    return Err(TicketError::Text);
                }
                Some(LocalRings { layout, memory, bells })
            }
            Some(_) => return Err(TicketError::Text),
            None => None,
        };
        Ok(Descriptor { handle, key, memory, geometry, rank, ranks, rings })
    }
}

fn map(file: &OwnedFd, bytes: usize) -> Result<Memory, TicketError> {
    let memory = SharedMemory::map(file, bytes);
    let memory = memory.map_err(|error| TicketError::File(error.kind()))?;
    Ok(Memory::Mapped(Arc::new(memory)))
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        serde_json::from_str(text).map_err(|_| TicketError::Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_read_as_it_was_written_and_nothing_else_is_one() {
        let (rank, ranks) = (Rank(3), 5);
        let rings = Layout::plan(Geometry::PM.message, [(Rank(1), 0), (rank, 96)], true);
        let ticket =
            Ticket { handle: 7, key: u64::MAX, geometry: Geometry::PM, rank, ranks, rings };
        let text = ticket.to_string();
        assert_eq!(text.parse(), Ok(ticket));
        for wrong in ["", "0", "xy", &text[2..], "\u{e4}\u{e4}"] {
            assert_eq!(wrong.parse::<Ticket>(), Err(TicketError::Text), "{wrong:?}");
        }
    }
}
