//! Broadcast: small ones in control messages, large ones in frames that are forwarded on arrival.

use std::collections::BTreeSet;
use std::time::Duration;

use midplane_simhw::frame::{Frame, HEADER_BYTES};
use midplane_simhw::hardware::Source;
use midplane_simhw::id::NodeId;
use midplane_simhw::port::{Command, Status};
use midplane_simhw::region::Payload;

use super::{
    BROADCAST, Context, Group, MAX_BROADCAST, Progress, SMALL, Service, TimeoutId, deliver, taken,
    tree,
};
use crate::transmit::Packet;

/// Rounds of a broadcast's messages: the bytes of a small one; "all has arrived"; "these frames have arrived"; and a
/// probe that asks for one of the two.
pub(super) const BYTES: u8 = 0;
pub(super) const DONE: u8 = 1;
const MISSING: u8 = 2;
pub(super) const PROBE: u8 = 3;

/// Bytes of a frame: small enough that the tree's levels overlap, large compared with a header.
const CHUNK: usize = 4 << 10;
/// Time after which children that have not reported completion are probed.
const RETRY: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
pub(super) struct Broadcast {
    root: u16,
    own: Option<Command>,
    /// Bytes in all; 0 until they are known.
    total: usize,
    chunk: usize,
    bytes: Vec<u8>,
    has: Vec<bool>,
    lacks: usize,
    /// Children that have not reported that they have all.
    waiting: BTreeSet<u16>,
    is_known: bool,
    delivered: bool,
}

/// Returns the rank of this member's parent in the tree of frames from `root`; `None` for the root itself.
fn parent(group: &Group, root: u16) -> Option<u16> {
    let place = tree::place_of(group.rank, root, group.size());
    Some(tree::rank_at(place.checked_sub(1)? / 2, root, group.size()))
}

/// Returns whether a frame comes from the member that sends this one its frames.
pub(super) fn is_of_parent(group: &Group, from: NodeId, frame: &Frame<'_>) -> bool {
    let root = frame.header.words[0] as u16;
    let parent = (root < group.size()).then(|| parent(group, root)).flatten();
    parent.is_some_and(|rank| group.members[usize::from(rank)] == from)
}

impl Broadcast {
    pub(super) fn begin(
        &mut self,
        nic: &mut Context<'_>,
        group: &mut Group,
        number: u32,
        command: &Command,
    ) -> Progress {
        let total = command.region.length as usize;
        let (Ok(root), true) = (u16::try_from(command.args[0]), total <= MAX_BROADCAST) else {
            return Progress::Failed(Status::Invalid);
        };
        if root >= group.size() {
            return Progress::Failed(Status::Invalid);
        }
        self.own = Some(*command);
        if group.rank != root {
            return self.finish(nic, group);
        }
        (self.root, self.total, self.is_known) = (root, total, true);
        if total <= SMALL {
            let Some(bytes) = taken(nic, command) else {
                return Progress::Failed(Status::Region);
            };
            self.bytes = bytes;
            self.spread(nic, group, number);
            self.delivered = true;
            return Progress::Done;
        }
        self.chunk = CHUNK.min(nic.mtu_bytes() as usize - HEADER_BYTES);
        self.waiting = self.below(group);
        for at in (0..total).step_by(self.chunk) {
            for child in self.waiting.clone() {
                self.send(nic, group, number, at, child, None);
            }
        }
        nic.set_timeout(TimeoutId(number), Service::Exact, RETRY);
        self.finish(nic, group)
    }

    /// Returns all children in the tree of frames.
    fn below(&self, group: &Group) -> BTreeSet<u16> {
        let (size, root) = (group.size(), self.root);
        let place = tree::place_of(group.rank, root, size);
        tree::two_children(place, size).map(|child| tree::rank_at(child, root, size)).collect()
    }

    /// Sends a small broadcast to the children in its tree.
    fn spread(&self, nic: &mut Context<'_>, group: &mut Group, number: u32) {
        let (size, root) = (group.size(), self.root);
        let mut body = root.to_le_bytes().to_vec();
        body.extend_from_slice(&self.bytes);
        for child in tree::children(tree::place_of(group.rank, root, size), size) {
            group.send(nic, tree::rank_at(child, root, size), (BROADCAST, BYTES, number), &body);
        }
    }

    /// Sends one frame to one child: `received` if it has just arrived, else the bytes stored here.
    fn send(
        &self,
        nic: &mut Context<'_>,
        group: &Group,
        number: u32,
        at: usize,
        child: u16,
        received: Option<Payload<'_>>,
    ) {
        let length = self.chunk.min(self.total - at);
        let source = match (received, &self.own) {
            (Some(payload), _) => Source::Bytes(payload),
            (None, Some(command)) if group.rank == self.root => {
                let part = command.region.part(at as u32, length as u32);
                Source::Region(part.expect("within the region"))
            }
            _ => Source::Bytes(Payload::from(&self.bytes[at..at + length])),
        };
        let words = [
            u64::from(self.root) | (self.chunk as u64) << 16 | (self.total as u64) << 32,
            at as u64,
        ];
        let node = group.members[usize::from(child)];
        // A frame that does not leave is requested again.
        let _ = nic.send_packet(&Packet { sequence: number, words, source, ..Packet::to(node) });
    }

