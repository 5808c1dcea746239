//! The host's side of the gate: sends and receives over the process's own rings while the NIC grants it the queues.
//!
//! The host offers to take over the queues of each connected interface; its NIC grants and recalls them (see the
//! firmware's module `gate`). While the host has the send queue, it writes messages to the ring of the other process; a
//! send completes once the message is in that ring. While it has the receive queue, it copies messages from its ring
//! into the posted memory. Each post checks the gate of the port. If the gate is closed, the host returns the queue,
//! and posts its descriptors to the NIC.
//!
//! The other end maps memory that it may both read and write, so that a write is one copy, in which the owner takes
//! part only for immediate data. A mapping for writing can also be read, so writes to write-only memory are left to the
//! NIC. A process that has mapped a region may write it until it is deregistered.

mod bytes;
mod exposed;
mod fast_path;
mod frame;
mod paths;
mod tables;

use std::task::Waker;

use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::peer_rings::{News, PeerRings};
use midplane_simhw::port::{Command, Completion, HostGate, Status};
use midplane_simhw::region::RegionOptions;

use super::posted::number;
use super::{MAX_SEGMENTS, Nic, NicError, PostFailed, ViId, WorkQueue};
use crate::attributes::ViState;
use crate::command::{DISCONNECT, Ends, OFFER, POST_SEND, RECALL, RETURN, about};
use crate::descriptor::Descriptor;
use crate::memory::{Memory, MemoryOptions};
use crate::outcome::{AsyncError, DescriptorError};
use exposed::Exposed;
use fast_path::{FastPath, Fault, Holder, Rings, Stop};
use frame::{Fields, Kind};
use tables::{Tables, failed, refusal};

/// Polls of the rings between two polls of the port, while the port can only report events of connections.
const POLLS_PER_PORT: u32 = 64;
/// Most frames taken from the rings before a queue is returned, or a connection ends. The bound exceeds what rings
/// hold; it stops the drain if other processes send without end.
const MAX_UNDER_WAY: u32 = 1 << 20;
/// Commands that the port may have under way besides descriptors and those of paths: one awaits the next error, and, once
/// there is a path, one returns a queue.
const LISTENING: usize = 1;
const OWN_COMMANDS: usize = 2;
/// Commands of one path that may be under way: an offer or a recall of each queue.
const PATH_COMMANDS: usize = 2;
const QUEUES: [WorkQueue; 2] = [WorkQueue::Send, WorkQueue::Receive];

/// The host's paths that bypass its NIC.
#[derive(Debug)]
pub(super) struct Gated {
    rings: Box<dyn PeerRings>,
    gate: HostGate,
    /// The paths, indexed by interface number.
    paths: Vec<Option<FastPath>>,
    /// True if some interface has something to send, to return, or to report to the NIC.
    is_behind: bool,
    /// True if some interface waits for the other end's process to open its rings.
    awaits_peers: bool,
    /// Commands under way that wait for the NIC to recall a granted queue.
    recalls: usize,
    /// True if some interface keeps frames that arrived before the NIC granted the queue that they are for.
    has_early: bool,
    polls: u32,
    /// Most commands of the gate that the port may have under way at once.
    commands: usize,
    exposed: Exposed,
}

impl Gated {
    pub(super) fn new(rings: Box<dyn PeerRings>, gate: HostGate) -> Self {
        Self {
            rings,
            gate,
            paths: Vec::new(),
            is_behind: false,
            awaits_peers: false,
            recalls: 0,
            has_early: false,
            polls: 0,
            commands: LISTENING,
            exposed: Exposed::default(),
        }
    }

    #[inline]
    fn path(&mut self, vi: PortId) -> Option<&mut FastPath> {
        self.paths.get_mut(vi.index())?.as_mut()
    }

