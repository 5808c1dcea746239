//! Sender coordination (DVCM paper, section 4): many senders take turns on a link, so that a switch whose buffer is too
//! small for all of them loses nothing.
//!
//! Each link has a token. A message leaves when its sender holds the tokens of all links on its path that have one. A
//! sender releases its token early enough that the next sender's first bit follows its own last bit. The receiver takes
//! part only if its buffers are carried in the token, or if a token is lost.
//!
//! When a receiver restarts, all senders give up the tokens of its former incarnation, and it makes a new one a lease
//! later. Messages that left for the former incarnation are lost.
//!
//! - `buffers`: the receiver's buffers in a token
//! - `config`: the links, and how they are used
//! - `lead`: how early a token is released
//! - `link`: the token protocol of one link, at one sender

mod buffers;
mod config;
mod lead;
mod lease;
mod link;
mod member;
mod message;
mod route;
#[cfg(test)]
mod tests;
mod witness;

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_simhw::frame::{Frame, HEADER_BYTES};
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::RegionRef;
use midplane_simhw::time::{Instant, nanos};

pub use config::{ConfigError, CoordinationConfig, Hold, LinkConfig, Uncontrolled};
pub use lead::{Lead, LeadTrim};
pub use link::LinkCounters;
pub use member::MAX_SENDERS;
pub(crate) use member::Party;
pub use message::Epoch;

use crate::context::Context;
use crate::control::MAX_MESSAGE;
use crate::extension::{Extension, InitError, PeerEvent, TimeoutId, TransmitEvent};
use crate::messages::{self, Messages};
use crate::timeout::Service;
use buffers::{BufferRequest, Promise};
use link::{Link, LinkSetup, Outbox};
use message::{Body, LinkMessage};
use route::{GRANT_BYTES, Route, State};
use witness::Witness;

/// The extension number of sender coordination.
pub const COORDINATION: ExtensionId = ExtensionId(2);

/// Opcode `SEND_WITH_FLOW_CONTROL`: sends `region` to `port` of `node` when the tokens allow it; completes when the
/// memory has been read. Argument 0 is a 32-bit tag that travels with the message.
pub const SEND_WITH_FLOW_CONTROL: u8 = 1;
/// Opcode: posts `region` as the buffer of the next coordinated message for this port, as [`messages::RECEIVE`] does.
pub const RECEIVE: u8 = 2;
/// Opcode: completes with this node's counts over all links, as arguments 0 to 3: control messages, those among them
/// for leases, tokens received, and tokens given up as lost.
pub const COUNTERS: u8 = 3;

/// Instructions charged for one control message.
const CONTROL_INSTRUCTIONS: u64 = 80;
/// The timeout of all links; the numbers after it belong to routes.
const LINKS: TimeoutId = TimeoutId(0);
/// The timeout after which messages under way count as lost, so that they need no buffer.
const BUFFERS: TimeoutId = TimeoutId(u32::MAX);

/// Builds a command that sends `region` to `port` of `node`, coordinated with other senders.
#[must_use]
pub fn send(node: NodeId, port: PortId, region: RegionRef, cookie: u64) -> Command {
    Command { extension: COORDINATION, ..messages::send(node, port, region, cookie) }
}

/// Builds a command that posts `region` as the buffer of the next coordinated message.
#[must_use]
pub fn receive(region: RegionRef, cookie: u64) -> Command {
    Command { extension: COORDINATION, ..messages::receive(region, cookie) }
}

/// One link at this node.
#[derive(Debug)]
struct Place {
    config: LinkConfig,
    /// The sender's side, if this node is one of the link's senders.
    link: Option<Link>,
    /// The witness's side, if this node is the link's destination.
    witness: Option<Witness>,
    /// The route that uses it.
    user: Option<usize>,
    /// The sender that waits for the receiver's buffers.
    wants_buffers: Option<BufferRequest>,
    /// The last grant of buffers to a sender.
    promised: Promise,
}

impl Place {
    fn party(&self, node: NodeId) -> Option<Party> {
        if node == self.config.witness {
            return Some(Party::WITNESS);
        }
        let place = self.config.senders.iter().position(|sender| *sender == node)?;
        u8::try_from(place).ok().map(Party)
    }

