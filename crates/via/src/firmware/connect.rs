//! Connections: client and server, peer to peer, and their end.

mod peers;

use midplane_nicvm::context::Context;
use midplane_simhw::id::{Incarnation, NodeId, PortId};
use midplane_simhw::port::{Command, Completion};
use midplane_simhw::time::Instant;
use midplane_simhw::wire;

use super::endpoint::{Endpoint, Link, PendingEnd};
use super::message::{End, Message, send_message};
use super::{Via, take};
use crate::attributes::{Discriminator, ViAttributes, ViState};
use crate::command::{CONNECT_PEER, CONNECT_REQUEST, CONNECT_WAIT, ConnectParameters};
use crate::outcome::ConnectError;

/// Nanoseconds after a node was found dead until a request is sent to an awaited peer there again. A node that has just
/// started sends its own request.
const REQUEST_AGAIN_NS: u64 = 1_000_000_000;

/// A command that waits for a connection.
#[derive(Debug)]
pub(super) struct Pending {
    opcode: u8,
    cookie: u64,
    pub(super) owner: PortId,
    /// The interface; `None` if a server waits.
    vi: Option<PortId>,
    request: u32,
    pub(super) node: NodeId,
    local: Discriminator,
    remote: Discriminator,
    pub(super) deadline: Instant,
    /// The time at which the peer gets the request again; never, if it has got one, its node is not known to be dead,
    /// and its own request was not dropped here.
    pub(super) request_at: Instant,
}

impl Pending {
    /// Returns whether the command concerns this interface.
    pub(super) fn is_of(&self, vi: PortId) -> bool {
        self.vi == Some(vi)
    }
}

/// A connection request that a server has received, or a peer's that arrived before this side's.
#[derive(Debug)]
pub(super) struct Incoming {
    /// This NIC's number of the request.
    pub(super) id: u32,
    pub(super) owner: Option<PortId>,
    node: NodeId,
    incarnation: Incarnation,
    request: u32,
    from: End,
    /// For a request between peers: the peer's name, and this side's.
    names: Option<(Discriminator, Discriminator)>,
}

/// Returns this interface's end of a connection that is to be made.
const fn end_of(endpoint: &Endpoint) -> End {
    End {
        vi: endpoint.number.0,
        connection: endpoint.connection,
        attributes: endpoint.attributes.to_words(),
    }
}

/// Returns a node's incarnation, as control messages have reported it; for the own node, this NIC's.
fn incarnation_of(nic: &Context<'_>, node: NodeId) -> Option<Incarnation> {
    if node == nic.node() { Some(nic.incarnation()) } else { nic.peer_incarnation(node) }
}

fn differ(ours: &ViAttributes, theirs: &ViAttributes) -> Result<(), ConnectError> {
    if ours.reliability != theirs.reliability {
        Err(ConnectError::Reliability)
    } else if ours.max_transfer != theirs.max_transfer {
        Err(ConnectError::MaxTransfer)
    } else {
        Ok(())
    }
}

impl Via {
    /// Completes a command about a connection, with the other end's attributes and `more`.
    pub(super) fn answer(
        nic: &mut Context<'_>,
        (owner, opcode, cookie): (PortId, u8, u64),
        result: Result<Option<ViAttributes>, ConnectError>,
        more: u64,
    ) {
        let code = result.err().map_or(0, |error| error as u64);
        let [first, second] = result.ok().flatten().map_or([0; 2], ViAttributes::to_words);
        let args = [code, first, second, more];
        nic.note_arrival(owner);
        nic.complete(owner, &Completion { opcode, cookie, args, ..Completion::default() });
    }

    /// Completes a command that has connected `vi`, with the other end's attributes. Adds both ends, for a host that
    /// takes over its queues.
    fn answer_connected(
        &mut self,
        nic: &mut Context<'_>,
        (owner, opcode, cookie): (PortId, u8, u64),
        vi: PortId,
    ) {
        let Some(endpoint) = self.own(owner, vi) else { return };
        let (port, Some((ends, remote))) = (endpoint.name, endpoint.ends()) else { return };
        let [first, second] = remote.to_words();
        let args = [0, first, second, ends.to_word()];
        nic.note_arrival(owner);
        nic.complete(owner, &Completion { opcode, cookie, port, args, ..Completion::default() });
    }