    /// Takes the next event of the rings; returns whether there was one.
    #[inline]
    fn poll(&mut self, tables: &mut Tables<'_>) -> bool {
        match self.rings.poll() {
            None => return false,
            Some(News::Frame { from, words, payload }) => {
                // Malformed frames, and frames to no interface, are dropped.
                let Some(fields) = Fields::of(words) else { return true };
                let vi = PortId(fields.vi);
                let Some(Some(path)) = self.paths.get_mut(vi.index()) else { return true };
                let is_early = path.may_be_early(from, &fields);
                let handled = if is_early {
                    path.keep_early(fields, payload)
                } else {
                    path.on_frame(tables, from, &fields, payload)
                };
                self.has_early |= is_early;
                match handled {
                    Ok(()) => {
                        self.is_behind |= matches!(fields.kind, Kind::MapRequest | Kind::MapDenied)
                    }
                    Err(fault) => self.break_path(tables, vi, fault),
                }
            }
            Some(News::Shown { from, name: [name, asker], memory }) => {
                if let Some(path) = self.path(PortId(asker as u16)) {
                    path.on_shown(from, (asker >> 16) as u16, name, memory);
                    self.is_behind = true;
                }
            }
            Some(News::Left(node) | News::Restarted(node)) => self.on_left(tables, node),
            Some(News::Returned(_)) => self.is_behind = true,
        }
        true
    }

    /// Sends an interface's pending frames, as far as the rings have room; returns how many. The end of the connection
    /// counts as a frame, because it completes descriptors as well.
    #[inline]
    fn pump(&mut self, tables: &mut Tables<'_>, vi: PortId) -> u64 {
        let Self { rings, gate, paths, is_behind, exposed, .. } = self;
        let Some(path) = paths.get_mut(vi.index()).and_then(Option::as_mut) else { return 0 };
        let mut out = Rings { rings: &mut **rings, gate, exposed, frames: 0 };
        let stop = path.pump(&mut out, tables, vi);
        let frames = out.frames;
        match stop {
            Ok(()) => {}
            Err(Stop::Full) => *is_behind = true,
            Err(Stop::Gone) => {
                self.break_path(tables, vi, None);
                return frames + 1;
            }
            Err(stop @ (Stop::Closed | Stop::NeedsNic)) => {
                path.give_up(WorkQueue::Send, stop == Stop::NeedsNic);
                *is_behind = true;
            }
        }
        frames
    }

    /// Handles the exit of a process: frames in the rings are lost, so connections that use them break.
    fn on_left(&mut self, tables: &mut Tables<'_>, node: NodeId) {
        for at in 0..self.paths.len() {
            let Some(path) = &self.paths[at] else { continue };
            if path.peer == Some(node) && path.sides.iter().any(|side| side.holder != Holder::Nic) {
                self.break_path(tables, PortId(at as u16), None);
            }
        }
    }

    /// Breaks a connection because of an error: flushes the descriptors that the host has, and reports the error.
    fn break_path(&mut self, tables: &mut Tables<'_>, vi: PortId, fault: Fault) {
        let Some(path) = self.path(vi) else { return };
        path.unlink();
        (path.owes_end, path.is_broken) = (true, true);
        self.is_behind = true;
        tables.flush(vi);
        if let Some(id) = tables.queues.id(vi) {
            tables.queues.set_state(id, ViState::Error);
            let errors = fault.into_iter().chain([AsyncError::ConnectionLost]);
            tables.errors.extend(errors.map(|error| (id, error)));
        }
    }

    /// Has the next event of the rings wake `waker`; returns `false` if there may be an event already.
    pub(super) fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        self.rings.arm_wakeup(waker)
    }
}

impl Nic {
    fn gated(&mut self) -> Option<(&mut Gated, Tables<'_>)> {
        let Self { queues, free_scratch, errors, gated, .. } = self;
        Some((gated.as_mut()?, Tables { queues, free_scratch, errors }))
    }

    fn path(&mut self, vi: PortId) -> Option<&mut FastPath> {
        self.gated.as_mut()?.path(vi)
    }

