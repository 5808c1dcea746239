//! Reliable control messages between execution units: small, in order, exactly once.
//!
//! After the reliable messaging layer of the Distributed Virtual Communication Machine (Rosu and
//! Schwan, "Sender Coordination in the Distributed Virtual Communication Machine", section 2): a
//! sliding window between any pair of units. Nothing here does I/O, reads a clock or draws a random
//! number; [`Control`] says how it is driven and what it promises.
//!
//! Fields of the header that are ours, beside the usual ones:
//!
//! | field | hello | welcome | acknowledge | control |
//! |---|---|---|---|---|
//! | `destination_incarnation` | 0 | the peer's | the peer's | the peer's |
//! | `sequence` | 0 | 0 | 0 | of the message, from 0 in each connection |
//! | `acknowledgement` | 0 | 0 | first number not received | first number not received |
//! | `words[0]`, low half | 0 | 0 | bit i: `acknowledgement` + 1 + i was received | likewise |
//! | `words[0]`, high half | 0 | 0 | ns since the highest number came | likewise |
//! | `words[1]`, low half | sender's connection number | likewise | likewise | likewise |
//! | `port` | 0 | 0 | 0 | which version of the extension speaks |
//! | `words[1]`, high half | 0 | the peer's connection number | likewise | likewise |

mod alarms;
mod config;
mod message;
mod peer;
mod resend;
mod round_trip;
mod window;

use std::collections::{BTreeMap, VecDeque};

use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::id::{Incarnation, NodeId};
use midplane_simhw::time::Instant;

pub use self::config::{
    ControlConfig, DEFAULT_ACKNOWLEDGEMENT_DELAY, DEFAULT_DEAD_AFTER, DEFAULT_INITIAL_TIMEOUT,
    DEFAULT_LEAST_TIMEOUT, DEFAULT_QUEUE, DEFAULT_WINDOW,
};
pub use self::message::{Address, Body, Counters, Event, MAX_MESSAGE, SendError, Transmit};
pub use self::round_trip::RoundTrip;

use self::alarms::Alarms;
use self::peer::{Peer, Words};

/// Events that may wait to be taken before messages are refused; their senders send them again.
const EVENT_ROOM: usize = 1_024;

/// Who we are.
#[derive(Clone, Copy, Debug)]
struct Setting {
    node: NodeId,
    incarnation: Incarnation,
    config: ControlConfig,
}

/// What the application will read.
#[derive(Clone, Debug, Default)]
struct Reports {
    events: VecDeque<Event>,
    counters: Counters,
}

impl Reports {
    fn deliver(&mut self, from: NodeId, to: Address, body: Body) {
        self.counters.delivered += 1;
        self.events.push_back(Event::Message { from, to, body });
    }
}

