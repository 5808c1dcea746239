//! The wires to one process, as a state machine: it decides which wire carries packets, and counts them.
//!
//! The sender controls each direction. It asks the receiver to accept packets from one wire only (`Begin`). The answer
//! (`Go`) states how many packets have arrived: the sender repeats those that have not.
//!
//! Identities distinguish processes with the same number, and also the times before and after a loss: a process that
//! has lost the other takes a higher identity. Packets of a lower identity than was seen before are refused, because
//! wires differ in how late packets of an ended process arrive. If a process's identity is too low, for example since
//! its clock was set back, the process is refused and takes a higher one.

mod posting;

use std::collections::VecDeque;

use super::control::{Control, Operation};
use crate::message::carrier::{Event, Refusal};
use crate::message::envelope::{Envelope, Peer};

/// Most bytes of packets, each with [`OVERHEAD`], that are stored until the receiver has acknowledged them.
pub(super) const KEPT: usize = if cfg!(test) { 1 << 10 } else { 1 << 20 };
/// Bytes that a stored packet counts in addition to its payload.
const OVERHEAD: usize = 64;
/// Bytes of packets, each with [`OVERHEAD`], after which the receiver acknowledges them.
const REPORT: usize = KEPT / 8;
/// Most free buffers kept for stored packets.
const MAX_SPARE: usize = 64;

/// The state of a wire to the process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wire {
    /// The wire does not reach the process, or no longer.
    Absent,
    /// The wire may reach the process: a probe is sent.
    Trying,
    /// The wire reaches the process.
    Up,
}

#[derive(Debug)]
struct Line {
    state: Wire,
    /// True if the wire reaches only processes of this host, and loses a process only after it has ended.
    is_local: bool,
    /// True once the current process has sent a control packet on this wire.
    is_heard: bool,
    owes_probe: bool,
    owes_seen: bool,
    /// An outdated identity to which a `Refused` is to be sent.
    owes_refusal: Option<u64>,
}

impl Line {
    const fn has_work(&self) -> bool {
        self.owes_probe || self.owes_seen || self.owes_refusal.is_some()
    }
}

/// The direction from this process to the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Out {
    /// There is no wire.
    Idle,
    /// The receiver is asked to accept packets from this wire only; `is_posted`: the `Begin` was posted.
    Asked { wire: usize, is_posted: bool },
    /// The wire carries packets.
    Open(usize),
}

/// A packet that the receiver has not acknowledged.
#[derive(Debug)]
struct Kept {
    envelope: Envelope,
    payload: Vec<u8>,
}

/// Posts a packet on the wire with that number.
pub(super) type Post<'a> = dyn FnMut(usize, &Envelope, &[u8]) -> Result<(), Refusal> + 'a;

/// The wires to one process.
#[derive(Debug)]
pub(super) struct PeerWires {
    own: Peer,
    peer: Peer,
    /// This process's identity towards the other.
    identity: u64,
    /// The other process's identity; `None` if it is unknown.
    known: Option<u64>,
    /// True once the other process has shown that it knows `identity`.
    is_met: bool,
    /// Packets of identities up to this one are refused.
    floor: u64,
    /// True if the process was lost, and its loss reported.
    is_lost: bool,
    host: u64,
    /// True once the other process is known to run on this host.
    pub(super) is_here: bool,
    lines: Vec<Line>,
    /// True if packets are stored until they are acknowledged.
    keeps: bool,

    out: Out,
    epoch: u32,
    sent: u64,
    /// Stored packets: those after the first `acknowledged` ones.
    kept: VecDeque<Kept>,
    acknowledged: u64,
    kept_bytes: usize,
    /// Number of packets of `kept` that the current wire has carried, or does not have to carry.
    carried: usize,
    spare: Vec<Vec<u8>>,

    from: Option<usize>,
    from_epoch: u32,
    received: u64,
    /// Bytes received since the last acknowledgement.
    unreported: usize,
    owes_go: bool,
    owes_taken: bool,
    leaves: bool,
}

impl PeerWires {
    /// Makes the state of the wires to a process. `local` has an entry for each wire: `true` if it is local.
    pub(super) fn new((own, peer): (Peer, Peer), identity: u64, host: u64, local: &[bool]) -> Self {
        let line = |is_local: &bool| Line {
            state: Wire::Absent,
            is_local: *is_local,
            is_heard: false,
            owes_probe: false,
            owes_seen: false,
            owes_refusal: None,
        };
        Self {
            own,
            peer,
            identity,
            known: None,
            is_met: false,
            floor: 0,
            is_lost: false,
            host,
            is_here: false,
            lines: local.iter().map(line).collect(),
            keeps: local.contains(&false),
            out: Out::Idle,
            epoch: 0,
            sent: 0,
            kept: VecDeque::new(),
            acknowledged: 0,
            kept_bytes: 0,
            carried: 0,
            spare: Vec::new(),
            from: None,
            from_epoch: 0,
            received: 0,
            unreported: 0,
            owes_go: false,
            owes_taken: false,
            leaves: false,
        }
    }

