//! The NIC's side of the gate: grants the work queues of an interface to its host, and takes them back.
//!
//! A host that has the send queue writes directly to the other process; one that has the receive queue reads from its
//! ring. Neither NIC then sees the messages. Each direction of a connection is granted by itself:
//!
//! ```text
//! sender's NIC    Nic -> Draining -> Asked -> Host -> Closing -> Returning -> Nic
//!                            Open |     ^ Opened   Close |
//! receiver's NIC  Nic ----------> Host --------------> Returning -> Filling -> Nic
//! ```
//!
//! The sender's NIC first waits until all its frames are acknowledged. Then the receiver's NIC grants the receive
//! queue; the sender's NIC grants the send queue, and opens the gate of its host's port. So a host never overtakes a
//! frame.
//!
//! To take the queue back, the sender's NIC closes the gate, which stops the host at once, and waits until no post is
//! under way. Then all messages of the host are in the receiver's ring. The receiver's NIC recalls its queue; the
//! receiver's host takes all messages from the ring before it returns the queue. The receiver's NIC accepts frames only
//! after that. So no frame overtakes the host.
//!
//! Descriptors move with their queue. The NIC returns its descriptors with [`Status::Cancelled`]; a host posts its own
//! again after [`RETURN`].

use midplane_nicvm::context::Context;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};

use super::Via;
use super::endpoint::{Arriving, Endpoint};
use super::message::{Message, Step};
use crate::attributes::Reliability;
use crate::command::{OFFER, POST_RECEIVE, POST_SEND, RECALL, RETURN};
use crate::context::GateContext;
use crate::nic::WorkQueue;

/// Nanoseconds until a NIC checks again whether a post under way has ended.
const POSTING_NS: u64 = 10_000;

/// The holder of the send queue.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Sends {
    #[default]
    Nic,
    /// The NIC, which begins no message until its frames are acknowledged.
    Draining,
    /// The NIC, which has requested that the receiver's NIC grant the receive queue.
    Asked,
    Host,
    /// The host; the gate is closed, and a post may be under way.
    Closing,
    /// The host, which can no longer use the queue, and has yet to return it.
    Returning,
}

/// The holder of the receive queue.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Receives {
    #[default]
    Nic,
    Host,
    /// The host, from which the NIC has recalled the queue.
    Returning,
    /// The NIC; the host is still posting that many descriptors again.
    Filling(u32),
}

/// The gate of one interface.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gate {
    pub(super) sends: Sends,
    pub(super) receives: Receives,
    /// Pending commands of the host, by queue: offers to take it over, and waits for its recall.
    pub(super) offers: [bool; 2],
    pub(super) recalls: [bool; 2],
    /// True if the receiver's host can take over its receive queue.
    is_peer_ready: bool,
    /// Bytes of the next send that the host has sent before it returned the queue.
    pub(super) begun: u32,
    /// True if a frame was refused since the last request to send frames again.
    has_refused: bool,
}

impl Gate {
    pub(super) fn save(&self) -> GateContext {
        let filling = match self.receives {
            Receives::Filling(missing) => missing,
            _ => 0,
        };
        GateContext {
            lent: [WorkQueue::Send, WorkQueue::Receive].map(|queue| self.has_host(queue)),
            offers: self.offers,
            recalls: self.recalls,
            begun: self.begun,
            filling,
        }
    }

    /// Restores the gate of a process that is suspended.
    pub(super) const fn restored(saved: &GateContext) -> Self {
        let GateContext { lent: [sends, receives], offers, recalls, begun, filling } = *saved;
        Self {
            sends: if sends { Sends::Returning } else { Sends::Nic },
            receives: match (receives, filling) {
                (true, _) => Receives::Returning,
                (false, 0) => Receives::Nic,
                (false, missing) => Receives::Filling(missing),
            },
            offers,
            recalls,
            is_peer_ready: false,
            begun,
            has_refused: true,
        }
    }

    pub(super) const fn has_host(&self, queue: WorkQueue) -> bool {
        match queue {
            WorkQueue::Send => {
                matches!(self.sends, Sends::Host | Sends::Closing | Sends::Returning)
            }
            WorkQueue::Receive => matches!(self.receives, Receives::Host | Receives::Returning),
        }
    }

    /// Returns whether the NIC may begin to send a message.
    pub(super) const fn may_begin(&self) -> bool {
        matches!(self.sends, Sends::Nic)
    }

