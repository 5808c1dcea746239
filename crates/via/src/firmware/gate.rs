//! The gate at the NIC: lends the work queues of an interface to its host, and takes them back.
//!
//! A host that has the send queue writes to the other process itself; one that has the receive queue reads what that
//! process writes. Neither NIC then sees the messages. Each direction of a connection is lent by itself:
//!
//! ```text
//! sender's NIC    Nic -> Draining -> Asked -> Host -> Closing -> Returning -> Nic
//!                            Open |     ^ Opened   Close |
//! receiver's NIC  Nic ----------> Host --------------> Returning -> Filling -> Nic
//! ```
//!
//! The sender's NIC first lets all its frames be acknowledged. Then the receiver's NIC lends the receive queue, the
//! sender's NIC the send queue, and it opens the gate of the host's port. So a host never overtakes a frame.
//!
//! To take the queue back, the sender's NIC closes the gate, which stops the host at once, and waits until no post is
//! under way. Then all that the host has written is in its ring. The receiver's host, asked for its queue, takes all
//! of that before it returns the queue; the receiver's NIC accepts frames after that only. So no frame overtakes the
//! host.
//!
//! Descriptors move with their queue. The NIC gives those back that it has with [`Status::Cancelled`]; a host posts its
//! own again behind [`RETURN`].

use midplane_nicvm::context::Context;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};

use super::Via;
use super::endpoint::{Arriving, Endpoint};
use super::message::{Message, Step, send_message};
use crate::attributes::Reliability;
use crate::command::{LEND, POST_RECEIVE, POST_SEND, RECALL, RETURN};
use crate::context::GateContext;
use crate::nic::WorkQueue;

/// Nanoseconds until a NIC looks again whether a post that it has found under way is over.
const POSTING_NS: u64 = 10_000;

/// Who has the send queue.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Sends {
    #[default]
    Nic,
    /// The NIC, which begins no message until its frames are acknowledged.
    Draining,
    /// The NIC; it has asked the receiver's NIC to lend the receive queue.
    Asked,
    Host,
    /// The host; the gate is closed, and a post may be under way.
    Closing,
    /// The host, which can't use it any more and has yet to return it.
    Returning,
}

/// Who has the receive queue.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Receives {
    #[default]
    Nic,
    Host,
    /// The host, which has been asked for it.
    Returning,
    /// The NIC, but for that many descriptors that the host is posting again.
    Filling(u32),
}

