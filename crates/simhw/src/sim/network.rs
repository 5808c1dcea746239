//! The wires and switches: routes frames, and records their outcome.

mod back_pressure;
mod endings;
mod looped;

use std::collections::BTreeSet;

use super::active_faults::{ActiveFaults, Damage};
use super::event_queue::{Event, EventQueue};
use super::frames::FramePool;
use super::shared::SharedMedia;
use super::uplink::Uplink;
use super::watch::Watch;
use crate::drops::{DropCause, Drops};
use crate::fault::{Faults, Places};
use crate::frame::{HEADER_BYTES, Header};
use crate::id::NodeId;
use crate::link::Framing;
use crate::rng::Rng;
use crate::switch::{Departure, Forwarding, Output, Piece};
use crate::time::{Instant, Serializer, nanos};
use crate::topology::{End, Link, LinkId, SwitchId, Topology};
use crate::trace::Engine;

use back_pressure::BackPressure;

/// Counts of frames, by outcome. At any time, `sent == delivered + drops.total() + frames in flight`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Traffic {
    /// Frames that NICs sent, and duplicates from faults.
    pub sent: u64,
    /// Frames that arrived whole.
    pub delivered: u64,
    /// Frames that were dropped, by cause.
    pub drops: Drops,
}

/// The state of a link.
#[derive(Debug)]
struct Wire {
    link: Link,
    /// The switch output that feeds the link; `None` if it begins at a NIC.
    output: Option<Output>,
    /// Nanoseconds from a piece's last bit until it enters the next queue.
    delay_ns: u64,
    /// Bytes after which a cut-through switch at the link's end forwards; `None` if it waits for the whole piece.
    cut_through: Option<u32>,
    /// Capacity of the output's buffer, in its unit, without faults.
    capacity: u32,
}

#[derive(Debug)]
pub(super) struct Network {
    pub(super) frames: FramePool,
    pub(super) traffic: Traffic,
    pub(super) faults: Faults,
    pub(super) active_faults: ActiveFaults,
    pub(super) watch: Watch,
    /// Partitioned pairs of nodes, each with the lower node first.
    pub(super) partitions: BTreeSet<(NodeId, NodeId)>,
    pub(super) uplinks: Vec<Uplink>,
    wires: Vec<Wire>,
    pub(super) back_pressure: BackPressure,
    pub(super) shared: SharedMedia,
    pub(super) routes: Vec<Vec<Option<LinkId>>>,
    pub(super) hosts: Vec<(LinkId, LinkId)>,
    pub(super) framing: Framing,
    pub(super) rng: Rng,
    /// Random stream for the secrets of all NICs' firmware.
    pub(super) secrets: Rng,
    /// With cells, for each node: the frames whose last piece has not arrived, at most one for each sending
    /// NIC, sorted by NIC.
    unfinished: Vec<Vec<(NodeId, u32)>>,
}

/// The outcome of a piece's arrival.
#[derive(Debug)]
pub(super) enum Arrival {
    /// The frame is complete at its NIC.
    Whole { node: NodeId, frame: u32 },
    /// The piece was forwarded or dropped, or more pieces must arrive.
    Nothing,
}

impl Network {
    pub(super) fn new(topology: &Topology, seed: u64) -> Self {
        let wires: Vec<Wire> =
            topology.links.iter().map(|link| Wire::new(*link, topology)).collect();
        let shared = SharedMedia::new(topology, seed);
        let uplink = |(up, _): &(LinkId, LinkId)| {
            let link = &topology.links[up.0 as usize];
            Uplink::new(link.profile.rate, matches!(link.to, End::Medium(_)))
        };
        let uplinks = topology.hosts.iter().map(uplink).collect();
        Self {
            frames: FramePool::default(),
            traffic: Traffic::default(),
            faults: Faults::NONE,
            active_faults: ActiveFaults::new(seed),
            watch: Watch::default(),
            partitions: BTreeSet::new(),
            uplinks,
            wires,
            back_pressure: BackPressure::new(topology),
            shared,
            routes: topology.routes(),
            hosts: topology.hosts.clone(),
            framing: topology.links.first().map_or(Framing::PLAIN, |link| link.profile.framing),
            rng: Rng::new(seed, "network"),
            secrets: Rng::new(seed, "secrets"),
            unfinished: vec![Vec::new(); topology.hosts.len()],
        }
    }