    /// Returns whether messages that are sent over an interface now bypass the NIC.
    #[must_use]
    #[doc(hidden)]
    pub fn is_gate_open(&self, vi: ViId) -> bool {
        let Some(gated) = &self.gated else { return false };
        let path = gated.paths.get(vi.number.index()).and_then(Option::as_ref);
        path.is_some_and(|path| path.may_send(&gated.gate))
    }

    /// Returns whether descriptors for a queue stay with the host, instead of going to the NIC.
    #[inline]
    pub(super) fn has_queue(&self, vi: ViId, queue: WorkQueue) -> bool {
        let Some(gated) = &self.gated else { return false };
        let path = gated.paths.get(vi.number.index()).and_then(Option::as_ref);
        path.is_some_and(|path| path.sides[queue as usize].keeps())
    }

    /// Takes the next event of the rings, and sends pending frames; returns whether it did either.
    #[inline]
    pub(super) fn poll_rings(&mut self) -> bool {
        let Some((gated, mut tables)) = self.gated() else { return false };
        let has_event = gated.poll(&mut tables);
        gated.polls = gated.polls.wrapping_add(1);
        let is_due = gated.is_behind
            || gated.awaits_peers && gated.polls.is_multiple_of(POLLS_PER_PORT)
            || gated.has_early;
        self.handled += u64::from(has_event);
        if is_due { self.catch_up() | has_event } else { has_event }
    }

    /// Sends the pending frames of all interfaces, and their commands to the NIC; returns whether any frame was sent.
    #[cold]
    pub(super) fn catch_up(&mut self) -> bool {
        self.take_early();
        let Some(gated) = &mut self.gated else { return false };
        (gated.is_behind, gated.awaits_peers) = (false, false);
        let mut frames = 0;
        for at in 0..gated.paths.len() {
            let vi = PortId(at as u16);
            self.post_due(vi);
            let Some((gated, mut tables)) = self.gated() else { return false };
            frames += gated.pump(&mut tables, vi);
            let is_behind = gated.path(vi).is_some_and(|path| path.is_behind());
            gated.is_behind |= is_behind;
        }
        self.handled += frames;
        frames > 0
    }

    /// Polls the port for the grants of the queues that early frames are for. The port has them, because the NIC grants
    /// the receive queue before the other end's NIC opens its gate.
    fn take_early(&mut self) {
        if self.gated.as_ref().is_some_and(|gated| gated.has_early) {
            self.poll_port();
            if let Some(gated) = &mut self.gated {
                gated.has_early = gated.paths.iter().flatten().any(FastPath::has_early);
            }
        }
    }

    /// Delivers the frames that arrived before their interface's receive queue was granted.
    fn deliver_early(&mut self, vi: PortId) {
        let Some((gated, mut tables)) = self.gated() else { return };
        let Some(path) = gated.path(vi) else { return };
        if let Err(fault) = path.deliver_early(&mut tables) {
            gated.break_path(&mut tables, vi, fault);
        }
    }

    /// Posts an interface's due commands to the NIC: disconnects, offers, and returns of queues.
    fn post_due(&mut self, vi: PortId) {
        let Some(id) = self.queues.id(vi) else { return };
        if self.path(vi).is_some_and(|path| path.owes_end)
            && self.start_unwatched(about(vi, DISCONNECT, 0)).is_ok()
            && let Some(path) = self.path(vi)
        {
            path.owes_end = false;
        }
        for queue in QUEUES {
            self.post_due_of(id, queue);
        }
    }

