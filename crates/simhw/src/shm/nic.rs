//! What firmware may ask of a NIC over shared memory: staged in a turn, visible at its commit.
//!
//! Frames are staged in the unpublished slots of their direction, completions in those of their
//! port's ring; a commit publishes both. Only writes into registered memory, which is exposed, wait
//! in a list until then; what they write is read from the frame's own slot.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::ShmCounters;
use super::config::ShmConfig;
use super::lane::{Extent, Sender};
use super::rendezvous::Link;
use super::retry::Retry;
use crate::drops::DropCause;
use crate::frame::{HEADER_BYTES, Header};
use crate::hardware::{Dma, DmaRefused, Hardware, Source, TIMERS, TransmitRefused};
use crate::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use crate::live::clock::Clock;
use crate::passing::Socket;
use crate::port::{Command, Completion, NicPort, Ports};
use crate::region::{Access, Payload, RegionError, RegionRef};
use crate::segment::{Segment, View};
use crate::sync::{Ordering, fence};
use crate::time::{Instant, LineRate};

/// Frames to itself that a NIC holds; beyond them it is busy.
const LOOP_DEPTH: usize = 256;

/// The sending side of a peer.
#[derive(Debug)]
struct Peer {
    sender: Sender,
    /// Where the payloads of its frames lie.
    segment: Arc<Segment>,
    /// Wake-ups of the NIC.
    channel: Arc<Socket>,
    /// Something is staged for it, or published and it was not woken for that.
    is_touched: bool,
    /// Its slots were full.
    retry: Retry,
}

/// The NIC, less the receiving ends of its links.
#[derive(Debug)]
pub(super) struct Nic {
    node: NodeId,
    incarnation: Incarnation,
    mtu: usize,
    rate: LineRate,
    now: Instant,
    peers: Vec<Option<Peer>>,
    /// Those that are touched.
    touched: Vec<NodeId>,
    pub(super) counters: ShmCounters,
    pub(super) ports: Ports,
    /// Ports that are open, and those that are closing.
    pub(super) open: BTreeSet<PortId>,
    /// Ports with completions that their applications were not woken for.
    completed: Vec<PortId>,
    timers: [Instant; TIMERS],
    next_alarm: Instant,
    looped: VecDeque<Vec<u8>>,
    dma_done: VecDeque<DmaId>,
    next_dma: u32,
    /// The frame that is being handled: whose, where its payload is.
    current: Option<(NodeId, Range<usize>)>,
    staged: Staged,
}

/// What a turn has asked for and not committed, less what lies in slots.
#[derive(Debug, Default)]
struct Staged {
    writes: Vec<(RegionRef, Stored)>,
    /// Bytes of writes that are not of the frame that is being handled.
    bytes: Vec<u8>,
    copies: Vec<(DmaId, Dma)>,
    completed: Vec<PortId>,
    looped: Vec<Vec<u8>>,
    timers: Option<[Instant; TIMERS]>,
    frames: u64,
    frame_bytes: u64,
    unroutable: u64,
    unlinked: u64,
    /// Anything at all is staged.
    is_any: bool,
}

#[derive(Debug)]
enum Stored {
    /// A range of the payload of the frame that is being handled.
    Current(Range<usize>),
    /// A range of the staged bytes.
    Staged(Range<usize>),
}

impl Nic {
    pub(super) fn new(config: &ShmConfig, incarnation: Incarnation) -> Self {
        Self {
            node: config.node,
            incarnation,
            mtu: config.mtu,
            rate: config.rate,
            now: Clock::now(),
            peers: (0..config.nodes).map(|_| None).collect(),
            touched: Vec::new(),
            counters: ShmCounters::default(),
            ports: Ports::default(),
            open: BTreeSet::new(),
            completed: Vec::new(),
            timers: [Instant::FAR_FUTURE; TIMERS],
            next_alarm: Instant::FAR_FUTURE,
            looped: VecDeque::new(),
            dma_done: VecDeque::new(),
            next_dma: 0,
            current: None,
            staged: Staged::default(),
        }
    }