    /// Returns whether each queue's holder is certain while the process is suspended. It is certain if it is the NIC,
    /// or if it is the host and neither end of the connection can use the queue.
    pub(super) const fn is_settled(&self) -> bool {
        matches!(self.sends, Sends::Nic | Sends::Returning)
            && !matches!(self.receives, Receives::Host)
    }
}

const fn queue_of(command: &Command) -> WorkQueue {
    if command.cookie == 0 { WorkQueue::Send } else { WorkQueue::Receive }
}

/// Completes a command about a gate.
fn complete(
    nic: &mut Context<'_>,
    endpoint: &Endpoint,
    opcode: u8,
    queue: WorkQueue,
    status: Status,
    words: [u64; 2],
) {
    let (port, cookie, args) = (endpoint.name, queue as u64, [words[0], words[1], 0, 0]);
    let done = Completion { status, opcode, port, cookie, args, ..Completion::default() };
    nic.complete(endpoint.owner, &done);
}

impl Endpoint {
    /// Returns a descriptor to the host, which has the queue or is about to get it.
    pub(super) fn return_to_host(&self, nic: &mut Context<'_>, queue: WorkQueue, cookie: u64) {
        let opcode = if queue == WorkQueue::Send { POST_SEND } else { POST_RECEIVE };
        let (status, port) = (Status::Cancelled, self.name);
        let done = Completion { status, opcode, port, cookie, ..Completion::default() };
        nic.complete(self.owner, &done);
    }

    /// Returns whether the interface accepts data frames now. Refused frames are requested again later.
    pub(super) fn accepts(&mut self) -> bool {
        let accepts = match self.gate.receives {
            Receives::Nic => true,
            // The host is about to post the missing receives, so an empty queue is no error of the process.
            Receives::Filling(_) => !self.receives.is_empty(),
            Receives::Host | Receives::Returning => false,
        };
        self.gate.has_refused |= !accepts;
        accepts
    }

    /// Grants a queue to the host: `number` opens the gate of its port.
    fn grant(&mut self, nic: &mut Context<'_>, queue: WorkQueue, number: u64) {
        let cookies: Vec<u64> = match queue {
            WorkQueue::Send => self.sends.drain(..).map(|work| work.cookie).collect(),
            WorkQueue::Receive => self.receives.drain(..).map(|work| work.cookie).collect(),
        };
        cookies.into_iter().for_each(|cookie| self.return_to_host(nic, queue, cookie));
        match queue {
            WorkQueue::Send => {
                (self.cutting, self.unacknowledged) = (0, 0);
                self.gate.sends = Sends::Host;
            }
            WorkQueue::Receive => self.gate.receives = Receives::Host,
        }
        self.gate.offers[queue as usize] = false;
        let ends = self.ends().map_or(0, |(ends, _)| ends.to_word());
        complete(nic, self, OFFER, queue, Status::Done, [number, ends]);
    }

    /// Recalls a queue, if the host waits for that.
    fn recall(&mut self, nic: &mut Context<'_>, queue: WorkQueue) {
        if std::mem::take(&mut self.gate.recalls[queue as usize]) {
            complete(nic, self, RECALL, queue, Status::Done, [0; 2]);
        }
    }

    /// Resets the gate at the end of a connection: cancels pending commands, and the NIC has both queues of the next
    /// one.
    pub(super) fn reset_gate(&mut self, nic: &mut Context<'_>) {
        let gate = std::mem::take(&mut self.gate);
        for queue in [WorkQueue::Send, WorkQueue::Receive] {
            for (opcode, waits) in [(OFFER, gate.offers), (RECALL, gate.recalls)] {
                if waits[queue as usize] {
                    complete(nic, self, opcode, queue, Status::Cancelled, [0; 2]);
                }
            }
        }
    }

    /// Returns the message with a step of the gate to the other end's NIC, if there is a connection.
    fn step(&self, step: Step) -> Option<(NodeId, Message)> {
        let link = self.link.as_ref()?;
        Some((link.node, Message::Gate { vi: link.vi.0, connection: link.connection, step }))
    }

    /// Returns whether the NIC may grant the send queue. The interface must have reliable delivery, and neither end's
    /// memory may be read. The process must not be suspended, and no admission may be installed.
    fn may_grant(&self, nic: &Context<'_>) -> bool {
        let reads = self.link.as_ref().is_none_or(|link| link.remote.rdma_read);
        self.attributes.reliability == Reliability::ReliableDelivery
            && !(reads || self.attributes.rdma_read || self.is_stopped || nic.has_admission())
    }
}

