//! Delays wakers that become due while a NIC's lock is held. A waker may run any code of the program, such as
//! dropping a future that uses the same NIC. Each therefore runs after the lock is released.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::task::Waker;

/// The wakers that one thread has yet to wake.
struct Due {
    /// NIC locks that the thread holds.
    held: Cell<u32>,
    wakers: RefCell<Vec<Waker>>,
}

thread_local! {
    static DUE: Due = const { Due { held: Cell::new(0), wakers: RefCell::new(Vec::new()) } };
}

/// Wakes `waker` at once, or after this thread has released its NIC lock.
pub(crate) fn wake(waker: Option<Waker>) {
    let Some(waker) = waker else { return };
    let mut waker = Some(waker);
    // This fails only while the thread exits; it holds no lock then.
    let _ = DUE.try_with(|due| {
        if due.held.get() > 0 {
            due.wakers.borrow_mut().extend(waker.take());
        }
    });
    waker.into_iter().for_each(Waker::wake);
}

/// A guard of a NIC's lock; wakes the deferred wakers when it is dropped.
pub(crate) struct Held<'a, T> {
    // Fields are dropped in this order: the lock is released before the wakers run.
    guard: MutexGuard<'a, T>,
    _deferral: Deferral,
}

impl<'a, T> Held<'a, T> {
    /// Takes the lock by calling `lock`.
    #[inline]
    pub(crate) fn new(lock: impl FnOnce() -> MutexGuard<'a, T>) -> Self {
        let deferral = Deferral::begin();
        Self { guard: lock(), _deferral: deferral }
    }

    /// Tries to take the lock by calling `lock`; `None` if that returns none.
    #[inline]
    pub(crate) fn try_new(lock: impl FnOnce() -> Option<MutexGuard<'a, T>>) -> Option<Self> {
        let deferral = Deferral::begin();
        lock().map(|guard| Self { guard, _deferral: deferral })
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Defers wakers of this thread while it exists.
struct Deferral;

impl Deferral {
    #[inline]
    fn begin() -> Self {
        let _ = DUE.try_with(|due| due.held.set(due.held.get() + 1));
        Self
    }
}

impl Drop for Deferral {
    #[inline]
    fn drop(&mut self) {
        let wakers = DUE.try_with(|due| {
            due.held.set(due.held.get().saturating_sub(1));
            let is_last = due.held.get() == 0 && !due.wakers.borrow().is_empty();
            if is_last { std::mem::take(&mut *due.wakers.borrow_mut()) } else { Vec::new() }
        });
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}