    /// Returns how many nodes, links and switches there are.
    pub(super) fn places(&self) -> Places {
        Places {
            nodes: self.hosts.len() as u32,
            links: self.wires.len() as u32,
            switches: self.routes.len() as u32,
        }
    }

    /// Returns the bytes on the wire of a frame with `payload` bytes.
    pub(super) const fn wire_bytes(&self, payload: usize) -> u32 {
        self.framing.wire_bytes((HEADER_BYTES + payload) as u32)
    }

    /// Returns the bytes of the first piece of a frame with `payload` bytes, and its number of pieces.
    pub(super) const fn pieces(&self, payload: usize) -> (u32, u32) {
        let bytes = (HEADER_BYTES + payload) as u32;
        (self.framing.piece_bytes(bytes, 0), self.framing.pieces(bytes))
    }

    pub(super) fn output(&self, link: LinkId) -> Option<&Output> {
        self.wires.get(link.0 as usize)?.output.as_ref()
    }

    /// Allocates a frame that is ready for its NIC's line at `ready`; [`Network::launch`] sends it. Returns its
    /// key, and when its last bit leaves.
    pub(super) fn prepare(
        &mut self,
        origin: NodeId,
        header: Header,
        ready: Instant,
    ) -> (u32, Instant) {
        let bytes = HEADER_BYTES as u32 + u32::from(header.length);
        let on_wire = self.framing.wire_bytes(bytes);
        let uplink = &mut self.uplinks[origin.index()];
        let (line, sent, leaves) = if header.is_urgent() {
            let begins = uplink.urgent_begin(ready);
            let nanos = uplink.rate().nanos_for(u64::from(on_wire));
            (Serializer::new(uplink.rate()), ready, begins.plus_nanos(nanos))
        } else {
            uplink.reserve(ready, on_wire, self.framing.piece_bytes(bytes, 0))
        };
        let preemptions = uplink.preemptions();
        let key = self.frames.allocate(origin, header, line);
        let pieces = self.framing.pieces(bytes);
        let frame = self.frames.at(key);
        frame.pieces = pieces as u16;
        frame.outstanding = pieces as u16;
        frame.reserved = !header.is_urgent();
        frame.sent = sent;
        frame.preemptions = preemptions;
        (key, leaves)
    }

    /// Sends a prepared frame.
    pub(super) fn launch(&mut self, queue: &mut EventQueue, key: u32) {
        self.traffic.sent += 1;
        let frame = self.frames.at(key);
        let (origin, destination) = (frame.origin, frame.header.destination);
        self.watch.sent(frame);
        if frame.header.is_urgent() && !self.shared.has(origin) {
            let uplink = &mut self.uplinks[origin.index()];
            let on_wire = self.framing.wire_bytes(frame.header.frame_bytes() as u32);
            let nanos = uplink.rate().nanos_for(u64::from(on_wire));
            frame.sent = uplink.preempt(frame.sent, nanos);
        }
        if self.is_cut(origin, destination) {
            self.leave_line(queue.now(), key);
            self.drop_frame(key, DropCause::Partition);
            return;
        }
        if !self.faults.is_none() && !self.apply_faults(queue, key) {
            return;
        }
        if !self.active_faults.is_none() {
            self.frames.at(key).delay += self.active_faults.held_up(origin, destination);
            if self.active_faults.is_doubled(origin) {
                self.send_copy(queue, key, 0);
            }
        }
        self.send_piece(queue, key, 0);
    }

    /// Sends a copy of a frame.
    fn send_copy(&mut self, queue: &mut EventQueue, key: u32, delay: u64) {
        let copy = self.frames.duplicate(key);
        self.frames.at(copy).delay = delay;
        self.watch.sent(self.frames.at(copy));
        self.traffic.sent += 1;
        self.send_piece(queue, copy, 0);
    }