impl Via {
    /// Handles a host's offer to take over a queue.
    pub(super) fn on_offer(&mut self, nic: &mut Context<'_>, command: &Command) {
        let (queue, is_off) = (queue_of(command), self.config.is_gate_shut);
        let Some(endpoint) = self.own(command.region.port, command.port) else {
            return nic.refuse(command, Status::Cancelled);
        };
        if endpoint.gate.offers[queue as usize] || is_off || endpoint.link.is_none() {
            return complete(nic, endpoint, OFFER, queue, Status::Cancelled, [0; 2]);
        }
        endpoint.gate.offers[queue as usize] = true;
        match queue {
            WorkQueue::Send => self.begin_to_grant(nic, command.port),
            WorkQueue::Receive => {
                let ready = endpoint.step(Step::Ready);
                self.outbox.send(nic, ready);
            }
        }
    }

    /// Handles a host's command that waits for the recall of a queue.
    pub(super) fn on_recall(&mut self, nic: &mut Context<'_>, command: &Command) {
        let queue = queue_of(command);
        let Some(endpoint) = self.own(command.region.port, command.port) else {
            return nic.refuse(command, Status::Cancelled);
        };
        if endpoint.gate.recalls[queue as usize] || !endpoint.gate.has_host(queue) {
            return complete(nic, endpoint, RECALL, queue, Status::Cancelled, [0; 2]);
        }
        let gate = &mut endpoint.gate;
        gate.recalls[queue as usize] = true;
        let is_due = match queue {
            WorkQueue::Send => gate.sends != Sends::Host,
            WorkQueue::Receive => gate.receives != Receives::Host,
        };
        if is_due {
            endpoint.recall(nic, queue);
        }
    }

    /// Handles a queue that the host returns; its descriptors follow.
    pub(super) fn on_return(&mut self, nic: &mut Context<'_>, command: &Command) {
        let queue = queue_of(command);
        let [moved, count, _] = command.args.map(|word| word as u32);
        let Some(endpoint) = self.own(command.region.port, command.port) else {
            return nic.refuse(command, Status::Cancelled);
        };
        let ends = endpoint.ends().map_or(0, |(ends, _)| ends.to_word());
        complete(nic, endpoint, RETURN, queue, Status::Done, [0, ends]);
        let gate = &mut endpoint.gate;
        if !gate.has_host(queue) {
            return;
        }
        match queue {
            WorkQueue::Send => {
                let was = std::mem::take(&mut gate.sends);
                gate.begun = moved;
                endpoint.recall(nic, queue);
                // The host has stopped posting, so all its messages are in the receiver's ring.
                if was != Sends::Returning {
                    let close = endpoint.step(Step::Close);
                    self.outbox.send(nic, close);
                }
            }
            WorkQueue::Receive => {
                gate.receives = Receives::Filling(count);
                endpoint.recall(nic, queue);
                if let Some(link) = &mut endpoint.link {
                    link.arriving = (moved > 0).then_some(Arriving { received: moved });
                }
                self.on_filled(nic, command.port, 0);
            }
        }
    }

    /// Handles `count` receives that the host has posted again: requests the frames that were refused before.
    pub(super) fn on_filled(&mut self, nic: &mut Context<'_>, vi: PortId, count: u32) {
        let Some(Some(endpoint)) = self.vis.get_mut(vi.index()) else { return };
        let Receives::Filling(missing) = endpoint.gate.receives else { return };
        endpoint.gate.receives = match missing.saturating_sub(count) {
            0 => Receives::Nic,
            missing => Receives::Filling(missing),
        };
        if endpoint.gate.has_refused && endpoint.accepts() {
            endpoint.gate.has_refused = false;
            endpoint.report_gap(nic);
        }
    }

    /// Starts to grant the send queue if the NIC may grant it, and continues a grant that has started.
    pub(super) fn begin_to_grant(&mut self, nic: &mut Context<'_>, vi: PortId) {
        let Some(Some(endpoint)) = self.vis.get_mut(vi.index()) else { return };
        let may_grant = endpoint.may_grant(nic);
        let gate = &mut endpoint.gate;
        match gate.sends {
            Sends::Nic if gate.offers[0] && gate.is_peer_ready && may_grant => {
                gate.sends = Sends::Draining;
                // Requests the acknowledgement of the last frame: no frame follows that would bring it soon.
                if endpoint.link.as_ref().is_some_and(|link| !link.sending.is_empty()) {
                    endpoint.acknowledge(nic, true);
                }
            }
            Sends::Draining if !may_grant => return gate.sends = Sends::Nic,
            Sends::Draining => {}
            _ => return,
        }
        let is_between = endpoint.sends.get(endpoint.cutting).is_none_or(|work| work.moved == 0);
        if is_between && endpoint.link.as_ref().is_some_and(|link| link.sending.is_empty()) {
            endpoint.gate.sends = Sends::Asked;
            endpoint.gate.is_peer_ready = false;
            self.outbox.send(nic, endpoint.step(Step::Open));
        }
    }