    fn node(&self, party: Party) -> Option<NodeId> {
        if party == Party::WITNESS {
            return Some(self.config.witness);
        }
        self.config.senders.get(usize::from(party.0)).copied()
    }
}

/// A token that a node holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Holding {
    /// Its link's number.
    pub link: u16,
    /// The token's epoch.
    pub epoch: Epoch,
    /// The instant until which the holder may send, on its own clock.
    pub valid_until: Instant,
}

/// Sender coordination, as an extension.
#[derive(Debug)]
pub struct Coordination {
    config: CoordinationConfig,
    places: Vec<Place>,
    routes: Vec<Route>,
    /// The first route to be tried, if several wait for one link.
    next_route: usize,
    receiver: Messages,
    /// When the links' timeout is due.
    alarm: Option<Instant>,
    /// The newest known incarnation of each party's unit.
    incarnations: BTreeMap<NodeId, Incarnation>,
}

impl Coordination {
    /// Creates the extension.
    ///
    /// # Errors
    /// [`ConfigError`] says what is inconsistent in `config`.
    pub fn new(config: CoordinationConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            config,
            places: Vec::new(),
            routes: Vec::new(),
            next_route: 0,
            receiver: Messages::new(),
            alarm: None,
            incarnations: BTreeMap::new(),
        })
    }

    /// Iterates over the tokens that this node holds.
    pub fn tokens(&self) -> impl Iterator<Item = Holding> + '_ {
        self.places.iter().filter_map(|place| {
            let (epoch, valid_until) = place.link.as_ref()?.validity()?;
            Some(Holding { link: place.config.number, epoch, valid_until })
        })
    }

    /// Returns how many buffers are posted for coordinated messages and not yet taken by one.
    #[must_use]
    pub fn free_buffers(&self) -> u32 {
        self.receiver.free_buffers()
    }

    fn start(&mut self, nic: &Context<'_>) {
        let me = nic.node();
        let now = nic.now();
        let config = &self.config;
        let genesis = config.genesis && nic.incarnation() == Incarnation::FIRST;
        let lease_ns = nanos(config.lease);
        let quiet_until = if genesis { now } else { now.plus_nanos(lease_ns) };
        for link in &config.links {
            let senders = link.senders.len();
            let place = link.senders.iter().position(|sender| *sender == me);
            let setup = place.map(|place| LinkSetup {
                me: Party(place as u8),
                senders,
                lease_ns,
                request_timeout_ns: nanos(config.request_timeout),
                genesis,
                quiet_until,
            });
            let witness = (link.witness == me)
                .then(|| Witness::new(senders, lease_ns, nic.incarnation(), genesis, quiet_until));
            self.places.push(Place {
                config: link.clone(),
                link: setup.map(Link::new),
                witness,
                user: None,
                wants_buffers: None,
                promised: Promise::default(),
            });
        }
        for (destination, links) in &config.routes {
            let is_ours = |at: &Place, number| at.config.number == number && at.link.is_some();
            let place = |number| self.places.iter().position(|at| is_ours(at, number));
            let links = links.iter().filter_map(|number| place(*number)).collect();
            self.routes.push(Route::new(*destination, links, config.lead_to(*destination)));
        }
    }

    /// Returns the route to `destination`, if this node is a sender of one of its links.
    fn route(&self, destination: NodeId) -> Option<usize> {
        let is_it = |route: &Route| route.destination == destination && !route.links.is_empty();
        self.routes.iter().position(is_it)
    }

    fn send_message(&mut self, nic: &mut Context<'_>, command: &Command) {
        let mut message = messages::outgoing(command);
        message.extension = COORDINATION;
        if let Some(at) = self.route(command.node) {
            let small = self.config.uncontrolled;
            let bytes = command.region.length.saturating_add(HEADER_BYTES as u32);
            // A buffer in the token is promised to one message, so no message may be sent without the token.
            let free = !self.config.buffers
                && command.region.length <= small.message
                && self.routes[at].borrow_debt(
                    nic.now(),
                    bytes,
                    small,
                    self.config.reserve.unwrap_or(config::DEFAULT_RESERVE),
                    nic.line_rate(),
                );
            message.controlled = !free;
            message.first = self.config.ahead;
        }
        nic.send(message);
    }

    /// Sends the messages of links and witnesses, and sets their timeout.
    fn flush(&mut self, nic: &mut Context<'_>) {
        let mut next: Option<Instant> = None;
        let now = nic.now();
        for place in &mut self.places {
            let mut out = Outbox::new();
            if let Some(link) = &mut place.link {
                out.extend(std::iter::from_fn(|| link.poll_send()));
                next = [next, link.poll_timeout(now)].into_iter().flatten().min();
            }
            if let Some(witness) = &mut place.witness {
                out.extend(std::iter::from_fn(|| witness.poll_send()));
                next = [next, witness.poll_timeout()].into_iter().flatten().min();
            }
            for (party, body) in out {
                if let Some(node) = place.node(party) {
                    send_about(nic, node, place.config.number, body);
                }
            }
        }
        if next != self.alarm {
            self.alarm = next;
            match next {
                Some(at) => nic.set_timeout_at(LINKS, Service::Exact, at),
                None => nic.cancel_timeout(LINKS),
            }
        }
    }

    fn on_link_message(&mut self, nic: &mut Context<'_>, from: NodeId, message: LinkMessage) {
        let now = nic.now();
        let number = message.link;
        let Some(place) = self.places.iter_mut().find(|at| at.config.number == number) else {
            return;
        };
        let Some(party) = place.party(from) else { return };
        if let Body::NeedBuffers { epoch, consumed } = message.body {
            let request = BufferRequest { from: party, epoch, consumed, since: now };
            let known = place.wants_buffers.filter(|known| known.repeats(&request));
            place.wants_buffers = Some(known.unwrap_or(request));
            self.grant_buffers(nic, false);
            return;
        }
        if let Some(witness) = &mut place.witness {
            witness.handle(now, party, message.body);
        } else if let Some(link) = &mut place.link {
            let trip_ns = grant_nanos(nic, &place.config.senders);
            link.handle(now, party, message.clock, trip_ns, message.body);
        }
    }

    /// Handles a party's unit that is up in this incarnation; `restarted`: a former incarnation was known here.
    fn on_incarnation(
        &mut self,
        nic: &Context<'_>,
        node: NodeId,
        incarnation: Incarnation,
        restarted: bool,
    ) {
        if restarted {
            self.on_lost(nic, node, true);
        }
        let now = nic.now();
        for place in self.places.iter_mut().filter(|place| place.config.witness == node) {
            if let Some(link) = &mut place.link {
                link.on_witness(now, incarnation);
            }
        }
    }

    /// Handles a party's unit that no longer answers, or that has restarted and lost its state.
    fn on_lost(&mut self, nic: &Context<'_>, node: NodeId, restarted: bool) {
        let now = nic.now();
        for place in &mut self.places {
            let Some(party) = place.party(node) else { continue };
            if let Some(link) = &mut place.link {
                link.on_lost(now, party, restarted);
            }
            if let Some(witness) = place.witness.as_mut().filter(|_| restarted) {
                witness.on_restarted(party);
            }
            if place.wants_buffers.is_some_and(|request| request.from == party) {
                place.wants_buffers = None;
            }
        }
    }

    fn count(&self) -> LinkCounters {
        let links = self.places.iter().filter_map(|place| place.link.as_ref());
        links.fold(LinkCounters::default(), |sum, link| {
            let one = link.counters();
            LinkCounters {
                grants: sum.grants + one.grants,
                control_messages: sum.control_messages + one.control_messages,
                lease_messages: sum.lease_messages + one.lease_messages,
                recoveries: sum.recoveries + one.recoveries,
            }
        })
    }

    fn complete_counters(&self, nic: &mut Context<'_>, command: &Command) {
        let count = self.count();
        let args = [count.control_messages, count.lease_messages, count.grants, count.recoveries];
        let completion = Completion { args, ..Completion::of(command, Status::Done) };
        nic.complete(command.region.port, &completion);
    }

    /// Advances every route that may progress.
    fn settle(&mut self, nic: &mut Context<'_>) {
        for at in self.in_turn() {
            match self.routes[at].state {
                State::Acquiring => self.advance(nic, at),
                State::Leaving { .. } => self.evaluate(nic, at),
                State::Idle | State::Sending => {}
            }
        }
        self.flush(nic);
    }
}

