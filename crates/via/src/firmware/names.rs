//! Names of interfaces and memory that differ from the NIC's: after a restore, they keep the names that their
//! process and its peers know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use midplane_simhw::id::PortId;
use midplane_simhw::port::MAX_DEPTH;
use midplane_simhw::region::RegionRef;

use crate::checkpointer::MappedMemory;
use crate::context::{MemoryName, Piece};

/// The names of one port's memory.
#[derive(Debug)]
pub(super) struct MemoryNames {
    now: BTreeMap<MemoryName, MemoryName>,
    names: BTreeMap<MemoryName, MemoryName>,
}

impl MemoryNames {
    fn new(memory: &[MappedMemory]) -> Self {
        let now = memory.iter().map(|memory| (memory.name, memory.now)).collect();
        let names = memory.iter().map(|memory| (memory.now, memory.name)).collect();
        Self { now, names }
    }

    /// Translates a process's name of memory into the NIC's. Memory registered after the restore has only one name.
    pub(super) fn real(&self, region: RegionRef) -> RegionRef {
        let MemoryName { slot, generation } =
            self.now.get(&region.into()).copied().unwrap_or_else(|| region.into());
        RegionRef { slot, generation, ..region }
    }

    /// Translates the NIC's name into the one that the process and its peers use.
    pub(super) fn name(&self, region: RegionRef) -> Piece {
        let memory = self.names.get(&region.into()).copied().unwrap_or_else(|| region.into());
        Piece { memory, ..Piece::from(region) }
    }
}

/// The names of all ports, and the data that distinguishes present connections and descriptors from former ones.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Interfaces whose number differs from their name, by owner and name.
    vis: BTreeMap<(PortId, PortId), PortId>,
    memory: BTreeMap<PortId, Arc<MemoryNames>>,
    /// Cookies of descriptors that ports await, but that no interface has.
    awaited: BTreeMap<PortId, BTreeSet<u64>>,
    /// The last connection number of each interface number.
    connections: Vec<u16>,
}

impl Names {
    /// Returns the number of the interface that `owner` calls `name`: `name` itself, unless it was restored under
    /// another.
    pub(super) fn number(&self, owner: PortId, name: PortId) -> PortId {
        if self.vis.is_empty() {
            return name;
        }
        self.vis.get(&(owner, name)).copied().unwrap_or(name)
    }

    /// Returns whether `owner` uses this name for another interface.
    pub(super) fn is_taken(&self, owner: PortId, name: PortId) -> bool {
        self.vis.contains_key(&(owner, name))
    }

    pub(super) fn set_number(&mut self, owner: PortId, name: PortId, number: PortId) {
        if name != number {
            self.vis.insert((owner, name), number);
        }
    }

    pub(super) fn forget_vi(&mut self, owner: PortId, name: PortId) {
        self.vis.remove(&(owner, name));
    }

    pub(super) fn memory(&self, owner: PortId) -> Option<Arc<MemoryNames>> {
        self.memory.get(&owner).cloned()
    }

    /// Returns the names that `memory` would give to a port's memory; if it is `None`, the port's present names.
    pub(super) fn memory_as(
        &self,
        owner: PortId,
        memory: Option<&[MappedMemory]>,
    ) -> Option<Arc<MemoryNames>> {
        match memory {
            Some(memory) => Some(Arc::new(MemoryNames::new(memory))),
            None => self.memory(owner),
        }
    }

    pub(super) fn set_memory(&mut self, owner: PortId, memory: Option<Arc<MemoryNames>>) {
        if let Some(memory) = memory {
            self.memory.insert(owner, memory);
        }
    }

    pub(super) fn expect(&mut self, owner: PortId, cookies: impl IntoIterator<Item = u64>) {
        self.awaited.entry(owner).or_default().extend(cookies);
    }

    /// Adds one cookie; returns `false` if the port would await more than it can have under way.
    pub(super) fn expect_one(&mut self, owner: PortId, cookie: u64) -> bool {
        let awaited = self.awaited.entry(owner).or_default();
        if awaited.len() >= MAX_DEPTH {
            return false;
        }
        awaited.insert(cookie);
        true
    }

    pub(super) fn is_awaited(&self, owner: PortId, cookie: u64) -> bool {
        self.awaited.get(&owner).is_some_and(|cookies| cookies.contains(&cookie))
    }

    pub(super) fn found(&mut self, owner: PortId, cookie: u64) {
        if let Some(cookies) = self.awaited.get_mut(&owner) {
            cookies.remove(&cookie);
        }
    }

    /// Returns the number of the first connection of the next interface with this number.
    pub(super) fn connection(&self, number: PortId) -> u16 {
        self.connections.get(number.index()).map_or(1, |last| last.wrapping_add(1))
    }

    /// Retires an interface's number: frames for it never match a later interface with that number.
    pub(super) fn retire(&mut self, number: PortId, connection: u16) {
        if self.connections.len() <= number.index() {
            self.connections.resize(number.index() + 1, 0);
        }
        self.connections[number.index()] = connection;
    }

    pub(super) fn forget_port(&mut self, port: PortId) {
        self.vis.retain(|(owner, _), _| *owner != port);
        self.memory.remove(&port);
        self.awaited.remove(&port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_waits_for_no_more_than_it_can_have_under_way() {
        let (mut names, port) = (Names::default(), PortId(3));
        for cookie in 0..MAX_DEPTH as u64 {
            assert!(names.expect_one(port, cookie));
        }
        assert!(!names.expect_one(port, u64::MAX));
        assert!(!names.is_awaited(port, u64::MAX));
        assert!(names.expect_one(PortId(4), u64::MAX), "others may");
        names.found(port, 0);
        assert!(names.expect_one(port, u64::MAX), "one has come");
    }
}
