//! Atomics and barriers of memory that two parties access. The package `models` replaces them with a model checker's.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Returns whether one side can order both sides' accesses alone.
#[cfg(target_os = "linux")]
pub(crate) fn is_asymmetric() -> bool {
    use std::sync::OnceLock;

    use rustix::thread::{MembarrierCommand, membarrier};

    static REGISTERED: OnceLock<bool> = OnceLock::new();
    // Host and NIC are one process, which registers once: the command fails in processes that did not.
    *REGISTERED.get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
}

#[cfg(not(target_os = "linux"))]
pub(crate) const fn is_asymmetric() -> bool {
    false
}

/// Orders this side's stores before its loads, and also the other side's if the system allows that.
pub(crate) fn fence_both() {
    #[cfg(target_os = "linux")]
    if is_asymmetric() {
        use rustix::thread::{MembarrierCommand, membarrier};
        return membarrier(MembarrierCommand::PrivateExpedited)
            .expect("the process has registered for it");
    }
    fence(Ordering::SeqCst);
}
