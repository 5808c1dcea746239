//! What a context sends: the process's FIFO, and what its peers have answered.

use std::collections::VecDeque;

use midplane_nicvm::context::Context;
use midplane_nicvm::transmit::{self, Lane, Packet};
use midplane_simhw::hardware::Source;
use midplane_simhw::id::PortId;
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::Instant;

use super::{Desk, Endpoint, Local, MESSAGE_INSTRUCTIONS, Phase};
use crate::channel::ack::{Answer, Taken, Transmission};
use crate::channel::config::Flow;
use crate::channel::frame::{Body, Fields, PmFrame};
use crate::channel::geometry::{Record, SENT};
use crate::names::Rank;

#[derive(Debug, Default)]
pub(super) struct Sending {
    /// Messages ever put in by the process, as far as was looked.
    pub(super) tail: u64,
    /// The first whose room is not free.
    pub(super) freed: u64,
    /// From `freed` on, and whether each is taken.
    pub(super) records: VecDeque<(Record, bool)>,
}

impl Endpoint {
    pub(super) fn look_sent(&mut self, nic: &Context<'_>) {
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

    /// Transmits what may be, to one peer after the other.
    pub(crate) fn pump(&mut self, desk: &mut Desk<'_, '_>) {
        self.pump_at = None;
        match self.phase {
            Phase::Running => self.pump_messages(desk),
            Phase::Stopping => self.pump_fences(desk),
            Phase::Parked | Phase::Empty => return,
        }
        self.settle(desk);
    }

    fn pump_messages(&mut self, desk: &mut Desk<'_, '_>) {
        let (now, window) = (desk.nic.now(), desk.config.window);
        while let Some(to) = self.next_due(now, window) {
            if self.on_wire.is_some() {
                return;
            }
            if self.places[to.index()].node != desk.nic.node()
                && let Some(at) = self.line_full_until(desk.nic)
            {
                self.pump_at = Some(at);
                return;
            }
            self.last_served = to;
            let Some(peer) = self.peers.get_mut(&to) else { return };
            let next = peer.out.poll_transmit(now, &desk.config.patience, window, false);
            let Some(next) = next else { return };
            let taken = peer.into.take_along();
            peer.answer_at.take_if(|_| taken.is_some());
            self.transmit(desk, to, (next, taken));
        }
    }

    /// The next peer after the last that something may be sent to.
    fn next_due(&self, now: Instant, window: u32) -> Option<Rank> {
        let (next, last) = (Rank(self.last_served.0.wrapping_add(1)), self.last_served);
        let rest = if next > last { Some(self.peers.range(next..)) } else { None };
        let mut peers = rest.into_iter().flatten().chain(self.peers.range(..=last));
        peers.find(|(_, peer)| peer.out.due(now, window).is_some()).map(|(rank, _)| *rank)
    }

    /// Until when the line has enough to do: it is given no more than two of the longest messages ahead, one
    /// that leaves and one that is gathered. What was given to it leaves after a stop as well, and nobody takes it.
    fn line_full_until(&self, nic: &Context<'_>) -> Option<Instant> {
        let ahead = 2 * nic.frame_nanos(self.geometry.message as usize);
        let until = self.line_until.max(nic.line_free_at());
        let at = Instant::from_nanos(until.as_nanos().saturating_sub(ahead));
        (at > nic.now()).then_some(at)
    }

    fn pump_fences(&mut self, desk: &mut Desk<'_, '_>) {
        let (now, window) = (desk.nic.now(), desk.config.window);
        let mut fences = Vec::new();
        for (rank, peer) in &mut self.peers {
            let fence = peer.out.poll_transmit(now, &desk.config.patience, window, true);
            fences.extend(fence.map(|fence| (*rank, fence)));
        }
        for (to, fence) in fences {
            self.transmit(desk, to, (fence, None));
        }
    }

    fn transmit(
        &mut self,
        desk: &mut Desk<'_, '_>,
        to: Rank,
        (next, taken): (Transmission, Option<Taken>),
    ) {
        match next {
            Transmission::Message { round, sequence, slot } => {
                desk.counters.transmitted += 1;
                let at = (slot - self.sending.freed) as usize;
                let record = self.sending.records.get(at).map(|(record, _)| *record);
                let record = record.expect("what waits is in the buffer");
                let offset = self.geometry.send_byte(record.position) as u32;
                let part = self.memory.part(offset, record.length);
                self.send(desk, to, Body::Message { round, sequence, taken }, part);
                if desk.config.flow == Flow::BackPressure {
                    let expected = sequence.wrapping_add(1);
                    self.on_wire = Some((to, Taken { round, expected }));
                    if !self.is_queued {
                        self.on_left(desk);
                    }
                }
            }
            Transmission::Fence { round, sequence } => {
                desk.counters.fences += 1;
                self.send(desk, to, Body::Fence { round, sequence }, None);
            }
        }
    }

    pub(super) fn send(
        &mut self,
        desk: &mut Desk<'_, '_>,
        to: Rank,
        body: Body,
        bytes: Option<RegionRef>,
    ) {
        desk.nic.charge(MESSAGE_INSTRUCTIONS);
        let Some(place) = self.places.get(to.index()) else { return };
        let Self { job, epoch, .. } = *self;
        let frame = PmFrame { channel: place.channel, job, epoch, from: self.rank, to, body };
        if place.node == desk.nic.node() {
            let read = bytes.and_then(|bytes| desk.nic.read(bytes).ok());
            let bytes = read.map(|payload| payload.to_vec()).unwrap_or_default();
            desk.local.push_back(Local { frame, bytes });
            return;
        }
        let Fields { flags, sequence, acknowledgement, words } = frame.fields();
        let source = bytes.map_or(Source::Bytes(Payload::EMPTY), Source::Region);
        let packet = Packet {
            lane: Lane(self.channel.0),
            port: PortId(place.channel.0),
            flags,
            sequence,
            acknowledgement,
            words,
            source,
            token: (desk.config.flow == Flow::BackPressure).then_some(self.handle),
            ..Packet::to(place.node)
        };
        self.line_until = match desk.nic.send_packet(&packet) {
            Ok(transmit::Sending::Now(leaves)) => leaves,
            // Behind what waits already: nobody knows for how long.
            Ok(transmit::Sending::Queued) => {
                self.is_queued = packet.token.is_some();
                let bytes = bytes.map_or(0, |bytes| bytes.length as usize);
                let before = self.line_until.max(desk.nic.line_free_at()).max(desk.nic.now());
                before.plus_nanos(desk.nic.frame_nanos(bytes))
            }
            // Memory that is gone loses its message: the controller has closed it under its process.
            Err(_) => return,
        };
    }

    /// With back-pressure alone: the message on the wire has left its memory, and is taken some time.
    pub(crate) fn on_left(&mut self, desk: &mut Desk<'_, '_>) {
        self.is_queued = false;
        if let Some((to, taken)) = self.on_wire.take() {
            self.on_answer(desk, to, taken.answer());
        }
    }

    pub(super) fn on_answer(&mut self, desk: &mut Desk<'_, '_>, from: Rank, answer: Answer) {
        let now = desk.nic.now();
        let Some(peer) = self.peers.get_mut(&from) else {
            desk.counters.foreign += 1;
            return;
        };
        let mut freed = Vec::new();
        if !peer.out.on_answer(now, &desk.config.patience, answer, &mut freed) {
            desk.counters.foreign += 1;
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
            self.tell(desk);
        }
    }
}
