//! A carrier whose connections a test cuts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use midplane_simhw::region::Payload;

use crate::message::carrier::{Carrier, Event, Refusal};
use crate::message::envelope::{Envelope, Peer};
use crate::message::transport::InitError;

/// Packets that a queue of the test's carrier holds.
pub(super) const DEPTH: usize = 5;

#[derive(Clone, Debug)]
pub(super) enum Item {
    Packet(Envelope, Vec<u8>),
    Lost,
    Broken,
    Returned,
}

/// The queues of one carrier: the queue from sender `s` to receiver `r` is at `s * processes + r`.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) processes: usize,
    pub(super) queues: Vec<VecDeque<Item>>,
    /// For each queue, false while the carrier carries nothing over it.
    pub(super) works: Vec<bool>,
}

impl Net {
    pub(super) fn at(&self, from: usize, to: usize) -> usize {
        from * self.processes + to
    }

    /// Drops the packets in flight between two processes, and reports `item` to both.
    pub(super) fn cut(&mut self, one: usize, other: usize, item: &Item) {
        for (from, to) in [(one, other), (other, one)] {
            let at = self.at(from, to);
            self.works[at] = false;
            self.queues[at].clear();
            self.queues[at].push_back(item.clone());
        }
    }

    pub(super) fn repair(&mut self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            let at = self.at(from, to);
            if !std::mem::replace(&mut self.works[at], true) {
                self.queues[at].push_back(Item::Returned);
            }
        }
    }
}

/// A carrier whose connections a test cuts.
#[derive(Debug)]
pub(super) struct Cut {
    own: usize,
    net: Arc<Mutex<Net>>,
    is_local: bool,
    turn: usize,
    current: Vec<u8>,
}

impl Cut {
    pub(super) const fn new(own: usize, net: Arc<Mutex<Net>>, is_local: bool) -> Self {
        Self { own, net, is_local, turn: 0, current: Vec::new() }
    }
}

impl Carrier for Cut {
    fn own(&self) -> Peer {
        Peer(self.own as u32)
    }

    fn connect(&mut self, _: &[Peer]) -> Result<(), InitError> {
        Ok(())
    }

    fn is_local(&self) -> bool {
        self.is_local
    }

    fn room(&self) -> usize {
        64
    }

    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        let mut net = self.net.lock().unwrap();
        let at = net.at(self.own, to.0 as usize);
        let is_loss = |item: &Item| matches!(item, Item::Lost | Item::Broken);
        let inbox = net.at(to.0 as usize, self.own);
        if !net.works[at] || net.queues[inbox].iter().any(is_loss) {
            return Err(Refusal::Lost);
        }
        if net.queues[at].len() >= DEPTH {
            return Err(Refusal::Full);
        }
        net.queues[at].push_back(Item::Packet(*envelope, payload.to_vec()));
        Ok(())
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        let mut net = self.net.lock().unwrap();
        for _ in 0..net.processes {
            self.turn = (self.turn + 1) % net.processes;
            let (at, peer) = (net.at(self.turn, self.own), Peer(self.turn as u32));
            match net.queues[at].pop_front() {
                None => {}
                Some(Item::Packet(envelope, payload)) => {
                    self.current = payload;
                    let payload = Payload::from(&self.current[..]);
                    return Some(Event::Packet { from: peer, envelope, payload });
                }
                Some(Item::Lost) => return Some(Event::Lost(peer)),
                Some(Item::Broken) => return Some(Event::Broken(peer)),
                Some(Item::Returned) => return Some(Event::Returned(peer)),
            }
        }
        None
    }

    fn arm_wakeup(&mut self, _: &Waker) -> bool {
        true
    }

    fn close(&mut self) {}
}
