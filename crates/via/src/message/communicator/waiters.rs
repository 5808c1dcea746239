//! The waiting tasks of a process, one of which the carrier wakes.

use std::iter::once;
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use crate::message::bell::{Bell, Deferred};

#[derive(Debug)]
struct Waiter {
    waker: Waker,
    /// True if the task waits for any progress, not for one request.
    probes: bool,
    /// True if the owner may keep the waiting future without polling it.
    kept: bool,
}

/// The waiting tasks. One of them leads: the bell that the carrier holds wakes it, or it was woken and is
/// about to arm the carrier again. When the leader leaves, another waiter becomes the leader and is woken; never
/// one that may be kept without being polled.
#[derive(Debug)]
pub(super) struct Waiters {
    list: Slab<Waiter>,
    leader: Option<usize>,
    bell: Arc<Bell>,
    /// The bell, as the waker given to the carrier.
    armed: Waker,
    /// The count of moves when the probes were last woken.
    woken_at: u32,
    pub(super) deferred: Deferred,
}

impl Default for Waiters {
    fn default() -> Self {
        let bell = Arc::new(Bell::default());
        let armed = Waker::from(Arc::clone(&bell));
        let (list, deferred) = (Slab::new(), Deferred::default());
        Self { list, leader: None, bell, armed, woken_at: 0, deferred }
    }
}

impl Waiters {
    /// Registers a waiter in `place`, or updates its waker.
    pub(super) fn enter(&mut self, place: &mut Option<usize>, waker: &Waker) -> usize {
        let index = *place.get_or_insert_with(|| {
            self.list.insert(Waiter { waker: waker.clone(), probes: false, kept: false })
        });
        let waiter = &mut self.list[index];
        if !waiter.waker.will_wake(waker) {
            let former = std::mem::replace(&mut waiter.waker, waker.clone());
            self.deferred.discard([former]);
        }
        index
    }

    pub(super) fn probes(&mut self, place: usize) {
        self.list[place].probes = true;
    }

    /// Makes this waiter the leader; returns the waker to arm in the carrier.
    pub(super) fn lead(&mut self, place: usize) -> &Waker {
        self.leader = Some(place);
        self.bell.pass_to(once(&self.list[place].waker), &mut self.deferred);
        &self.armed
    }

    /// Does the same as `lead`, for a waiter that may be kept without being polled. Such a waiter may never arm the
    /// carrier again, so the bell wakes all waiters.
    pub(super) fn lead_kept(&mut self, place: usize) -> &Waker {
        self.leader = Some(place);
        self.list[place].kept = true;
        let all = self.list.iter().map(|(_, waiter)| &waiter.waker);
        self.bell.pass_to(all, &mut self.deferred);
        &self.armed
    }

    pub(super) const fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    pub(super) fn leave(&mut self, place: &mut Option<usize>) {
        let Some(index) = place.take() else { return };
        let left = self.list.remove(index);
        self.deferred.discard([left.waker]);
        if self.leader == Some(index) {
            self.pass_on();
        }
    }

    pub(super) fn is_leader(&self, place: Option<usize>) -> bool {
        place.is_some() && self.leader == place
    }

    /// Makes another waiter the leader, and wakes it. If there are only waiters that may be kept without being polled,
    /// wakes all of them: the first one that is polled becomes the leader.
    fn pass_on(&mut self) {
        let Self { list, leader, deferred, .. } = self;
        *leader = list.iter().find(|(_, waiter)| !waiter.kept).map(|(next, _)| next);
        match *leader {
            Some(next) => deferred.wake(list[next].waker.clone()),
            None => list.iter().for_each(|(_, waiter)| deferred.wake(waiter.waker.clone())),
        }
    }

    pub(super) fn wake_probes(&mut self, moves: u32) {
        if std::mem::replace(&mut self.woken_at, moves) != moves {
            let Self { list, deferred, .. } = self;
            let probes = list.iter().filter(|(_, waiter)| waiter.probes);
            probes.for_each(|(_, waiter)| deferred.wake(waiter.waker.clone()));
        }
    }
}
