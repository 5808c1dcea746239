//! What goes wrong, on purpose: crashes, restarts, partitions, faults.

use super::World;
use super::nic::Work;
use crate::drops::DropCause;
use crate::fault::Faults;
use crate::hardware::Firmware;
use crate::id::NodeId;

impl<F: Firmware> World<F> {
    /// Takes a node down, its host and its NIC: tasks end, ports close, frames to it are dropped. What
    /// its NIC had been told to send still leaves it. Nothing happens if it is down.
    pub fn crash(&mut self, node: NodeId) {
        if !self.nics[node.index()].up {
            return;
        }
        // What was asked for before is part of what ends.
        self.take_requests();
        self.shared.set_down(node);
        self.executor.kill(node);
        self.network.forget_parts(node);
        let nic = &mut self.nics[node.index()];
        let work = std::mem::take(&mut nic.inbox);
        *nic = nic.reborn(&mut self.queue);
        nic.up = false;
        for work in work {
            if let Work::Frame(key) = work {
                self.network.drop_frame(key, DropCause::NicDown);
            }
        }
    }

    /// Brings a node back that [`World::crash`] took down, with a new incarnation of its firmware;
    /// tasks are the caller's to start.
    ///
    /// # Panics
    /// If the node is up.
    pub fn restart(&mut self, node: NodeId) {
        let nic = &mut self.nics[node.index()];
        assert!(!nic.up, "node {node} is up");
        nic.up = true;
        nic.busy_until = self.now;
        let (incarnation, life) = (nic.incarnation, nic.life);
        self.network.forget_parts(node);
        self.firmware[node.index()] = (self.factory)(node, incarnation);
        self.shared.set_up(node, life);
        self.dispatch(node, Work::Start);
    }

    /// Lets nothing pass between two nodes any more, what is under way included.
    pub fn cut(&mut self, a: NodeId, b: NodeId) {
        self.network.partitions.insert((a.min(b), a.max(b)));
    }

    /// Joins two nodes again that [`World::cut`] had cut off from each other.
    pub fn heal(&mut self, a: NodeId, b: NodeId) {
        self.network.partitions.remove(&(a.min(b), a.max(b)));
    }

    /// Sets what goes wrong on the links from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.network.faults = faults;
    }
}
