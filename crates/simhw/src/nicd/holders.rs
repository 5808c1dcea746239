//! The processes that hold a server's ports, and the ports that may not close yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::id::PortId;
use crate::lock::lock;
use crate::wakes::Wakes;

#[derive(Debug)]
struct Holder {
    process: u32,
    /// True while the port must stay open even if its process exits.
    is_held: bool,
    is_gone: bool,
}

#[derive(Debug)]
struct Shared {
    ports: Mutex<BTreeMap<PortId, Holder>>,
    /// Wakes the server's thread.
    wakes: Arc<Wakes>,
}

/// The processes that have opened the ports of a [`PortServer`](super::PortServer), by the system's process numbers.
///
/// A program that suspends processes holds their ports meanwhile. If a suspended process is killed, its held port
/// stays open, and its number is not reused.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct PortHolders(Arc<Shared>);

impl PortHolders {
    pub(super) fn new(wakes: Arc<Wakes>) -> Self {
        Self(Arc::new(Shared { ports: Mutex::default(), wakes }))
    }

    /// Returns each port whose process has not exited, with the number of that process. A port is listed before its
    /// process can use it.
    #[must_use]
    pub fn list(&self) -> Vec<(PortId, u32)> {
        self.with(|ports| {
            let there = ports.iter().filter(|(_, holder)| !holder.is_gone);
            there.map(|(port, holder)| (*port, holder.process)).collect()
        })
    }

    /// Keeps a port of that process from closing before [`PortHolders::release`]. Returns `false` if the port is
    /// already closing, or another process has opened it.
    #[must_use]
    pub fn hold(&self, port: PortId, process: u32) -> bool {
        self.with(|ports| {
            let is_its = |holder: &&mut Holder| holder.process == process && !holder.is_gone;
            let holder = ports.get_mut(&port).filter(is_its);
            holder.map(|holder| holder.is_held = true).is_some()
        })
    }

    /// Releases a held port, which closes if its process has exited.
    pub fn release(&self, port: PortId) {
        let is_gone = self.with(|ports| {
            let Some(holder) = ports.get_mut(&port) else { return false };
            holder.is_held = false;
            holder.is_gone
        });
        if is_gone {
            self.0.wakes.signal();
        }
    }

    pub(super) fn add(&self, port: PortId, process: u32) {
        let holder = Holder { process, is_held: false, is_gone: false };
        self.with(|ports| ports.insert(port, holder));
    }

    /// Handles the exit of a port's process. Returns whether the port closes now: a held one closes later.
    pub(super) fn leave(&self, port: PortId) -> bool {
        self.with(|ports| {
            if let Some(holder) = ports.get_mut(&port).filter(|holder| holder.is_held) {
                holder.is_gone = true;
                return false;
            }
            // Before the number can be reused.
            ports.remove(&port);
            true
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<PortId, Holder>) -> T) -> T {
        work(&mut lock(&self.0.ports))
    }
}
