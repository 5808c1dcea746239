//! The entry points of an engine: the eight functions of LAM's request progression interface, and shortcuts.
//!
//! LAM/MPI puts everything that depends on the transport behind eight entry points (the LAM over VIA paper,
//! section 3; Burns, "LAM 6.0 portability", 1996). LAM's layers share state in the request's structure; here, both
//! layers share [`Requests`].

use std::task::Poll;

use bytes::Bytes;

use super::departures::Route;
use super::{Core, Engine, MAX_LENGTH, Phase, Target};
use crate::memory::Memory;
use crate::message::carrier::{Carrier as _, Event};
use crate::message::envelope::{Context, LEFT, Peer, Tag};
use crate::message::explain::Explanation;
use crate::message::group::Group;
use crate::message::matching::{Key, Pattern};
use crate::message::request::{
    Failure, Load, Operation, Outcome, Request, Requests, State, Status,
};
use crate::message::transport::{
    BuildError, Claim, InitError, Probe, StartError, TransportCaps, TryReceive, Wait,
};

impl Engine {
    /// Initialises the engine; call it once, before anything else.
    ///
    /// # Errors
    /// [`InitError`].
    #[doc(hidden)]
    pub fn init(&mut self) -> Result<TransportCaps, InitError> {
        if self.phase != Phase::New {
            return Err(InitError::Twice);
        }
        self.phase = Phase::Running;
        self.add_processes(&[self.core.own])?;
        Ok(TransportCaps {
            own: self.core.own,
            max_tag: Tag(u32::MAX),
            max_context: Context(u32::MAX),
            max_length: MAX_LENGTH,
        })
    }

    /// Adds processes, with which messages can then be exchanged. Skips processes that were added before.
    ///
    /// # Errors
    /// [`InitError`]; the processes before the one that failed were added.
    pub fn add_processes(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        if self.phase != Phase::Running {
            return Err(InitError::NotInitialised);
        }
        let known = |core: &Core, peer| core.link(peer).is_some_and(|link| link.known);
        let own = self.core.own;
        let new = peers.iter().filter(|peer| !known(&self.core, **peer) && **peer != own).count();
        let share = self.core.unshared / new.max(1);
        for peer in peers.iter().copied() {
            if known(&self.core, peer) {
                continue;
            }
            if peer != self.core.own {
                self.carrier.connect(&[peer])?;
            }
            self.core.add(peer, share);
        }
        self.core.flush(&mut self.carrier);
        Ok(())
    }

    /// Builds the persistent part of a request.
    ///
    /// # Errors
    /// [`BuildError`].
    #[inline]
    #[doc(hidden)]
    pub fn build(&mut self, operation: Operation) -> Result<Request, BuildError> {
        if self.phase != Phase::Running {
            return Err(BuildError::NotRunning);
        }
        let peer = match operation {
            Operation::Send { to, .. } => Some(to),
            Operation::Receive(pattern) => pattern.source,
            Operation::Claimed(_) | Operation::Nothing => None,
        };
        if let Some(peer) = peer {
            self.core.link(peer).filter(|link| link.known).ok_or(BuildError::Unknown(peer))?;
        }
        Ok(self.core.requests.insert(operation))
    }

    /// Starts one communication of a request, which may be done when this returns.
    ///
    /// # Errors
    /// [`StartError`]; the load is dropped.
    #[inline]
    #[doc(hidden)]
    pub fn start(&mut self, request: Request, load: Load<'_>) -> Result<(), StartError> {
        if self.phase != Phase::Running {
            return Err(StartError::NotRunning);
        }
        if let Some(operation) = self.core.requests.operation(request) {
            self.poll_if_lost(operation);
        }
        let core = &mut self.core;
        let record = core.requests.get_mut(request).ok_or(StartError::NotBuilt)?;
        if record.state != State::Built {
            return Err(StartError::NotBuilt);
        }
        record.result = Ok(());
        let context = match record.operation {
            Operation::Send { context, .. } | Operation::Receive(Pattern { context, .. }) => {
                Some(context)
            }
            Operation::Claimed(_) | Operation::Nothing => None,
        };
        if context.is_some_and(|context| core.is_revoked(context)) {
            core.complete(request, Status::default(), Err(Failure::Revoked));
            return Ok(());
        }
        let record = core.requests.get_mut(request).ok_or(StartError::NotBuilt)?;
        match (record.operation, load) {
            (Operation::Send { mode, to, context, tag }, Load::Copy(bytes)) => {
                check_length(bytes.len())?;
                let route = Route { mode, to, context, tag };
                if !core.send_at_once(&mut self.carrier, request, route, bytes) {
                    core.queue_send(request, to, Bytes::copy_from_slice(bytes));
                }
            }
            (Operation::Send { mode, to, context, tag }, Load::Bytes(bytes)) => {
                check_length(bytes.len())?;
                let route = Route { mode, to, context, tag };
                if !core.send_at_once(&mut self.carrier, request, route, &bytes) {
                    core.queue_send(request, to, bytes);
                }
            }
            (Operation::Send { mode, to, context, tag }, Load::Memory(segment)) => {
                check_length(segment.len())?;
                let route = Route { mode, to, context, tag };
                core.send_memory(&mut self.carrier, request, route, segment);
            }
            (Operation::Receive(pattern), load) => {
                record.take_room(load)?;
                core.receive(request, &pattern);
            }
            (Operation::Claimed(_), load) => {
                record.take_room(load)?;
                let held = core.claimed.remove(&request).ok_or(StartError::NotBuilt)?;
                core.meet(request, held);
            }
            _ => return Err(StartError::WrongLoad),
        }
        // A receive may have matched: answer its sender now, not at the next advance.
        self.flush();
        Ok(())
    }

