//! Memory that the other ends of direct interfaces may map: to write it, and so to read it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use midplane_simhw::region::{Region, Rights};

use crate::attributes::ViAttributes;
use crate::memory::Memory;

/// All of it, by the first word of its names.
#[derive(Debug, Default)]
pub(super) struct Exposed {
    regions: BTreeMap<u64, Weak<Region>>,
}

impl Exposed {
    pub(super) fn insert(&mut self, memory: &Memory) {
        self.regions.retain(|_, region| region.strong_count() > 0);
        let [name, _] = memory.region().whole().to_words();
        self.regions.insert(name, Arc::downgrade(memory.region()));
    }

    /// The region that goes by this name, if the other end of an interface like that may map it. Who may write
    /// it without reading it may not: a mapping has no such right.
    pub(super) fn find(&self, name: u64, attributes: &ViAttributes) -> Option<Arc<Region>> {
        let region = self.regions.get(&name)?.upgrade()?;
        let may_write = attributes.rdma_write
            && region.tag() == attributes.tag
            && region.rights().contains(Rights::REMOTE_WRITE | Rights::REMOTE_READ);
        may_write.then_some(region)
    }
}