/// The gate of one interface.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gate {
    pub(super) sends: Sends,
    pub(super) receives: Receives,
    /// Commands of the host that wait, by queue: to be lent it, and to be asked for it.
    pub(super) offers: [bool; 2],
    pub(super) recalls: [bool; 2],
    /// The receiver's host can be lent its receive queue.
    is_peer_ready: bool,
    /// Bytes of the next send that the host has sent before it returned the queue.
    pub(super) begun: u32,
    /// A frame was not accepted since the last one was asked for again.
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

    /// Returns whether a queue's place is certain while the process is suspended: each is the NIC's, or the host has it
    /// and neither end of the connection can use it.
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
    /// Gives a descriptor back to the host, which has the queue or is about to.
    pub(super) fn give_back(&self, nic: &mut Context<'_>, queue: WorkQueue, cookie: u64) {
        let opcode = if queue == WorkQueue::Send { POST_SEND } else { POST_RECEIVE };
        let (status, port) = (Status::Cancelled, self.name);
        let done = Completion { status, opcode, port, cookie, ..Completion::default() };
        nic.complete(self.owner, &done);
    }

    /// Returns whether it accepts frames with data now; if not, it asks for them again later.
    pub(super) fn accepts(&mut self) -> bool {
        let accepts = match self.gate.receives {
            Receives::Nic => true,
            // Those that are missing were posted, so an empty queue is no error of the process.
            Receives::Filling(_) => !self.receives.is_empty(),
            Receives::Host | Receives::Returning => false,
        };
        self.gate.has_refused |= !accepts;
        accepts
    }

    /// Lends a queue to the host: `number` opens the gate of its port.
    fn lend(&mut self, nic: &mut Context<'_>, queue: WorkQueue, number: u64) {
        let cookies: Vec<u64> = match queue {
            WorkQueue::Send => self.sends.drain(..).map(|work| work.cookie).collect(),
            WorkQueue::Receive => self.receives.drain(..).map(|work| work.cookie).collect(),
        };
        cookies.into_iter().for_each(|cookie| self.give_back(nic, queue, cookie));
        match queue {
            WorkQueue::Send => {
                (self.cutting, self.unacknowledged) = (0, 0);
                self.gate.sends = Sends::Host;
            }
            WorkQueue::Receive => self.gate.receives = Receives::Host,
        }
        self.gate.offers[queue as usize] = false;
        let ends = self.ends().map_or(0, |(ends, _)| ends.to_word());
        complete(nic, self, LEND, queue, Status::Done, [number, ends]);
    }

    /// Asks the host for a queue.
    fn recall(&mut self, nic: &mut Context<'_>, queue: WorkQueue) {
        if std::mem::take(&mut self.gate.recalls[queue as usize]) {
            complete(nic, self, RECALL, queue, Status::Done, [0; 2]);
        }
    }

    /// Ends what the gate has to do with a connection that is over: both queues are the NIC's for the next one.
    pub(super) fn reset_gate(&mut self, nic: &mut Context<'_>) {
        let gate = std::mem::take(&mut self.gate);
        for queue in [WorkQueue::Send, WorkQueue::Receive] {
            for (opcode, waits) in [(LEND, gate.offers), (RECALL, gate.recalls)] {
                if waits[queue as usize] {
                    complete(nic, self, opcode, queue, Status::Cancelled, [0; 2]);
                }
            }
        }
    }

    /// Sends a step to the other end's NIC.
    fn tell(&self, nic: &mut Context<'_>, step: Step) {
        if let Some(link) = &self.link {
            let (vi, connection) = (link.vi.0, link.connection);
            send_message(nic, link.node, &Message::Gate { vi, connection, step });
        }
    }

    /// Returns whether the host may be lent the send queue. Only a reliable interface whose sends are done when they
    /// are on their way, and whose memory is not read, does the same by itself.
    fn may_lend(&self, nic: &Context<'_>) -> bool {
        let reads = self.link.as_ref().is_none_or(|link| link.remote.rdma_read);
        self.attributes.reliability == Reliability::ReliableDelivery
            && !(reads || self.attributes.rdma_read || self.is_stopped || nic.has_admission())
    }
}

impl Via {
    /// Handles a host's offer to take a queue.
    pub(super) fn on_lend(&mut self, nic: &mut Context<'_>, command: &Command) {
        let (queue, is_off) = (queue_of(command), self.config.is_gate_shut);
        let Some(endpoint) = self.own(command.region.port, command.port) else {
            return nic.refuse(command, Status::Cancelled);
        };
        if endpoint.gate.offers[queue as usize] || is_off || endpoint.link.is_none() {
            return complete(nic, endpoint, LEND, queue, Status::Cancelled, [0; 2]);
        }
        endpoint.gate.offers[queue as usize] = true;
        match queue {
            WorkQueue::Send => self.begin_to_lend(nic, command.port),
            WorkQueue::Receive => endpoint.tell(nic, Step::Ready),
        }
    }

    /// Handles a host's request to be told when it has to return a queue.
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