    /// Destroys a request. A send in progress continues without an owner. A receive in progress does too, and its
    /// message is lost. If `undo`, the receive is withdrawn instead, or the message that it matched returns to its
    /// place in the queue (a truncated one is lost). A claimed message that was not received returns to the queue in
    /// either case.
    #[inline]
    #[doc(hidden)]
    pub fn destroy(&mut self, request: Request, undo: bool) {
        if !self.core.claimed.is_empty()
            && let Some(held) = self.core.claimed.remove(&request)
        {
            self.core.unclaim(held);
        }
        match self.core.requests.state(request) {
            Some(State::Done) if undo => self.core.abandon(request, undo),
            Some(State::Waiting | State::Active) => self.core.abandon(request, undo),
            _ => {
                self.core.requests.remove(request);
            }
        }
        self.flush();
    }

    /// Sends without a request: in standard or ready mode, a message that leaves at once and needs no answer.
    /// Returns `None`, without any effect, if that is not possible.
    ///
    /// This and [`receive_now`](Self::receive_now) are the shortcuts for blocking callers that LAM's later
    /// interface calls fast send and fast receive.
    #[inline]
    #[doc(hidden)]
    pub fn send_now(&mut self, operation: Operation, bytes: &[u8]) -> Option<Outcome> {
        if self.phase != Phase::Running {
            return None;
        }
        let route = Route::of(operation).filter(|route| !self.core.is_revoked(route.context))?;
        self.poll_if_lost(operation);
        let (status, result) = self.core.send_alone(&mut self.carrier, route, bytes)?;
        Some(Outcome { status, result, bytes: Vec::new() })
    }

    /// Receives without a request: polls once, and copies at most `room` bytes of a matching message straight
    /// to `storage`. This works only if no other receive and no unexpected message waits. Other packets that
    /// arrive are handled as usual.
    #[inline]
    #[doc(hidden)]
    pub fn receive_now(
        &mut self,
        pattern: &Pattern,
        room: usize,
        storage: &mut Vec<u8>,
    ) -> TryReceive {
        if self.phase != Phase::Running || !self.core.may_receive_alone(pattern) {
            return TryReceive::Refused;
        }
        let event = self.carrier.poll();
        let taken = match event {
            Some(Event::Packet { from, envelope, payload }) => {
                let target = (room, &mut *storage);
                self.core.on_packet_for(pattern, target, from, &envelope, payload)
            }
            Some(event) => {
                self.core.on_event(&event, &mut Target::default());
                None
            }
            None => None,
        };
        self.flush();
        match taken {
            Some((status, result)) => {
                TryReceive::Here(Outcome { status, result, bytes: std::mem::take(storage) })
            }
            None => TryReceive::NotYet,
        }
    }

    /// Shuts the engine down. Ready once all of this process's packets have left; call [`advance`](Self::advance)
    /// until then. Requests that are not done by then fail.
    #[doc(hidden)]
    pub fn finalize(&mut self) -> Poll<()> {
        match self.phase {
            Phase::Down => return Poll::Ready(()),
            Phase::New => {}
            Phase::Running | Phase::Closing => {
                self.phase = Phase::Closing;
                let drained = self.core.links.iter().all(|link| link.lost || link.is_idle());
                if !drained || self.core.owes_answers() || !self.carrier.is_flushed() {
                    return Poll::Pending;
                }
                self.carrier.close();
            }
        }
        self.phase = Phase::Down;
        self.core.fail_all(Failure::Finalized);
        Poll::Ready(())
    }

    /// Returns why a probe of a group's messages that began after `losses` losses can't find one any more; `None` if it
    /// can.
    pub(in crate::message) fn probe_failure(
        &self,
        pattern: &Pattern,
        group: &Group,
        losses: u32,
    ) -> Option<Failure> {
        self.core.probe_failure(pattern, group, losses)
    }

    /// Returns a message that matches the pattern, if one has arrived; does not advance.
    #[doc(hidden)]
    pub fn iprobe(&mut self, pattern: &Pattern, claim: Claim) -> Option<Probe> {
        let Some((id, key, arrived)) = self.core.matching.peek(pattern) else {
            return self.core.probe_hinted(pattern, claim);
        };
        let length = arrived.length as usize;
        let claimed = (claim == Claim::Take).then(|| {
            let held = self.core.matching.remove(id).expect("the message was just found");
            let request = self.core.requests.insert(Operation::Claimed(key));
            self.core.claimed.insert(request, held);
            request
        });
        Some(Probe { key, length, claimed })
    }

