//! Memory that the other ends of interfaces may map, to write it themselves.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use midplane_simhw::region::{Region, Rights};

use crate::attributes::ViAttributes;
use crate::memory::Memory;

/// Most regions that are files of their own at once: many processes may open no more than 1,024 file descriptors.
const MAX_FILES: usize = 256;

/// The regions that may be mapped, by the first word of their names.
#[derive(Debug, Default)]
pub(super) struct Exposed {
    regions: BTreeMap<u64, Weak<Region>>,
}

impl Exposed {
    /// Returns whether one more region may be a file.
    pub(super) fn has_room(&mut self) -> bool {
        self.regions.retain(|_, region| region.strong_count() > 0);
        self.regions.len() < MAX_FILES
    }

    pub(super) fn insert(&mut self, memory: &Memory) {
        let [name, _] = memory.region().whole().to_words();
        self.regions.insert(name, Arc::downgrade(memory.region()));
    }

    /// Returns the region of this name, if the other end of an interface with these attributes may map it. It must be
    /// readable, too: a mapping for writing can be read.
    pub(super) fn find(&self, name: u64, attributes: &ViAttributes) -> Option<Arc<Region>> {
        let region = self.regions.get(&name)?.upgrade()?;
        let may_write = attributes.rdma_write
            && region.tag() == attributes.tag
            && region.rights().contains(Rights::REMOTE_WRITE | Rights::REMOTE_READ);
        may_write.then_some(region)
    }
}
