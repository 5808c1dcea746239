//! The configuration of the extension.

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_simhw::id::NodeId;

use crate::gate::Gate;

/// The configuration of a node's memory.
///
/// A node that is reported dead, or restarts, gets no more PRAM and coherent writes, and its coherent
/// writes are ignored. If it answers again, slow writes resume, and the other nodes send it their last
/// slow writes again.
#[derive(Clone, Debug)]
pub struct MermeraConfig {
    pub(super) nodes: Vec<NodeId>,
    pub(super) delay: Duration,
    pub(super) gates: BTreeMap<NodeId, Gate>,
}

impl MermeraConfig {
    /// Configures the memory that `nodes` share, this node among them; feedback takes about
    /// `delay`.
    #[must_use]
    pub fn new(nodes: &[NodeId], delay: Duration) -> Self {
        Self { nodes: nodes.to_vec(), delay, gates: BTreeMap::new() }
    }

    /// Sends slow writes only while these gates are open ([`Warp::new`](crate::firmware::Warp::new)
    /// returns them).
    ///
    /// With a gate to [`NodeId::BROADCAST`] a write is sent once to all, otherwise to each node by
    /// itself. Slow writes to a node without a gate are sent at once. Warp must pace the frames of
    /// other extensions ([`WarpConfig::paces_others`](crate::firmware::WarpConfig::paces_others)),
    /// or it gets no feedback.
    #[must_use]
    pub fn gates(mut self, gates: BTreeMap<NodeId, Gate>) -> Self {
        self.gates = gates;
        self
    }
}
