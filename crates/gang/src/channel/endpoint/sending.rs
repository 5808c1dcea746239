//! Sends messages from the process's FIFO, and handles the peers' answers.

use std::collections::VecDeque;

use midplane_nicvm::context::Context;
use midplane_nicvm::transmit::{self, FlowId, Packet};
use midplane_simhw::frame::Header;
use midplane_simhw::hardware::Source;
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::Instant;

use super::{Endpoint, MESSAGE_INSTRUCTIONS, Phase, Shared};
use crate::channel::ack::{Answer, PiggybackedAck, Transmission};
use crate::channel::config::WINDOW;
use crate::channel::frame::{Body, PmFrame};
use crate::channel::geometry::{Record, SENT};
use crate::names::Rank;

/// The NIC's view of the send FIFO.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// Number of messages ever put in by the process, when last read.
    pub(super) tail: u64,
    /// Number of the oldest message that still occupies the FIFO.
    pub(super) freed: u64,
    /// Records of the messages from `freed` on, each with whether the message is accepted.
    pub(super) records: VecDeque<(Record, bool)>,
}

impl Endpoint {
    pub(super) fn read_sent(&mut self, nic: &Context<'_>) {
        let Some(sent) = self.word(nic, SENT).filter(|_| !self.is_broken) else { return };
        let room = u64::from(self.geometry.send.messages);
        if sent.wrapping_sub(self.sending.freed) > room || sent < self.sending.tail {
            self.is_broken = true;
            return;
        }
        while self.sending.tail < sent {
            let number = self.sending.tail;
            let record = self.record(nic, self.geometry.send_record(number));
            let Some(record) = record.filter(|record| self.is_sendable(record)) else {
                self.is_broken = true;
                return;
            };
            self.sending.records.push_back((record, false));
            self.sending.tail += 1;
            self.peers.entry(record.peer).or_default().out.push(number);
        }
    }

    pub(super) fn is_sendable(&self, record: &Record) -> bool {
        let size = u64::from(self.geometry.send.bytes);
        record.length <= self.geometry.message
            && record.position % size + u64::from(record.length) <= size
            && record.peer.index() < self.places.len()
    }

    /// Sends all messages that may be sent now, to the peers in turn.
    pub(crate) fn pump(&mut self, shared: &mut Shared<'_, '_>) {
        self.pump_at = None;
        match self.phase {
            Phase::Running => self.pump_messages(shared),
            Phase::Stopping => self.pump_fences(shared),
            Phase::Parked | Phase::Empty => return,
        }
        self.settle(shared);
    }

    fn pump_messages(&mut self, shared: &mut Shared<'_, '_>) {
        let now = shared.nic.now();
        while let Some(to) = self.next_due(now) {
            if self.places[to.index()].node != shared.nic.node()
                && let Some(at) = self.line_full_until(shared.nic)
            {
                self.pump_at = Some(at);
                return;
            }
            self.last_served = to;
            let Some(peer) = self.peers.get_mut(&to) else { return };
            let next = peer.out.poll_transmit(now, WINDOW, false);
            let Some(next) = next else { return };
            let taken = peer.into.piggyback();
            peer.answer_at.take_if(|_| taken.is_some());
            self.transmit(shared, to, (next, taken));
        }
    }

    /// Returns the next peer, after the last one served, to which a message may be sent.
    fn next_due(&self, now: Instant) -> Option<Rank> {
        let (next, last) = (Rank(self.last_served.0.wrapping_add(1)), self.last_served);
        let rest = if next > last { Some(self.peers.range(next..)) } else { None };
        let mut peers = rest.into_iter().flatten().chain(self.peers.range(..=last));
        peers.find(|(_, peer)| peer.out.due(now, WINDOW).is_some()).map(|(rank, _)| *rank)
    }

    /// Returns when the link has room again; `None` if it has room now. At most two of the longest messages are given
    /// to the link ahead: one is sent while the next is read. After a stop, these are still sent, and are then
    /// refused.
    fn line_full_until(&self, nic: &Context<'_>) -> Option<Instant> {
        let ahead = 2 * nic.frame_nanos(self.geometry.message as usize);
        let until = self.line_until.max(nic.line_free_at());
        let at = Instant::from_nanos(until.as_nanos().saturating_sub(ahead));
        (at > nic.now()).then_some(at)
    }