/// Estimates, on the low side, the nanoseconds that a grant takes from one of `senders` to this node. Uses the shortest
/// round trip of all senders, because a longer one may include waiting for other work.
fn grant_nanos(nic: &Context<'_>, senders: &[NodeId]) -> u64 {
    let trips = senders.iter().filter_map(|sender| nic.round_trip(*sender));
    let least = trips.map(|trip| nanos(trip.min)).min();
    // The answer to a grant is shorter than the grant, so the grant takes more than half of the round trip.
    let longer = nic.frame_nanos(GRANT_BYTES).saturating_sub(nic.frame_nanos(0));
    least.map_or(0, |least| (least + longer) / 2)
}

/// Sends a control message about a link.
fn send_about(nic: &mut Context<'_>, to: NodeId, link: u16, body: Body) {
    let mut buffer = [0; MAX_MESSAGE];
    let length = LinkMessage { link, clock: nic.now().as_nanos(), body }.emit(&mut buffer);
    // A peer with a full queue is down or about to be declared down; its leases end by themselves.
    let _ = nic.send_control(to, &buffer[..length]);
}

impl Extension for Coordination {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        self.start(nic);
        self.flush(nic);
        let extension = nic.extension();
        nic.control_gate().map_err(|_| InitError::Refused {
            extension,
            reason: "another extension controls the gate: install one of the two",
        })
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        match command.opcode {
            SEND_WITH_FLOW_CONTROL => self.send_message(nic, &command),
            RECEIVE => {
                self.receiver.on_command(nic, command);
                self.grant_buffers(nic, false);
            }
            COUNTERS => self.complete_counters(nic, &command),
            _ => nic.refuse(&command, Status::Invalid),
        }
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        nic.charge(CONTROL_INSTRUCTIONS);
        if let Ok(message) = LinkMessage::parse(message) {
            self.on_link_message(nic, from, message);
            self.settle(nic);
        }
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        self.receiver.on_data(nic, from, frame);
        if self.places.iter().any(|place| place.wants_buffers.is_some()) {
            self.grant_buffers(nic, false);
        }
    }

    fn on_port_closed(&mut self, nic: &mut Context<'_>, port: PortId) {
        self.receiver.on_port_closed(nic, port);
    }

    fn on_port_resumed(&mut self, nic: &mut Context<'_>, port: PortId, stood: Duration) {
        self.receiver.on_port_resumed(nic, port, stood);
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        let now = nic.now();
        if timeout == LINKS {
            self.alarm = None;
            for place in &mut self.places {
                if let Some(link) = &mut place.link {
                    link.handle_timeout(now);
                }
                if let Some(witness) = &mut place.witness {
                    witness.handle_timeout(now);
                }
            }
        } else if timeout == BUFFERS {
            self.grant_buffers(nic, true);
        }
        self.settle(nic);
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        match event {
            // A peer that was down may come back in the same incarnation: then it has kept its state.
            PeerEvent::Up(node, incarnation) | PeerEvent::Restarted(node, incarnation) => {
                if !self.places.iter().any(|place| place.party(node).is_some()) {
                    return;
                }
                let known = self.incarnations.insert(node, incarnation);
                let restarted = known.is_some_and(|known| known != incarnation);
                self.on_incarnation(nic, node, incarnation, restarted);
            }
            PeerEvent::Down(node) => self.on_lost(nic, node, false),
        }
        self.settle(nic);
    }

    fn on_transmit(&mut self, nic: &mut Context<'_>, news: TransmitEvent) {
        match news {
            TransmitEvent::Held { destination } => {
                if let Some(at) = self.route(destination) {
                    self.on_held(nic, at);
                }
            }
            TransmitEvent::Drained { destination, begins, leaves } => {
                if let Some(at) = self.route(destination) {
                    self.on_drained(nic, at, begins, leaves);
                }
            }
        }
        self.flush(nic);
    }

    fn outstanding_commands(&mut self) -> Vec<Command> {
        self.receiver.outstanding_commands()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        let now = nic.now();
        for place in &mut self.places {
            if let Some(link) = &mut place.link {
                link.leave(now);
            }
        }
        self.flush(nic);
        self.receiver.deactivate(nic);
    }
}