    fn post_due_of(&mut self, id: ViId, queue: WorkQueue) {
        let (vi, at) = (id.number, queue as usize);
        let Some(gated) = &mut self.gated else { return };
        let Some(path) = gated.paths.get_mut(vi.index()).and_then(Option::as_mut) else { return };
        let side = &mut path.sides[at];
        let command = |opcode, args| Command { args, ..about(vi, opcode, queue as u64) };
        match side.holder {
            Holder::Host if !side.awaits_recall => {
                side.awaits_recall = self.port.submit(&command(RECALL, [0; 3])).is_ok();
                gated.recalls += usize::from(side.awaits_recall);
                return;
            }
            Holder::Host => return,
            Holder::Returning => {
                let posted = self.queues.posted(vi, queue).map_or(0, |posted| posted.unended());
                let args = [path.progress(queue).into(), posted as u64, 0];
                if self.port.submit(&command(RETURN, args)).is_err() {
                    return;
                }
                path.returned(queue);
            }
            Holder::Nic => {}
        }
        if let Some(from) = path.sides[at].posts_from {
            let rest = self.post_from(id, queue, from).err().map(|(next, _)| next);
            self.ring();
            let Some(path) = self.path(vi) else { return };
            path.sides[at].posts_from = rest;
        }
        let Some(gated) = &mut self.gated else { return };
        let Some(path) = gated.paths.get_mut(vi.index()).and_then(Option::as_mut) else { return };
        let side = &mut path.sides[at];
        if !side.wants || side.keeps() || side.has_offered {
            return;
        }
        if !path.peer.is_some_and(|peer| gated.rings.has_peer(peer)) {
            gated.awaits_peers = true;
            return;
        }
        match self.port.submit(&command(OFFER, [0; 3])) {
            Ok(()) => {
                (side.wants, side.has_offered) = (false, true);
            }
            Err(_) => gated.is_behind = true,
        }
    }

    /// Handles the completion of a command of the gate.
    pub(super) fn on_gate(&mut self, completion: &Completion) {
        let queue = if completion.cookie == 0 { WorkQueue::Send } else { WorkQueue::Receive };
        let [number, ends, ..] = completion.args;
        let (vi, is_done) = (completion.port, completion.status == Status::Done);
        let is_connected = self.queues.id(vi).and_then(|id| self.queues.of(id).ok());
        let is_connected = is_connected.is_some_and(|vi| vi.state == ViState::Connected);
        let Some(gated) = &mut self.gated else { return };
        gated.is_behind = true;
        let Some(path) = gated.paths.get_mut(vi.index()).and_then(Option::as_mut) else { return };
        let side = &mut path.sides[queue as usize];
        match completion.opcode {
            OFFER => {
                side.has_offered = false;
                if is_done && is_connected {
                    path.take(queue, Ends::of(ends), number);
                    // Early frames precede those that the rings still hold.
                    self.deliver_early(vi);
                    self.catch_up();
                } else if queue == WorkQueue::Receive {
                    path.drop_early();
                }
            }
            RECALL => {
                side.awaits_recall = false;
                gated.recalls = gated.recalls.saturating_sub(1);
                if is_done && side.holder == Holder::Host {
                    if queue == WorkQueue::Receive {
                        // The other end has stopped sending over the rings, so all its frames are in them.
                        self.drain_rings();
                    }
                    self.path(vi).into_iter().for_each(|path| path.give_up(queue, false));
                    self.catch_up();
                }
            }
            _ => {}
        }
    }

    /// Handles a descriptor that the NIC returns, because the host has the queue or is about to get it.
    pub(super) fn on_returned(&mut self, completion: &Completion) {
        let queue = match completion.opcode {
            POST_SEND => WorkQueue::Send,
            _ => WorkQueue::Receive,
        };
        let (vi, number) = (completion.port, number(completion.cookie));
        let Some(posted) = self.queues.posted(vi, queue) else { return };
        self.free_scratch.extend(posted.take_back(number));
        let is_connected = self.queues.id(vi).and_then(|id| self.queues.of(id).ok());
        if is_connected.is_none_or(|vi| vi.state != ViState::Connected) {
            // The connection has ended, and the grant with it.
            let end = failed(queue, DescriptorError::Flushed);
            self.free_scratch.extend(self.queues.end(vi, queue, number, end));
        }
    }

    /// Returns whether the host has any queue.
    pub(super) fn holds_queues(&self) -> bool {
        let paths = self.gated.iter().flat_map(|gated| gated.paths.iter().flatten());
        paths.flat_map(|path| &path.sides).any(|side| side.holder != Holder::Nic)
    }

