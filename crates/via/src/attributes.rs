//! Attributes and addresses of Virtual Interfaces.

use std::fmt;

use midplane_simhw::id::NodeId;
use midplane_simhw::region::ProtectionTag;
use serde::{Deserialize, Serialize};

/// The maximum length of a discriminator, in bytes.
pub(crate) const MAX_DISCRIMINATOR: usize = 16;

/// The reliability level of a connected Virtual Interface.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
#[repr(u8)]
pub enum Reliability {
    /// A message arrives at most once and undamaged, or is lost without notice.
    #[default]
    Unreliable = 1,
    /// A message arrives exactly once and in order, or the connection breaks. A send or write completes when the
    /// other NIC has accepted it; while it bypasses the NIC, once it is in memory that the other process can read.
    ReliableDelivery = 2,
    /// Like reliable delivery, but a send or write completes only once the data is in the memory that it is for.
    /// Live NICs put data there as they accept it, so that both levels differ on simulated NICs alone, whose
    /// transfers into host memory take time.
    ReliableReception = 4,
}

impl Reliability {
    /// Returns whether lost frames are sent again.
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

/// The attributes with which a Virtual Interface is created. By default it is unreliable, transfers up to 1 MiB, has
/// the default tag, and lets the other end neither write nor read memory.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ViAttributes {
    /// The reliability level; both ends of a connection must have the same.
    pub reliability: Reliability,
    /// Most bytes of one descriptor; both ends of a connection must have the same.
    pub max_transfer: u32,
    /// The protection tag: its descriptors may use only memory with this tag.
    pub tag: ProtectionTag,
    /// True if the other end may write memory of this tag that allows it.
    pub rdma_write: bool,
    /// True if the other end may read memory of this tag that allows it. Reliable levels only.
    pub rdma_read: bool,
}

impl Default for ViAttributes {
    fn default() -> Self {
        Self {
            reliability: Reliability::default(),
            max_transfer: 1 << 20,
            tag: ProtectionTag::default(),
            rdma_write: false,
            rdma_read: false,
        }
    }
}

impl ViAttributes {
    pub(crate) const fn to_words(self) -> [u64; 2] {
        let bits = self.reliability as u64
            | (self.rdma_write as u64) << 8
            | (self.rdma_read as u64) << 9
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
        })
    }
}

/// The states of a Virtual Interface.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum ViState {
    /// Not connected. Receives may be posted.
    #[default]
    Idle,
    /// Connected to one other interface.
    Connected,
    /// A connection was requested.
    ConnectPending,
    /// The connection broke; all posted descriptors have completed. Disconnect it to use it again.
    Error,
}

/// Distinguishes connection points of one node: up to 16 bytes.
#[derive(Clone, Copy, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Discriminator {
    length: u8,
    bytes: [u8; MAX_DISCRIMINATOR],
}

impl Discriminator {
    /// Makes a discriminator of these bytes; returns `None` if there are more than 16.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut own = [0; MAX_DISCRIMINATOR];
        own.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { length: bytes.len() as u8, bytes: own })
    }

    /// Returns the discriminator's bytes.
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

/// The address at which a process waits for connections.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Address {
    /// The node of the waiting process.
    pub node: NodeId,
    /// The connection point on that node.
    pub discriminator: Discriminator,
}

impl Address {
    /// Makes the address of `discriminator` at `node`; returns `None` if it has more than 16
    /// bytes.
    #[must_use]
    pub fn new(node: NodeId, discriminator: &[u8]) -> Option<Self> {
        Some(Self { node, discriminator: Discriminator::new(discriminator)? })
    }
}
