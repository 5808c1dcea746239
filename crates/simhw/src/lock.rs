//! Locks that continue to work after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, although a thread may have panicked while it held the lock.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