    /// Advances requests; returns how many completed since the last call.
    #[inline]
    #[doc(hidden)]
    pub fn advance(&mut self, wait: Wait<'_>) -> usize {
        self.advance_for(wait, &mut Target::default())
    }

    /// Does the same as `advance`, and writes bytes of the target's message to its memory.
    #[inline]
    pub(in crate::message) fn advance_for(
        &mut self,
        wait: Wait<'_>,
        target: &mut Target<'_>,
    ) -> usize {
        loop {
            let more = self.progress(matches!(wait, Wait::Not), target);
            let completed = self.core.requests.take_completed();
            let Wait::Wake(waker) = wait else { return completed };
            if completed > 0 {
                return completed;
            }
            let core = &self.core;
            if !more && self.carrier.arm_wakeup_for(waker, &|| core.missing()) {
                self.core.listed_since_armed = false;
                return 0;
            }
            if more {
                // The batch is spent: yield to other tasks on this thread.
                waker.wake_by_ref();
                return 0;
            }
        }
    }

    /// Returns whether packets may wait of which the carrier wakes no task: messages of this process to itself, or
    /// packets to a process that was listed since the carrier was last armed. Those are reported once, whether the
    /// carrier has refused them or they wait for credit.
    #[inline]
    pub(in crate::message) fn take_unattended(&mut self) -> bool {
        let Core { listed_since_armed, busy, to_self, .. } = &mut self.core;
        std::mem::take(listed_since_armed) && !busy.is_empty() || !to_self.is_empty()
    }

    /// Registers memory for messages from and to `peer`; `None` if the carrier has none.
    pub(in crate::message) fn register(&mut self, peer: Peer, bytes: usize) -> Option<Memory> {
        self.carrier.register(peer, bytes)
    }

    /// Copies the bytes of a receive in progress from the caller's memory, whose borrow ends, to the engine.
    pub(in crate::message) fn take_back(&mut self, request: Request, memory: &[u8]) {
        let Core { requests, pool, .. } = &mut self.core;
        let Some(record) = requests.get_mut(request).filter(|record| record.delivered > 0) else {
            return;
        };
        if record.transfer.is_some() {
            record.store(pool);
        } else if record.storage.len() < record.delivered {
            record.storage.resize(record.delivered, 0);
        }
        record.storage[..record.delivered].copy_from_slice(&memory[..record.delivered]);
        record.delivered = 0;
    }

    /// Returns the buffer of a received message to the pool.
    pub(in crate::message) fn recycle(&mut self, buffer: Vec<u8>) {
        self.core.pool.put(buffer);
    }

    /// Returns the table of requests.
    #[doc(hidden)]
    pub fn requests(&mut self) -> &mut Requests {
        &mut self.core.requests
    }

    /// Returns the number of process losses so far.
    #[doc(hidden)]
    pub fn losses(&self) -> u32 {
        self.core.losses
    }

    /// Returns whether another process left a collective operation of this context before its end.
    pub(in crate::message) fn was_left(&self, context: Context) -> bool {
        self.core.has_left && self.core.links.iter().any(|link| link.left.contains(&context))
    }

    /// Returns whether a process has revoked the communicator with this context.
    pub(in crate::message) fn is_revoked(&self, context: Context) -> bool {
        self.core.is_revoked(context)
    }

    /// Fails the operations of the communicator with this context of recovery.
    pub(in crate::message) fn revoke(&mut self, context: Context) {
        self.core.leave(Key { context, source: self.core.own, tag: LEFT });
        self.flush();
    }

    /// Returns whether a process was lost after the first `losses` losses, and has been replaced since.
    pub(in crate::message) fn has_returned(&self, peer: Peer, losses: u32) -> bool {
        self.core.link(peer).is_some_and(|link| !link.lost && link.lost_at > losses)
    }

    /// Returns whether a process was lost after the first `losses` losses; another one may have replaced it since.
    pub(in crate::message) fn was_lost(&self, peer: Peer, losses: u32) -> bool {
        self.core.link(peer).is_some_and(|link| link.lost_at > losses)
    }

    /// Promises that no receive or probe of this context has a wildcard tag, here or at the processes that
    /// this one sends to. Messages of different tags then have no order, and unreceived messages of one tag do
    /// not hold back other tags.
    #[doc(hidden)]
    pub fn assert_no_any_tag(&mut self, context: Context) {
        self.core.by_tag.insert(context);
    }

    /// Reports what each request waits for, and how packets reach the other processes.
    pub fn explain(&self) -> Explanation {
        let mut explanation = self.core.explain();
        let peers = (0..self.core.links.len()).map(|number| Peer(number as u32));
        let wire = |peer| Some((peer, self.carrier.wire_to(peer)?));
        explanation.wires = peers.filter(|peer| *peer != self.core.own).filter_map(wire).collect();
        explanation
    }
}

const fn check_length(length: usize) -> Result<(), StartError> {
    if length > MAX_LENGTH {
        return Err(StartError::TooLong { length, most: MAX_LENGTH });
    }
    Ok(())
}
