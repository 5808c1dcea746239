//! The NIC's half: Virtual Interfaces as an extension of the backplane.
//!
//! This extension provides its own reliability, which lam-via, section 6, left open: it works over a fabric
//! that loses, duplicates and reorders frames. Frames of a connection are numbered and accepted in order. A gap
//! is reported to the sender at once; frames that stay unacknowledged are sent again.

mod config;
mod connect;
mod endpoint;
mod fragments;
mod frame;
mod gate;
mod message;
mod names;
mod post;
mod receive;
mod restore;
mod save;
mod send;
mod table;
mod window;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{Extension, PeerEvent, TimeoutId};
use midplane_nicvm::timeout::Service;
use midplane_nicvm::transmit::Sent;
use midplane_pipeline::stage::Pipeline;
use midplane_simhw::frame::Frame;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Status};
use midplane_simhw::time::{Instant, nanos};
use midplane_simhw::wire;

use crate::attributes::ViState;
use crate::command::{
    AWAIT, CANCEL, CONNECT_ACCEPT, CONNECT_PEER, CONNECT_REJECT, CONNECT_REQUEST, CONNECT_WAIT,
    CREATE, DESTROY, DISCONNECT, EVENT, FORGET, JOIN, OFFER, POST_RECEIVE, POST_SEND, QUERY,
    QUERY_NIC, RECALL, RESTORE, RETURN, SAVE,
};
use crate::outcome::{AsyncError, ConnectError, DescriptorError};
pub use config::ViaConfig;
use connect::{Incoming, Pending};
use endpoint::{Endpoint, Link, PendingEnd};
use fragments::{Chain, Cutter};
use frame::Fields;
use message::{Outbox, RETRY};
use names::Names;
use receive::Fault;
pub(crate) use receive::MAX_RESPONSES;
pub(crate) use window::FRAMES as MAX_FLIGHTS;

/// Instructions charged for one frame or command.
const INSTRUCTIONS: u64 = 60;
/// The timeout that checks all connections for late acknowledgements, silent peers and unanswered requests.
const SWEEP: TimeoutId = TimeoutId(0);
/// Nanoseconds that an acknowledgement waits for a data frame that carries it, unless traffic is requests and answers.
const ACKNOWLEDGEMENT_DELAY_NS: u64 = 50_000;
/// Least nanoseconds before an unacknowledged frame is sent again.
const MIN_RESEND_NS: u64 = 1_000_000;
/// Most doublings of the pause between two resends after reports of a gap.
const MOST_DOUBLINGS: u32 = 3;
const _: () = assert!(window::CONVERSATION_NS < MIN_RESEND_NS);

/// Virtual Interfaces, as an extension.
#[derive(Debug, Default)]
pub struct Via {
    config: ViaConfig,
    vis: Vec<Option<Endpoint>>,
    /// Commands that wait for a connection.
    pending: Vec<Pending>,
    /// Connection requests that wait for a command.
    incoming: Vec<Incoming>,
    /// True once a peer's early request was dropped, for lack of room.
    has_dropped: bool,
    next_request: u32,
    next_incoming: u32,
    /// Asynchronous errors to be delivered, by port; `listening` has the commands that wait for the next one.
    errors: BTreeMap<PortId, VecDeque<(PortId, AsyncError)>>,
    listening: BTreeMap<PortId, u64>,
    outbox: Outbox,
    cutter: Cutter,
    /// When the next sweep is due.
    alarm: Option<Instant>,
    names: Names,
}

/// Removes the first element for which `which` returns true.
fn take<T>(list: &mut Vec<T>, which: impl Fn(&T) -> bool) -> Option<T> {
    let at = list.iter().position(which)?;
    Some(list.remove(at))
}

