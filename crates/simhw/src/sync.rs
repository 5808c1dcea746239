//! The atomics of what two parties share, so that a model checker can stand in for them.

#[cfg(not(all(test, midplane_loom)))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(all(test, midplane_loom))]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
