//! The description of itself that each node sends its peers.

use midplane_simhw::wire::{WireError, decode, encode};
use serde::{Deserialize, Serialize};

/// Version of what nodes tell each other. Nodes of adjacent minor versions of this crate understand each other.
pub(super) const VERSION: u32 = 1;
/// Services that a node may offer.
pub(super) const MOST_SERVICES: usize = 64;
/// Bytes of a node's or a service's name.
pub(super) const MOST_NAME: usize = 100;

/// A node, as it describes itself.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    /// A random number that tells the node from all others, and from its former self.
    pub(super) id: u64,
    pub(super) name: String,
    /// Services that it offers now.
    pub(super) services: Vec<String>,
}

impl Hello {
    pub(super) fn emit(&self) -> Vec<u8> {
        encode(self).expect("names and their number are bounded")
    }

    /// Reads a description; `None` if no correct node sends it.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let hello: Result<Self, WireError> = decode(bytes);
        let hello = hello.ok().filter(|hello| hello.version == VERSION)?;
        let is_short = |name: &String| name.len() <= MOST_NAME;
        let fits = hello.services.len() <= MOST_SERVICES && is_short(&hello.name);
        (fits && hello.services.iter().all(is_short)).then_some(hello)
    }
}