    /// Tries a wire: it may reach the process now.
    pub(super) fn on_reachable(&mut self, wire: usize) {
        self.set(wire, Wire::Trying);
        self.decide();
    }

    /// Tries a local wire once the process is known to run on this host.
    pub(super) fn on_found(&mut self, wire: usize) {
        if self.lines[wire].state == Wire::Absent {
            self.on_reachable(wire);
        }
    }

    /// Handles the loss of a wire that may work again.
    pub(super) fn on_broken(&mut self, wire: usize) {
        if self.lines[wire].state != Wire::Absent {
            self.on_reachable(wire);
        }
    }

    /// Handles the loss of the process on a wire, which is then absent until [`on_reachable`](Self::on_reachable).
    pub(super) fn on_lost(&mut self, wire: usize, news: &mut VecDeque<Event<'static>>) {
        let has_ended = self.lines[wire].is_local && self.lines[wire].state == Wire::Up;
        self.set(wire, Wire::Absent);
        let may_be_reached = self.lines.iter().any(|line| match line.state {
            Wire::Up => true,
            // A local wire may never reach it.
            Wire::Trying => !line.is_local || line.is_heard,
            Wire::Absent => false,
        });
        if has_ended || !may_be_reached {
            self.lose(news);
        } else {
            self.decide();
        }
    }

    /// Resets a wire to a state: packets in flight on it are lost.
    fn set(&mut self, wire: usize, state: Wire) {
        let line = &mut self.lines[wire];
        (line.state, line.owes_probe, line.owes_seen) = (state, state == Wire::Trying, false);
        (line.is_heard, line.owes_refusal) = (false, None);
        if self.from == Some(wire) {
            self.owes_go = false;
        }
    }

    /// Reports the process as lost, and drops all packets stored for it.
    fn lose(&mut self, news: &mut VecDeque<Event<'static>>) {
        if !std::mem::replace(&mut self.is_lost, true) {
            news.push_back(Event::Lost(self.peer));
            self.renew(self.identity + 1, None);
            self.retry();
        }
    }

    /// Probes again the wires that worked: the other process may have a new identity.
    fn retry(&mut self) {
        for line in self.lines.iter_mut().filter(|line| line.state != Wire::Absent) {
            (line.state, line.is_heard, line.owes_probe) = (Wire::Trying, false, true);
        }
    }

    /// Takes the identity `own` towards the other process, and resets all state of both directions. `known` is the
    /// other process's identity.
    fn renew(&mut self, own: u64, known: Option<u64>) {
        if let Some(former) = std::mem::replace(&mut self.known, known)
            && known != Some(former)
        {
            self.floor = self.floor.max(former);
        }
        self.identity = own;
        (self.is_met, self.is_here) = (false, false);
        (self.out, self.sent, self.acknowledged, self.carried) = (Out::Idle, 0, 0, 0);
        self.kept.clear();
        self.kept_bytes = 0;
        (self.from, self.from_epoch, self.received, self.unreported) = (None, 0, 0, 0);
        (self.owes_go, self.owes_taken) = (false, false);
    }

    /// Handles the other process's end, or its loss of this one, after which both take new identities.
    fn restart(&mut self, own: u64, known: Option<u64>, news: &mut VecDeque<Event<'static>>) {
        if self.is_met && !std::mem::replace(&mut self.is_lost, true) {
            news.push_back(Event::Restarted(self.peer));
        }
        self.renew(own, known);
        self.retry();
    }

    /// Records the sender's identity, and starts anew if that has changed.
    fn learn(&mut self, control: &Control, news: &mut VecDeque<Event<'static>>) {
        if self.known != Some(control.from) {
            if self.is_met {
                self.restart(self.identity + 1, Some(control.from), news);
            }
            self.known = Some(control.from);
            // Answers of a former identity to probes were refused.
            self.retry();
        }
        let meets = control.to == self.identity && !std::mem::replace(&mut self.is_met, true);
        if meets && std::mem::take(&mut self.is_lost) {
            news.push_back(Event::Returned(self.peer));
        }
    }

