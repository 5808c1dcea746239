//! Arriving packets: each is checked before it has any effect.

use midplane_simhw::region::Payload;

use super::config::MAX_WITHDRAWALS;
use super::flows::Limits;
use super::peer::{Link, Stream};
use super::{Arrived, Core, MAX_LENGTH, Target, flows};
use crate::message::envelope::{Envelope, Kind, Marks, Peer};
use crate::message::matching::{Arrival, Key, Pattern, UnexpectedMessage};
use crate::message::request::{Failure, Operation, Request, State, Status, Transfer};

/// A packet violates the protocol.
pub(super) struct Breach;

impl Core {
    /// Handles a packet from `from`. A packet that violates the protocol makes its sender count as lost, since
    /// it may have been any message that a receive waits for.
    #[inline]
    pub(super) fn on_packet(
        &mut self,
        from: Peer,
        envelope: &Envelope,
        payload: Payload<'_>,
        target: &mut Target<'_>,
    ) {
        let Some(link) = self.link(from).filter(|link| link.known) else {
            self.counters.malformed += 1;
            return;
        };
        if link.lost {
            return;
        }
        let done = match envelope.kind {
            Kind::Eager | Kind::Rts if envelope.source == from => {
                self.on_message(from, envelope, payload, target)
            }
            Kind::Data => self.on_data(from, envelope, payload, target),
            Kind::Cts => self.on_cts(from, envelope),
            Kind::Acknowledge => self.on_acknowledge(from, envelope),
            Kind::Credit => self.on_credit(from, envelope, payload),
            Kind::Withdraw => self.on_withdraw(from, envelope),
            Kind::Withdrawn => self.on_withdrawn(from, envelope),
            Kind::Hint if envelope.source == from => self.on_hint(from, envelope, payload.len()),
            Kind::Seek => self.on_seek(from, envelope),
            Kind::Sought => self.on_sought(from, envelope),
            Kind::Settle => self.on_settle(from, envelope),
            Kind::Eager | Kind::Rts | Kind::Hint | Kind::Wire => Err(Breach),
        };
        if done.is_err() {
            self.counters.malformed += 1;
            self.lose(Failure::PeerLost(from));
        }
    }

    /// Returns whether a message that matches this pattern can only be meant for this receive: no other receive
    /// and no message waits, here or with a sender.
    #[inline]
    pub(super) fn may_receive_alone(&self, pattern: &Pattern) -> bool {
        self.matching.is_empty()
            && !self.is_revoked(pattern.context)
            && self.hinting.is_empty()
            && self.to_self.is_empty()
            && !self.requests.has_marked()
            && pattern.source.is_none_or(|peer| {
                peer != self.own && self.link(peer).is_some_and(|link| link.known && !link.lost)
            })
    }

    /// Handles a packet while only one receive waits, which has no request. If the packet is a message that this
    /// receive matches, copies its bytes straight to `storage` and returns the outcome. Handles any other packet as
    /// usual.
    #[inline]
    pub(super) fn on_packet_for(
        &mut self,
        wanted: &Pattern,
        (room, storage): (usize, &mut Vec<u8>),
        from: Peer,
        envelope: &Envelope,
        payload: Payload<'_>,
    ) -> Option<(Status, Result<(), Failure>)> {
        let key = Key::of(envelope);
        let fits = envelope.is_plain() && envelope.source == from && wanted.accepts(key);
        if !fits || self.link(from).is_none_or(|link| !link.known || link.lost) {
            self.on_packet(from, envelope, payload, &mut Target::default());
            return None;
        }
        let Ok(charge) = self.admit(from, envelope, payload.len()) else {
            self.counters.malformed += 1;
            self.lose(Failure::PeerLost(from));
            return None;
        };
        self.counters.expected += 1;
        self.free(key, charge);
        self.pool.fill(storage, payload, room);
        Some(self.verdict(key, payload.len(), room))
    }