    /// Handles a queue that the host returns: the descriptors follow.
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
                // The host posts nothing any more: what it has written is in the ring.
                if was != Sends::Returning {
                    endpoint.tell(nic, Step::Close);
                }
            }
            WorkQueue::Receive => {
                gate.receives = Receives::Filling(count);
                endpoint.recall(nic, queue);
                if let Some(link) = &mut endpoint.link {
                    link.arriving = (moved > 0).then_some(Arriving { came: moved });
                }
                self.on_filled(nic, command.port, 0);
            }
        }
    }

    /// Notes that the host has posted `count` receives again: asks for frames that came before.
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

    /// Begins to lend the send queue if it may be lent, and continues if that has begun.
    pub(super) fn begin_to_lend(&mut self, nic: &mut Context<'_>, vi: PortId) {
        let Some(Some(endpoint)) = self.vis.get_mut(vi.index()) else { return };
        let may_lend = endpoint.may_lend(nic);
        let gate = &mut endpoint.gate;
        match gate.sends {
            Sends::Nic if gate.offers[0] && gate.is_peer_ready && may_lend => {
                gate.sends = Sends::Draining;
                // The acknowledgement of the last frame could be late: nothing follows.
                if endpoint.link.as_ref().is_some_and(|link| !link.sending.is_empty()) {
                    endpoint.acknowledge(nic, true);
                }
            }
            Sends::Draining if !may_lend => return gate.sends = Sends::Nic,
            Sends::Draining => {}
            _ => return,
        }
        let is_between = endpoint.sends.get(endpoint.cutting).is_none_or(|work| work.moved == 0);
        if is_between && endpoint.link.as_ref().is_some_and(|link| link.sending.is_empty()) {
            endpoint.gate.sends = Sends::Asked;
            endpoint.gate.is_peer_ready = false;
            endpoint.tell(nic, Step::Open);
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
                self.begin_to_lend(nic, vi);
            }
            Step::Open => {
                let lends = gate.offers[1]
                    && gate.receives == Receives::Nic
                    && !endpoint.is_stopped
                    && endpoint.link.as_ref().is_some_and(|link| link.arriving.is_none());
                if lends {
                    endpoint.lend(nic, WorkQueue::Receive, 0);
                }
                endpoint.tell(nic, Step::Opened(lends));
            }
            Step::Opened(is_lent) if gate.sends == Sends::Asked => {
                gate.sends = Sends::Nic;
                let may_lend = is_lent && endpoint.gate.offers[0] && endpoint.may_lend(nic);
                match if may_lend { nic.open_gate(owner) } else { None } {
                    Some(number) => endpoint.lend(nic, WorkQueue::Send, number),
                    None => {
                        if is_lent {
                            endpoint.tell(nic, Step::Close);
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

    /// Closes the gate of a port, and takes back the send queues of all its interfaces.
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
                endpoint.tell(nic, Step::Close);
            }
        }
        if !is_quiet {
            self.arm(nic, nic.now().plus_nanos(POSTING_NS));
        }
    }

    /// Closes the gates that have to be: of ports that are suspended, and all if an admission is installed. Also
    /// continues to close those in which a post was under way.
    pub(super) fn check_gates(&mut self, nic: &mut Context<'_>) {
        for at in 0..self.vis.len() {
            let Some(endpoint) = &self.vis[at] else { continue };
            match endpoint.gate.sends {
                Sends::Host if endpoint.may_lend(nic) => {}
                Sends::Host | Sends::Closing => self.close_gate(nic, endpoint.owner),
                _ => self.begin_to_lend(nic, PortId(at as u16)),
            }
        }
    }

    /// Handles the suspension of a port: the other ends' hosts must write nothing to it either.
    pub(super) fn shut_gates(&mut self, nic: &mut Context<'_>, port: PortId) {
        for endpoint in self.vis.iter().flatten().filter(|endpoint| endpoint.owner == port) {
            if endpoint.gate.receives == Receives::Host {
                endpoint.tell(nic, Step::Shut);
            }
        }
        self.check_gates(nic);
    }

    /// Handles the resumption of an interface: its receive queue can be lent again.
    pub(super) fn reopen_gate(&mut self, nic: &mut Context<'_>, vi: PortId) {
        if let Some(Some(endpoint)) = self.vis.get(vi.index())
            && endpoint.gate.offers[1]
        {
            endpoint.tell(nic, Step::Ready);
        }
        self.begin_to_lend(nic, vi);
    }
}
