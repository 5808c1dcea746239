//! Delays wakers that become due while a NIC's lock is held. A waker may run any code of the program, such as
//! dropping a future that uses the same NIC. Each therefore runs after the lock is released.

use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::task::Waker;

thread_local! {
    /// NIC locks that the thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
    /// True if `DUE` has wakers. Reading this is cheaper: it has no destructor.
    static IS_DUE: Cell<bool> = const { Cell::new(false) };
    /// The wakers that the thread has yet to wake.
    static DUE: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// Wakes `waker` at once, or after this thread has released its NIC lock.
pub(crate) fn wake(waker: Option<Waker>) {
    let Some(waker) = waker else { return };
    let mut waker = Some(waker);
    if HELD.get() > 0 {
        // This fails only while the thread exits; it holds no lock then.
        let _ = DUE.try_with(|due| due.borrow_mut().extend(waker.take()));
        IS_DUE.set(waker.is_none());
    }
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
        HELD.set(HELD.get() + 1);
        Self
    }
}

impl Drop for Deferral {
    #[inline]
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
        if HELD.get() == 0 && IS_DUE.replace(false) {
            wake_due();
        }
    }
}

#[cold]
fn wake_due() {
    let wakers = DUE.try_with(RefCell::take);
    wakers.into_iter().flatten().for_each(Waker::wake);
}