/// The control messages of one unit, with all its peers.
///
/// # Driving it
/// After any `&mut self` call: drain [`poll_transmit`](Self::poll_transmit), then
/// [`poll_event`](Self::poll_event), then re-read [`poll_timeout`](Self::poll_timeout). `now` never
/// goes back. An early [`handle_timeout`](Self::handle_timeout) does nothing. `poll_timeout() ==
/// None` means that only a frame or a send can wake us. A frame that `poll_transmit` returned
/// counts as sent: ask only when the wire has room. While [`Event`]s are left lying in their
/// hundreds, messages are refused and sent again by their senders.
///
/// # What it promises
/// *Connections.* A pair of units speaks over one connection at a time, named by both
/// [`Incarnation`]s and by a number that each end chose for it; an end never uses a number twice in
/// one incarnation. A connection stands for an end once a frame arrives that names that end's own
/// present number, which no frame sent before that number was chosen can do. So frames of former
/// lives and former connections, however late and however often they come, neither make a
/// connection nor pass for part of one. Where incarnations or numbers pass half their 32-bit range
/// between a frame's sending and its arrival, this no longer holds.
///
/// *Order.* Within a connection messages are delivered exactly once and in the order of
/// [`send`](Self::send). What was accepted but not acknowledged when it ends is dropped at the
/// sender and never sent over another: what arrived is a prefix of what was sent.
///
/// *Beginning.* The first message to a peer starts the handshake: [`Kind::Hello`] with our number
/// until [`Kind::Welcome`] names it. Messages wait meanwhile, and go to whichever life answers. Two
/// hellos that cross make one connection. [`Event::PeerUp`] comes before any message.
///
/// *Ending.* A peer that owes acknowledgements (or a welcome) and sends no new one for the
/// configured time, [`ControlConfig::dead_after`], is reported [`Event::PeerDown`] at that time,
/// not before; if it lives, it learns at its next frame or ours that its connection is gone, and
/// reports us down as well, then up. A later send begins anew.
///
/// *Restarts.* Any frame of a newer incarnation ends the connection with the former one:
/// [`Event::PeerRestarted`] tells of it, and all that was sent before that event is dropped, never
/// delivered to the new life. A frame for a former incarnation or connection of ours is answered
/// by a welcome, at most one a peer and [`ControlConfig::least_timeout`], if we have no connection
/// with its sender; frames of former incarnations of the sender are counted.
///
/// *Cost.* Acknowledgements ride on messages; one leaves alone after a delay, on every second
/// message, and at once while something is missing. It names each message of the window, so one
/// loss resends one message: after three later ones have arrived, or after a time-out that doubles
/// up to an eighth of `dead_after`. Messages that come too early are kept. Peers that owe each
/// other nothing exchange nothing. Queues grow to the most that they ever held; after that nothing
/// is allocated.
///
/// Frames are not authenticated: a forged one may end or stall a connection, but never panics.
#[derive(Clone, Debug)]
pub struct Control {
    setting: Setting,
    reports: Reports,
    peers: Vec<Peer>,
    slots: BTreeMap<NodeId, u32>,
    alarms: Alarms,
    /// Peers that have something to transmit, each once.
    ready: VecDeque<u32>,
    is_ready: Vec<bool>,
}

impl Control {
    /// The control messages of `node` in this life of it.
    ///
    /// # Panics
    /// If the incarnation is [`Incarnation::UNKNOWN`], which is no life.
    #[must_use]
    pub fn new(node: NodeId, incarnation: Incarnation, config: ControlConfig) -> Self {
        assert!(incarnation != Incarnation::UNKNOWN, "a unit knows which life it is in");
        Self {
            setting: Setting { node, incarnation, config },
            reports: Reports::default(),
            peers: Vec::new(),
            slots: BTreeMap::new(),
            alarms: Alarms::default(),
            ready: VecDeque::new(),
            is_ready: Vec::new(),
        }
    }

    /// Takes a message of up to [`MAX_MESSAGE`] bytes for an extension of another unit, in one of
    /// its versions.
    ///
    /// # Errors
    /// [`SendError`]; nothing was taken then.
    pub fn send(
        &mut self,
        now: Instant,
        to: NodeId,
        address: impl Into<Address>,
        body: &[u8],
    ) -> Result<(), SendError> {
        if to == self.setting.node {
            return Err(SendError::ToItself);
        }
        let body = Body::new(body).ok_or(SendError::TooLong { length: body.len() })?;
        let slot = self.slot(to);
        let limit = self.setting.config.limit();
        let peer = &mut self.peers[slot];
        if peer.sending().len() >= limit {
            return Err(SendError::QueueFull { limit });
        }
        peer.send(now, &self.setting, address.into(), body);
        self.settle(slot);
        Ok(())
    }

    /// A frame has arrived. What is not for this node, not of the control protocol, or contradicts
    /// itself, is counted as refused.
    pub fn handle_frame(&mut self, now: Instant, header: &Header, body: &[u8]) {
        let Some(body) = self.check(header, body) else {
            self.reports.counters.refused += 1;
            return;
        };
        let slot = self.slot(header.source);
        self.peers[slot].handle_frame(now, &self.setting, &mut self.reports, header, &body);
        self.settle(slot);
    }

    /// A data frame has arrived for a former life of this unit: its sender learns of the present one,
    /// as after a control message for a former one.
    pub fn handle_stale_data(&mut self, now: Instant, header: &Header) {
        let setting = self.setting;
        let meant = header.destination_incarnation;
        let former = setting.incarnation.is_newer_than(meant) && meant != Incarnation::UNKNOWN;
        let ours = header.destination == setting.node && header.source != setting.node;
        if former && ours && header.incarnation != Incarnation::UNKNOWN {
            let slot = self.slot(header.source);
            self.peers[slot].handle_stale_data(now, &setting, header);
            self.settle(slot);
        }
    }

