//! Several carriers as one: packets to a process use the first carrier that works, and move when that changes.
//!
//! Carriers of lower [latency](Carrier::latency) are preferred: shared memory, then networks. A process of this host is
//! recognised by the host number in its control packets on another carrier; its packets then move to shared memory. If
//! a carrier fails, packets continue on the next one. None is lost, duplicated or reordered: packets on a carrier that
//! may fail are stored until the receiver has acknowledged them (at most 1 MiB to each process; further ones wait).

mod control;
mod peer;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;
use std::time::Duration;

use super::carrier::{Carrier, Event, Refusal};
use super::envelope::{Envelope, Kind, Peer};
use super::transport::InitError;
use control::Control;
use peer::PeerWires;

/// Events of one carrier after which the next carrier is polled.
const TURN: u32 = 16;

/// Several [carriers](Carrier) as one.
pub struct Wires {
    carriers: Vec<Box<dyn Carrier>>,
    own: Peer,
    identity: u64,
    host: u64,
    /// Maximum payload in bytes that every carrier accepts.
    room: usize,
    state: State,
    has_left: bool,
}

/// The state of the wires to all processes.
#[derive(Debug, Default)]
struct State {
    peers: Vec<Option<PeerWires>>,
    /// Processes for which control packets or repeated packets wait.
    busy: Vec<Peer>,
    /// Processes found on this host, to which the local carriers are to be connected.
    found: Vec<Peer>,
    /// Events that the next polls report.
    news: VecDeque<Event<'static>>,
    /// The carrier that is polled next; its events since its turn began; and the carriers in a row without events.
    turn: usize,
    events: u32,
    idle: usize,
}

impl fmt::Debug for Wires {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own, state, .. } = self;
        f.debug_struct("Wires").field("own", own).field("state", state).finish_non_exhaustive()
    }
}

impl Wires {
    /// Makes one carrier of several. It prefers carriers of lower latency, and the first of those with equal latency.
    ///
    /// `identity` distinguishes this process from former processes with its number, and should be higher than theirs:
    /// the start time, in any unit, below 2^62. `host` is equal in all processes that [local](Carrier::is_local)
    /// carriers can reach, and 0 if there are no such carriers.
    ///
    /// # Panics
    /// If there is no carrier, or the carriers differ in the number of this process.
    #[must_use]
    pub fn new(identity: u64, host: u64, mut carriers: Vec<Box<dyn Carrier>>) -> Self {
        let own = carriers.first().expect("there is a carrier").own();
        carriers.sort_by_key(|carrier| carrier.latency(own));
        let is_own = carriers.iter().all(|carrier| carrier.own() == own);
        assert!(is_own, "all carriers are of one process");
        let identity = identity.clamp(1, 1 << 62);
        let room = carriers.iter().map(|carrier| carrier.room()).min().unwrap_or(0);
        Self { carriers, own, identity, host, room, state: State::default(), has_left: false }
    }

    /// Returns the carrier of packets to a process; the preferred one if none is open yet.
    fn open(&self, to: Peer) -> &dyn Carrier {
        let wires = self.state.peers.get(to.0 as usize).and_then(Option::as_ref);
        &*self.carriers[wires.and_then(PeerWires::open).unwrap_or(0)]
    }

    /// Connects local carriers to processes found on this host, and posts control packets and repeated packets. Returns
    /// whether the last repeated packet of a process was posted: further packets to it are no longer refused.
    fn pump(&mut self) -> bool {
        let Self { carriers, state, .. } = self;
        for peer in std::mem::take(&mut state.found) {
            for (number, carrier) in carriers.iter_mut().enumerate() {
                if carrier.is_local() && carrier.connect(&[peer]).is_ok() {
                    state.handle(peer, |wires, _| wires.on_found(number));
                }
            }
        }
        let mut takes_more = false;
        state.busy.retain(|to| {
            let Some(Some(peer)) = state.peers.get_mut(to.0 as usize) else { return false };
            let was_repeating = peer.is_repeating();
            peer.pump(&mut |wire, envelope, payload| carriers[wire].post(*to, envelope, payload));
            takes_more |= was_repeating && !peer.is_repeating();
            peer.has_work()
        });
        takes_more
    }
}