    /// Takes all frames that are in the rings.
    fn drain_rings(&mut self) {
        let mut polls = 0;
        while let Some((gated, mut tables)) = self.gated()
            && polls < MAX_UNDER_WAY
            && gated.poll(&mut tables)
        {
            polls += 1;
        }
    }

    /// Returns whether the port is due for a poll, too. Polls are rare while the only commands under way are those of
    /// the gate and the one that awaits events of connections.
    #[inline]
    pub(super) fn is_port_due(&self) -> bool {
        let Some(gated) = &self.gated else { return true };
        gated.polls.is_multiple_of(POLLS_PER_PORT) || self.port.outstanding() > 1 + gated.recalls
    }

    /// Returns the most descriptors that may be posted: the port holds them even if the host returns all its queues to
    /// the NIC.
    pub(super) fn most_posted(&self) -> usize {
        let commands = self.gated.as_ref().map_or(0, |gated| gated.commands);
        self.port.depth().saturating_sub(commands)
    }

    /// Returns whether the port holds one more descriptor.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.gated.is_none() || self.queues.unended < self.most_posted()
    }

    /// Posts a descriptor to a queue that the host has, or whose descriptors it is posting to the NIC.
    pub(super) fn post_kept(
        &mut self,
        vi: ViId,
        queue: WorkQueue,
        descriptor: Descriptor,
    ) -> Result<(), PostFailed> {
        let (depth, owner) = (self.port.depth(), self.port.id());
        let (segments, has_room) = (descriptor.segments.len(), self.has_room());
        let refused = match self.queues.of(vi) {
            Err(error) => Some(error),
            Ok(_) if segments > MAX_SEGMENTS => Some(NicError::TooManySegments(segments)),
            Ok(queues) if !has_room || queues.posted[queue as usize].len() >= depth => {
                Some(NicError::QueueFull)
            }
            Ok(_) => None,
        };
        if let Some(error) = refused {
            return Err(PostFailed { error, descriptor });
        }
        let number = vi.number;
        let Some((gated, mut tables)) = self.gated() else {
            return Err(PostFailed { error: NicError::Closed, descriptor });
        };
        let Ok(queues) = tables.queues.of(vi) else {
            return Err(PostFailed { error: NicError::NoSuchVi, descriptor });
        };
        // If the host only passes the descriptor on, the NIC checks it.
        let is_host = gated.path(number).is_some_and(|path| path.has(queue));
        let wrong =
            if is_host { refusal(&descriptor, queue, owner, &queues.attributes) } else { None };
        let posted = &mut queues.posted[queue as usize];
        let at = posted.next_number();
        posted.keep(descriptor);
        tables.queues.unended += 1;
        if let Some(error) = wrong {
            tables.queues.end(number, queue, at, failed(queue, error));
            // The connection breaks: descriptors posted before this one complete as flushed.
            if queue == WorkQueue::Send {
                gated.break_path(&mut tables, number, None);
                self.catch_up();
            }
        } else if queue == WorkQueue::Send && is_host {
            self.handled += gated.pump(&mut tables, number);
        }
        Ok(())
    }

    /// Registers memory that the other ends of interfaces may map; returns `None` if this memory can't be shared.
    pub(super) fn register_exposed(
        &mut self,
        bytes: usize,
        options: MemoryOptions,
    ) -> Option<midplane_simhw::region::Region> {
        let gated = self.gated.as_mut().filter(|_| options.rdma_write && options.rdma_read)?;
        let options = RegionOptions::default().tag(options.tag).rights(options.rights());
        if gated.exposed.has_room() { self.port.register_shared(bytes, options).ok() } else { None }
    }

    /// Lets the other ends of interfaces with the memory's tag map it.
    pub(super) fn expose(&mut self, memory: &Memory) {
        if let Some(gated) = &mut self.gated {
            gated.exposed.insert(memory);
        }
    }
}
