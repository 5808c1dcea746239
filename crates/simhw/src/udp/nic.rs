//! What firmware may ask of a NIC over UDP: staged in a turn, applied at its commit.

mod leaving;
mod probing;

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::UdpCounters;
use super::batch::{Socket, plain};
use super::clock::Clock;
use super::config::UdpConfig;
use super::line::Line;
use super::paths::Paths;
use super::pieces::Joiner;
use crate::drops::DropCause;
use crate::frame::{HEADER_BYTES, Header};
use crate::hardware::{Dma, DmaRefused, Hardware, Source, TIMERS, TransmitRefused};
use crate::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use crate::link::Framing;
use crate::port::{Command, Completion, NicPort, Ports};
use crate::region::{Access, Payload, RegionError, RegionRef};
use crate::seal::{Envelope, Opened, SEAL_BYTES, SealConfigError, Seals};
use crate::segment::View;
use crate::time::{Instant, LineRate};

/// How long before their time frames go to a soft switch, which holds them until then: a host that
/// is late for a wake-up is not late for the frame. Where nothing but the system's queues is behind
/// the socket, a control message would wait behind what was handed over.
const AHEAD_OF_SWITCH: Duration = Duration::from_millis(1);

/// Frames to itself that a NIC holds; beyond them it is busy.
const LOOP_DEPTH: usize = 256;

/// The NIC.
#[derive(Debug)]
pub(super) struct Nic {
    node: NodeId,
    incarnation: Incarnation,
    peers: Vec<SocketAddr>,
    via: Option<SocketAddr>,
    framing: Framing,
    mtu: usize,
    now: Instant,
    pub(super) socket: Socket,
    /// The system takes nothing now.
    blocked: bool,
    pub(super) line: Line,
    /// With a key.
    seals: Option<Seals>,
    paths: Paths,
    joiner: Joiner,
    /// Of the next frame that is cut.
    next_cut: u32,
    pub(super) counters: UdpCounters,
    ports: Ports,
    /// Ports that are open, and those that are closing.
    open: BTreeSet<PortId>,
    timers: [Instant; TIMERS],
    /// Frames to this node, whole.
    looped: VecDeque<Vec<u8>>,
    dma_done: VecDeque<DmaId>,
    next_dma: u32,
    /// What the frame that is being handled lies in.
    arrived: Option<Arc<Vec<u8>>>,
    staged: Staged,
}

/// What a turn has asked for and not committed, less the frames on the line.
#[derive(Debug, Default)]
struct Staged {
    /// Bytes of writes that are not of the frame that is being handled.
    bytes: Vec<u8>,
    writes: Vec<(RegionRef, Stored)>,
    copies: Vec<(DmaId, Dma)>,
    completions: Vec<(PortId, Completion)>,
    looped: Vec<Vec<u8>>,
    /// Frames for which there are no keys yet, and whether they are urgent.
    held: Vec<(NodeId, bool, Vec<u8>)>,
    timers: Option<[Instant; TIMERS]>,
    /// Frames to nodes that there are not.
    unroutable: u64,
}

/// Where bytes that are to be written are until the commit.
#[derive(Debug)]
enum Stored {
    /// In what the frame lies in that is being handled.
    Arrived(Range<usize>),
    /// Among the staged bytes.
    Staged(Range<usize>),
}

impl Staged {
    fn clear(&mut self) {
        self.bytes.clear();
        self.writes.clear();
        self.copies.clear();
        self.completions.clear();
        self.looped.clear();
        self.held.clear();
        self.timers = None;
        self.unroutable = 0;
    }
}

/// Makes the seals of a checked configuration, if it has keys.
pub(super) fn seals(config: &UdpConfig) -> Result<Option<Seals>, SealConfigError> {
    let (node, peers, keys) = (config.node, config.peers.len(), config.keys.clone());
    match &config.identity {
        Some(identity) => Seals::identified(node, peers, keys, identity.clone()).map(Some),
        None if keys.is_empty() => Ok(None),
        None => Seals::new(node, peers, keys).map(Some),
    }
}

impl Nic {
    /// A NIC of a checked configuration, with what [`seals`] makes of it.
    pub(super) fn new(config: &UdpConfig, seals: Option<Seals>, socket: Socket) -> Self {
        let around = if seals.is_some() { SEAL_BYTES } else { 0 };
        Self {
            node: config.node,
            incarnation: config.incarnation.unwrap_or_else(Clock::incarnation),
            seals,
            peers: config.peers.clone(),
            via: config.via,
            framing: config.line.framing,
            mtu: config.mtu,
            now: Clock::now(),
            socket,
            blocked: false,
            line: Line::new(
                config.line.rate,
                config.transmit_depth,
                config.catch_up,
                if config.via.is_some() { AHEAD_OF_SWITCH } else { Duration::ZERO },
            ),
            paths: Paths::new(config.datagram_bytes, around),
            joiner: Joiner::default(),
            next_cut: 0,
            counters: UdpCounters::default(),
            ports: Ports::default(),
            open: BTreeSet::new(),
            timers: [Instant::FAR_FUTURE; TIMERS],
            looped: VecDeque::new(),
            dma_done: VecDeque::new(),
            next_dma: 0,
            arrived: None,
            staged: Staged::default(),
        }
    }