    /// Draws this frame's faults; returns `false` if it is lost.
    fn apply_faults(&mut self, queue: &mut EventQueue, key: u32) -> bool {
        let Some(drawn) = self.faults.draw(&mut self.rng) else {
            self.leave_line(queue.now(), key);
            self.drop_frame(key, DropCause::LinkLoss);
            return false;
        };
        if drawn.is_corrupt {
            self.frames.at(key).lost = Some(DropCause::Corrupt);
        }
        if let Some(delay) = drawn.delay {
            self.frames.at(key).delay = delay;
        }
        if let Some(delay) = drawn.copy {
            self.send_copy(queue, key, delay);
        }
        true
    }

    fn is_cut(&mut self, from: NodeId, to: NodeId) -> bool {
        let pair = (from.min(to), from.max(to));
        !self.partitions.is_empty() && self.partitions.contains(&pair)
            || !self.active_faults.is_none() && self.active_faults.is_cut(from, to)
    }

    /// Schedules the arrival of a piece at the end of its NIC's uplink.
    fn send_piece(&mut self, queue: &mut EventQueue, key: u32, index: u16) {
        let frame = self.frames.at(key);
        if self.shared.has(frame.origin) {
            self.share(queue, key);
            return;
        }
        let uplink = self.hosts[frame.origin.index()].0;
        let (destination, delay) = (frame.header.destination, frame.delay);
        let bytes = self.framing.piece_bytes(frame.header.frame_bytes() as u32, u32::from(index));
        let mut leaves = frame.line.send(frame.sent, bytes);
        if !frame.header.is_urgent() {
            let uplink_state = &self.uplinks[frame.origin.index()];
            let (late, seen) = uplink_state.delayed(frame.preemptions, leaves);
            frame.line.delay(late);
            frame.preemptions = seen;
            leaves = leaves.plus_nanos(late);
        }
        frame.leaves = leaves;
        let mut at = self.arrival(uplink, destination, leaves, bytes);
        if !self.faults.jitter.is_zero() {
            let late = self.rng.between(0, nanos(self.faults.jitter));
            // The next piece is scheduled when this one arrives, so that the order is kept.
            at = at.plus_nanos(late);
        }
        at = at.plus_nanos(delay);
        queue.schedule(at, Event::Piece { link: uplink, frame: key, index });
    }

    /// Handles a piece at the end of a link.
    pub(super) fn on_piece(
        &mut self,
        queue: &mut EventQueue,
        now: Instant,
        link: LinkId,
        key: u32,
        index: u16,
    ) -> Arrival {
        let wire = &self.wires[link.0 as usize];
        let (from, to) = (wire.link.from, wire.link.to);
        let frame = self.frames.at(key);
        let last = index + 1 == frame.pieces;
        if matches!(from, End::Nic(_)) {
            if self.was_delayed(queue, now, link, key, index) {
                return Arrival::Nothing;
            }
            self.watch_uplink(link, key, index);
            if !last {
                self.send_piece(queue, key, index + 1);
            }
        }
        if !self.active_faults.is_none() && self.is_lost_at(now, link, to, key) {
            return Arrival::Nothing;
        }
        if last {
            self.watch.passed(link, self.frames.at(key));
        }
        self.arrive(queue, now, link, (key, index))
    }

    /// Draws the faults of a piece at the end of a link; returns whether it is lost.
    fn is_lost_at(&mut self, now: Instant, link: LinkId, to: End, key: u32) -> bool {
        let lost = match self.active_faults.on_piece(now, link) {
            Some(Damage::Spoilt(cause)) => {
                self.frames.at(key).lost.get_or_insert(cause);
                None
            }
            Some(Damage::Lost(cause)) => Some(cause),
            None => None,
        };
        let frame = self.frames.at(key);
        let (origin, destination) = (frame.origin, frame.header.destination);
        let lost = lost.or_else(|| match to {
            End::Switch(switch) => self.active_faults.at_switch(switch, origin, destination),
            End::Nic(_) | End::Medium(_) => None,
        });
        if let Some(cause) = lost {
            self.drop_piece(key, cause);
        }
        lost.is_some()
    }

