//! Timers: which peer's alarm is due next.

use midplane_simhw::time::Instant;

/// The timers of one peer, by purpose.
#[derive(Clone, Copy, Debug)]
pub(super) enum Timer {
    /// Resends the oldest message, or the hello.
    Resend,
    /// Declares the peer down.
    Death,
    /// Acknowledges the peer's messages, with or without a message to ride on.
    Acknowledge,
}

/// The timers of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timers([Option<Instant>; 3]);

impl Timers {
    pub(super) const fn set(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize] = Some(at);
    }

    pub(super) fn set_if_off(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize].get_or_insert(at);
    }

    pub(super) const fn stop(&mut self, timer: Timer) {
        self.0[timer as usize] = None;
    }

    /// Returns whether a timer has expired by `now`, and stops it if so.
    pub(super) fn take_expired(&mut self, timer: Timer, now: Instant) -> bool {
        self.0[timer as usize].take_if(|at| *at <= now).is_some()
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().flatten().min().copied()
    }
}

/// A binary heap of peers by their next instant, in which each peer's instant can be changed: no linear search, and no
/// memory growth once every peer has its place.
#[derive(Clone, Debug, Default)]
pub(super) struct Alarms {
    heap: Vec<u32>,
    /// By peer: its instant and its place in the heap.
    peers: Vec<(Option<Instant>, u32)>,
}

impl Alarms {
    /// Adds a peer, whose alarm is off.
    pub(super) fn add(&mut self) {
        self.peers.push((None, 0));
        self.heap.reserve(self.peers.len() - self.heap.len());
    }

    /// Sets a peer's alarm, replacing its former setting.
    pub(super) fn set(&mut self, peer: usize, at: Option<Instant>) {
        let (before, place) = self.peers[peer];
        if before == at {
            return;
        }
        self.peers[peer].0 = at;
        match (before, at) {
            (None, _) => {
                self.heap.push(peer as u32);
                self.place(self.heap.len() - 1);
                self.rise(self.heap.len() - 1);
            }
            (Some(_), Some(_)) => self.sift(place as usize),
            (Some(_), None) => self.remove(place as usize),
        }
    }

    /// Returns the earliest instant, and its peer.
    pub(super) fn first(&self) -> Option<(Instant, usize)> {
        let peer = *self.heap.first()? as usize;
        self.peers[peer].0.map(|at| (at, peer))
    }

    fn remove(&mut self, place: usize) {
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.place(place);
            self.sift(place);
        }
    }

    fn sift(&mut self, place: usize) {
        let place = self.rise(place);
        self.sink(place);
    }

    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 && self.key(place) < self.key((place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        place
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(child) = children.min_by_key(|&child| self.key(child)) else { return };
            if self.key(place) <= self.key(child) {
                return;
            }
            self.swap(place, child);
            place = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.place(a);
        self.place(b);
    }

    fn place(&mut self, place: usize) {
        self.peers[self.heap[place] as usize].1 = place as u32;
    }

    /// Orders peers by instant; of two with the same instant, the one known for longer is first.
    fn key(&self, place: usize) -> (Option<Instant>, u32) {
        let peer = self.heap[place];
        (self.peers[peer as usize].0, peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_alarm_agrees_with_a_linear_search(
            steps in proptest::collection::vec((0_usize..9, proptest::option::of(0_u64..20)), 0..200),
        ) {
            let mut alarms = Alarms::default();
            let mut model = [None; 9];
            for _ in model {
                alarms.add();
            }
            for (peer, at) in steps {
                model[peer] = at.map(Instant::from_nanos);
                alarms.set(peer, model[peer]);
                let first = model.iter().enumerate().filter_map(|(i, at)| Some(((*at)?, i))).min();
                prop_assert_eq!(alarms.first(), first);
            }
        }
    }
}