    /// Begins a turn: the time stands still in it.
    pub(super) fn begin_turn(&mut self) {
        self.now = Clock::now();
    }

    /// The same, for a frame that lies in `memory`: what the firmware writes of it is copied from there.
    pub(super) fn begin_frame(&mut self, memory: &Arc<Vec<u8>>) {
        self.begin_turn();
        self.arrived = Some(Arc::clone(memory));
    }

    /// Ends a turn: what it did not commit never happened.
    pub(super) fn end_turn(&mut self) {
        self.abort();
        self.arrived = None;
    }

    pub(super) fn open_port(&mut self, id: PortId, port: NicPort) {
        self.ports.insert(id, port);
        self.open.insert(id);
    }

    /// Takes note of what changed on a port, before the firmware looks at it.
    pub(super) fn sync_port(&mut self, id: PortId) {
        if let Some(port) = self.ports.at(id) {
            port.sync();
        }
    }

    /// Whether the application's end of a port is gone, and what it has posted is not all taken.
    pub(super) fn is_leaving(&mut self, id: PortId) -> bool {
        self.ports.at(id).is_some_and(|port| !port.sync())
    }

    /// After the firmware has looked at a port: one that was dropped is forgotten once its last
    /// command is taken. Whether this one was just now.
    pub(super) fn has_closed(&mut self, id: PortId) -> bool {
        self.ports.sync(id);
        // A bell may still ring for a port that is gone, and whose number may be another's by now.
        self.ports.at(id).is_none() && self.open.remove(&id)
    }

    /// An alarm that has gone off; it is off from then on.
    pub(super) fn expired_timer(&mut self) -> Option<TimerId> {
        let now = self.now;
        let index = self.timers.iter().position(|at| *at <= now)?;
        self.timers[index] = Instant::FAR_FUTURE;
        u8::try_from(index).ok().map(TimerId)
    }

    pub(super) fn looped_frame(&mut self) -> Option<Vec<u8>> {
        self.looped.pop_front()
    }

    pub(super) fn ended_dma(&mut self) -> Option<DmaId> {
        self.dma_done.pop_front()
    }

    /// Whether there is work that waits for nothing.
    pub(super) fn has_work(&self) -> bool {
        !self.looped.is_empty() || !self.dma_done.is_empty()
    }

    /// When the NIC has to do something by itself.
    pub(super) fn next_alarm(&self) -> Instant {
        let keys = self.seals.as_ref().map_or(Instant::FAR_FUTURE, Seals::poll_timeout);
        let own = keys.min(self.paths.poll_timeout());
        self.timers.iter().copied().fold(own, Instant::min)
    }

    /// Whether frames are sealed.
    pub(super) const fn is_sealed(&self) -> bool {
        self.seals.is_some()
    }

    /// Whether frames may still wait for keys.
    pub(super) fn awaits_keys(&self) -> bool {
        self.seals.as_ref().is_some_and(Seals::is_asking)
    }

    /// Opens a datagram into `plain`, where frames are sealed.
    pub(super) fn open(
        &mut self,
        envelope: &Envelope,
        body: &[u8],
        plain: &mut [u8],
    ) -> Result<Opened, DropCause> {
        self.now = Clock::now();
        let Some(seals) = &mut self.seals else { return Err(DropCause::Malformed) };
        let opened = seals.open(self.now, envelope, body, plain);
        self.send_about_keys();
        opened
    }

    /// What is due about keys. Nothing may be staged.
    pub(super) fn run_keys(&mut self) {
        let Some(seals) = &mut self.seals else { return };
        if seals.poll_timeout() <= self.now {
            seals.handle_timeout(self.now);
            self.send_about_keys();
        }
    }

    /// Puts on the line what there is about keys, and what has waited for them. Nothing may be staged.
    fn send_about_keys(&mut self) {
        let Self { seals: Some(seals), line, counters, peers, via, framing, now, .. } = self else {
            return;
        };
        loop {
            let mut bytes = line.buffer();
            bytes.clear();
            let Some((to, urgent)) = seals.poll_transmit(&mut bytes) else {
                line.recycle(bytes);
                break;
            };
            let to = via.unwrap_or(peers[to.index()]);
            let wire_bytes = framing.wire_bytes(u32::try_from(bytes.len()).expect("a datagram"));
            if urgent {
                line.put_urgent(*now, wire_bytes, to, bytes);
            } else {
                line.put(*now, wire_bytes, to, (bytes, None));
            }
        }
        line.commit();
        counters.drops.add_many(DropCause::NoKeys, seals.take_given_up());
    }