    /// Checks that a message is the next one of its sender, fits the sender's window, and has the length that it
    /// claims. Returns the bytes of the window that it occupies.
    #[inline]
    fn admit(&mut self, from: Peer, envelope: &Envelope, bytes: usize) -> Result<u32, Breach> {
        let charge = Arrived::charge(envelope.kind, envelope.length);
        let link = self.link_mut(from).ok_or(Breach)?;
        let due = link.next_in == envelope.sequence;
        let within = link.arrived + u64::from(charge) <= link.granted();
        let sized = if envelope.kind == Kind::Eager {
            bytes == envelope.length as usize
        } else {
            bytes == 0 && envelope.length as usize <= MAX_LENGTH && envelope.from != 0
        };
        if !due || !within || !sized {
            return Err(Breach);
        }
        link.next_in = link.next_in.wrapping_add(1);
        link.arrived += u64::from(charge);
        Ok(charge)
    }

    #[inline]
    fn on_message(
        &mut self,
        from: Peer,
        envelope: &Envelope,
        payload: Payload<'_>,
        target: &mut Target<'_>,
    ) -> Result<(), Breach> {
        let charge = self.admit(from, envelope, payload.len())?;
        let key = Key::of(envelope);
        if key.is_notice() {
            self.free(key, charge);
            self.leave(key);
            if envelope.kind == Kind::Rts {
                self.answer(from, Kind::Cts, Marks::NONE, (envelope.from, 0), 0);
            } else {
                self.acknowledge(from, envelope.from);
            }
            return Ok(());
        }
        let (arrival, receive) = self.matching.arrive(key);
        match receive {
            Some(receive) if envelope.kind == Kind::Eager => {
                self.counters.expected += 1;
                self.free(key, charge);
                self.deliver(receive, (key, arrival), payload, target);
                self.acknowledge(from, envelope.from);
            }
            Some(receive) => {
                self.counters.expected += 1;
                let (sender, length) = (envelope.from, envelope.length);
                let arrived = Arrived { sender, length, charge, ..Arrived::default() };
                self.meet(receive, UnexpectedMessage { key, arrival, message: arrived });
            }
            None => self.keep(key, arrival, envelope, charge, payload),
        }
        Ok(())
    }

    fn keep(
        &mut self,
        key: Key,
        arrival: Arrival,
        envelope: &Envelope,
        charge: u32,
        payload: Payload<'_>,
    ) {
        self.counters.unexpected += 1;
        self.counters.ready_too_early += u64::from(envelope.marks.contains(Marks::READY));
        let bytes = (envelope.kind == Kind::Eager).then(|| {
            let mut bytes = self.pool.take(payload.len());
            payload.copy_to(&mut bytes);
            bytes
        });
        let (sender, length) = (envelope.from, envelope.length);
        let arrived = Arrived { sender, length, charge, bytes, ..Arrived::default() };
        self.matching.hold(key, arrival, arrived);
        self.requests.note_move();
    }

    /// Delivers an arriving message straight to the posted receive that it matches.
    #[inline]
    fn deliver(
        &mut self,
        receive: Request,
        (key, arrival): (Key, Arrival),
        payload: Payload<'_>,
        target: &mut Target<'_>,
    ) {
        let Some(record) = self.requests.get_mut(receive) else { return };
        let room = record.room;
        if let Some(memory) = &record.memory {
            let taken = payload.slice(0..payload.len().min(room)).expect("no longer than it is");
            memory.store(0, taken).expect("the room is the memory's");
        } else if let Some(memory) = target.memory_of(receive) {
            record.delivered = payload.len().min(room);
            payload.copy_to(&mut memory[..record.delivered]);
        } else {
            self.pool.fill(&mut record.storage, payload, room);
        }
        record.arrival = arrival;
        self.received(receive, key, payload.len(), room);
    }