    fn pump_fences(&mut self, shared: &mut Shared<'_, '_>) {
        let now = shared.nic.now();
        let mut fences = Vec::new();
        for (rank, peer) in &mut self.peers {
            let fence = peer.out.poll_transmit(now, WINDOW, true);
            fences.extend(fence.map(|fence| (*rank, fence)));
        }
        for (to, fence) in fences {
            self.transmit(shared, to, (fence, None));
        }
    }

    fn transmit(
        &mut self,
        shared: &mut Shared<'_, '_>,
        to: Rank,
        (next, taken): (Transmission, Option<PiggybackedAck>),
    ) {
        match next {
            Transmission::Message { round, sequence, slot } => {
                shared.counters.transmitted += 1;
                let at = (slot - self.sending.freed) as usize;
                let record = self.sending.records.get(at).map(|(record, _)| *record);
                let record = record.expect("a message that waits has a record");
                let offset = self.geometry.send_byte(record.position) as u32;
                let part = self.memory.part(offset, record.length);
                self.send(shared, to, Body::Message { round, sequence, taken }, part);
            }
            Transmission::Fence { round, sequence } => {
                shared.counters.fences += 1;
                self.send(shared, to, Body::Fence { round, sequence }, None);
            }
        }
    }

    pub(super) fn send(
        &mut self,
        shared: &mut Shared<'_, '_>,
        to: Rank,
        body: Body,
        bytes: Option<RegionRef>,
    ) {
        shared.nic.charge(MESSAGE_INSTRUCTIONS);
        let Self { job, epoch, channel, .. } = *self;
        let frame = PmFrame { channel, job, epoch, from: self.rank, to, body };
        self.line_until = match self.deliver(shared, frame, bytes) {
            Some(transmit::Sending::Now(leaves)) => leaves,
            // The packet is queued behind others, so the time at which it leaves is an estimate.
            Some(transmit::Sending::Queued) => {
                let bytes = bytes.map_or(0, |bytes| bytes.length as usize);
                let before = self.line_until.max(shared.nic.line_free_at()).max(shared.nic.now());
                before.plus_nanos(shared.nic.frame_nanos(bytes))
            }
            None => return,
        };
    }

    /// Gives a frame to the node of its receiving rank. Returns when the frame leaves, if it uses the link.
    pub(super) fn deliver(
        &self,
        shared: &mut Shared<'_, '_>,
        frame: PmFrame,
        bytes: Option<RegionRef>,
    ) -> Option<transmit::Sending> {
        let place = self.places.get(frame.to.index())?;
        let frame = PmFrame { channel: place.channel, ..frame };
        if place.node == shared.nic.node() {
            let read = bytes.and_then(|bytes| shared.nic.read(bytes).ok());
            let bytes = read.map(|payload| payload.to_vec()).unwrap_or_default();
            shared.local.push_back((frame, bytes));
            return None;
        }
        let Header { port, flags, sequence, acknowledgement, words, .. } = frame.header();
        let packet = Packet {
            flow: FlowId(self.channel.0),
            port,
            flags,
            sequence,
            acknowledgement,
            words,
            source: bytes.map_or(Source::Bytes(Payload::EMPTY), Source::Region),
            ..Packet::to(place.node)
        };
        // If the memory was deregistered, the controller has already closed the context.
        shared.nic.send_packet(&packet).ok()
    }

    pub(super) fn on_answer(&mut self, shared: &mut Shared<'_, '_>, from: Rank, answer: Answer) {
        let now = shared.nic.now();
        let Some(peer) = self.peers.get_mut(&from) else {
            shared.counters.foreign += 1;
            return;
        };
        let mut freed = Vec::new();
        if !peer.out.on_answer(now, answer, &mut freed) {
            shared.counters.foreign += 1;
            return;
        }
        if !answer.refused {
            peer.out.on_room();
        }
        let sending = &mut self.sending;
        for number in freed {
            if let Some((_, taken)) = sending.records.get_mut((number - sending.freed) as usize) {
                *taken = true;
            }
        }
        let before = sending.freed;
        while sending.records.front().is_some_and(|(_, taken)| *taken) {
            sending.records.pop_front();
            sending.freed += 1;
        }
        if sending.freed != before {
            self.complete_wait(shared);
        }
    }
}
