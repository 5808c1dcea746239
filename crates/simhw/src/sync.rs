//! The atomics of memory that two parties share, which a model checker can replace.

#[cfg(not(all(test, midplane_loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(all(test, midplane_loom))]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