    /// Handles a control packet.
    pub(super) fn on_control(
        &mut self,
        wire: usize,
        control: &Control,
        news: &mut VecDeque<Event<'static>>,
    ) {
        if control.operation == Operation::Refused {
            if control.to == self.identity {
                let own = self.identity.max(control.count) + 1;
                let known = Some(control.from).filter(|from| *from > self.floor).or(self.known);
                self.restart(own, known, news);
            }
            return;
        }
        if control.from <= self.floor || self.known.is_some_and(|known| control.from < known) {
            self.lines[wire].owes_refusal = Some(control.from);
            return;
        }
        self.learn(control, news);
        let line = &mut self.lines[wire];
        if line.state == Wire::Absent {
            // The process uses a wire that was not known to reach it.
            (line.state, line.owes_probe) = (Wire::Trying, true);
        }
        line.is_heard = true;
        let is_meant = control.to == self.identity;
        match control.operation {
            Operation::Probe => {
                line.owes_seen = true;
                self.meet(control.host);
            }
            Operation::Seen if is_meant => {
                line.state = Wire::Up;
                self.meet(control.host);
            }
            Operation::Begin if is_meant => {
                if control.epoch > self.from_epoch {
                    (self.from, self.from_epoch) = (Some(wire), control.epoch);
                    self.owes_go = true;
                }
            }
            Operation::Go if is_meant => self.on_go(control, news),
            Operation::Taken if is_meant => self.on_taken(control.count, news),
            Operation::Leave if is_meant => {
                (0..self.lines.len()).for_each(|wire| self.set(wire, Wire::Absent));
                self.lose(news);
            }
            // The packet was meant for a former identity: the answer to a probe reports the current one.
            _ => line.owes_seen = true,
        }
        self.decide();
    }

    fn meet(&mut self, host: u64) {
        self.is_here = host != 0 && host == self.host;
    }

    fn on_go(&mut self, control: &Control, news: &mut VecDeque<Event<'static>>) {
        let Out::Asked { wire, is_posted: true } = self.out else { return };
        if control.epoch != self.epoch {
            return;
        }
        if control.count < self.acknowledged {
            // The process lacks packets that are no longer stored, because it or a local wire has acknowledged them.
            self.lose(news);
            return;
        }
        self.on_taken(control.count, news);
        if self.known.is_some() {
            self.out = Out::Open(wire);
            self.carried = 0;
        }
    }

    /// Handles the report that the receiver has the first `count` packets.
    fn on_taken(&mut self, count: u64, news: &mut VecDeque<Event<'static>>) {
        if count > self.sent {
            // The process claims packets that were never sent, so it can't be trusted.
            self.lose(news);
            return;
        }
        while self.acknowledged < count {
            self.carried = self.carried.saturating_sub(1);
            self.acknowledge_next();
        }
    }

    /// Counts the next packet as acknowledged, and drops it if it is stored.
    fn acknowledge_next(&mut self) {
        self.acknowledged += 1;
        let Some(kept) = self.kept.pop_front() else { return };
        self.kept_bytes -= kept.payload.len() + OVERHEAD;
        if self.spare.len() < MAX_SPARE {
            self.spare.push(kept.payload);
        }
    }

    /// Chooses the first wire that works, and asks the receiver to accept packets from it.
    fn decide(&mut self) {
        let is_up = |wire: usize| self.lines[wire].state == Wire::Up;
        let best = (0..self.lines.len()).find(|wire| is_up(*wire));
        let Some(best) = best.filter(|_| self.is_met) else {
            self.out = Out::Idle;
            return;
        };
        if matches!(self.out, Out::Open(wire) | Out::Asked { wire, .. } if wire == best) {
            return;
        }
        self.epoch = self.epoch.wrapping_add(1).max(1);
        self.out = Out::Asked { wire: best, is_posted: false };
    }

    /// Handles a packet that is no control packet; returns whether it is the next one of the process.
    #[inline]
    pub(super) fn on_packet(&mut self, wire: usize, bytes: usize) -> bool {
        if self.from != Some(wire) {
            return false;
        }
        self.received += 1;
        self.unreported += bytes + OVERHEAD;
        if self.unreported >= REPORT {
            self.owes_taken = self.keeps;
            self.unreported = 0;
        }
        true
    }

    /// Posts a packet on the wire that carries packets now.
    #[inline]
    pub(super) fn post(
        &mut self,
        envelope: &Envelope,
        payload: &[u8],
        post: &mut Post<'_>,
    ) -> Result<(), Refusal> {
        let Out::Open(wire) = self.out else {
            return Err(if self.is_lost { Refusal::Lost } else { Refusal::Full });
        };
        let is_kept = self.keeps_on(wire);
        let size = payload.len() + OVERHEAD;
        if self.is_repeating() || is_kept && self.kept_bytes + size > KEPT {
            return Err(Refusal::Full);
        }
        match post(wire, envelope, payload) {
            // The carrier reports the loss with its next events.
            Err(Refusal::Lost) => return Err(Refusal::Full),
            posted => posted?,
        }
        self.sent += 1;
        if is_kept {
            let mut copy = self.spare.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(payload);
            self.kept.push_back(Kept { envelope: *envelope, payload: copy });
            self.kept_bytes += size;
            self.carried += 1;
        } else {
            self.acknowledged += 1;
        }
        Ok(())
    }

    /// Returns the wire that carries packets to the process now.
    pub(super) const fn open(&self) -> Option<usize> {
        match self.out {
            Out::Open(wire) => Some(wire),
            Out::Idle | Out::Asked { .. } => None,
        }
    }

    /// Returns whether packets on that wire are stored until they are acknowledged.
    fn keeps_on(&self, wire: usize) -> bool {
        self.keeps && !self.lines[wire].is_local
    }
}