    /// Returns the link from `switch` to `destination`, or a wrong one if a fault misroutes the frame.
    fn output_link(&mut self, switch: SwitchId, destination: NodeId, key: u32) -> Option<LinkId> {
        if !self.active_faults.is_none()
            && let Some(draw) = self.active_faults.misroute(switch, key)
        {
            let to_node = |wire: &&Wire| {
                wire.link.from == End::Switch(switch) && matches!(wire.link.to, End::Nic(_))
            };
            let outputs = self.wires.iter().filter(to_node).count() as u64;
            let output = self.wires.iter().filter(to_node).nth((draw % outputs.max(1)) as usize);
            if let Some(End::Nic(node)) = output.map(|wire| wire.link.to) {
                return Some(self.hosts[node.index()].1);
            }
        }
        self.routes[usize::from(switch.0)].get(destination.index()).copied().flatten()
    }

    /// Applies changed faults of a link, or of the output that feeds it.
    pub(super) fn refresh(&mut self, queue: &mut EventQueue, now: Instant, link: LinkId) {
        let Some(wire) = self.wires.get_mut(link.0 as usize) else { return };
        let rate = wire.link.profile.rate.percent(self.active_faults.rate_percent(link));
        if let End::Nic(node) = wire.link.from {
            self.uplinks[node.index()].set_rate(rate);
        }
        let Some(output) = &mut wire.output else { return };
        output.set_rate(rate);
        let capacity =
            u64::from(wire.capacity) * u64::from(self.active_faults.buffer_percent(link)) / 100;
        output.set_buffer(capacity as u32);
        self.update_stop(queue, now, link);
        if self.back_pressure.is_on() {
            self.resume_links(queue, now);
        }
    }

    /// Drops all pieces that wait in a switch's outputs.
    pub(super) fn flush(&mut self, queue: &mut EventQueue, now: Instant, switch: SwitchId) {
        let mut pieces = Vec::new();
        for wire in self.wires.iter_mut().filter(|wire| wire.link.from == End::Switch(switch)) {
            pieces.extend(wire.output.iter_mut().flat_map(Output::flush));
        }
        for piece in pieces {
            self.drop_piece(piece.frame, DropCause::SwitchDown);
        }
        if self.back_pressure.is_on() {
            self.resume_links(queue, now);
        }
    }

    /// Returns whether an urgent frame preempted the line after this piece was scheduled and before it left. If
    /// so, schedules its later arrival.
    fn was_delayed(
        &mut self,
        queue: &mut EventQueue,
        now: Instant,
        link: LinkId,
        key: u32,
        index: u16,
    ) -> bool {
        let frame = self.frames.at(key);
        if frame.header.is_urgent() {
            return false;
        }
        let uplink = &self.uplinks[frame.origin.index()];
        let (late, seen) = uplink.delayed(frame.preemptions, frame.leaves);
        if late == 0 {
            return false;
        }
        frame.line.delay(late);
        frame.preemptions = seen;
        frame.leaves = frame.leaves.plus_nanos(late);
        queue.schedule(now.plus_nanos(late), Event::Piece { link, frame: key, index });
        true
    }

    pub(super) fn enqueue(
        &mut self,
        queue: &mut EventQueue,
        now: Instant,
        link: LinkId,
        key: u32,
        index: u16,
        last: bool,
    ) {
        let bytes = self.frames.at(key).header.frame_bytes() as u32;
        let bytes = self.framing.piece_bytes(bytes, u32::from(index));
        let piece = Piece { frame: key, index, last, bytes };
        let wire = &mut self.wires[link.0 as usize];
        let output = wire.output.as_mut().expect("routes lead to outputs");
        match output.accept(now, piece) {
            Ok(Some(departure)) => self.depart(queue, link, departure),
            Ok(None) => self.watch_queue(link),
            Err(cause) => self.drop_piece(key, cause),
        }
    }

    fn watch_queue(&mut self, link: LinkId) {
        if let Some(output) = &self.wires[link.0 as usize].output {
            self.watch.queue(link, output.used());
        }
    }

