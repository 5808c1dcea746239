//! The description of itself that each node sends its peers.

use midplane_simhw::wire::{WireError, decode, encode};
use serde::{Deserialize, Serialize};

/// Version of what nodes describe to each other.
pub(crate) const VERSION: u32 = 3;
/// Services that a node may offer.
pub(crate) const MOST_SERVICES: usize = 64;
/// Bytes of a node's or a service's name.
pub(crate) const MOST_NAME: usize = 100;

/// A node, as it describes itself.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    /// The cluster's name: nodes of others do not meet.
    pub(crate) cluster: String,
    /// A random number that tells the node from all others, and from its former self.
    pub(crate) id: u64,
    /// Milliseconds of the system's clock at its start: of two nodes of one name, the later one is higher.
    pub(crate) incarnation: u64,
    pub(crate) name: String,
    /// Services that it offers now.
    pub(crate) services: Vec<String>,
    /// The number of another living node that had the receiver's name before it; 0 if the sender knows of none.
    pub(crate) rival: u64,
}

/// Tells why the node at a place is none of this node's cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Stranger {
    /// It speaks another version.
    Version(u32),
    /// It is of another cluster.
    Cluster(String),
}

/// Why a description can't be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unreadable {
    /// Its sender speaks another version.
    Version(u32),
    /// No correct node sends it.
    Malformed,
}

impl Hello {
    pub(crate) fn emit(&self) -> Vec<u8> {
        encode(self).expect("names and their number are bounded")
    }

    /// Reads a description.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        let (version, _) = bytes.split_first_chunk().ok_or(Unreadable::Malformed)?;
        let version = u32::from_le_bytes(*version);
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        let hello: Result<Self, WireError> = decode(bytes);
        let hello = hello.map_err(|_| Unreadable::Malformed)?;
        let is_short = |name: &String| name.len() <= MOST_NAME;
        let fits = hello.services.len() <= MOST_SERVICES && is_short(&hello.name);
        let fits = fits && is_short(&hello.cluster) && hello.services.iter().all(is_short);
        fits.then_some(hello).ok_or(Unreadable::Malformed)
    }
}