    /// Reads the clock; the time stands still until the next reading.
    pub(super) fn read_clock(&mut self) {
        self.now = Clock::now();
    }

    /// Takes in the sending end of a link. Returns the receiving end.
    pub(super) fn join(&mut self, link: Link) -> super::lane::Receiver {
        let segment = Arc::clone(link.receiver.segment());
        let (sender, channel) = (link.sender, link.channel);
        let peer = Peer { sender, segment, channel, is_touched: false, retry: Retry::default() };
        self.peers[link.node.index()] = Some(peer);
        self.touched.retain(|node| *node != link.node);
        link.receiver
    }

    /// A peer is gone.
    pub(super) fn leave(&mut self, node: NodeId) {
        self.peers[node.index()] = None;
        self.touched.retain(|touched| *touched != node);
    }

    /// A turn handles this frame of `from`.
    pub(super) fn begin_frame(&mut self, from: NodeId, payload: Extent) {
        self.current = Some((from, payload.offset..payload.offset + payload.length));
    }

    /// Ends a turn: what it did not commit never happened.
    pub(super) fn end_turn(&mut self) {
        self.abort();
        self.current = None;
    }

    pub(super) fn open_port(&mut self, id: PortId, port: NicPort) {
        self.ports.insert(id, port);
        self.open.insert(id);
    }

    /// Whether the application's end of a port is gone, and what it has posted is not all taken.
    pub(super) fn is_leaving(&mut self, id: PortId) -> bool {
        self.ports.at(id).is_some_and(|port| !port.sync())
    }

    /// After the firmware has looked at a port: one that was dropped is forgotten once its last
    /// command is taken. Whether this one was just now.
    pub(super) fn has_closed(&mut self, id: PortId) -> bool {
        if self.ports.at(id).is_some_and(NicPort::sync) {
            return false;
        }
        self.ports.sync(id);
        self.ports.at(id).is_none() && self.open.remove(&id)
    }

    /// An alarm that has gone off; it is off from then on.
    pub(super) fn expired_timer(&mut self) -> Option<TimerId> {
        let now = self.now;
        let index = self.timers.iter().position(|at| *at <= now)?;
        self.timers[index] = Instant::FAR_FUTURE;
        self.find_next_alarm();
        u8::try_from(index).ok().map(TimerId)
    }

    pub(super) fn looped_frame(&mut self) -> Option<Vec<u8>> {
        self.looped.pop_front()
    }

    pub(super) fn ended_dma(&mut self) -> Option<DmaId> {
        self.dma_done.pop_front()
    }

