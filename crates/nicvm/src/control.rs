//! Reliable control messages between execution units: small, in order, exactly once.
//!
//! After the reliable messaging layer of the Distributed Virtual Communication Machine (Rosu and Schwan, "Sender
//! Coordination in the Distributed Virtual Communication Machine", section 2): a sliding window between any pair of
//! units. Nothing here does I/O, apart from a warning of `tracing`, reads a clock or draws a random number. `Control`
//! documents how to drive it and what it guarantees.
//!
//! The protocol uses these header fields in its own way:
//!
//! | field | hello | welcome | acknowledge | control |
//! |---|---|---|---|---|
//! | `destination_incarnation` | 0 | the peer's | the peer's | the peer's |
//! | `sequence` | 0 | 0 | 0 | of the message, from 0 in each connection |
//! | `acknowledgement` | 0 | 0 | first number not received | first number not received |
//! | `words[0]`, low half | 0 | 0 | bit i: `acknowledgement` + 1 + i was received | likewise |
//! | `words[0]`, high half | 0 | 0 | ns since the highest number arrived | likewise |
//! | `words[1]`, low half | sender's connection number | likewise | likewise | likewise |
//! | `port` | 0 | 0 | 0 | version of the sending extension |
//! | `words[1]`, high half | 0 | the peer's connection number | likewise | likewise |

mod alarms;
mod attempt;
mod config;
mod message;
mod peer;
mod receive_window;
mod round_trip;
mod send_window;

use std::collections::{BTreeMap, VecDeque};

use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::id::{Incarnation, NodeId};
use midplane_simhw::time::Instant;

pub use self::config::{ACKNOWLEDGEMENT_DELAY, ControlConfig, DEFAULT_DEAD_AFTER};
pub use self::message::{Address, Body, Counters, Event, MAX_MESSAGE, SendError, Transmit};
pub use self::round_trip::RoundTrip;

use self::alarms::Alarms;
use self::peer::{Peer, Words};

/// Most events that may wait in the queue; beyond that, messages are refused and their senders resend them.
const EVENT_ROOM: usize = 1_024;

/// This unit's identity and settings.
#[derive(Clone, Copy, Debug)]
struct Setting {
    node: NodeId,
    incarnation: Incarnation,
    config: ControlConfig,
}

/// The events and counters that the application reads.
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

/// The control messages between one unit and all its peers.
///
/// # Driving it
/// After any `&mut self` call: drain [`poll_transmit`](Self::poll_transmit), then [`poll_event`](Self::poll_event),
/// then re-read [`poll_timeout`](Self::poll_timeout). `now` never goes back. An early
/// [`handle_timeout`](Self::handle_timeout) does nothing. `poll_timeout() == None` means that only a frame or a send
/// changes the state. A frame that `poll_transmit` returned counts as sent: call it only when the wire has room. If
/// 1,024 [`Event`]s wait to be taken, further messages are refused, and their senders resend them.
///
/// # Guarantees
/// *Connections.* A pair of units has at most one connection at a time. Both [`Incarnation`]s and a number that each
/// end chose name it; an end never uses a number twice in one incarnation. An end takes a connection as established
/// once a frame arrives that names that end's own present number. No frame sent before that number was chosen can name
/// it. So frames of former incarnations and former connections, however late or often they arrive, neither make a
/// connection nor pass for part of one. The guarantee ends where incarnations or numbers advance by half their 32-bit
/// range between a frame's sending and its arrival.
///
/// *Order.* Within a connection messages are delivered exactly once and in the order of [`send`](Self::send). When a
/// connection ends, its sender drops the messages that were accepted but not acknowledged, and never sends them over
/// another: the delivered messages are a prefix of the sent ones.
///
/// *Beginning.* The first message to a peer starts the handshake: [`Kind::Hello`] with our number, until
/// [`Kind::Welcome`] names it. Messages wait meanwhile, and go to whichever incarnation answers. Two hellos that cross
/// make one connection. [`Event::PeerUp`] comes before any message.
///
/// *Ending.* If a peer owes acknowledgements or a welcome and sends no new one for [`ControlConfig::dead_after`],
/// [`Event::PeerDown`] reports it at that time, not before. If the peer is alive, the next frame in either direction
/// shows it that its connection has ended; it then reports us down, and up again. A later send begins anew.
///
/// *Restarts.* Any frame of a newer incarnation ends the connection with the former one. [`Event::PeerRestarted`]
/// reports it; all messages sent before that event are dropped, never delivered to the new incarnation. A frame for a
/// former incarnation or connection of ours is answered by a welcome if we have no connection with its sender: at most
/// one welcome per peer and the least time to a resend. Frames of former incarnations of the sender are counted.
/// A node whose clock was set back may restart with an older incarnation; its peers ignore it and warn of it once.
///
/// *Cost.* Acknowledgements ride on messages. One leaves alone after a delay, on every second message, and at once
/// while a message is missing. It names each message of the window, so one loss resends one message: after three later
/// ones have arrived, or after a time-out that doubles up to an eighth of `dead_after`. Messages that arrive too early
/// are kept. Peers that owe each other nothing exchange nothing. Queues keep the largest capacity that they ever
/// needed; after that nothing is allocated.
///
/// Frames are not authenticated: a forged one may end or stall a connection, but never causes a panic.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Control {
    setting: Setting,
    reports: Reports,
    peers: Vec<Peer>,
    slots: BTreeMap<NodeId, u32>,
    alarms: Alarms,
    /// Peers that have a frame to transmit, each once.
    ready: VecDeque<u32>,
    is_ready: Vec<bool>,
}