impl State {
    /// Handles an event of a process, and lists the process if packets are to be posted.
    fn handle(
        &mut self,
        peer: Peer,
        handle: impl FnOnce(&mut PeerWires, &mut VecDeque<Event<'static>>),
    ) {
        let Some(Some(wires)) = self.peers.get_mut(peer.0 as usize) else { return };
        let was_here = wires.is_here;
        handle(wires, &mut self.news);
        if wires.is_here && !was_here {
            self.found.push(peer);
        }
        if wires.has_work() && !self.busy.contains(&peer) {
            self.busy.push(peer);
        }
    }

    /// Handles a packet that is no control packet; returns whether it is the next one of its sender.
    #[inline]
    fn on_packet(&mut self, from: Peer, wire: usize, bytes: usize) -> bool {
        let Some(Some(peer)) = self.peers.get_mut(from.0 as usize) else { return false };
        let is_next = peer.on_packet(wire, bytes);
        if peer.has_work() && !self.busy.contains(&from) {
            self.busy.push(from);
        }
        is_next
    }

    /// Passes the turn to the next of so many carriers.
    fn pass_turn(&mut self, carriers: usize) {
        (self.turn, self.events) = ((self.turn + 1) % carriers, 0);
    }
}

/// An event of a carrier, as the wires handle it.
enum Seen {
    Control(Option<Control>),
    Lost,
    Broken,
    Reachable,
}

impl Carrier for Wires {
    fn own(&self) -> Peer {
        self.own
    }

    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        let local: Vec<_> = self.carriers.iter().map(|carrier| carrier.is_local()).collect();
        let is_all_local = !local.contains(&false);
        for (carrier, is_local) in self.carriers.iter_mut().zip(&local) {
            if !is_local || is_all_local {
                carrier.connect(peers)?;
            }
        }
        for peer in peers {
            let (index, state) = (peer.0 as usize, &mut self.state);
            if state.peers.len() <= index {
                state.peers.resize_with(index + 1, || None);
            }
            let new = || PeerWires::new((self.own, *peer), self.identity, self.host, &local);
            state.peers[index].get_or_insert_with(new);
            for (number, is_local) in local.iter().enumerate() {
                if !is_local || is_all_local {
                    state.handle(*peer, |wires, _| wires.on_reachable(number));
                }
            }
        }
        Ok(())
    }

    fn wire_to(&self, peer: Peer) -> Option<&'static str> {
        let wires = self.state.peers.get(peer.0 as usize)?.as_ref()?;
        self.carriers[wires.open()?].wire_to(peer)
    }

    fn latency(&self, to: Peer) -> Duration {
        self.open(to).latency(to)
    }

    fn part(&self, to: Peer, receive: u64) -> usize {
        self.open(to).part(to, receive).min(self.room)
    }

    fn room(&self) -> usize {
        self.room
    }

    #[inline]
    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        let Self { carriers, state, .. } = self;
        let Some(Some(peer)) = state.peers.get_mut(to.0 as usize) else {
            return Err(Refusal::Lost);
        };
        peer.post(envelope, payload, &mut |wire, envelope, payload| {
            carriers[wire].post(to, envelope, payload)
        })
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        if !self.state.busy.is_empty() || !self.state.found.is_empty() {
            self.pump();
        }
        let Self { carriers, state, .. } = self;
        if let Some(event) = state.news.pop_front() {
            return Some(event);
        }
        let (turn, count) = (state.turn, carriers.len());
        let Some(event) = carriers[turn].poll() else {
            state.pass_turn(count);
            state.idle += 1;
            if state.idle < count {
                return Some(Event::Handled);
            }
            state.idle = 0;
            return None;
        };
        (state.events, state.idle) = (state.events + 1, 0);
        if state.events >= TURN {
            state.pass_turn(count);
        }
        let (peer, seen) = match event {
            Event::Packet { from, envelope, payload } if envelope.kind == Kind::Wire => {
                (from, Seen::Control(Control::parse(&envelope, payload)))
            }
            Event::Packet { from, payload, .. } => {
                let is_next = state.on_packet(from, turn, payload.len());
                return Some(if is_next { event } else { Event::Handled });
            }
            Event::Lost(peer) | Event::Restarted(peer) => (peer, Seen::Lost),
            Event::Broken(peer) => (peer, Seen::Broken),
            Event::Returned(peer) => (peer, Seen::Reachable),
            // Wires register no memory, so no bytes are placed.
            Event::Placed { .. } | Event::Released(_) | Event::Handled => {
                return Some(Event::Handled);
            }
        };
        state.handle(peer, |wires, news| match seen {
            Seen::Control(Some(control)) => wires.on_control(turn, &control, news),
            // The malformed packet may have been any packet, so that process can't be trusted on this wire.
            Seen::Control(None) | Seen::Lost => wires.on_lost(turn, news),
            Seen::Broken => wires.on_broken(turn),
            Seen::Reachable => wires.on_reachable(turn),
        });
        Some(Event::Handled)
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        if self.pump() {
            // The engine posts the refused packets now: no carrier wakes a task for them.
            return false;
        }
        let is_idle = self.state.news.is_empty() && self.state.found.is_empty();
        is_idle && self.carriers.iter_mut().all(|carrier| carrier.arm_wakeup(waker))
    }

    fn is_flushed(&mut self) -> bool {
        self.pump();
        let is_flushed = |state: &State| state.peers.iter().flatten().all(PeerWires::is_flushed);
        if is_flushed(&self.state) && !std::mem::replace(&mut self.has_left, true) {
            for peer in 0..self.state.peers.len() {
                self.state.handle(Peer(peer as u32), |wires, _| wires.leave());
            }
            self.pump();
        }
        is_flushed(&self.state) && self.carriers.iter_mut().all(|carrier| carrier.is_flushed())
    }

    fn close(&mut self) {
        self.carriers.iter_mut().for_each(|carrier| carrier.close());
    }
}
