//! Roots for distributed garbage collection over a job's ranks: references that are only in messages.
//!
//! In a frozen cut, an object is alive if it is reachable from a local root, or from a saved message that was sent or
//! received (SCore-D paper, section 4).

use std::collections::{BTreeMap, BTreeSet};

use crate::context::NetworkContext;
use crate::names::Rank;

/// Identifies an object of a job.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct GlobalRef {
    /// The rank that owns the object.
    pub owner: Rank,
    /// The owner's number for the object.
    pub object: u32,
}

/// Finds references in a job's messages.
pub trait ScanRefs {
    /// Calls `found` for each reference in a message.
    fn scan(&self, message: &[u8], found: &mut dyn FnMut(GlobalRef));
}

impl NetworkContext {
    /// Returns every object that a message of the cut refers to.
    #[must_use]
    pub fn roots(&self, scan: &impl ScanRefs) -> BTreeSet<GlobalRef> {
        let mut roots = BTreeSet::new();
        for message in self.in_transit() {
            scan.scan(message.bytes, &mut |object| {
                roots.insert(object);
            });
        }
        roots
    }
}

/// Returns the objects that are reachable from `roots`. `heap` contains the references of each object.
#[must_use]
pub fn mark(
    roots: impl IntoIterator<Item = GlobalRef>,
    heap: &BTreeMap<GlobalRef, Vec<GlobalRef>>,
) -> BTreeSet<GlobalRef> {
    let mut alive = BTreeSet::new();
    let mut open: Vec<GlobalRef> = roots.into_iter().collect();
    while let Some(object) = open.pop() {
        if alive.insert(object) {
            open.extend(heap.get(&object).into_iter().flatten());
        }
    }
    alive
}
