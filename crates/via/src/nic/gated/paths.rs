//! The host's paths, one of each interface that may bypass the NIC.

use midplane_simhw::id::PortId;

use super::{FastPath, Gated, OWN_COMMANDS, PATH_COMMANDS};
use crate::attributes::{Reliability, ViAttributes};
use crate::command::Ends;
use crate::nic::{Nic, ViId, WorkQueue};

/// Returns whether the NIC may grant the queues of such an interface to the host.
const fn may_be_granted(attributes: &ViAttributes) -> bool {
    matches!(attributes.reliability, Reliability::ReliableDelivery) && !attributes.rdma_read
}

impl Nic {
    /// Adds the path of a new interface, unless the commands of all paths would take more than half of the port.
    pub(in crate::nic) fn add_path(&mut self, vi: ViId, attributes: ViAttributes) {
        let most = self.port.depth() / 2;
        let may_add = |gated: &&mut Gated| gated.commands.max(OWN_COMMANDS) + PATH_COMMANDS <= most;
        let gated = self.gated.as_mut().filter(may_add);
        let Some(gated) = gated.filter(|_| may_be_granted(&attributes)) else { return };
        let at = vi.number.index();
        if at >= gated.paths.len() {
            gated.paths.resize_with(at + 1, || None);
        }
        gated.paths[at] = Some(FastPath::new(attributes));
        gated.commands = gated.commands.max(OWN_COMMANDS) + PATH_COMMANDS;
    }

    /// Removes the path of an interface that was destroyed.
    pub(in crate::nic) fn remove_path(&mut self, vi: ViId) {
        if let Some(gated) = &mut self.gated
            && let Some(place) = gated.paths.get_mut(vi.number.index())
            && place.take().is_some()
        {
            gated.commands -= PATH_COMMANDS;
        }
    }

    /// Handles an interface's new connection.
    pub(in crate::nic) fn link_path(&mut self, vi: PortId, ends: Ends) {
        if let Some(path) = self.path(vi) {
            path.link(ends.node);
            self.catch_up();
        }
    }

    /// Ends a connection at the host: takes the frames sent before its end, and flushes the descriptors that the host
    /// has.
    pub(in crate::nic) fn unlink_path(&mut self, vi: PortId) {
        if self.path(vi).is_some_and(|path| path.has(WorkQueue::Receive)) {
            self.drain_rings();
        }
        let Some((gated, mut tables)) = self.gated() else { return };
        if let Some(path) = gated.path(vi) {
            path.unlink();
            tables.flush(vi);
        }
    }

    /// Returns whether the host has broken an interface's connection, and reported that.
    pub(in crate::nic) fn is_broken(&mut self, vi: PortId) -> bool {
        self.path(vi).is_some_and(|path| path.is_broken)
    }
}