    /// Handles a step of the other end's NIC.
    pub(super) fn on_step(
        &mut self,
        nic: &mut Context<'_>,
        from: NodeId,
        (vi, connection): (PortId, u16),
        step: Step,
    ) {
        let Some(Some(endpoint)) = self.vis.get_mut(vi.index()) else { return };
        let is_from = endpoint.link.as_ref().is_some_and(|link| link.node == from);
        if endpoint.connection != connection || !is_from {
            return;
        }
        let (owner, gate) = (endpoint.owner, &mut endpoint.gate);
        match step {
            Step::Ready => {
                gate.is_peer_ready = true;
                self.begin_to_grant(nic, vi);
            }
            Step::Open => {
                let grants = gate.offers[1]
                    && gate.receives == Receives::Nic
                    && !endpoint.is_stopped
                    && endpoint.link.as_ref().is_some_and(|link| link.arriving.is_none());
                if grants {
                    endpoint.grant(nic, WorkQueue::Receive, 0);
                }
                self.outbox.send(nic, endpoint.step(Step::Opened(grants)));
            }
            Step::Opened(is_granted) if gate.sends == Sends::Asked => {
                gate.sends = Sends::Nic;
                let may_grant = is_granted && endpoint.gate.offers[0] && endpoint.may_grant(nic);
                match if may_grant { nic.open_gate(owner) } else { None } {
                    Some(number) => endpoint.grant(nic, WorkQueue::Send, number),
                    None => {
                        if is_granted {
                            self.outbox.send(nic, endpoint.step(Step::Close));
                        }
                        self.settle(nic, vi);
                    }
                }
            }
            Step::Close if gate.receives == Receives::Host => {
                gate.receives = Receives::Returning;
                endpoint.recall(nic, WorkQueue::Receive);
            }
            Step::Shut if gate.sends == Sends::Host => self.close_gate(nic, owner),
            Step::Opened(_) | Step::Close | Step::Shut => {}
        }
    }

    /// Closes the gate of a port, and recalls the send queues of all its interfaces.
    pub(super) fn close_gate(&mut self, nic: &mut Context<'_>, port: PortId) {
        let is_quiet = nic.close_gate(port);
        let its = self.vis.iter_mut().flatten().filter(|endpoint| endpoint.owner == port);
        for endpoint in its {
            if endpoint.gate.sends == Sends::Host {
                endpoint.gate.sends = Sends::Closing;
                endpoint.recall(nic, WorkQueue::Send);
            }
            if endpoint.gate.sends == Sends::Closing && is_quiet {
                endpoint.gate.sends = Sends::Returning;
                self.outbox.send(nic, endpoint.step(Step::Close));
            }
        }
        if !is_quiet {
            self.arm(nic, nic.now().plus_nanos(POSTING_NS));
        }
    }

    /// Closes the gates that must not stay open: those of suspended ports, and all of them if an admission is
    /// installed. Also continues to close those in which a post was under way.
    pub(super) fn check_gates(&mut self, nic: &mut Context<'_>) {
        for at in 0..self.vis.len() {
            let Some(endpoint) = &self.vis[at] else { continue };
            match endpoint.gate.sends {
                Sends::Host if endpoint.may_grant(nic) => {}
                Sends::Host | Sends::Closing => self.close_gate(nic, endpoint.owner),
                _ => self.begin_to_grant(nic, PortId(at as u16)),
            }
        }
    }

    /// Handles the suspension of a port: has the other ends close their gates, so that their hosts write nothing to it.
    pub(super) fn shut_gates(&mut self, nic: &mut Context<'_>, port: PortId) {
        for endpoint in self.vis.iter().flatten().filter(|endpoint| endpoint.owner == port) {
            if endpoint.gate.receives == Receives::Host {
                self.outbox.send(nic, endpoint.step(Step::Shut));
            }
        }
        self.check_gates(nic);
    }

    /// Handles the resumption of an interface: its host can take over the receive queue again.
    pub(super) fn reopen_gate(&mut self, nic: &mut Context<'_>, vi: PortId) {
        if let Some(Some(endpoint)) = self.vis.get(vi.index())
            && endpoint.gate.offers[1]
        {
            self.outbox.send(nic, endpoint.step(Step::Ready));
        }
        self.begin_to_grant(nic, vi);
    }
}