impl Via {
    /// Makes the extension, without interfaces.
    #[must_use]
    pub fn new(config: ViaConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Cuts messages into frames by plans for `chain`, the stages that each frame passes: copies into the NIC, the
    /// line, and copies out of it. A plan lets the last byte arrive soonest. The first message of a size is cut into
    /// equal frames, until there is time to plan. A message behind which others wait fills its frames, because full
    /// frames keep all stages busy.
    ///
    /// Default: on a simulated NIC, the chain of its model, with one switch on the way. On a live NIC, the costs of
    /// copies and lines are unknown, and every frame carries as much as it can.
    #[must_use]
    pub fn fragments(mut self, chain: Pipeline) -> Self {
        self.cutter = Cutter::new(Chain::Known(chain));
        self
    }

    /// Makes every frame carry as much as it can, on simulated NICs as well.
    #[must_use]
    #[doc(hidden)]
    pub fn full_frames(mut self) -> Self {
        self.cutter = Cutter::new(Chain::None);
        self
    }

    /// Breaks a connection, and notifies both ends.
    fn break_link(
        &mut self,
        nic: &mut Context<'_>,
        vi: PortId,
        fault: Fault,
        own: DescriptorError,
    ) {
        self.break_link_as(nic, vi, fault, own, AsyncError::ConnectionLost);
    }

    /// Breaks a connection as `break_link` does, with the error `why` for this end.
    fn break_link_as(
        &mut self,
        nic: &mut Context<'_>,
        vi: PortId,
        fault: Fault,
        own: DescriptorError,
        why: AsyncError,
    ) {
        let Some(endpoint) = self.vis.get_mut(vi.index()).and_then(Option::as_mut) else { return };
        self.outbox.send(nic, endpoint.end(DescriptorError::to_bits(Err(fault.remote))));
        endpoint.errors.extend(fault.local);
        endpoint.flush(nic, own, ViState::Error);
        endpoint.errors.push_back(why);
        self.report_errors(nic, vi);
    }

    /// Sends an interface's pending frames; breaks the connection if their memory was deregistered.
    fn pump(&mut self, nic: &mut Context<'_>, vi: PortId) {
        let Some(endpoint) = self.vis.get_mut(vi.index()).and_then(Option::as_mut) else { return };
        self.cutter.learn(nic);
        if let Err(error) = endpoint.pump(nic, &mut self.cutter) {
            let fault = Fault { remote: DescriptorError::Flushed, local: None };
            self.break_link(nic, vi, fault, error);
        }
        if self.cutter.is_behind() {
            self.arm_sweep(nic);
        }
    }

    /// Schedules a sweep at `at`, unless an earlier one is scheduled.
    fn arm(&mut self, nic: &mut Context<'_>, at: Instant) {
        if at != Instant::FAR_FUTURE && self.alarm.is_none_or(|alarm| at < alarm) {
            self.alarm = Some(at);
            nic.set_timeout_at(SWEEP, Service::Exact, at);
        }
    }

    fn arm_sweep(&mut self, nic: &mut Context<'_>) {
        let at = nic.now().plus_nanos(ACKNOWLEDGEMENT_DELAY_NS);
        self.arm(nic, at);
    }

    /// Returns the nanoseconds without acknowledgement after which a frame is sent again. Measured round trips are
    /// those of short frames, so this adds the time that all bytes under way take on two lines of the network.
    fn resend_after(&self, nic: &Context<'_>, endpoint: &Endpoint) -> u64 {
        let Some(link) = &endpoint.link else { return u64::MAX };
        let first = self.first_resend_after(nic, link);
        (first << link.sending.silent.min(10)).min(self.config.dead_after_ns / 8)
    }

    /// Returns the same time without its doublings for earlier silence.
    fn first_resend_after(&self, nic: &Context<'_>, link: &Link) -> u64 {
        let trip = nic.round_trip(link.node);
        let usual = trip.map_or(10_000_000, |trip| nanos(trip.smoothed * 2 + trip.variation * 4));
        let lines = 2 * nic.line_rate().nanos_for(link.sending.bytes() as u64);
        usual.max(MIN_RESEND_NS) + lines + 2 * ACKNOWLEDGEMENT_DELAY_NS
    }

    /// Handles one interface's timeouts that are due; returns when it is to be visited again.
    fn sweep(&mut self, nic: &mut Context<'_>, vi: PortId) -> Instant {
        let now = nic.now();
        let endpoint = self.vis[vi.index()].as_ref().filter(|endpoint| !endpoint.is_stopped);
        let Some(endpoint) = endpoint else { return Instant::FAR_FUTURE };
        let resend_after = self.resend_after(nic, endpoint);
        let Some(endpoint) = self.vis[vi.index()].as_mut() else { return Instant::FAR_FUTURE };
        let dead_after = self.config.dead_after_ns;
        let expects = !endpoint.receives.is_empty() || !endpoint.sends.is_empty();
        let Some(link) = &mut endpoint.link else { return Instant::FAR_FUTURE };
        let waits = !link.sending.is_empty();
        if now >= link.heard_at.plus_nanos(dead_after) && (waits || expects) {
            let fault = Fault { remote: DescriptorError::Transport, local: None };
            self.break_link(nic, vi, fault, DescriptorError::Transport);
            return Instant::FAR_FUTURE;
        }
        let mut next = link.heard_at.plus_nanos(dead_after);
        if waits {
            if now >= link.sending.last_try().plus_nanos(resend_after) {
                link.sending.on_silence(now);
            }
            next = next.min(link.sending.last_try().plus_nanos(resend_after));
        } else if now >= link.heard_at.plus_nanos(dead_after / 4) {
            // Nothing is under way, but something is expected: probe the other end.
            if expects {
                endpoint.acknowledge(nic, true);
            }
            next = now.plus_nanos(dead_after / 8);
        } else {
            next = next.min(link.heard_at.plus_nanos(dead_after / 4));
        }
        if let Some(link) = &endpoint.link {
            let due = link.receiving.due(ACKNOWLEDGEMENT_DELAY_NS);
            if link.receiving.is_urgent() || due.is_some_and(|due| due <= now) {
                endpoint.acknowledge(nic, false);
            } else {
                next = next.min(due.unwrap_or(next));
            }
        }
        next
    }

    /// Sends the frames that have become ready, and acknowledgements that are due now.
    fn settle(&mut self, nic: &mut Context<'_>, vi: PortId) {
        self.pump(nic, vi);
        if let Some(Some(endpoint)) = self.vis.get(vi.index())
            && !endpoint.gate.may_begin()
        {
            self.begin_to_grant(nic, vi);
        }
        let now = nic.now();
        let Some(Some(endpoint)) = self.vis.get_mut(vi.index()) else { return };
        let Some(link) = endpoint.link.as_ref().filter(|_| !endpoint.is_stopped) else { return };
        let reliable = endpoint.is_reliable();
        if reliable && link.receiving.is_urgent() {
            return endpoint.acknowledge(nic, false);
        }
        let owed = link.receiving.due(ACKNOWLEDGEMENT_DELAY_NS);
        let resent = (!link.sending.is_empty()).then(|| now.plus_nanos(MIN_RESEND_NS));
        let first = owed.into_iter().chain(resent).min();
        self.arm(nic, first.unwrap_or(Instant::FAR_FUTURE));
    }

    /// Handles a pause of this NIC itself, whose process or machine was stopped: extends all deadlines, since
    /// its peers were not silent.
    fn on_paused(&mut self, now: Instant, nanos: u64) {
        for link in self.vis.iter_mut().flatten().filter_map(|endpoint| endpoint.link.as_mut()) {
            link.heard_at = link.heard_at.plus_nanos(nanos).min(now);
        }
    }

    fn on_link_lost(&mut self, nic: &mut Context<'_>, node: NodeId, why: AsyncError) {
        self.outbox.forget_node(node);
        self.forget_node(nic, node);
        for at in 0..self.vis.len() {
            let linked =
                |endpoint: &Endpoint| endpoint.link.as_ref().is_some_and(|link| link.node == node);
            let Some(endpoint) = self.vis[at].as_mut().filter(|endpoint| linked(endpoint)) else {
                continue;
            };
            if endpoint.is_stopped {
                endpoint.pending_end.get_or_insert(PendingEnd::Lost);
            } else {
                let fault = Fault { remote: DescriptorError::Transport, local: None };
                let own = DescriptorError::Transport;
                self.break_link_as(nic, PortId(at as u16), fault, own, why);
            }
        }
        if why == AsyncError::PeerRestarted {
            // The ends that wait concern connections which the restarted node does not know.
            self.outbox.forget_node(node);
        }
    }
}

impl Extension for Via {
    fn on_command(&mut self, nic: &mut Context<'_>, mut command: Command) {
        nic.charge(INSTRUCTIONS);
        command.port = self.number(command.region.port, command.port);
        match command.opcode {
            POST_SEND => {
                self.post_send(nic, &command);
                self.settle(nic, command.port);
            }
            POST_RECEIVE => self.post_receive(nic, &command),
            CREATE => self.create(nic, &command),
            DESTROY => self.destroy(nic, &command),
            QUERY => self.query(nic, &command),
            QUERY_NIC => self.query_nic(nic, &command),
            CONNECT_REQUEST | CONNECT_WAIT | CONNECT_PEER => self.on_connect(nic, &command),
            CONNECT_ACCEPT => self.on_accept(nic, &command),
            CONNECT_REJECT => self.on_reject(nic, &command),
            DISCONNECT => self.disconnect(nic, &command),
            CANCEL => self.on_cancel(nic, &command),
            AWAIT if !self.names.expect_one(command.region.port, command.cookie) => {
                nic.refuse(&command, Status::Refused);
            }
            AWAIT => {}
            OFFER => self.on_offer(nic, &command),
            RECALL => self.on_recall(nic, &command),
            RETURN => self.on_return(nic, &command),
            SAVE | FORGET | RESTORE | JOIN => self.on_order(nic, &command),
            EVENT if !self.listening.contains_key(&command.region.port) => {
                self.listening.insert(command.region.port, command.cookie);
                self.deliver_error(nic, command.region.port);
            }
            _ => nic.refuse(&command, Status::Invalid),
        }
    }

