//! Who waits, and who of them the carrier wakes.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use slab::Slab;

#[derive(Debug)]
struct Waiter {
    waker: Waker,
    /// It watches for anything to move, not for a request.
    probes: bool,
}

/// Everybody who waits, woken at once.
#[derive(Debug, Default)]
struct Bell(Mutex<Vec<Waker>>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The tasks that wait. One leads: its waker is armed in the carrier, or it was woken to see to
/// that. A leader that leaves hands over to another one.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    list: Slab<Waiter>,
    leader: Option<usize>,
    bell: Arc<Bell>,
    /// The count of moves when probes were told last.
    told: u32,
}

impl Waiters {
    /// Takes a place, or keeps it.
    pub(super) fn enter(&mut self, place: &mut Option<usize>, waker: &Waker) -> usize {
        let index = *place.get_or_insert_with(|| {
            self.list.insert(Waiter { waker: waker.clone(), probes: false })
        });
        let waiter = &mut self.list[index];
        if !waiter.waker.will_wake(waker) {
            waiter.waker = waker.clone();
        }
        index
    }

    pub(super) fn probes(&mut self, place: usize) {
        self.list[place].probes = true;
    }

    /// This one's waker is armed now.
    pub(super) const fn lead(&mut self, place: usize) {
        self.leader = Some(place);
    }

    /// A waker to be armed for one that may be kept without being polled: nobody else would learn
    /// that it did not look, so it wakes everybody who waits now.
    pub(super) fn bell(&self) -> Waker {
        let mut wakers = self.bell.0.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.clear();
        wakers.extend(self.list.iter().map(|(_, waiter)| waiter.waker.clone()));
        drop(wakers);
        Waker::from(Arc::clone(&self.bell))
    }

    pub(super) fn leave(&mut self, place: &mut Option<usize>) {
        let Some(index) = place.take() else { return };
        self.list.remove(index);
        if self.leader != Some(index) {
            return;
        }
        self.leader = self.list.iter().next().map(|(next, _)| next);
        if let Some(next) = self.leader {
            self.list[next].waker.wake_by_ref();
        }
    }

    pub(super) fn tell_probes(&mut self, moves: u32) {
        if std::mem::replace(&mut self.told, moves) != moves {
            let probes = self.list.iter().filter(|(_, waiter)| waiter.probes);
            probes.for_each(|(_, waiter)| waiter.waker.wake_by_ref());
        }
    }
}
