//! What a context receives: room in its FIFO, and what its peers are told.

use std::collections::VecDeque;

use midplane_nicvm::context::Context;
use midplane_simhw::region::Payload;

use super::{Desk, Endpoint, MESSAGE_INSTRUCTIONS, Phase};
use crate::channel::ack::{Answer, Reception};
use crate::channel::config::Flow;
use crate::channel::frame::{Body, PmFrame};
use crate::channel::geometry::{ByteRing, CONSUMED, Record};
use crate::names::Rank;

#[derive(Debug, Default)]
pub(super) struct Receiving {
    pub(super) tail: u64,
    /// Messages ever consumed by the process, as far as was looked.
    pub(super) head: u64,
    pub(super) ring: ByteRing,
    pub(super) positions: VecDeque<u64>,
}

impl Endpoint {
    pub(super) fn look_consumed(&mut self, nic: &Context<'_>) {
        let Some(consumed) = self.word(nic, CONSUMED) else { return };
        let receiving = &mut self.receiving;
        if consumed < receiving.head || consumed > receiving.tail {
            self.is_broken = true;
            return;
        }
        receiving.positions.drain(..(consumed - receiving.head) as usize);
        receiving.head = consumed;
        receiving.ring.release(receiving.positions.front().copied());
    }

    /// Where a message of `length` bytes would be received.
    fn room(&self, length: u32) -> Option<u64> {
        let size = self.geometry.receive;
        let held = self.receiving.tail - self.receiving.head;
        let place = self.receiving.ring.place(size.bytes, length);
        place.filter(|_| held < u64::from(size.messages))
    }

    /// Tells those who were refused that there is room.
    pub(super) fn offer_room(&mut self, desk: &mut Desk<'_, '_>) {
        if self.phase != Phase::Running || self.room(self.geometry.message.min(64)).is_none() {
            return;
        }
        let mut wanting = Vec::new();
        for (rank, peer) in &mut self.peers {
            if peer.into.take_room_wanted() {
                wanting.push(*rank);
            }
        }
        for rank in wanting {
            self.answer(desk, rank);
        }
    }

    pub(super) fn answer(&mut self, desk: &mut Desk<'_, '_>, to: Rank) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        peer.answer_at = None;
        if let Some(answer) = peer.into.answer() {
            desk.counters.answers += 1;
            self.send(desk, to, Body::Answer(answer), None);
        }
    }

    /// Tells the sender that this rank has not begun, or not begun again.
    pub(super) fn turn_away(&mut self, desk: &mut Desk<'_, '_>, frame: &PmFrame) {
        let (round, seen) = match frame.body {
            Body::Message { round, sequence, .. } => (round, sequence.wrapping_add(1)),
            Body::Fence { round, sequence } => (round, sequence),
            Body::Answer(_) => return,
        };
        desk.counters.refused += 1;
        self.early.insert(frame.from, (frame.epoch, round));
        let answer = Answer { round, expected: None, seen, refused: true };
        let away = Self::absent(frame, answer);
        desk.local_or_send(&self.places, self.channel, &away);
    }

    /// The answer to a frame whose context is not there.
    fn absent(frame: &PmFrame, answer: Answer) -> PmFrame {
        PmFrame { from: frame.to, to: frame.from, body: Body::Answer(answer), ..*frame }
    }

    pub(super) fn on_message(
        &mut self,
        desk: &mut Desk<'_, '_>,
        from: Rank,
        (round, sequence): (u16, u32),
        payload: Payload<'_>,
    ) {
        desk.nic.charge(MESSAGE_INSTRUCTIONS);
        let length = payload.len() as u32;
        let mut place = self.room(length);
        if place.is_none() {
            self.look_consumed(desk.nic);
            place = self.room(length);
        }
        let place = place.filter(|_| self.phase == Phase::Running);
        if desk.config.flow == Flow::BackPressure && place.is_none() && desk.nic.leave_frame() {
            desk.counters.left += 1;
            return;
        }
        let now = desk.nic.now();
        let peer = self.peers.entry(from).or_default();
        match peer.into.on_message(round, sequence, place.is_some()) {
            Reception::Drop => {
                desk.counters.stale += 1;
                return;
            }
            Reception::Answer => {
                desk.counters.refused += 1;
                self.answer(desk, from);
                return;
            }
            Reception::Take => {}
        }
        if desk.config.flow == Flow::BackPressure {
            // The sender asks for no answer.
        } else if peer.into.unanswered() >= desk.config.merge {
            self.answer(desk, from);
        } else {
            let at = now + desk.config.merge_for;
            peer.answer_at.get_or_insert(at);
        }
        let position = place.expect("only what has room is taken");
        desk.counters.taken += 1;
        self.store(desk, Record { peer: from, length, position }, payload);
        self.tell(desk);
    }

    fn store(&mut self, desk: &mut Desk<'_, '_>, record: Record, payload: Payload<'_>) {
        let receiving = &mut self.receiving;
        receiving.ring.take(record.position, record.length);
        receiving.positions.push_back(record.position);
        let number = receiving.tail;
        receiving.tail += 1;
        let emitted = record.emit();
        let writes = [
            (self.geometry.receive_byte(record.position), payload),
            (self.geometry.receive_record(number), Payload::from(&emitted[..])),
        ];
        for (offset, bytes) in writes {
            if let Some(part) = self.memory.part(offset as u32, bytes.len() as u32) {
                // Memory that is gone: nobody will look at it.
                let _ = desk.nic.write(part, bytes);
            }
        }
    }
}