    fn on_control(&mut self, nic: &mut Context<'_>, from: NodeId, message: &[u8]) {
        if let Ok(message) = wire::decode(message) {
            self.on_message(nic, from, message);
        }
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        nic.charge(INSTRUCTIONS);
        let header = &frame.header;
        let vi = header.port;
        let Some(fields) = Fields::of(header) else { return };
        let Some(Some(endpoint)) = self.vis.get(vi.index()) else { return };
        let is_from = |link: &&Link| link.node == from && link.incarnation == header.incarnation;
        let link = endpoint.link.as_ref().filter(is_from);
        let Some(link) = link.filter(|_| endpoint.connection == fields.connection) else { return };
        // A gap is filled soon, even after long silence of the other end. The pause still grows with the silence, so
        // that a slow end gets no more than it can handle.
        let first = self.first_resend_after(nic, link);
        let pause = (first << link.sending.silent.min(MOST_DOUBLINGS)) / 4;
        let Some(Some(endpoint)) = self.vis.get_mut(vi.index()) else { return };
        match endpoint.on_frame(nic, &fields, frame, pause) {
            Ok(()) if endpoint.errors.is_empty() => {}
            Ok(()) => self.report_errors(nic, vi),
            Err(fault) => self.break_link(nic, vi, fault, DescriptorError::Flushed),
        }
        self.settle(nic, vi);
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        if timeout == RETRY {
            return self.outbox.send_again(nic);
        }
        let now = nic.now();
        let late = self.alarm.take().map_or(0, |alarm| now.nanos_since(alarm));
        if late >= self.config.dead_after_ns / 8 {
            self.on_paused(now, late);
        }
        self.expire(nic, now);
        self.request_again(nic, |pending| pending.request_at <= now);
        self.cutter.catch_up();
        self.check_gates(nic);
        let deadlines = self.pending.iter().map(|pending| pending.deadline.min(pending.request_at));
        let mut next = deadlines.min().unwrap_or(Instant::FAR_FUTURE);
        for at in 0..self.vis.len() {
            let vi = PortId(at as u16);
            next = next.min(self.sweep(nic, vi));
            self.pump(nic, vi);
        }
        self.arm(nic, next);
    }

