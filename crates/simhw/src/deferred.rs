//! Wakers that become due while the lock of a NIC is held. Each of them may run any code of the program, such as the
//! end of a future that uses the same NIC: so they run once the lock is released.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::task::Waker;

/// What one thread has to wake.
struct Due {
    /// Locks that the thread holds.
    held: Cell<u32>,
    wakers: RefCell<Vec<Waker>>,
}

thread_local! {
    static DUE: Due = const { Due { held: Cell::new(0), wakers: RefCell::new(Vec::new()) } };
}

/// Wakes `waker`: at once, or when this thread has released the NIC's lock that it holds.
pub(crate) fn wake(waker: Option<Waker>) {
    let Some(waker) = waker else { return };
    let mut waker = Some(waker);
    // It can fail only while the thread ends, which holds no lock then.
    let _ = DUE.try_with(|due| {
        if due.held.get() > 0 {
            due.wakers.borrow_mut().extend(waker.take());
        }
    });
    waker.into_iter().for_each(Waker::wake);
}

/// A NIC's lock, and what is due when it is released.
pub(crate) struct Held<'a, T> {
    // Dropped in this order.
    guard: MutexGuard<'a, T>,
    _deferral: Deferral,
}

impl<'a, T> Held<'a, T> {
    /// Takes the lock as `lock` does.
    #[inline]
    pub(crate) fn new(lock: impl FnOnce() -> MutexGuard<'a, T>) -> Self {
        let deferral = Deferral::begin();
        Self { guard: lock(), _deferral: deferral }
    }

    /// Takes the lock as `lock` does, if that takes it.
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

/// While there is one, what is to be woken by this thread waits.
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
