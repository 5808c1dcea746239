//! The waiting tasks of a process, one of which the carrier wakes, and their polls.

use std::iter::once;
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use super::Shared;
use crate::message::bell::{Bell, Deferred};
use crate::message::engine::Target;
use crate::message::transport::Wait;

/// Requests that may complete in a row within their own poll before the task yields: a task that never waits would
/// starve the others on its thread. Each turn of another task may busy-poll for as long as its carrier does: with 4,
/// eight streams over shared memory have half the rate; with 32, their tail latency is 1.5 times as long.
const TURNS: u32 = 16;

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
    fn enter(&mut self, place: &mut Option<usize>, waker: &Waker) -> usize {
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

    /// Makes this waiter the leader; returns the waker to arm in the carrier. A waiter that may be `kept` without being
    /// polled may never arm the carrier again, so the bell then wakes all waiters.
    fn lead(&mut self, place: usize, kept: bool) -> &Waker {
        let Self { list, leader, bell, deferred, .. } = self;
        *leader = Some(place);
        if kept {
            list[place].kept = true;
            bell.pass_to(list.iter().map(|(_, waiter)| &waiter.waker), deferred);
        } else {
            bell.pass_to(once(&list[place].waker), deferred);
        }
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
        let next = self.list.iter().find(|(_, waiter)| !waiter.kept);
        self.leader = next.map(|(next, _)| next);
        self.wake_leader();
    }

    /// Wakes the leader; all waiters if there is none, or if it may be kept without being polled.
    pub(super) fn wake_leader(&mut self) {
        let Self { list, leader, deferred, .. } = self;
        match leader.map(|leader| &list[leader]).filter(|leader| !leader.kept) {
            Some(leader) => deferred.wake(leader.waker.clone()),
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

impl Shared {
    /// Advances requests until the target is done or no progress is possible; the carrier then wakes `waker`, or all
    /// waiters if this one may be `kept` without being polled. Stops early once the target is done: when its task leaves
    /// the waiters, another one is woken and arms the carrier.
    pub(super) fn drive(
        &mut self,
        waker: &Waker,
        place: &mut Option<usize>,
        kept: bool,
        target: &mut Target<'_>,
    ) {
        let place = self.waiters.enter(place, waker);
        let Self { process, waiters, .. } = self;
        let (engine, armed) = (process.engine_mut(), waiters.lead(place, kept));
        while engine.advance_for(Wait::Wake(armed), target) > 0 {
            if target.request.is_some_and(|request| engine.requests().peek(request).is_some()) {
                break;
            }
        }
        self.wake_probes();
    }

    /// Advances requests as far as possible without waiting.
    pub(super) fn poll_once(&mut self, target: &mut Target<'_>) {
        self.process.engine_mut().advance_for(Wait::Not, target);
        self.wake_probes();
    }

    /// Returns whether the task must yield first: `TURNS` requests in a row have completed within their own poll.
    pub(super) const fn must_yield(&mut self) -> bool {
        let must_yield = self.turns >= TURNS;
        if must_yield {
            self.turns = 0;
        }
        must_yield
    }

    pub(super) fn moves(&mut self) -> u32 {
        self.process.engine_mut().requests().moves()
    }

    /// Wakes the probes, if the count of moves has changed since they were last woken.
    pub(super) fn wake_probes(&mut self) {
        let moves = self.moves();
        self.waiters.wake_probes(moves);
    }
}