    /// Whether there is work that waits for nothing.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        !self.looped.is_empty() || !self.dma_done.is_empty() || self.next_alarm <= self.now
    }

    /// When the NIC has to do something by itself.
    pub(super) const fn next_alarm(&self) -> Instant {
        self.next_alarm
    }

    fn find_next_alarm(&mut self) {
        self.next_alarm = self.timers.iter().copied().fold(Instant::FAR_FUTURE, Instant::min);
    }

    /// Wakes whoever sleeps and was sent something: peers, and applications of this node.
    #[inline]
    pub(super) fn wake(&mut self) {
        if self.touched.is_empty() && self.completed.is_empty() {
            return;
        }
        // Between what was published and the looks at who sleeps; the sleepers have one between
        // their going to sleep and their last look.
        fence(Ordering::SeqCst);
        for node in self.touched.drain(..) {
            let Some(peer) = &mut self.peers[node.index()] else { continue };
            peer.is_touched = false;
            if peer.sender.takes_wake() {
                peer.channel.wake();
            }
        }
        for id in self.completed.drain(..) {
            if let Some(port) = self.ports.at(id) {
                port.wake();
            }
        }
    }

    /// Puts a frame into an unpublished slot.
    fn stage(&mut self, header: &Header, source: Source<'_>) -> Result<(), TransmitRefused> {
        let Self { peers, ports, staged, touched, mtu, now, .. } = self;
        let payload = match source {
            Source::Bytes(payload) => payload,
            Source::Region(at) => ports.read(at)?,
        };
        if payload.len() != usize::from(header.length) || payload.len() > *mtu {
            return Err(TransmitRefused::Length { mtu: *mtu });
        }
        let peer = match peers.get_mut(header.destination.index()) {
            Some(Some(peer)) => peer,
            Some(None) => {
                staged.unlinked += 1;
                return Ok(());
            }
            None => {
                staged.unroutable += 1;
                return Ok(());
            }
        };
        if peer.sender.stage(&header.emit(), payload.view()).is_err() {
            return Err(TransmitRefused::Busy { until: peer.retry.on_full(*now) });
        }
        peer.retry.on_room();
        staged.frames += 1;
        staged.frame_bytes += header.frame_bytes() as u64;
        if !std::mem::replace(&mut peer.is_touched, true) {
            touched.push(header.destination);
        }
        Ok(())
    }

    fn stage_looped(&mut self, header: &Header, from: Source<'_>) -> Result<(), TransmitRefused> {
        if self.looped.len() + self.staged.looped.len() >= LOOP_DEPTH {
            return Err(TransmitRefused::Busy { until: self.now.plus_nanos(1) });
        }
        let payload = match from {
            Source::Bytes(payload) => payload,
            Source::Region(at) => self.ports.read(at)?,
        };
        if payload.len() != usize::from(header.length) || payload.len() > self.mtu {
            return Err(TransmitRefused::Length { mtu: self.mtu });
        }
        let mut frame = vec![0; header.frame_bytes()];
        frame[..HEADER_BYTES].copy_from_slice(&header.emit());
        payload.copy_to(&mut frame[HEADER_BYTES..]);
        self.staged.looped.push(frame);
        Ok(())
    }

    /// Where bytes that are to be written will be at the commit.
    fn store(&mut self, from: Payload<'_>) -> Stored {
        if let Some((node, range)) = &self.current
            && let Some(Some(peer)) = self.peers.get(node.index())
            && let Some(whole) = peer.segment.view(range.start, range.len())
            && let Some(place) = from.view().place_in(&whole)
        {
            return Stored::Current(place..place + from.len());
        }
        let begin = self.staged.bytes.len();
        self.staged.bytes.resize(begin + from.len(), 0);
        from.copy_to(&mut self.staged.bytes[begin..]);
        Stored::Staged(begin..begin + from.len())
    }

    /// Carries out the writes into registered memory.
    fn commit_writes(&mut self) {
        let Self { staged, ports, peers, current, .. } = self;
        for (to, stored) in staged.writes.drain(..) {
            let from = match stored {
                Stored::Staged(range) => Some(View::from(&staged.bytes[range])),
                Stored::Current(part) => current.as_ref().and_then(|(node, range)| {
                    let peer = peers[node.index()].as_ref()?;
                    peer.segment.view(range.start + part.start, part.len())
                }),
            };
            // A region that was given up within the turn is not written; nobody reads it either.
            if let Some(from) = from {
                let _ = ports.write(to, Payload::from(from));
            }
        }
        staged.bytes.clear();
    }

    fn commit_frames(&mut self) {
        let staged = &mut self.staged;
        self.counters.frames_sent += std::mem::take(&mut staged.frames);
        self.counters.bytes_sent += std::mem::take(&mut staged.frame_bytes);
        let unroutable = std::mem::take(&mut staged.unroutable);
        self.counters.drops.add_many(DropCause::NoRoute, unroutable);
        let unlinked = std::mem::take(&mut staged.unlinked);
        self.counters.drops.add_many(DropCause::NicDown, unlinked);
        for node in &self.touched {
            if let Some(peer) = &mut self.peers[node.index()] {
                peer.sender.publish();
            }
        }
        self.looped.extend(staged.looped.drain(..));
    }
}