    fn parameters(nic: &Context<'_>, command: &Command) -> Option<ConnectParameters> {
        let payload = nic.read(command.region).ok()?;
        let mut bytes = [0; crate::command::PARAMETER_BYTES];
        let bytes = bytes.get_mut(..payload.len())?;
        payload.copy_to(bytes);
        wire::decode(bytes).ok()
    }

    /// Handles a command: an idle interface requests a connection, or a server waits for a request.
    pub(super) fn on_connect(&mut self, nic: &mut Context<'_>, command: &Command) {
        let owner = command.region.port;
        let caller = (owner, command.opcode, command.cookie);
        let Some(parameters) = Self::parameters(nic, command) else {
            return Self::answer(nic, caller, Err(ConnectError::Gone), 0);
        };
        self.next_request = self.next_request.wrapping_add(1);
        let deadline = match parameters.timeout_ns {
            0 => Instant::FAR_FUTURE,
            nanos => nic.now().plus_nanos(nanos),
        };
        let pending = Pending {
            opcode: command.opcode,
            cookie: command.cookie,
            owner,
            vi: (command.opcode != CONNECT_WAIT).then_some(command.port),
            request: self.next_request,
            node: NodeId(parameters.node),
            local: parameters.local,
            remote: parameters.remote,
            deadline,
            request_at: Instant::FAR_FUTURE,
        };
        if let Err(error) = self.begin(nic, pending) {
            Self::answer(nic, caller, Err(error), 0);
        }
        self.arm(nic, deadline);
    }

    fn begin(&mut self, nic: &mut Context<'_>, mut pending: Pending) -> Result<(), ConnectError> {
        if self.pending.len() >= self.most_waiting() {
            return Err(ConnectError::Resources);
        }
        let Some(vi) = pending.vi else {
            self.pending.push(pending);
            return Ok(());
        };
        let endpoint = self.own(pending.owner, vi).ok_or(ConnectError::Gone)?;
        if endpoint.state != ViState::Idle {
            return Err(ConnectError::InvalidState);
        }
        let from = end_of(endpoint);
        let (request, local, remote) = (pending.request, pending.local, pending.remote);
        let message = match pending.opcode {
            CONNECT_PEER => Message::Peer { from, local, remote },
            _ => Message::Request { request, from, to: remote },
        };
        if !send_message(nic, pending.node, &message) {
            return Err(ConnectError::Unreachable);
        }
        endpoint.state = ViState::ConnectPending;
        let early = self.incoming.iter().position(|other| {
            let names = Some((pending.remote, pending.local));
            pending.opcode == CONNECT_PEER && other.names == names && other.node == pending.node
        });
        if early.is_none() && self.has_dropped && pending.opcode == CONNECT_PEER {
            // The peer may be connected already. A second request is then answered.
            // Until then the peer's frames are not answered.
            let after = REQUEST_AGAIN_NS.min(self.config.dead_after_ns / 8);
            pending.request_at = nic.now().plus_nanos(after);
            self.arm(nic, pending.request_at);
        }
        self.pending.push(pending);
        if let Some(at) = early {
            let peer = self.incoming.swap_remove(at);
            self.connect_peers(nic, self.pending.len() - 1, &peer);
        }
        Ok(())
    }

    /// Handles a server's acceptance of a request.
    pub(super) fn on_accept(&mut self, nic: &mut Context<'_>, command: &Command) {
        let caller = (command.region.port, command.opcode, command.cookie);
        match self.accept(nic, command) {
            Ok(()) => self.answer_connected(nic, caller, command.port),
            Err(error) => Self::answer(nic, caller, Err(error), 0),
        }
    }

    fn accept(&mut self, nic: &mut Context<'_>, command: &Command) -> Result<(), ConnectError> {
        let owner = command.region.port;
        let is_it =
            |other: &Incoming| u64::from(other.id) == command.args[0] && other.owner == Some(owner);
        let at = self.incoming.iter().position(is_it).ok_or(ConnectError::Gone)?;
        let (node, incarnation, request, from) = {
            let incoming = &self.incoming[at];
            (incoming.node, incoming.incarnation, incoming.request, incoming.from)
        };
        let now = nic.now();
        let theirs = ViAttributes::from_words(from.attributes).ok_or(ConnectError::Gone)?;
        let endpoint = self.own(owner, command.port).ok_or(ConnectError::Gone)?;
        if endpoint.state != ViState::Idle {
            return Err(ConnectError::InvalidState);
        }
        // The requester is not notified: this side may choose another interface.
        differ(&endpoint.attributes, &theirs)?;
        let own = end_of(endpoint);
        if !send_message(nic, node, &Message::Accept { request, from: own }) {
            return Err(ConnectError::Unreachable);
        }
        let ends = (PortId(from.vi), from.connection);
        endpoint.connect(Link::new(now, node, incarnation, ends, theirs));
        self.incoming.swap_remove(at);
        self.arm_sweep(nic);
        Ok(())
    }