    fn on_sent(&mut self, nic: &mut Context<'_>, sent: Sent) {
        let vi = PortId(sent.token as u16);
        if let Some(Some(endpoint)) = self.vis.get_mut(vi.index())
            && endpoint.link.is_some()
        {
            let outcome = match sent.status {
                Status::Done => Ok(()),
                Status::Cancelled if endpoint.is_stopped => {
                    endpoint.withdrawn += 1;
                    return;
                }
                _ => Err(DescriptorError::Protection),
            };
            endpoint.on_sent(nic, outcome);
            self.settle(nic, vi);
        }
    }

    fn on_written(&mut self, nic: &mut Context<'_>, token: u64) {
        let vi = PortId(token as u16);
        if let Some(Some(endpoint)) = self.vis.get_mut(vi.index())
            && u64::from(endpoint.connection) == token >> 16
            && let Some(link) = &mut endpoint.link
        {
            link.receiving.on_written(nic.now());
            endpoint.settle_received(nic);
            self.settle(nic, vi);
        }
    }

    fn on_port_suspended(&mut self, nic: &mut Context<'_>, port: PortId) {
        for endpoint in self.vis.iter_mut().flatten().filter(|endpoint| endpoint.owner == port) {
            endpoint.stop();
        }
        self.shut_gates(nic, port);
    }

