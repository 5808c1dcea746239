//! The atomics of what two parties share, so that a model checker can stand in for them.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