    /// Handles a server's refusal of a request.
    pub(super) fn on_reject(&mut self, nic: &mut Context<'_>, command: &Command) {
        let owner = command.region.port;
        let id = command.args[0];
        let taken = take(&mut self.incoming, |other| {
            u64::from(other.id) == id && other.owner == Some(owner)
        });
        let result = taken.ok_or(ConnectError::Gone).map(|incoming| {
            let reason = ConnectError::Rejected as u8;
            let refusal = Message::Refuse { request: incoming.request, reason };
            self.outbox.send(nic, Some((incoming.node, refusal)));
            None
        });
        Self::answer(nic, (owner, command.opcode, command.cookie), result, 0);
    }

    pub(super) fn on_message(&mut self, nic: &mut Context<'_>, from: NodeId, message: Message) {
        match message {
            Message::Request { request, from: end, to } => {
                self.on_request(nic, from, request, end, to);
            }
            Message::Accept { request, from: end } => self.on_accepted(nic, from, request, end),
            Message::Refuse { request, reason } => {
                let error = ConnectError::of(u64::from(reason)).err();
                self.fail(nic, error.unwrap_or(ConnectError::Rejected), |pending| {
                    pending.request == request && pending.node == from && pending.vi.is_some()
                });
            }
            Message::Withdraw { request } => {
                self.incoming.retain(|other| other.request != request || other.node != from);
            }
            Message::Peer { from: end, local, remote } => {
                self.on_peer_request(nic, from, end, (local, remote));
            }
            Message::Gate { vi, connection, step } => {
                self.on_step(nic, from, (PortId(vi), connection), step);
            }
            Message::End { vi, connection, expected, error } => {
                self.on_end(nic, from, (PortId(vi), connection), expected, error);
            }
        }
    }

    fn on_request(
        &mut self,
        nic: &mut Context<'_>,
        node: NodeId,
        request: u32,
        from: End,
        to: Discriminator,
    ) {
        let waits = |pending: &Pending| pending.opcode == CONNECT_WAIT && pending.local == to;
        let incarnation = incarnation_of(nic, node);
        let room = self.has_room(node);
        let server =
            if room && incarnation.is_some() { take(&mut self.pending, waits) } else { None };
        let (Some(server), Some(incarnation)) = (server, incarnation) else {
            let reason = if room { ConnectError::NoMatch } else { ConnectError::Resources };
            let refusal = Message::Refuse { request, reason: reason as u8 };
            self.outbox.send(nic, Some((node, refusal)));
            return;
        };
        self.next_incoming = self.next_incoming.wrapping_add(1);
        let id = self.next_incoming;
        let owner = Some(server.owner);
        self.incoming.push(Incoming { id, owner, node, incarnation, request, from, names: None });
        let theirs = ViAttributes::from_words(from.attributes);
        let more = u64::from(id) | u64::from(node.0) << 32;
        Self::answer(nic, (server.owner, server.opcode, server.cookie), Ok(theirs), more);
    }

    fn on_accepted(&mut self, nic: &mut Context<'_>, node: NodeId, request: u32, from: End) {
        let is_it = |pending: &Pending| {
            pending.request == request && pending.node == node && pending.opcode == CONNECT_REQUEST
        };
        let now = nic.now();
        let incarnation = incarnation_of(nic, node);
        let pending = take(&mut self.pending, is_it);
        let theirs = ViAttributes::from_words(from.attributes);
        if let (Some(pending), Some(incarnation), Some(theirs)) = (pending, incarnation, theirs)
            && let Some(endpoint) = pending.vi.and_then(|vi| self.own(pending.owner, vi))
        {
            let ends = (PortId(from.vi), from.connection);
            endpoint.connect(Link::new(now, node, incarnation, ends, theirs));
            let (caller, vi) = ((pending.owner, pending.opcode, pending.cookie), endpoint.number);
            self.answer_connected(nic, caller, vi);
            self.arm_sweep(nic);
            return;
        }
        // Too late: the requester no longer waits.
        let (vi, connection) = (from.vi, from.connection);
        let end = Message::End { vi, connection, expected: 0, error: 0 };
        self.outbox.send(nic, Some((node, end)));
    }