    /// Starts a receive: matches it with a message that has arrived, or posts it.
    #[inline]
    pub(super) fn receive(&mut self, request: Request, pattern: &Pattern) {
        if let Some(held) = self.matching.take(pattern) {
            return self.meet(request, held);
        }
        if !self.hinting.is_empty()
            && let Some(held) = self.take_found(pattern)
        {
            return self.meet(request, held);
        }
        if let Some(peer) = pattern.source
            && self.link(peer).is_some_and(|link| link.lost)
        {
            let status = Status { source: peer, ..Status::default() };
            return self.complete(request, status, Err(Failure::PeerLost(peer)));
        }
        let posted = self.matching.post(pattern, request);
        if let Some(record) = self.requests.get_mut(request) {
            record.posted = Some(posted);
            record.state = State::Active;
        }
        if !self.hinting.is_empty() {
            self.seek(request, pattern, posted);
        }
    }

    /// Matches a receive with a stored message, or with one whose RTS or hint has just arrived.
    pub(super) fn meet(&mut self, receive: Request, held: UnexpectedMessage<Arrived>) {
        let UnexpectedMessage { key, arrival, message } = held;
        let Some(record) = self.requests.get_mut(receive) else { return };
        record.arrival = arrival;
        record.posted = None;
        let room = record.room;
        let length = message.length as usize;
        self.free(key, message.charge);
        if let Some(mut bytes) = message.bytes {
            let record = self.requests.get_mut(receive).expect("the receive was just found");
            bytes.truncate(room);
            if let Some(memory) = &record.memory {
                memory.store(0, Payload::from(&bytes[..])).expect("the room is the memory's");
            } else if record.storage.capacity() < bytes.len() {
                std::mem::swap(&mut record.storage, &mut bytes);
            } else {
                record.storage.resize(bytes.len(), 0);
                record.storage.copy_from_slice(&bytes);
            }
            self.pool.put(bytes);
            self.received(receive, key, length, room);
            return self.acknowledge(key.source, message.sender);
        }
        if let Some(dropped) = message.arriving {
            return self.inherit(receive, dropped, key);
        }
        let wanted = length.min(room);
        let handles = (message.sender, receive.to_handle());
        self.answer(key.source, Kind::Cts, Marks::NONE, handles, wanted as u32);
        let record = self.requests.get_mut(receive).expect("the receive was just found");
        if wanted == 0 {
            record.storage.clear();
            return self.received(receive, key, length, room);
        }
        record.state = State::Active;
        record.status = Self::blank(key);
        let (peer, filled, dropped) = (key.source, 0, None);
        record.transfer = Some(Transfer { peer, filled, wanted, length, dropped });
    }

    #[inline]
    fn acknowledge(&mut self, to: Peer, sender: u64) {
        if sender != 0 {
            self.answer(to, Kind::Acknowledge, Marks::NONE, (sender, 0), 0);
        }
    }

    /// Returns the outcome of a receive with `room` bytes of room for a message of `length` bytes.
    #[inline]
    fn verdict(&mut self, key: Key, length: usize, room: usize) -> (Status, Result<(), Failure>) {
        let status = Status { source: key.source, tag: key.tag, length: length.min(room) };
        if length <= room {
            return (status, Ok(()));
        }
        self.counters.truncated += 1;
        (status, Err(Failure::Truncated { length, room }))
    }

    /// Completes a receive that has all the bytes that it accepts of its message.
    #[inline]
    fn received(&mut self, receive: Request, key: Key, length: usize, room: usize) {
        let (status, result) = self.verdict(key, length, room);
        let undo = self.requests.get(receive).is_some_and(|record| record.undo);
        if undo && result.is_ok() {
            return self.return_message(receive, key, length);
        }
        self.complete(receive, status, result);
    }

