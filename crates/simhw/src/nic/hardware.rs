//! The operations that a NIC offers its firmware: staged within a turn, visible at its commit.
//!
//! Completions are staged in the unpublished slots of their port's ring, and frames where their link stages them. Only
//! writes into registered memory wait in a list until the commit, because applications can read that memory at any
//! time.

use std::collections::VecDeque;

use super::NicCounters;
use super::inbound::Inbound;
use super::link::Link;
use super::staged::{Staged, Stored};
use super::turn_time::TurnTime;
use crate::frame::{Frame, HEADER_BYTES, Header};
use crate::hardware::{Dma, DmaRefused, Firmware, Hardware, Source, TIMERS, TransmitRefused};
use crate::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use crate::port::{Command, Completion, NicPort, Ports};
use crate::region::{Access, Payload, RegionError, RegionRef};
use crate::segment::View;
use crate::sync::{Ordering, fence};
use crate::time::{Instant, LineRate};

/// Most frames to its own node that a NIC holds; beyond them it is busy.
const LOOP_DEPTH: usize = 256;

/// A NIC, except the receiving half of its link.
#[derive(Debug)]
pub(crate) struct Nic<L> {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) mtu: usize,
    pub(crate) time: TurnTime,
    pub(crate) ports: Ports,
    pub(crate) counters: NicCounters,
    pub(crate) link: L,
    /// The faults of the links that lead to the NIC, if any are injected.
    pub(super) faults: Option<Box<Inbound>>,
    /// Ports with published completions whose applications were not woken.
    completed: Vec<PortId>,
    /// True if one of those applications may park without taking the NIC's lock.
    must_fence: bool,
    timers: [Instant; TIMERS],
    /// The earliest of the timers and of the frames that faults delay.
    next_alarm: Instant,
    looped: VecDeque<Vec<u8>>,
    dma_done: VecDeque<DmaId>,
    next_dma: u32,
    staged: Staged,
}

/// Returns the payload of a frame, which `header` describes and which lies in `source`.
///
/// # Errors
/// [`TransmitRefused`] if the region may not be read, or the length is not the header's or exceeds `mtu`.
#[inline]
pub(crate) fn payload<'a>(
    ports: &'a Ports,
    mtu: usize,
    header: &Header,
    source: Source<'a>,
) -> Result<Payload<'a>, TransmitRefused> {
    let payload = match source {
        Source::Bytes(payload) => payload,
        Source::Region(at) => ports.read(at)?,
    };
    if payload.len() != usize::from(header.length) || payload.len() > mtu {
        return Err(TransmitRefused::Length { mtu });
    }
    Ok(payload)
}

impl<L: Link> Nic<L> {
    pub(crate) fn new(node: NodeId, incarnation: Incarnation, mtu: usize, link: L) -> Self {
        Self {
            node,
            incarnation,
            mtu,
            time: TurnTime::new(),
            ports: Ports::default(),
            counters: NicCounters::default(),
            link,
            faults: None,
            completed: Vec::new(),
            must_fence: false,
            timers: [Instant::FAR_FUTURE; TIMERS],
            next_alarm: Instant::FAR_FUTURE,
            looped: VecDeque::new(),
            dma_done: VecDeque::new(),
            next_dma: 0,
            staged: Staged::default(),
        }
    }

    /// Ends a turn: discards what it did not commit.
    #[inline]
    pub(crate) fn end_turn(&mut self) {
        self.abort();
        self.link.end_frame();
    }

    /// Hands the firmware a received frame. It takes the commands first that the frame's port has posted without a
    /// doorbell, such as the frame's buffer.
    #[inline]
    pub(crate) fn hand(&mut self, firmware: &mut impl Firmware, frame: Frame<'_>) {
        if self.ports.has_posted(&frame.header) {
            firmware.on_doorbell(self, frame.header.port);
            self.abort();
        }
        firmware.on_frame(self, frame);
        self.end_turn();
    }

    pub(super) fn open_port(&mut self, id: PortId, port: NicPort) {
        self.ports.insert(id, port);
    }

    /// Returns whether the application has closed its end of a port that the NIC has not removed yet.
    pub(super) fn is_leaving(&mut self, id: PortId) -> bool {
        self.ports.at(id).is_some_and(|port| !port.sync())
    }

    /// Removes a port that the application has dropped and whose last command is taken. Returns whether it did. A late
    /// ring of a removed port may name a later port with the same number.
    pub(super) fn has_closed(&mut self, id: PortId) -> bool {
        self.ports.sync(id);
        self.ports.take_closed(Some(id)).is_some()
    }

    /// Takes a due alarm, and turns it off.
    pub(super) fn expired_timer(&mut self) -> Option<TimerId> {
        let now = self.time.get();
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

    /// Returns whether there is work to do now.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.looped.is_empty() || !self.dma_done.is_empty() || self.next_alarm <= self.time.last()
    }

    /// Returns when the next alarm of the firmware is due, or the next frame that faults delay.
    pub(crate) const fn next_alarm(&self) -> Instant {
        self.next_alarm
    }

    pub(super) fn find_next_alarm(&mut self) {
        let delayed =
            self.faults.as_ref().map_or(Instant::FAR_FUTURE, |faults| faults.next_arrival());
        self.next_alarm = self.timers.iter().copied().fold(delayed, Instant::min);
    }