    /// The time is `now`: resends what was not acknowledged, declares peers dead.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, slot)) = self.alarms.first() {
            if at > now {
                return;
            }
            self.peers[slot].handle_timeout(now, &mut self.reports);
            self.settle(slot);
        }
    }

    /// The next frame to put on the wire. Peers take turns. `None` comes after at most a window and
    /// three frames a peer.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<'_>> {
        let (slot, chosen) = loop {
            let slot = self.ready.pop_front()? as usize;
            self.is_ready[slot] = false;
            let counters = &mut self.reports.counters;
            let chosen = self.peers[slot].poll_transmit(now, &self.setting, counters);
            self.settle(slot);
            if let Some(chosen) = chosen {
                break (slot, chosen);
            }
        };
        let body = chosen.message.map_or(&[][..], |index| self.peers[slot].sending().body(index));
        Some(Transmit { header: chosen.header, body })
    }

    /// Whether [`Control::poll_transmit`] has nothing to say.
    pub(crate) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// What has happened, oldest first.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.reports.events.pop_front()
    }

    /// When to call [`Control::handle_timeout`] next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| at)
    }

    /// How long `peer` takes to answer; `None` until it has been measured.
    #[must_use]
    pub fn round_trip(&self, peer: NodeId) -> Option<RoundTrip> {
        self.peer(peer)?.estimate().read()
    }

    /// Which life of `peer` the events have told of; `None` if it was never up, or is down.
    #[must_use]
    pub fn peer_incarnation(&self, peer: NodeId) -> Option<Incarnation> {
        self.peer(peer)?.reported()
    }

    /// Messages to `peer` that are under way or wait.
    #[must_use]
    pub fn pending(&self, peer: NodeId) -> usize {
        self.peer(peer).map_or(0, |peer| peer.sending().len())
    }

    /// Messages to `peer` that would be taken now.
    #[must_use]
    pub fn room(&self, peer: NodeId) -> usize {
        self.setting.config.limit().saturating_sub(self.pending(peer))
    }

    /// Returns whether every message that was taken has been acknowledged, or dropped, and no peer waits for an
    /// acknowledgement: a unit that ends before would leave that peer waiting.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.peers.iter().all(|peer| peer.sending().len() == 0 && !peer.owes_acknowledgement())
    }

    /// What this unit's control messages have done since it started.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.reports.counters
    }

    /// The frame's body, if it is one of the control protocol and for us.
    fn check(&self, header: &Header, body: &[u8]) -> Option<Body> {
        let setting = &self.setting;
        let words = Words::read(header);
        let known = header.destination_incarnation != Incarnation::UNKNOWN && words.echo != 0;
        let sound = match header.kind {
            Kind::Control => known && self.reports.events.len() < EVENT_ROOM,
            Kind::Acknowledge | Kind::Welcome => known && body.is_empty(),
            Kind::Hello => body.is_empty(),
            Kind::Data | Kind::Returned | Kind::Piece | Kind::Probe | Kind::Probed => false,
        };
        let ours = header.destination == setting.node && header.source != setting.node;
        let named = header.incarnation != Incarnation::UNKNOWN && words.number != 0;
        // Of a life of ours that has not begun.
        let early = header.destination_incarnation.is_newer_than(setting.incarnation);
        let whole = usize::from(header.length) == body.len();
        if sound && ours && named && !early && whole { Body::new(body) } else { None }
    }

    fn peer(&self, node: NodeId) -> Option<&Peer> {
        self.slots.get(&node).map(|&slot| &self.peers[slot as usize])
    }

    fn slot(&mut self, node: NodeId) -> usize {
        let slot = *self.slots.entry(node).or_insert_with(|| {
            self.peers.push(Peer::new(node));
            self.alarms.add();
            self.is_ready.push(false);
            self.ready.reserve(self.peers.len() - self.ready.len());
            self.peers.len() as u32 - 1
        });
        slot as usize
    }

    /// After any change of a peer: its alarm, and its turn to transmit.
    fn settle(&mut self, slot: usize) {
        let peer = &self.peers[slot];
        self.alarms.set(slot, peer.timers().next());
        if !self.is_ready[slot] && peer.wants_to_transmit(&self.setting.config) {
            self.is_ready[slot] = true;
            self.ready.push_back(slot as u32);
        }
    }
}
