//! Wakes and drops the program's wakers only while no lock is held. Either may run any code, such as dropping a
//! future that takes the same lock.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use midplane_simhw::lock::lock;

#[derive(Debug)]
enum Task {
    Wake(Waker),
    Drop(#[expect(dead_code, reason = "held only to be dropped")] Waker),
}

/// Wakers that are woken or dropped once no lock is held.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// The first waker. Most often it is the only one, which needs no allocation.
    first: Option<Task>,
    more: Vec<Task>,
}

impl Deferred {
    pub(super) fn wake(&mut self, waker: Waker) {
        self.push(Task::Wake(waker));
    }

    pub(super) fn discard(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        wakers.into_iter().for_each(|waker| self.push(Task::Drop(waker)));
    }

    fn push(&mut self, task: Task) {
        match self.first {
            None => self.first = Some(task),
            Some(_) => self.more.push(task),
        }
    }

    /// Takes the deferred wakers; `None` if there are none.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Self> {
        self.first.is_some().then(|| std::mem::take(self))
    }

    /// Wakes or drops each waker. The caller must hold no lock.
    pub(super) fn run(self) {
        for task in self.first.into_iter().chain(self.more) {
            if let Task::Wake(waker) = task {
                waker.wake();
            }
        }
    }
}

const HELD: u8 = 1;
const RUNG: u8 = 2;

/// A waker that forwards each wake to other wakers. Code polled under a lock gets this one, because cloning and
/// dropping it runs no code of the program. While held, it only records that it was woken.
#[derive(Debug, Default)]
pub(super) struct Bell {
    state: AtomicU8,
    wakers: Mutex<Vec<Waker>>,
}

impl Bell {
    /// Starts to record wakes, on any thread, instead of forwarding them. The caller holds the lock under which it
    /// later calls [`Bell::release`].
    #[inline]
    pub(super) fn hold(&self) {
        self.state.store(HELD, Ordering::Release);
    }

    /// Forwards wakes again. Returns whether a wake was recorded meanwhile: the caller must then
    /// [`ring`](Bell::ring), once it holds no lock.
    #[inline]
    pub(super) fn release(&self) -> bool {
        self.state.swap(0, Ordering::AcqRel) & RUNG != 0
    }

    /// Replaces the wakers to which wakes are forwarded.
    pub(super) fn pass_to<'a>(
        &self,
        wakers: impl Iterator<Item = &'a Waker> + Clone,
        deferred: &mut Deferred,
    ) {
        let mut kept = lock(&self.wakers);
        let same = kept.len() == wakers.clone().count()
            && kept.iter().zip(wakers.clone()).all(|(old, new)| old.will_wake(new));
        if !same {
            deferred.discard(kept.drain(..));
            kept.extend(wakers.cloned());
        }
    }

    /// Wakes the wakers to which wakes are forwarded. The caller must hold no lock.
    pub(super) fn ring(&self) {
        let mut wakers = lock(&self.wakers);
        let mut deferred = Deferred::default();
        wakers.drain(..).for_each(|waker| deferred.wake(waker));
        drop(wakers);
        deferred.run();
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let note = |state| (state & HELD != 0).then_some(HELD | RUNG);
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, note).is_err() {
            self.ring();
        }
    }
}