    fn on_data(
        &mut self,
        from: Peer,
        envelope: &Envelope,
        payload: Payload<'_>,
        target: &mut Target<'_>,
    ) -> Result<(), Breach> {
        let receive = Request::from_handle(envelope.to);
        let record = self.requests.get_mut(receive).ok_or(Breach)?;
        let transfer = record.transfer.as_mut().filter(|t| t.is_of(from)).ok_or(Breach)?;
        let end = transfer.filled + payload.len();
        if payload.is_empty() || end > transfer.wanted || payload.len() != envelope.length as usize
        {
            return Err(Breach);
        }
        let part = transfer.filled..end;
        transfer.filled = end;
        if let Some(memory) = &record.memory {
            memory.store(part.start, payload).map_err(|_| Breach)?;
        } else if let Some(memory) = target.memory_of(receive) {
            record.deliver_stored(memory, part.start);
            record.delivered = part.end;
            payload.copy_to(&mut memory[part]);
        } else {
            record.store(&mut self.pool);
            payload.copy_to(&mut record.storage[part]);
        }
        self.end_transfer(receive)
    }

    /// Handles a data packet whose bytes are already in the receive's memory.
    pub(super) fn on_placed(&mut self, from: Peer, envelope: &Envelope) {
        let receive = Request::from_handle(envelope.to);
        let record = self.requests.get_mut(receive).filter(|record| record.memory.is_some());
        let transfer = record.and_then(|record| record.transfer.as_mut());
        let done = match transfer.filter(|transfer| transfer.is_of(from)) {
            Some(transfer)
                if (transfer.filled, transfer.wanted) == (0, envelope.length as usize) =>
            {
                transfer.filled = transfer.wanted;
                self.end_transfer(receive)
            }
            _ => Err(Breach),
        };
        if done.is_err() {
            self.counters.malformed += 1;
            self.lose(Failure::PeerLost(from));
        }
    }

    /// Completes a receive if all bytes of its rendezvous message have arrived.
    fn end_transfer(&mut self, receive: Request) -> Result<(), Breach> {
        let record = self.requests.get_mut(receive).ok_or(Breach)?;
        let transfer = record.transfer.ok_or(Breach)?;
        if transfer.filled == transfer.wanted {
            let length = transfer.length;
            let (status, room) = (record.status, record.room);
            record.transfer = None;
            let context = match record.operation {
                Operation::Receive(pattern) => pattern.context,
                Operation::Claimed(key) => key.context,
                Operation::Send { .. } | Operation::Nothing => return Err(Breach),
            };
            let key = Key { context, source: status.source, tag: status.tag };
            self.received(receive, key, length, room);
        }
        Ok(())
    }

    /// Returns the send that an answer from `from` refers to, if it has had no answer yet.
    pub(super) fn answered(&self, from: Peer, handle: u64) -> Result<Request, Breach> {
        let send = Request::from_handle(handle);
        let record = self.requests.get(send).ok_or(Breach)?;
        let waits = matches!(record.operation, Operation::Send { to, .. } if to == from)
            && record.state == State::Active
            && !record.in_use;
        // A send that got its CTS has had its answer.
        let cleared = |link: &Link| link.streams.iter().any(|stream| stream.send == send);
        let waits = waits && !self.link(from).is_some_and(cleared);
        if waits { Ok(send) } else { Err(Breach) }
    }

    fn on_cts(&mut self, from: Peer, envelope: &Envelope) -> Result<(), Breach> {
        let send = self.answered(from, envelope.to)?;
        let record = self.requests.get(send).ok_or(Breach)?;
        let (wanted, status) = (envelope.length as usize, record.status);
        if wanted > record.message_bytes() {
            return Err(Breach);
        }
        let link = self.link_mut(from).ok_or(Breach)?;
        link.hinted.remove(send);
        if wanted == 0 {
            self.complete(send, status, Ok(()));
            return Ok(());
        }
        let stream = Stream { send, receive: envelope.from, sent: 0, wanted };
        self.link_mut(from).ok_or(Breach)?.streams.push_back(stream);
        self.list(from);
        Ok(())
    }