    fn on_end(
        &mut self,
        nic: &mut Context<'_>,
        node: NodeId,
        (vi, connection): (PortId, u16),
        expected: u32,
        error: u8,
    ) {
        let Some(endpoint) = self.vis.get_mut(vi.index()).and_then(Option::as_mut) else { return };
        let is_from = |link: &Link| link.node == node;
        if endpoint.connection != connection || !endpoint.link.as_ref().is_some_and(is_from) {
            return;
        }
        if endpoint.is_stopped {
            endpoint.pending_end = Some(PendingEnd::Ended { expected, error });
        } else {
            self.end(nic, vi, expected, error);
        }
    }

    /// Fails the pending commands for which `which` returns true.
    pub(super) fn fail(
        &mut self,
        nic: &mut Context<'_>,
        error: ConnectError,
        which: impl Fn(&Pending) -> bool,
    ) {
        while let Some(pending) = take(&mut self.pending, &which) {
            if let Some(endpoint) = pending.vi.and_then(|vi| self.own(pending.owner, vi)) {
                endpoint.state = ViState::Idle;
                if error != ConnectError::Rejected && pending.opcode == CONNECT_REQUEST {
                    let withdrawal = Message::Withdraw { request: pending.request };
                    self.outbox.send(nic, Some((pending.node, withdrawal)));
                }
            }
            let caller = (pending.owner, pending.opcode, pending.cookie);
            Self::answer(nic, caller, Err(error), 0);
        }
    }

    /// Fails connection requests whose time is over at `now`.
    pub(super) fn expire(&mut self, nic: &mut Context<'_>, now: Instant) {
        // The time of a suspended process does not run: its deadlines move when it resumes.
        let owners = self.pending.iter().map(|pending| pending.owner);
        let stopped: Vec<PortId> = owners.filter(|owner| nic.is_suspended(*owner)).collect();
        self.fail(nic, ConnectError::TimedOut, |pending| {
            pending.deadline <= now && !stopped.contains(&pending.owner)
        });
    }

    /// Cancels a waiting command.
    pub(super) fn on_cancel(&mut self, nic: &mut Context<'_>, command: &Command) {
        let (owner, cookie) = (command.region.port, command.args[0]);
        self.fail(nic, ConnectError::TimedOut, |pending| {
            pending.owner == owner && pending.cookie == cookie
        });
        Self::answer(nic, (owner, command.opcode, command.cookie), Ok(None), 0);
    }

    /// Fails all commands that wait for a disconnected node, except those for peers: the node may restart.
    pub(super) fn forget_node(&mut self, nic: &mut Context<'_>, node: NodeId) {
        self.incoming.retain(|other| other.node != node);
        self.fail(nic, ConnectError::Unreachable, |pending| {
            pending.node == node && pending.vi.is_some() && pending.opcode != CONNECT_PEER
        });
        let at = nic.now().plus_nanos(REQUEST_AGAIN_NS);
        let of_node = |it: &&mut Pending| it.node == node && it.opcode == CONNECT_PEER;
        self.pending.iter_mut().filter(of_node).for_each(|pending| pending.request_at = at);
        self.arm(nic, at);
    }

    /// Sends requests again to awaited peers whose nodes were found dead or restarted, because a node may only now have
    /// started; and to those whose own requests may have been dropped here.
    pub(super) fn request_again(
        &mut self,
        nic: &mut Context<'_>,
        which: impl Fn(&Pending) -> bool,
    ) {
        let Self { pending, vis, .. } = self;
        let unasked = |it: &&mut Pending| it.request_at != Instant::FAR_FUTURE && which(it);
        for pending in pending.iter_mut().filter(unasked) {
            let endpoint = pending.vi.and_then(|vi| vis.get(vi.index())?.as_ref());
            let Some(endpoint) = endpoint else { continue };
            let from = end_of(endpoint);
            let (local, remote) = (pending.local, pending.remote);
            pending.request_at =
                match send_message(nic, pending.node, &Message::Peer { from, local, remote }) {
                    true => Instant::FAR_FUTURE,
                    false => nic.now().plus_nanos(REQUEST_AGAIN_NS),
                };
        }
    }

    /// Drops all commands and requests of a port that was closed.
    pub(super) fn forget_port(&mut self, port: PortId) {
        self.pending.retain(|pending| pending.owner != port);
        self.incoming.retain(|other| other.owner != Some(port));
    }
}