    pub(super) fn on_frame(
        &mut self,
        nic: &mut Context<'_>,
        group: &Group,
        number: u32,
        frame: &Frame<'_>,
    ) -> Option<Progress> {
        let [first, at] = frame.header.words;
        let (root, chunk) = (first as u16, (first >> 16) as u16 as usize);
        let (total, at) = ((first >> 32) as usize, usize::try_from(at).ok()?);
        let fits = chunk > 0 && at.is_multiple_of(chunk) && at < total && total <= MAX_BROADCAST;
        if !fits || frame.payload.len() != chunk.min(total - at) || root >= group.size() {
            return None;
        }
        if !self.is_known {
            (self.root, self.total, self.chunk, self.is_known) = (root, total, chunk, true);
            self.lacks = total.div_ceil(chunk);
            self.bytes = vec![0; total];
            self.has = vec![false; self.lacks];
            self.waiting = self.below(group);
        }
        if (root, total, chunk) != (self.root, self.total, self.chunk) || root == group.rank {
            return None;
        }
        let has = self.has.get_mut(at / chunk)?;
        if std::mem::replace(has, true) {
            return Some(Progress::Waiting);
        }
        frame.payload.copy_to(&mut self.bytes[at..at + frame.payload.len()]);
        self.lacks -= 1;
        for child in self.below(group) {
            self.send(nic, group, number, at, child, Some(frame.payload));
        }
        if self.lacks == 0 {
            if let Some(parent) = parent(group, root) {
                group.try_send(nic, parent, (BROADCAST, DONE, number), &[]);
            }
            if !self.waiting.is_empty() {
                nic.set_timeout(TimeoutId(number), Service::Exact, RETRY);
            }
        }
        Some(self.finish(nic, group))
    }

    /// Handles a message of another member. Returns the progress, and how many frames were sent again.
    pub(super) fn on_message(
        &mut self,
        nic: &mut Context<'_>,
        group: &mut Group,
        number: u32,
        (from, round): (u16, u8),
        body: &[u8],
    ) -> Option<(Progress, u64)> {
        match round {
            BYTES => {
                let (root, bytes) = body.split_first_chunk::<2>()?;
                let root = u16::from_le_bytes(*root);
                if self.is_known || bytes.len() > SMALL || root >= group.size() {
                    return None;
                }
                (self.root, self.total, self.is_known) = (root, bytes.len(), true);
                self.bytes = bytes.to_vec();
                self.spread(nic, group, number);
                Some((self.finish(nic, group), 0))
            }
            DONE => {
                self.waiting.remove(&from);
                Some((self.finish(nic, group), 0))
            }
            MISSING => Some((Progress::Waiting, self.resend(nic, group, number, from, body))),
            PROBE => {
                let (round, bits) = match self.is_known && self.lacks == 0 {
                    true => (DONE, Vec::new()),
                    false => (MISSING, self.bitmap()),
                };
                group.try_send(nic, from, (BROADCAST, round, number), &bits);
                Some((Progress::Waiting, 0))
            }
            _ => None,
        }
    }

    /// Returns a bitmap of the frames that have arrived (bit i: frame i); empty if nothing is known yet.
    fn bitmap(&self) -> Vec<u8> {
        let mut bits = vec![0; self.has.len().div_ceil(8).min(SMALL)];
        for (index, _) in self.has.iter().enumerate().filter(|(_, has)| **has) {
            if let Some(byte) = bits.get_mut(index / 8) {
                *byte |= 1 << (index % 8);
            }
        }
        bits
    }

    /// Sends a child the frames again that it reports as missing. Does nothing while frames for the child are queued:
    /// they may be the missing ones, and the next probe shows.
    fn resend(
        &self,
        nic: &mut Context<'_>,
        group: &Group,
        number: u32,
        child: u16,
        bits: &[u8],
    ) -> u64 {
        let is_waiting = self.waiting.contains(&child);
        if !is_waiting || nic.has_waiting(group.members[usize::from(child)]) {
            return 0;
        }
        let mut retransmitted = 0;
        for (index, at) in (0..self.total).step_by(self.chunk.max(1)).enumerate() {
            let there = bits.get(index / 8).is_some_and(|byte| byte & 1 << (index % 8) != 0);
            let here = group.rank == self.root || self.has.get(index) == Some(&true);
            if here && !there {
                self.send(nic, group, number, at, child, None);
                retransmitted += 1;
            }
        }
        retransmitted
    }

    /// Probes the children that have not reported that they have all.
    pub(super) fn probe(&self, nic: &mut Context<'_>, group: &Group, number: u32) {
        for child in &self.waiting {
            group.try_send(nic, *child, (BROADCAST, PROBE, number), &[]);
        }
        if !self.waiting.is_empty() {
            nic.set_timeout(TimeoutId(number), Service::Exact, RETRY);
        }
    }

    /// Returns whether the host has its bytes, and no child needs a frame any more.
    pub(super) fn is_over(&self) -> bool {
        self.delivered && self.waiting.is_empty()
    }

    /// Completes the host's part. A member's region is written once all frames have arrived; the root's region stays in
    /// use until its children have all frames.
    fn finish(&mut self, nic: &mut Context<'_>, group: &Group) -> Progress {
        let Some(command) = &self.own else { return Progress::Waiting };
        if self.delivered {
            return Progress::Done;
        }
        if !self.is_known || self.lacks > 0 {
            return Progress::Waiting;
        }
        if group.rank == self.root {
            self.delivered = self.waiting.is_empty();
            return if self.delivered { Progress::Done } else { Progress::Waiting };
        }
        let progress = deliver(nic, command, &self.bytes);
        self.delivered = true;
        progress
    }
}