    fn on_admission(&mut self, nic: &mut Context<'_>) {
        self.check_gates(nic);
    }

    fn on_port_resumed(&mut self, nic: &mut Context<'_>, port: PortId, stood: Duration) {
        for pending in self.pending.iter_mut().filter(|pending| pending.owner == port) {
            pending.deadline += stood;
        }
        for at in 0..self.vis.len() {
            let own = |endpoint: &&mut Endpoint| endpoint.owner == port;
            let Some(endpoint) = self.vis[at].as_mut().filter(own) else { continue };
            let vi = PortId(at as u16);
            endpoint.resume(nic, stood);
            match endpoint.pending_end.take() {
                None => self.settle(nic, vi),
                Some(PendingEnd::Ended { expected, error }) => self.end(nic, vi, expected, error),
                Some(PendingEnd::Lost) => {
                    let fault = Fault { remote: DescriptorError::Transport, local: None };
                    self.break_link(nic, vi, fault, DescriptorError::Transport);
                }
            }
            self.reopen_gate(nic, vi);
        }
        self.arm_sweep(nic);
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        match event {
            PeerEvent::Up(node, _) => self.request_again(nic, |pending| pending.node == node),
            PeerEvent::Restarted(node, _) => {
                self.on_link_lost(nic, node, AsyncError::PeerRestarted);
                self.request_again(nic, |pending| pending.node == node);
            }
            PeerEvent::Down(node) => self.on_link_lost(nic, node, AsyncError::ConnectionLost),
        }
    }

    fn on_port_closed(&mut self, nic: &mut Context<'_>, port: PortId) {
        self.forget_port(port);
        self.errors.remove(&port);
        self.listening.remove(&port);
        for at in 0..self.vis.len() {
            if let Some(endpoint) = self.vis[at].take_if(|endpoint| endpoint.owner == port) {
                self.outbox.send(nic, endpoint.end(0));
                self.retire(&endpoint);
            }
        }
        self.names.forget_port(port);
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        self.fail(nic, ConnectError::Gone, |_| true);
        for endpoint in self.vis.iter_mut().flatten() {
            self.outbox.send(nic, endpoint.end(0));
            endpoint.flush(nic, DescriptorError::Flushed, ViState::Error);
        }
    }
}