    /// Wakes the parked peers and applications for which frames or completions were published.
    #[inline]
    pub(crate) fn wake(&mut self) {
        let owes_wake = self.link.owes_wake();
        if self.completed.is_empty() && !owes_wake {
            return;
        }
        // Orders the published entries before the loads of the park flags. A parking side has the matching fence
        // between setting its flag and its last poll.
        if std::mem::take(&mut self.must_fence) | owes_wake {
            fence(Ordering::SeqCst);
        }
        self.link.wake();
        for id in self.completed.drain(..) {
            if let Some(port) = self.ports.at(id) {
                port.wake();
            }
        }
    }

    /// Stages a frame to the own node.
    fn stage_looped(&mut self, header: &Header, source: Source<'_>) -> Result<(), TransmitRefused> {
        if self.looped.len() + self.staged.looped.len() >= LOOP_DEPTH {
            return Err(TransmitRefused::Busy { until: self.time.get().plus_nanos(1) });
        }
        let payload = payload(&self.ports, self.mtu, header, source)?;
        let mut frame = vec![0; header.frame_bytes()];
        frame[..HEADER_BYTES].copy_from_slice(&header.emit());
        payload.copy_to(&mut frame[HEADER_BYTES..]);
        self.staged.looped.push(frame);
        Ok(())
    }

    /// Stages bytes for the commit to write: a copy, or their range if they lie in the frame that is being handled.
    fn store(&mut self, from: Payload<'_>) -> Stored {
        if let Some(whole) = self.link.current()
            && let Some(place) = from.view().place_in(&whole)
        {
            return Stored::Current(place..place + from.len());
        }
        let begin = self.staged.bytes.len();
        self.staged.bytes.resize(begin + from.len(), 0);
        from.copy_to(&mut self.staged.bytes[begin..]);
        Stored::Staged(begin..begin + from.len())
    }

    /// Performs the staged writes into registered memory, except to regions that were deregistered within the turn.
    fn commit_writes(&mut self) {
        let Self { staged, ports, link, .. } = self;
        for (to, stored) in staged.writes.drain(..) {
            let from = match stored {
                Stored::Staged(range) => Some(View::from(&staged.bytes[range])),
                Stored::Current(range) => link.current().and_then(|whole| whole.slice(range)),
            };
            if let Some(from) = from {
                let _ = ports.write(to, Payload::from(from));
            }
        }
        staged.bytes.clear();
    }

    fn commit_copies(&mut self) {
        for (id, Dma { from, to }) in self.staged.copies.drain(..) {
            let _ = self.ports.read(from).and_then(|bytes| self.ports.write(to, bytes));
            self.dma_done.push_back(id);
        }
    }

    fn publish_completions(&mut self) {
        for port in self.staged.completed.drain(..) {
            if let Some(to) = self.ports.at(port) {
                to.publish();
                self.must_fence |= !L::PARKING_LOCKS || to.is_far();
            }
            if self.completed.last() != Some(&port) {
                self.completed.push(port);
            }
        }
    }
}

impl<L: Link> Hardware for Nic<L> {
    fn node(&self) -> NodeId {
        self.node
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn now(&self) -> Instant {
        self.time.get()
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn mtu_to(&self, to: NodeId) -> usize {
        if to == self.node { self.mtu } else { self.link.mtu_to(self.mtu, to) }
    }

    fn line_rate(&self) -> LineRate {
        self.link.line_rate()
    }

    fn wire_bytes(&self, payload: usize) -> u32 {
        self.link.wire_bytes(payload)
    }

    fn line_lag(&self) -> u64 {
        self.link.line_lag(self.time.get())
    }

    fn charge(&mut self, _: u64) {}

    #[inline]
    fn transmit(
        &mut self,
        header: &Header,
        source: Source<'_>,
    ) -> Result<Instant, TransmitRefused> {
        self.staged.is_any = true;
        if header.destination == self.node {
            self.stage_looped(header, source)?;
            return Ok(self.time.last());
        }
        L::transmit(self, header, source)
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

    fn open_gate(&mut self, port: PortId) -> Option<u64> {
        self.ports.open_gate(port)
    }

    fn close_gate(&mut self, port: PortId) -> bool {
        self.ports.close_gate(port)
    }

    fn apply_registrations(&mut self, port: PortId) {
        if let Some(port) = self.ports.at(port) {
            port.sync();
        }
    }

    fn set_timer(&mut self, timer: TimerId, at: Instant) {
        self.staged.timers.get_or_insert(self.timers)[timer.index()] = at;
        self.staged.is_any = true;
    }

    fn commit(&mut self) {
        if !std::mem::take(&mut self.staged.is_any) {
            return;
        }
        // Frames are sent with the bytes of memory before this turn's writes.
        L::gather(self);
        if !self.staged.writes.is_empty() {
            self.commit_writes();
        }
        if !self.staged.copies.is_empty() {
            self.commit_copies();
        }
        // After the writes: a peer that receives a frame may rely on them.
        L::publish(self);
        if !self.staged.looped.is_empty() {
            self.looped.extend(self.staged.looped.drain(..));
        }
        self.publish_completions();
        if let Some(timers) = self.staged.timers.take() {
            self.timers = timers;
            self.find_next_alarm();
        }
    }

    fn abort(&mut self) {
        if !std::mem::take(&mut self.staged.is_any) {
            return;
        }
        self.link.abort();
        for port in self.staged.completed.drain(..) {
            if let Some(to) = self.ports.at(port) {
                to.unstage();
            }
        }
        self.staged.clear();
    }
}
