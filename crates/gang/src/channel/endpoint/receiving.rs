//! Receives messages: allocates space in the receive FIFO, and answers the peers.

use std::collections::VecDeque;

use midplane_nicvm::context::Context;
use midplane_simhw::region::Payload;

use super::{Endpoint, MESSAGE_INSTRUCTIONS, Phase, Shared};
use crate::channel::ack::{Answer, ReceiveDecision};
use crate::channel::config::{MERGE, MERGE_FOR};
use crate::channel::frame::{Body, PmFrame};
use crate::channel::geometry::{ByteRing, CONSUMED, Record};
use crate::names::Rank;

/// The NIC's view of the receive FIFO.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    pub(super) tail: u64,
    /// Number of messages ever consumed by the process, when last read.
    pub(super) head: u64,
    pub(super) ring: ByteRing,
    pub(super) positions: VecDeque<u64>,
}

impl Endpoint {
    pub(super) fn read_consumed(&mut self, nic: &Context<'_>) {
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

    /// Returns the position for a message of `length` bytes; `None` if there is no room.
    fn room(&self, length: u32) -> Option<u64> {
        let size = self.geometry.receive;
        let held = self.receiving.tail - self.receiving.head;
        let place = self.receiving.ring.place(size.bytes, length);
        place.filter(|_| held < u64::from(size.messages))
    }

    /// Notifies refused peers if there is room.
    pub(super) fn offer_room(&mut self, shared: &mut Shared<'_, '_>) {
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
            self.answer(shared, rank);
        }
    }

    pub(super) fn answer(&mut self, shared: &mut Shared<'_, '_>, to: Rank) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        peer.answer_at = None;
        if let Some(answer) = peer.into.answer() {
            shared.counters.answers += 1;
            self.send(shared, to, Body::Answer(answer), None);
        }
    }

    /// Refuses a frame because this rank has not started in the frame's epoch, or no longer runs in it. After the loss of
    /// a root, hosts may resume a job one after another: a sender in the earlier epoch must become steady as well.
    pub(super) fn refuse_other(&mut self, shared: &mut Shared<'_, '_>, frame: &PmFrame) {
        let (round, seen) = match frame.body {
            Body::Message { round, sequence, .. } => (round, sequence.wrapping_add(1)),
            Body::Fence { round, sequence } => (round, sequence),
            Body::Answer(_) => return,
        };
        shared.counters.refused += 1;
        let is_over = self.phase != Phase::Empty && self.epoch.is_newer_than(frame.epoch);
        if !is_over {
            self.early.insert(frame.from, (frame.epoch, round));
        }
        // Messages are numbered across epochs.
        let known = self.peers.get(&frame.from).filter(|_| is_over);
        let expected = known.map(|peer| peer.into.expected());
        let answer = Answer { round, expected, seen, refused: true };
        let body = Body::Answer(answer);
        let away = PmFrame { from: frame.to, to: frame.from, body, ..*frame };
        let _ = self.deliver(shared, away, None);
    }

    pub(super) fn on_message(
        &mut self,
        shared: &mut Shared<'_, '_>,
        from: Rank,
        (round, sequence): (u16, u32),
        payload: Payload<'_>,
    ) {
        shared.nic.charge(MESSAGE_INSTRUCTIONS);
        let length = payload.len() as u32;
        let mut place = self.room(length);
        if place.is_none() {
            self.read_consumed(shared.nic);
            place = self.room(length);
        }
        let place = place.filter(|_| self.phase == Phase::Running);
        let now = shared.nic.now();
        let peer = self.peers.entry(from).or_default();
        match peer.into.on_message(round, sequence, place.is_some()) {
            ReceiveDecision::Drop => {
                shared.counters.stale += 1;
                return;
            }
            ReceiveDecision::Answer => {
                shared.counters.refused += 1;
                self.answer(shared, from);
                return;
            }
            ReceiveDecision::Accept => {}
        }
        if peer.into.unanswered() >= MERGE {
            self.answer(shared, from);
        } else {
            let at = now + MERGE_FOR;
            peer.answer_at.get_or_insert(at);
        }
        let position = place.expect("a message is accepted only if there is room");
        shared.counters.taken += 1;
        self.store(shared, Record { peer: from, length, position }, payload);
        self.complete_wait(shared);
    }

    fn store(&mut self, shared: &mut Shared<'_, '_>, record: Record, payload: Payload<'_>) {
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
                // If the memory was deregistered, no process reads the message any longer.
                let _ = shared.nic.write(part, bytes);
            }
        }
    }
}