impl Control {
    /// Creates the control-message state of `node` in this incarnation.
    ///
    /// # Panics
    /// If the incarnation is [`Incarnation::UNKNOWN`], which names none.
    #[must_use]
    pub fn new(node: NodeId, incarnation: Incarnation, config: ControlConfig) -> Self {
        assert!(incarnation != Incarnation::UNKNOWN, "a unit's incarnation must be known");
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

    /// Queues a message of up to [`MAX_MESSAGE`] bytes for one version of an extension of another unit.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was queued.
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

    /// Handles a frame that has arrived. Counts it as refused if it is not for this node, not of the control protocol,
    /// or contradicts itself.
    pub fn handle_frame(&mut self, now: Instant, header: &Header, body: &[u8]) {
        let Some(body) = self.check(header, body) else {
            self.reports.counters.refused += 1;
            return;
        };
        let slot = self.slot(header.source);
        self.peers[slot].handle_frame(now, &self.setting, &mut self.reports, header, &body);
        self.settle(slot);
    }

    /// Handles a data frame for a former incarnation of this unit: if there is no connection with its sender, sends a
    /// hello that names the present incarnation.
    pub(crate) fn handle_stale_data(&mut self, now: Instant, header: &Header) {
        let setting = self.setting;
        let meant = header.destination_incarnation;
        let former = setting.incarnation.is_newer_than(meant) && meant != Incarnation::UNKNOWN;
        let ours = header.destination == setting.node && header.source != setting.node;
        if former && ours && header.incarnation != Incarnation::UNKNOWN {
            let slot = self.slot(header.source);
            self.peers[slot].handle_stale_data(now, header);
            self.settle(slot);
        }
    }

    /// Advances the time to `now`: resends unacknowledged messages and declares peers dead.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, slot)) = self.alarms.first() {
            if at > now {
                return;
            }
            self.peers[slot].handle_timeout(now, &mut self.reports);
            self.settle(slot);
        }
    }

    /// Returns the next frame to put on the wire. Peers take turns. At most a window and three frames a peer are
    /// returned before `None`.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<'_>> {
        self.poll_transmit_to(now, |_| true)
    }

    /// Returns the next frame to a peer that `takes` frames, like [`Control::poll_transmit`]. The other peers keep
    /// theirs.
    pub(crate) fn poll_transmit_to(
        &mut self,
        now: Instant,
        takes: impl Fn(NodeId) -> bool,
    ) -> Option<Transmit<'_>> {
        let (slot, chosen) = loop {
            let peers = &self.peers;
            let at = self.ready.iter().position(|slot| takes(peers[*slot as usize].node()))?;
            let slot = self.ready.remove(at)? as usize;
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

    /// Returns whether [`Control::poll_transmit`] has no frame to return.
    pub(crate) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// Returns the oldest event that was not taken.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.reports.events.pop_front()
    }

    /// Returns when to call [`Control::handle_timeout`] next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| at)
    }

    /// Returns the round-trip times to `peer`; `None` until one has been measured.
    #[must_use]
    pub fn round_trip(&self, peer: NodeId) -> Option<RoundTrip> {
        self.peer(peer)?.estimate().read()
    }

    /// Returns the incarnation of `peer` that the events reported last; `None` if the peer was never up, or is down.
    #[must_use]
    pub fn peer_incarnation(&self, peer: NodeId) -> Option<Incarnation> {
        self.peer(peer)?.reported()
    }

    /// Returns how many messages to `peer` are under way or wait.
    #[must_use]
    pub fn pending(&self, peer: NodeId) -> usize {
        self.peer(peer).map_or(0, |peer| peer.sending().len())
    }

    /// Returns how many messages to `peer` would be accepted now.
    #[must_use]
    pub fn room(&self, peer: NodeId) -> usize {
        self.setting.config.limit().saturating_sub(self.pending(peer))
    }

    /// Returns whether every accepted message was acknowledged or dropped, and no peer waits for an acknowledgement. A
    /// unit that exits earlier leaves that peer waiting.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.peers.iter().all(|peer| peer.sending().len() == 0 && !peer.owes_acknowledgement())
    }

    /// Returns the counters since the unit started.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.reports.counters
    }

    /// Returns the frame's body, if the frame is of the control protocol and for this unit.
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
        // Addressed to an incarnation of this unit that has not begun.
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

    /// Updates a peer's alarm and its place in the transmit queue after any change.
    fn settle(&mut self, slot: usize) {
        let peer = &self.peers[slot];
        self.alarms.set(slot, peer.timers().next());
        if !self.is_ready[slot] && peer.wants_to_transmit(&self.setting.config) {
            self.is_ready[slot] = true;
            self.ready.push_back(slot as u32);
        }
    }
}
