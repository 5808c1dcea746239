//! What Virtual Interfaces are made with, and how they are found.

use std::fmt;

use midplane_simhw::id::NodeId;
use midplane_simhw::region::ProtectionTag;
use serde::{Deserialize, Serialize};

/// Most bytes of a discriminator.
pub const MAX_DISCRIMINATOR: usize = 16;
/// Least that a Virtual Interface may transfer at once: every provider handles as much.
pub const MIN_TRANSFER: u32 = 32 * 1024;

/// What a connected Virtual Interface promises of what is sent over it.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
#[repr(u8)]
pub enum Reliability {
    /// Arrives at most once and undamaged, or not at all; nobody is told.
    #[default]
    Unreliable = 1,
    /// Arrives exactly once and in order, or the connection breaks. A send completes when the other
    /// NIC has it: as the NICs here acknowledge what lies in memory, no sooner than with the next level;
    /// past the NIC, once it lies in the other process's reach.
    ReliableDelivery = 2,
    /// As reliable delivery; and a send completes when the data is in the other side's memory.
    ReliableReception = 4,
}

impl Reliability {
    /// Whether what is lost is sent again.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Self::Unreliable)
    }

    pub(crate) const fn of(bits: u8) -> Option<Self> {
        match bits {
            1 => Some(Self::Unreliable),
            2 => Some(Self::ReliableDelivery),
            4 => Some(Self::ReliableReception),
            _ => None,
        }
    }
}

/// What a Virtual Interface is created with.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ViAttributes {
    /// Both ends of a connection have the same.
    pub reliability: Reliability,
    /// Most bytes of one descriptor; both ends of a connection have the same.
    pub max_transfer: u32,
    /// What its descriptors may touch: memory with this tag.
    pub tag: ProtectionTag,
    /// Whether the other end may write memory of this tag that allows it.
    pub rdma_write: bool,
    /// Whether the other end may read memory of this tag that allows it. Reliable levels only.
    pub rdma_read: bool,
    /// Whether its data goes from process to process, past the NIC, which sees to connections only: see
    /// [`direct`](crate::direct). Reliable delivery, no remote reads; both ends of a connection
    /// have the same.
    pub direct: bool,
}

impl Default for ViAttributes {
    fn default() -> Self {
        Self {
            reliability: Reliability::default(),
            max_transfer: 1 << 20,
            tag: ProtectionTag::default(),
            rdma_write: false,
            rdma_read: false,
            direct: false,
        }
    }
}

impl ViAttributes {
    pub(crate) const fn to_words(self) -> [u64; 2] {
        let bits = self.reliability as u64
            | (self.rdma_write as u64) << 8
            | (self.rdma_read as u64) << 9
            | (self.direct as u64) << 10
            | (self.max_transfer as u64) << 32;
        [bits, self.tag.0 as u64]
    }

    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    pub(crate) fn from_words([bits, tag]: [u64; 2]) -> Option<Self> {
        Some(Self {
            reliability: Reliability::of(bits as u8)?,
            max_transfer: (bits >> 32) as u32,
            tag: ProtectionTag(tag as u32),
            rdma_write: bits & 1 << 8 != 0,
            rdma_read: bits & 1 << 9 != 0,
            direct: bits & 1 << 10 != 0,
        })
    }
}

/// The states of a Virtual Interface.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum ViState {
    /// Not connected. Receives may be posted.
    #[default]
    Idle,
    /// Connected to one other.
    Connected,
    /// A connection was asked for.
    ConnectPending,
    /// The connection broke; all that was posted has come back. Disconnect it to use it again.
    Error,
}

/// Tells apart what waits for connections on one node: up to [`MAX_DISCRIMINATOR`] bytes.
#[derive(Clone, Copy, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Discriminator {
    length: u8,
    bytes: [u8; MAX_DISCRIMINATOR],
}

impl Discriminator {
    /// The discriminator with these bytes; `None` if there are more than [`MAX_DISCRIMINATOR`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut own = [0; MAX_DISCRIMINATOR];
        own.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { length: bytes.len() as u8, bytes: own })
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length).min(MAX_DISCRIMINATOR)]
    }
}

impl fmt::Debug for Discriminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_bytes().escape_ascii().to_string())
    }
}

/// Where a Virtual Interface can be connected to.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Address {
    /// The node.
    pub node: NodeId,
    /// What waits there.
    pub discriminator: Discriminator,
}

impl Address {
    /// What waits at `node` under `discriminator`; `None` if that has more than
    /// [`MAX_DISCRIMINATOR`] bytes.
    #[must_use]
    pub fn new(node: NodeId, discriminator: &[u8]) -> Option<Self> {
        Some(Self { node, discriminator: Discriminator::new(discriminator)? })
    }
}
