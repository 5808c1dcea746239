//! The model checker's atomics.

pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// Returns `false`: each side fences.
pub(crate) const fn is_asymmetric() -> bool {
    false
}

pub(crate) fn fence_both() {
    fence(Ordering::SeqCst);
}