    fn on_acknowledge(&mut self, from: Peer, envelope: &Envelope) -> Result<(), Breach> {
        let send = self.answered(from, envelope.to)?;
        let status = self.requests.get(send).ok_or(Breach)?.status;
        self.complete(send, status, Ok(()));
        Ok(())
    }

    /// Handles returned credit: the bytes of each class, whose sum raises the limit.
    fn on_credit(
        &mut self,
        from: Peer,
        envelope: &Envelope,
        payload: Payload<'_>,
    ) -> Result<(), Breach> {
        let mut packet = std::mem::take(&mut self.scratch);
        packet.resize(payload.len(), 0);
        payload.copy_to(&mut packet);
        let link = self.link_mut(from).ok_or(Breach)?;
        let mut sum = 0;
        for (context, tag, bytes) in flows::parse(&packet).ok_or(Breach)? {
            sum += u64::from(bytes);
            if !link.flows.free(context, tag, bytes) {
                return Err(Breach);
            }
        }
        // The first packet states the whole window, and the part of it for each class.
        let first = !std::mem::replace(&mut link.open, true);
        if !first && link.limit.checked_add(sum) != Some(envelope.to) {
            return Err(Breach);
        }
        link.limit = envelope.to;
        link.flows.limits = Limits::of_word(envelope.from);
        if !link.sends.is_empty() {
            self.list(from);
        }
        self.scratch = packet;
        Ok(())
    }

    /// Checks that a peer does not send questions without receiving the answers, which violates the protocol.
    pub(super) fn admit_question(&self, from: Peer) -> Result<(), Breach> {
        let owed = self.link(from).map_or(0, |link| link.owed);
        // One search for a message that waits here, in addition to the withdrawals.
        if owed > MAX_WITHDRAWALS { Err(Breach) } else { Ok(()) }
    }

    /// Handles a withdrawal: returns the message to its sender if no receive has matched it. Searches all stored
    /// messages.
    fn on_withdraw(&mut self, from: Peer, envelope: &Envelope) -> Result<(), Breach> {
        self.admit_question(from)?;
        let key = Key { context: envelope.context, source: from, tag: envelope.tag };
        if self.drop_found(from, envelope.from) {
            self.answer(from, Kind::Withdrawn, Marks::GRANTED, (envelope.from, 0), 0);
            return Ok(());
        }
        let found = self
            .matching
            .unexpected()
            .find(|(_, at, arrived)| *at == key && arrived.sender == envelope.from)
            .map(|(id, ..)| id);
        let taken = found.and_then(|id| self.matching.remove(id));
        let marks = if taken.is_some() { Marks::GRANTED } else { Marks::NONE };
        if let Some(held) = taken {
            self.free(key, held.message.charge);
            self.pool.put(held.message.bytes.unwrap_or_default());
        }
        self.answer(from, Kind::Withdrawn, marks, (envelope.from, 0), 0);
        Ok(())
    }

    fn on_withdrawn(&mut self, from: Peer, envelope: &Envelope) -> Result<(), Breach> {
        let send = Request::from_handle(envelope.to);
        let link = self.link_mut(from).ok_or(Breach)?;
        link.withdrawing = link.withdrawing.checked_sub(1).ok_or(Breach)?;
        let is_cancelling = link.hinted.is_cancelling(send);
        self.next_withdrawal(from);
        if !envelope.marks.contains(Marks::GRANTED) {
            // The message matched first, and that answer arrived before this one; or the message waits here. A message
            // of a later start of the same request is not withdrawn.
            if is_cancelling {
                self.cancel_hinted(from, send);
            }
            return Ok(());
        }
        let send = self.answered(from, envelope.to)?;
        self.link_mut(from).ok_or(Breach)?.hinted.remove(send);
        let record = self.requests.get(send).ok_or(Breach)?;
        let failure = record.result.err().unwrap_or(Failure::Cancelled);
        let status = Status { length: 0, ..record.status };
        self.complete(send, status, Err(failure));
        Ok(())
    }
}