    /// Whether a frame of `source` may come from `from`.
    pub(super) fn is_from(&self, from: SocketAddr, source: NodeId) -> bool {
        match (self.via, self.peers.get(source.index())) {
            (Some(switch), Some(_)) => from == plain(switch),
            (None, Some(peer)) => from == plain(*peer) && source != self.node,
            (_, None) => false,
        }
    }

    /// Where bytes that are to be written will be at the commit.
    fn store(&mut self, from: Payload<'_>) -> Stored {
        if let Some(memory) = &self.arrived
            && let Some(place) = from.view().place_in(&View::from(&memory[..]))
        {
            return Stored::Arrived(place..place + from.len());
        }
        let bytes = &mut self.staged.bytes;
        let begin = bytes.len();
        bytes.resize(begin + from.len(), 0);
        from.copy_to(&mut bytes[begin..]);
        Stored::Staged(begin..bytes.len())
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

    fn mtu_to(&self, to: NodeId) -> usize {
        if to == self.node {
            self.mtu
        } else {
            self.whole_frame(to).saturating_sub(HEADER_BYTES).min(self.mtu)
        }
    }

    fn line_rate(&self) -> LineRate {
        self.line.rate()
    }

    fn wire_bytes(&self, payload: usize) -> u32 {
        let around = HEADER_BYTES + if self.is_sealed() { SEAL_BYTES } else { 0 };
        let frame = u32::try_from(around + payload).unwrap_or(u32::MAX / 2);
        self.framing.wire_bytes(frame)
    }

    fn line_lag(&self) -> u64 {
        self.line.lag(self.now)
    }

    fn charge(&mut self, _: u64) {}

    fn transmit(
        &mut self,
        header: &Header,
        source: Source<'_>,
    ) -> Result<Instant, TransmitRefused> {
        if header.destination == self.node {
            return self.transmit_looped(header, source);
        }
        let until = self.line.busy_until(self.now);
        if let Some(until) = until.filter(|_| !header.is_urgent()) {
            return Err(TransmitRefused::Busy { until });
        }
        if let Some(at) = self.lent(header, source) {
            return self.lend(header, at);
        }
        let frame = self.gather(header, source)?;
        // A switch copies what it can read.
        if header.destination == NodeId::EVERYBODY && (self.via.is_none() || self.is_sealed()) {
            return Ok(self.send_to_each(header, &frame));
        }
        Ok(self.send(header, frame))
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
        Ok(())
    }

    fn complete(&mut self, port: PortId, completion: &Completion) {
        self.staged.completions.push((port, *completion));
    }

    fn dma(&mut self, transfer: Dma) -> Result<DmaId, DmaRefused> {
        self.ports.read(transfer.from)?;
        self.ports.check_write(transfer.to, transfer.from.length as usize)?;
        let id = DmaId(self.next_dma);
        self.next_dma = self.next_dma.wrapping_add(1);
        self.staged.copies.push((id, transfer));
        Ok(id)
    }

    fn next_command(&mut self, port: PortId) -> Option<Command> {
        self.ports.next_command(port)
    }

    fn set_timer(&mut self, timer: TimerId, at: Instant) {
        self.staged.timers.get_or_insert(self.timers)[timer.index()] = at;
    }

    fn commit(&mut self) {
        self.line.commit();
        self.settle_loans();
        let staged = &mut self.staged;
        // A region that was given up within the turn is not written; nobody reads it either.
        for (to, stored) in staged.writes.drain(..) {
            let from = match (stored, &self.arrived) {
                (Stored::Staged(range), _) => &staged.bytes[range],
                (Stored::Arrived(range), Some(memory)) => &memory[range],
                (Stored::Arrived(_), None) => continue,
            };
            let _ = self.ports.write(to, Payload::from(from));
        }
        staged.bytes.clear();
        for (id, Dma { from, to }) in staged.copies.drain(..) {
            let _ = self.ports.read(from).and_then(|bytes| self.ports.write(to, bytes));
            self.dma_done.push_back(id);
        }
        for (to, urgent, frame) in staged.held.drain(..) {
            let held = self.seals.as_mut().is_some_and(|s| s.hold(self.now, to, urgent, frame));
            if !held {
                self.counters.drops.add(DropCause::NoKeys);
            }
        }
        self.looped.extend(staged.looped.drain(..));
        for (port, completion) in staged.completions.drain(..) {
            if let Some(port) = self.ports.at(port) {
                port.complete(&completion);
            }
        }
        if let Some(timers) = staged.timers.take() {
            self.timers = timers;
        }
        for _ in 0..std::mem::take(&mut staged.unroutable) {
            self.counters.drops.add(DropCause::NoRoute);
        }
        self.send_about_keys();
    }

    fn abort(&mut self) {
        self.line.abort();
        self.staged.clear();
    }
}
