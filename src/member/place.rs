//! Places that may have nodes, and the time of the next dial to each.

use std::net::SocketAddr;

use midplane_simhw::time::Instant;
use midplane_via::session::TransportKind;

use super::peer::{Link, Peer};
use super::{DESCRIBE, Effect, MOST, Members};

/// Most dials that may wait for a description at once.
const MAX_DIALS: usize = 64;
/// Nanoseconds for which a dial through shared memory counts among these: it succeeds although the node is suspended. A
/// dial over a network ends by itself.
const COUNTED: u64 = 3_000_000_000;
/// Nanoseconds from a failed dial to the next: at first, and at most. They double with each failure.
const BACK_OFF: (u64, u64) = (50_000_000, 800_000_000);
/// Nanoseconds that a link must last for its end to count as no failure of its place.
const STEADY: u64 = 1_000_000_000;

/// A place where a node may be.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Target {
    /// The node of this number, on this host.
    Local(u64),
    /// Any node that receives at this address.
    Address(SocketAddr),
}

/// A place, and the state of dials to it.
#[derive(Debug)]
pub(super) struct Place {
    /// True if discovery returns the place now.
    pub(super) is_listed: bool,
    /// True if a dial was requested and has not begun.
    pub(super) is_dialing: bool,
    /// The link that was dialed there, if it has not ended.
    pub(super) link: Option<u64>,
    /// The node that last described itself there.
    pub(super) peer: Option<u64>,
    failures: u32,
    pub(super) again_at: Instant,
}

impl Place {
    pub(super) const fn new(now: Instant, target: Target) -> Self {
        let peer = match target {
            Target::Local(id) => Some(id),
            Target::Address(_) => None,
        };
        Self { is_listed: true, is_dialing: false, link: None, peer, failures: 0, again_at: now }
    }

    /// Handles a dial that could not begin.
    pub(super) fn on_refused(&mut self, now: Instant) {
        self.is_dialing = false;
        self.on_failure(now, now);
    }

    /// Handles the end of the link that was dialed at `since`. `is_described` is true if its peer had described itself.
    pub(super) fn on_ended(&mut self, now: Instant, since: Instant, is_described: bool) {
        self.link = None;
        if is_described && now.nanos_since(since) >= STEADY {
            self.failures = 0;
        }
        self.on_failure(now, since);
    }

    fn on_failure(&mut self, now: Instant, since: Instant) {
        let (first, most) = BACK_OFF;
        let back_off = (first << self.failures.min(10)).min(most);
        // A dial that took long to fail is repeated soon.
        self.again_at = since.plus_nanos(back_off).max(now.plus_nanos(first));
        self.failures = self.failures.saturating_add(1);
    }

    /// Returns whether the place may be dialed: it is listed, and has no dial and no link.
    pub(super) const fn is_free(&self) -> bool {
        self.is_listed && !self.is_dialing && self.link.is_none()
    }
}

impl Members {
    /// Dials the places that are due, while this node searches.
    pub(super) fn dial_due(&mut self, now: Instant) {
        // The timer may be late: a place that was due before the search ended is still dialed.
        let seek_until = self.seek_until;
        let mut under_way = self.undescribed().filter(|link| counted_until(link) > now).count();
        if under_way >= MAX_DIALS || self.links.len() >= MOST {
            return;
        }
        let due = self.wanted().filter(|(at, _)| *at <= now && *at < seek_until);
        let mut due: Vec<_> = due.collect();
        // Those that have waited longest come first: silent places do not keep others from being dialed.
        due.sort_unstable();
        for (_, target) in due {
            if under_way >= MAX_DIALS || self.links.len() >= MOST {
                return;
            }
            if let Some(place) = self.places.get_mut(&target) {
                place.is_dialing = true;
                under_way += 1;
                self.effects.push_back(Effect::Dial(target));
            }
        }
    }

    /// Returns when the next dial is due, if that is before the search ends.
    pub(super) fn next_dial(&self) -> Option<Instant> {
        let free_at = self.free_at();
        let dials = self.wanted().map(|(at, _)| at.max(free_at));
        dials.filter(|at| *at < self.seek_until).min()
    }

    /// Returns the time from which a further dial is allowed, if no link ends before.
    fn free_at(&self) -> Instant {
        if self.links.len() >= MOST {
            return Instant::FAR_FUTURE;
        }
        let mut counted: Vec<_> = self.undescribed().map(counted_until).collect();
        counted.sort_unstable();
        counted.len().checked_sub(MAX_DIALS).map_or(Instant::ZERO, |at| counted[at])
    }

    /// Iterates over the places to be dialed, each after the time of its next dial.
    fn wanted(&self) -> impl Iterator<Item = (Instant, Target)> {
        let is_wanted = move |(target, place): &(&Target, &Place)| {
            place.is_free() && !place.peer.is_some_and(|peer| self.is_reached(**target, peer))
        };
        let wanted = self.places.iter().filter(is_wanted);
        wanted.map(|(target, place)| (place.again_at, *target))
    }

    /// Returns whether the node at a place needs no further link: it is known, and a node of this host has one through
    /// shared memory.
    fn is_reached(&self, target: Target, peer: u64) -> bool {
        let is_shared = |number: &u64| {
            self.links.get(number).is_some_and(|link| link.transport == TransportKind::Shm)
        };
        let needs_shared = cfg!(target_os = "linux") && matches!(target, Target::Local(_));
        let is_enough = |peer: &Peer| !needs_shared || peer.links.iter().any(is_shared);
        peer == self.id || self.peers.get(&peer).is_some_and(is_enough)
    }

    /// Iterates over the dialed links whose peer has not described itself.
    fn undescribed(&self) -> impl Iterator<Item = &Link> {
        let is_awaited = |link: &&Link| link.target.is_some() && link.peer.is_none();
        self.links.values().filter(is_awaited).filter(|link| !link.is_refused())
    }

    /// Returns whether a recently dialed node has not described itself yet.
    pub(crate) fn is_expecting(&self, now: Instant) -> bool {
        self.undescribed().any(|link| now.nanos_since(link.since) < DESCRIBE)
    }
}

/// Returns the time until which the dial of a link counts, if its peer does not describe itself.
const fn counted_until(link: &Link) -> Instant {
    match link.transport {
        TransportKind::Shm => link.since.plus_nanos(COUNTED),
        _ => Instant::FAR_FUTURE,
    }
}
