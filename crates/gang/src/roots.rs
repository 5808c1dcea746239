//! Roots for garbage collection over all ranks of a job: references that only messages hold.
//!
//! On a frozen cut, what is referred to from local roots or from any saved message, sent or received,
//! is alive, and all else is not (SCore-D paper, section 4).

use std::collections::{BTreeMap, BTreeSet};

use crate::context::NetworkContext;
use crate::names::Rank;

/// An object of a job: whose it is, and which.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct GlobalRef {
    /// The rank that owns it.
    pub owner: Rank,
    /// The owner's name for it.
    pub object: u32,
}

/// Finds the references in a job's messages.
pub trait ScanRefs {
    /// Calls `found` for each reference in a message.
    fn scan(&self, message: &[u8], found: &mut dyn FnMut(GlobalRef));
}

impl NetworkContext {
    /// Every object that a message of the cut refers to.
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

/// Objects that are reachable from `roots`; `heap` says what each object refers to.
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
