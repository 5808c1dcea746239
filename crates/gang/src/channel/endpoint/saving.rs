//! Saves and restores the NIC's part of a context.

use std::collections::BTreeMap;

use midplane_nicvm::context::Context;

use super::super::ack::{Inbound, Outbound};
use super::super::command::{NicState, PeerState};
use super::super::geometry::CONSUMED;
use super::{Endpoint, Peer, Phase, Receiving, Sending};
use crate::names::Rank;

impl Endpoint {
    /// Returns the NIC's part of the context. It does not change while the context is parked, because a peer that is
    /// refused for the first time is not recorded.
    pub(crate) fn save(&self) -> NicState {
        let known = self.peers.iter().filter(|(_, peer)| peer.is_known());
        let peers = known.map(|(rank, Peer { out, into, .. })| {
            let waiting: Vec<u64> = out.waiting().collect();
            let (acked, next) = (out.acked(), out.acked().wrapping_add(waiting.len() as u32));
            let (expected, refusals) = (into.expected(), out.refusals());
            (PeerState { rank: *rank, acked, next, expected, refusals }, waiting)
        });
        NicState {
            rank: self.rank,
            sent: self.sending.tail,
            freed: self.sending.freed,
            received: self.receiving.tail,
            receive_tail: self.receiving.ring.tail,
            peers: peers.collect(),
        }
    }

    /// Drops the context's state, except the round-trip times.
    pub(crate) fn forget(&mut self) {
        self.phase = Phase::Empty;
        self.sending = Sending::default();
        self.receiving = Receiving::default();
        for (rank, peer) in &self.peers {
            if let Some(round_trip) = peer.out.round_trip() {
                self.round_trips.insert(*rank, round_trip);
            }
        }
        self.peers.clear();
    }

    /// Restores a saved state, after the FIFOs' memory. Returns `false` if the two are inconsistent.
    pub(crate) fn restore(&mut self, nic: &Context<'_>, state: &NicState) -> bool {
        if !matches!(self.phase, Phase::Empty | Phase::Parked) || state.rank != self.rank {
            return false;
        }
        let restored = self.read_fifos(nic, state);
        let Some((sending, receiving, peers)) = restored else { return false };
        (self.sending, self.receiving, self.peers) = (sending, receiving, peers);
        self.is_broken = false;
        self.phase = Phase::Parked;
        true
    }

    fn read_fifos(
        &self,
        nic: &Context<'_>,
        state: &NicState,
    ) -> Option<(Sending, Receiving, BTreeMap<Rank, Peer>)> {
        let (send, receive) = (self.geometry.send, self.geometry.receive);
        let head = self.word(nic, CONSUMED)?;
        let held = state.received.checked_sub(head)?;
        let unsent = state.sent.checked_sub(state.freed)?;
        if held > receive.messages.into() || unsent > send.messages.into() {
            return None;
        }
        let mut sending = Sending { tail: state.sent, freed: state.freed, ..Sending::default() };
        for number in state.freed..state.sent {
            let record = self.record(nic, self.geometry.send_record(number))?;
            if !self.is_sendable(&record) {
                return None;
            }
            sending.records.push_back((record, true));
        }
        let mut peers = BTreeMap::new();
        for (peer, waiting) in &state.peers {
            for &number in waiting {
                let at = usize::try_from(number.checked_sub(state.freed)?).ok()?;
                let (record, taken) = sending.records.get_mut(at)?;
                if record.peer != peer.rank || !std::mem::replace(taken, false) {
                    return None;
                }
            }
            let out = Outbound::resumed(peer.acked, waiting.iter().copied().collect());
            let into = Inbound::resumed(peer.expected);
            peers.insert(peer.rank, Peer { out, into, answer_at: None });
        }
        let mut receiving = Receiving { tail: state.received, head, ..Receiving::default() };
        for number in head..state.received {
            let record = self.record(nic, self.geometry.receive_record(number))?;
            receiving.positions.push_back(record.position);
        }
        receiving.ring.tail = state.receive_tail;
        receiving.ring.release(receiving.positions.front().copied());
        Some((sending, receiving, peers))
    }
}
