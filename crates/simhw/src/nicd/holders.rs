//! Whose the ports are, and which of them may not close yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::id::PortId;
use crate::wakes::Wakes;

#[derive(Debug)]
struct Holder {
    process: u32,
    /// It stays open whoever is gone.
    is_held: bool,
    is_gone: bool,
}

#[derive(Debug)]
struct Shared {
    ports: Mutex<BTreeMap<PortId, Holder>>,
    /// Wakes the server.
    wakes: Arc<Wakes>,
}

/// The processes that the ports of a [`PortServer`](super::PortServer) were opened by, as the system knows
/// them. Whoever stops processes holds their ports meanwhile: so that nothing of them changes, and no number
/// becomes another's, when one of them is killed.
#[derive(Clone, Debug)]
pub struct PortHolders(Arc<Shared>);

impl PortHolders {
    pub(super) fn new(wakes: Arc<Wakes>) -> Self {
        Self(Arc::new(Shared { ports: Mutex::default(), wakes }))
    }

    /// Each port whose process is there, and the number of that. A port is here before its process can use
    /// it.
    #[must_use]
    pub fn list(&self) -> Vec<(PortId, u32)> {
        self.with(|ports| {
            let there = ports.iter().filter(|(_, holder)| !holder.is_gone);
            there.map(|(port, holder)| (*port, holder.process)).collect()
        })
    }

    /// Keeps a port of that process from closing before [`PortHolders::release`]; `false` if it closes
    /// already, or is another's.
    #[must_use]
    pub fn hold(&self, port: PortId, process: u32) -> bool {
        self.with(|ports| {
            let is_its = |holder: &&mut Holder| holder.process == process && !holder.is_gone;
            let holder = ports.get_mut(&port).filter(is_its);
            holder.map(|holder| holder.is_held = true).is_some()
        })
    }

    /// It may close.
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

    /// The process of a port is gone; whether that closes now.
    pub(super) fn leave(&self, port: PortId) -> bool {
        self.with(|ports| {
            if let Some(holder) = ports.get_mut(&port).filter(|holder| holder.is_held) {
                holder.is_gone = true;
                return false;
            }
            // Before its number can be another's.
            ports.remove(&port);
            true
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<PortId, Holder>) -> T) -> T {
        work(&mut self.0.ports.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
