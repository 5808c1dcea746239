//! Back-pressure: a piece that finds no space waits at the end of its link, and all later pieces wait behind
//! it, as in Myrinet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Arrival, Network};
use crate::drops::DropCause;
use crate::id::NodeId;
use crate::sim::event_queue::EventQueue;
use crate::switch::DiscardPolicy;
use crate::time::Instant;
use crate::topology::{End, LinkId, Topology};

/// A waiting piece: its frame's key, and its index in the frame.
type Waiting = (u32, u16);

/// The links that back-pressure has stopped.
#[derive(Debug, Default)]
pub(in crate::sim) struct BackPressure {
    /// True if a switch uses back-pressure.
    on: bool,
    /// For each stopped link, the pieces that wait at its switch, in order of arrival.
    waiting: BTreeMap<LinkId, VecDeque<Waiting>>,
    /// The stopped links, in the order in which they stopped.
    order: Vec<LinkId>,
    /// Links whose NICs accept nothing.
    held: BTreeSet<LinkId>,
}

impl BackPressure {
    pub(super) fn new(topology: &Topology) -> Self {
        let mut switches = topology.switches.iter();
        let on = switches.any(|switch| switch.discard == DiscardPolicy::BackPressure);
        Self { on, ..Self::default() }
    }

    pub(in crate::sim) const fn is_on(&self) -> bool {
        self.on
    }

    /// Returns whether a link is stopped: no further piece may begin to cross it.
    pub(super) fn is_stopped(&self, link: LinkId) -> bool {
        self.waiting.contains_key(&link) || self.held.contains(&link)
    }

    /// Returns the number of pieces that wait at a switch's end of a link.
    pub(in crate::sim) fn at_end_of(&self, link: LinkId) -> usize {
        self.waiting.get(&link).map_or(0, VecDeque::len)
    }
}

impl Network {
    /// Forwards a piece at the end of a link, or lets it wait there.
    pub(super) fn arrive(
        &mut self,
        queue: &mut EventQueue,
        now: Instant,
        link: LinkId,
        (key, index): Waiting,
    ) -> Arrival {
        if let Some(waiting) = self.back_pressure.waiting.get_mut(&link) {
            waiting.push_back((key, index));
            return Arrival::Nothing;
        }
        let frame = self.frames.at(key);
        let (last, destination) = (index + 1 == frame.pieces, frame.header.destination);
        let to = self.wires[link.0 as usize].link.to;
        match to {
            End::Nic(node) => return self.on_piece_at_nic(node, key, last),
            End::Switch(switch) if self.ends_at(link, key, index) => {
                self.end(queue, now, switch, key);
            }
            End::Switch(switch) if destination == NodeId::BROADCAST => {
                self.copy_at_switch(queue, now, switch, key);
            }
            End::Switch(switch) => match self.output_link(switch, destination, key) {
                Some(out) if self.is_full(out, key, index) => {
                    self.back_pressure.waiting.insert(link, VecDeque::from([(key, index)]));
                    if !self.back_pressure.order.contains(&link) {
                        self.back_pressure.order.push(link);
                    }
                    self.update_stop(queue, now, link);
                }
                Some(out) => self.enqueue(queue, now, out, key, index, last),
                None => self.drop_piece(key, DropCause::NoRoute),
            },
            End::Medium(_) => unreachable!("what is on a medium arrives at a NIC"),
        }
        Arrival::Nothing
    }

    /// Returns whether a switch's output has no space for a piece, which then waits on its link.
    fn is_full(&mut self, out: LinkId, key: u32, index: u16) -> bool {
        if !self.back_pressure.on {
            return false;
        }
        let bytes = self.frames.at(key).header.frame_bytes() as u32;
        let bytes = self.framing.piece_bytes(bytes, u32::from(index));
        self.wires[out.0 as usize].output.as_ref().is_some_and(|output| !output.has_room(bytes))
    }

    /// Stops or restarts the output that feeds a link, according to the link's state.
    pub(super) fn update_stop(&mut self, queue: &mut EventQueue, now: Instant, link: LinkId) {
        let still = self.active_faults.is_stuck(link) || self.back_pressure.is_stopped(link);
        if let Some(output) = &mut self.wires[link.0 as usize].output
            && let Some(departure) = output.set_stuck(now, still)
        {
            self.depart(queue, link, departure);
        }
    }

    /// Sets whether the NIC of `node` accepts frames from its link.
    pub(in crate::sim) fn hold_nic(
        &mut self,
        queue: &mut EventQueue,
        now: Instant,
        node: NodeId,
        held: bool,
    ) {
        let link = self.hosts[node.index()].1;
        let changed = match held {
            true => self.back_pressure.held.insert(link),
            false => self.back_pressure.held.remove(&link),
        };
        if changed {
            self.update_stop(queue, now, link);
        }
    }

    /// Forwards waiting pieces, because an output has space again: the links that stopped first come first.
    pub(super) fn resume_links(&mut self, queue: &mut EventQueue, now: Instant) {
        for link in self.back_pressure.order.clone() {
            while let Some(first) = self.first_unblocked(link) {
                let mut rest = self.back_pressure.waiting.remove(&link).unwrap_or_default();
                rest.pop_front();
                self.arrive(queue, now, link, first);
                let again = self.back_pressure.waiting.contains_key(&link);
                if again || !rest.is_empty() {
                    self.back_pressure.waiting.entry(link).or_default().extend(rest);
                }
                // A fault has misrouted it to an output that has no space either.
                if again {
                    break;
                }
            }
            if !self.back_pressure.waiting.contains_key(&link) {
                self.back_pressure.order.retain(|other| *other != link);
                self.update_stop(queue, now, link);
            }
        }
    }

    /// Returns the first piece that waits at the end of a link, if there is now space for it.
    fn first_unblocked(&mut self, link: LinkId) -> Option<Waiting> {
        let &(key, index) = self.back_pressure.waiting.get(&link)?.front()?;
        let destination = self.frames.at(key).header.destination;
        let End::Switch(switch) = self.wires[link.0 as usize].link.to else { return None };
        let out = self.routes[usize::from(switch.0)].get(destination.index()).copied().flatten();
        let full = out.is_some_and(|out| self.is_full(out, key, index));
        (!full).then_some((key, index))
    }
}