impl Hardware for Nic {
    fn node(&self) -> NodeId {
        self.node
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn line_rate(&self) -> LineRate {
        self.rate
    }

    fn wire_bytes(&self, payload: usize) -> u32 {
        u32::try_from(HEADER_BYTES + payload).unwrap_or(u32::MAX)
    }

    fn line_lag(&self) -> u64 {
        0
    }

    fn charge(&mut self, _: u64) {}

    fn transmit(
        &mut self,
        header: &Header,
        source: Source<'_>,
    ) -> Result<Instant, TransmitRefused> {
        if header.destination == self.node {
            self.stage_looped(header, source)?;
        } else if header.destination == NodeId::EVERYBODY {
            let me = self.node;
            let nodes = (0..self.peers.len() as u16).map(NodeId);
            for destination in nodes.filter(|node| *node != me) {
                match self.stage(&Header { destination, ..*header }, source) {
                    // Who has no room for a copy misses it: the others have theirs already.
                    Ok(()) | Err(TransmitRefused::Busy { .. }) => {}
                    Err(refused) => return Err(refused),
                }
            }
        } else {
            self.stage(header, source)?;
        }
        self.staged.is_any = true;
        Ok(self.now)
    }

    fn check(&self, region: RegionRef, access: Access) -> Result<(), RegionError> {
        self.ports.check(region, access)
    }

    fn read(&self, from: RegionRef) -> Result<Payload<'_>, RegionError> {
        self.ports.read(from)
    }

    fn write(&mut self, to: RegionRef, from: Payload<'_>) -> Result<(), RegionError> {
        self.ports.check_write(to, from.len())?;
        let stored = self.store(from);
        self.staged.writes.push((to, stored));
        self.staged.is_any = true;
        Ok(())
    }

    fn complete(&mut self, port: PortId, completion: &Completion) {
        if let Some(to) = self.ports.at(port)
            && to.stage(completion)
        {
            self.staged.completed.push(port);
            self.staged.is_any = true;
        }
    }

    fn dma(&mut self, transfer: Dma) -> Result<DmaId, DmaRefused> {
        self.ports.read(transfer.from)?;
        self.ports.check_write(transfer.to, transfer.from.length as usize)?;
        let id = DmaId(self.next_dma);
        self.next_dma = self.next_dma.wrapping_add(1);
        self.staged.copies.push((id, transfer));
        self.staged.is_any = true;
        Ok(id)
    }

    fn next_command(&mut self, port: PortId) -> Option<Command> {
        self.ports.next_command(port)
    }

    fn set_timer(&mut self, timer: TimerId, at: Instant) {
        self.staged.timers.get_or_insert(self.timers)[timer.index()] = at;
        self.staged.is_any = true;
    }

    fn commit(&mut self) {
        if !std::mem::take(&mut self.staged.is_any) {
            return;
        }
        self.commit_writes();
        for (id, Dma { from, to }) in self.staged.copies.drain(..) {
            let _ = self.ports.read(from).and_then(|bytes| self.ports.write(to, bytes));
            self.dma_done.push_back(id);
        }
        self.commit_frames();
        for port in self.staged.completed.drain(..) {
            if let Some(to) = self.ports.at(port) {
                to.publish();
            }
            if self.completed.last() != Some(&port) {
                self.completed.push(port);
            }
        }
        if let Some(timers) = self.staged.timers.take() {
            self.timers = timers;
            self.find_next_alarm();
        }
    }

    fn abort(&mut self) {
        if !std::mem::take(&mut self.staged.is_any) {
            return;
        }
        for node in &self.touched {
            if let Some(peer) = &mut self.peers[node.index()] {
                peer.sender.abort();
            }
        }
        let Staged { writes, bytes, copies, completed, looped, timers, .. } = &mut self.staged;
        for port in completed.drain(..) {
            if let Some(to) = self.ports.at(port) {
                to.unstage();
            }
        }
        writes.clear();
        bytes.clear();
        copies.clear();
        looped.clear();
        *timers = None;
        (self.staged.frames, self.staged.frame_bytes) = (0, 0);
        (self.staged.unroutable, self.staged.unlinked) = (0, 0);
    }
}
