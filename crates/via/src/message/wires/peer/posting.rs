//! The packets that the wires themselves post: control packets, and stored packets that a former wire may have lost.

use super::{Line, Out, PeerWires, Post};
use crate::message::wires::control::{BYTES, Control, Operation};

impl PeerWires {
    /// Makes [`pump`](Self::pump) notify the process that this one leaves.
    pub(in crate::message::wires) fn leave(&mut self) {
        self.leaves = true;
    }

    /// Returns whether stored packets wait to be posted again; further packets are refused meanwhile.
    pub(in crate::message::wires) fn is_repeating(&self) -> bool {
        self.carried < self.kept.len()
    }

    /// Returns whether [`pump`](Self::pump) has packets to post.
    pub(in crate::message::wires) fn has_work(&self) -> bool {
        let is_asking = matches!(self.out, Out::Asked { is_posted: false, .. });
        is_asking
            || self.owes_go
            || self.owes_taken
            || self.leaves
            || self.is_repeating() && matches!(self.out, Out::Open(_))
            || self.lines.iter().any(Line::has_work)
    }

    /// Posts the control packets and repeated packets that wait, as far as the wires have room.
    pub(in crate::message::wires) fn pump(&mut self, post: &mut Post<'_>) {
        for wire in 0..self.lines.len() {
            if let Some(refused) = self.lines[wire].owes_refusal
                && self.send_control_to(refused, Operation::Refused, wire, post)
            {
                self.lines[wire].owes_refusal = None;
            }
            if self.lines[wire].owes_probe {
                self.lines[wire].owes_probe = !self.send_control(Operation::Probe, wire, post);
            }
            if self.lines[wire].owes_seen {
                self.lines[wire].owes_seen = !self.send_control(Operation::Seen, wire, post);
            }
        }
        if let Some(wire) = self.from {
            self.owes_go = self.owes_go && !self.send_control(Operation::Go, wire, post);
            self.owes_taken = self.owes_taken && !self.send_control(Operation::Taken, wire, post);
        }
        if let Out::Asked { wire, is_posted: false } = self.out {
            let is_posted = self.send_control(Operation::Begin, wire, post);
            self.out = Out::Asked { wire, is_posted };
        }
        self.repeat(post);
        self.leaves = match self.out {
            Out::Open(wire) if self.leaves => {
                self.is_repeating() || !self.send_control(Operation::Leave, wire, post)
            }
            _ => false,
        };
    }

    /// Posts the stored packets again that a former wire may have lost.
    fn repeat(&mut self, post: &mut Post<'_>) {
        let Out::Open(wire) = self.out else { return };
        let is_kept = self.keeps_on(wire);
        while let Some(kept) = self.kept.get(self.carried)
            && post(wire, &kept.envelope, &kept.payload).is_ok()
        {
            if is_kept {
                self.carried += 1;
            } else {
                self.acknowledge_next();
            }
        }
    }

    /// Posts a control packet; returns false if it is still to be posted.
    fn send_control(&self, operation: Operation, wire: usize, post: &mut Post<'_>) -> bool {
        self.send_control_to(self.known.unwrap_or(0), operation, wire, post)
    }

    fn send_control_to(
        &self,
        to: u64,
        operation: Operation,
        wire: usize,
        post: &mut Post<'_>,
    ) -> bool {
        let epoch = if operation == Operation::Go { self.from_epoch } else { self.epoch };
        let highest = self.floor.max(self.known.unwrap_or(0));
        let count = if operation == Operation::Refused { highest } else { self.received };
        let control = Control { operation, from: self.identity, to, epoch, count, host: self.host };
        let (envelope, payload): (_, [u8; BYTES]) = control.to_packet(self.own);
        post(wire, &envelope, &payload).is_ok()
    }

    /// Returns whether all packets have been carried to the process, or can't be.
    pub(in crate::message::wires) fn is_flushed(&self) -> bool {
        let is_carried = !self.is_repeating() && matches!(self.out, Out::Open(_));
        self.is_lost || !self.leaves && (is_carried || self.sent == self.acknowledged)
    }
}