    /// Reports that a piece has left its NIC.
    fn watch_uplink(&mut self, link: LinkId, key: u32, index: u16) {
        if self.watch.is_on() {
            let frame = self.frames.at(key);
            let bytes = frame.header.frame_bytes() as u32;
            let bytes = self.framing.piece_bytes(bytes, u32::from(index));
            let nanos = frame.line.rate().nanos_for(u64::from(bytes));
            let begins = Instant::from_nanos(frame.leaves.as_nanos().saturating_sub(nanos));
            let number = (index + 1 == frame.pieces).then_some(frame.number);
            self.watch.busy(Engine::Link(link), begins, frame.leaves, "send", number);
        }
    }

    /// Handles a switch output that has sent its piece.
    pub(super) fn on_output_free(&mut self, queue: &mut EventQueue, now: Instant, link: LinkId) {
        let wire = &mut self.wires[link.0 as usize];
        let output = wire.output.as_mut().expect("only outputs become free");
        match output.next(now) {
            Some(departure) => self.depart(queue, link, departure),
            None => self.watch_queue(link),
        }
        if self.back_pressure.is_on() {
            self.resume_links(queue, now);
        }
    }

    fn depart(&mut self, queue: &mut EventQueue, link: LinkId, departure: Departure) {
        let Departure { piece, begins, ends } = departure;
        queue.schedule(ends, Event::OutputFree { link });
        let frame = self.frames.at(piece.frame);
        let destination = frame.header.destination;
        if self.watch.is_on() {
            let number = piece.last.then_some(frame.number);
            self.watch.busy(Engine::Link(link), begins, ends, "send", number);
            self.watch_queue(link);
        }
        let at = self.arrival(link, destination, ends, piece.bytes);
        queue.schedule(at, Event::Piece { link, frame: piece.frame, index: piece.index });
    }

    /// Returns when a piece whose last bit leaves at `leaves` can be forwarded at the link's end.
    fn arrival(&mut self, link: LinkId, to: NodeId, leaves: Instant, bytes: u32) -> Instant {
        let late = if self.active_faults.is_none() { 0 } else { self.active_faults.late(link) };
        let leaves = leaves.plus_nanos(late);
        let wire = &self.wires[link.0 as usize];
        let ahead = wire.cut_through.map_or(0, |header| self.ahead(wire, to, header, bytes));
        Instant::from_nanos(leaves.as_nanos().saturating_sub(ahead)).plus_nanos(wire.delay_ns)
    }

    /// Returns the nanoseconds by which a cut-through switch begins before it has the whole piece. If the outgoing line
    /// is faster, the switch waits for the whole piece, because the line would otherwise underrun.
    fn ahead(&self, wire: &Wire, to: NodeId, header: u32, bytes: u32) -> u64 {
        let End::Switch(switch) = wire.link.to else { return 0 };
        let rate = wire.link.profile.rate;
        let out = self.routes[usize::from(switch.0)].get(to.index()).copied().flatten();
        match out {
            Some(out) if self.wires[out.0 as usize].link.profile.rate <= rate => {
                rate.nanos_for(u64::from(bytes.saturating_sub(header)))
            }
            _ => 0,
        }
    }
}

impl Wire {
    fn new(link: Link, topology: &Topology) -> Self {
        let (output, capacity) = match link.from {
            End::Nic(_) | End::Medium(_) => (None, 0),
            End::Switch(switch) => {
                let profile = &topology.switches[usize::from(switch.0)];
                let output = Output::from_profile(link.profile.rate, profile);
                (Some(output), profile.buffer.capacity())
            }
        };
        let (latency, cut_through) = match link.to {
            End::Nic(_) | End::Medium(_) => (0, None),
            End::Switch(switch) => {
                let profile = &topology.switches[usize::from(switch.0)];
                let header = match profile.forwarding {
                    Forwarding::StoreAndForward => None,
                    Forwarding::CutThrough { header } => Some(header),
                };
                (nanos(profile.latency), header)
            }
        };
        let delay_ns = nanos(link.profile.propagation) + latency;
        Self { link, output, delay_ns, cut_through, capacity }
    }
}
