//! A NIC in memory, for tests of a unit: sent frames are in a queue, and regions are vectors.

use std::collections::VecDeque;

use midplane_simhw::frame::{HEADER_BYTES, Header};
use midplane_simhw::hardware::{Dma, DmaRefused, Hardware, Source, TIMERS, TransmitRefused};
use midplane_simhw::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use midplane_simhw::port::{Command, Completion};
use midplane_simhw::region::{Access, Payload, ProtectionTag, RegionError, RegionRef, Rights};
use midplane_simhw::time::{Instant, LineRate};

/// A region of port 0, of generation 1.
#[derive(Clone, Debug)]
pub(crate) struct Slab {
    pub(crate) bytes: Vec<u8>,
    pub(crate) rights: Rights,
    pub(crate) tag: ProtectionTag,
}

/// A frame that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

#[derive(Debug, Default)]
struct Staged {
    sent: Vec<Sent>,
    writes: Vec<(RegionRef, Vec<u8>)>,
    completions: Vec<Completion>,
    timers: Vec<(TimerId, Instant)>,
}

#[derive(Debug)]
pub(crate) struct MemoryNic {
    node: NodeId,
    now: Instant,
    pub(crate) slabs: Vec<Slab>,
    pub(crate) commands: VecDeque<Command>,
    pub(crate) completions: Vec<Completion>,
    pub(crate) sent: VecDeque<Sent>,
    timers: [Instant; TIMERS],
    staged: Staged,
}

impl MemoryNic {
    pub(crate) fn new(node: NodeId, slabs: Vec<Slab>) -> Self {
        Self {
            node,
            now: Instant::from_nanos(1_000_000),
            slabs,
            commands: VecDeque::new(),
            completions: Vec::new(),
            sent: VecDeque::new(),
            timers: [Instant::FAR_FUTURE; TIMERS],
            staged: Staged::default(),
        }
    }

    pub(crate) fn pass(&mut self, nanos: u64) {
        self.now = self.now.plus_nanos(nanos);
    }

    /// Returns a timer that has expired, and disarms it.
    pub(crate) fn expired(&mut self) -> Option<TimerId> {
        let at = self.timers.iter().position(|at| *at <= self.now)?;
        self.timers[at] = Instant::FAR_FUTURE;
        u8::try_from(at).ok().map(TimerId)
    }

    fn slab(&self, at: RegionRef) -> Result<&Slab, RegionError> {
        let slab = self.slabs.get(usize::from(at.slot)).ok_or(RegionError::Stale)?;
        if at.port != PortId(0) || at.generation != 1 {
            return Err(RegionError::Stale);
        }
        let bytes = slab.bytes.len();
        let end = u64::from(at.offset) + u64::from(at.length);
        if end > bytes as u64 { Err(RegionError::OutOfRange { bytes }) } else { Ok(slab) }
    }

    fn granted(&self, at: RegionRef, any: Rights) -> Result<&Slab, RegionError> {
        let slab = self.slab(at)?;
        let granted = slab.rights;
        if granted.intersects(any) { Ok(slab) } else { Err(RegionError::Rights { granted }) }
    }
}

impl Hardware for MemoryNic {
    fn node(&self) -> NodeId {
        self.node
    }
    fn incarnation(&self) -> Incarnation {
        Incarnation::FIRST
    }
    fn now(&self) -> Instant {
        self.now
    }
    fn mtu(&self) -> usize {
        1_400
    }
    fn line_rate(&self) -> LineRate {
        LineRate::mbps(1_000)
    }
    fn wire_bytes(&self, payload: usize) -> u32 {
        (HEADER_BYTES + payload) as u32
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
        let payload = match source {
            Source::Bytes(bytes) => bytes.to_vec(),
            Source::Region(at) => self.read(at)?.to_vec(),
        };
        self.staged.sent.push(Sent { header: *header, payload });
        Ok(self.now)
    }

    fn check(&self, region: RegionRef, access: Access) -> Result<(), RegionError> {
        let slab = self.slab(region)?;
        if access.owner.is_some_and(|owner| owner != region.port) {
            return Err(RegionError::Owner);
        }
        if access.tag.is_some_and(|tag| tag != slab.tag) {
            return Err(RegionError::Tag);
        }
        let granted = slab.rights;
        if granted.contains(access.rights) { Ok(()) } else { Err(RegionError::Rights { granted }) }
    }

    fn read(&self, from: RegionRef) -> Result<Payload<'_>, RegionError> {
        let slab = self.granted(from, Rights::LOCAL_READ | Rights::REMOTE_READ)?;
        let begin = from.offset as usize;
        Ok(Payload::from(&slab.bytes[begin..begin + from.length as usize]))
    }

    fn write(&mut self, to: RegionRef, from: Payload<'_>) -> Result<(), RegionError> {
        let slab = self.granted(to, Rights::LOCAL_WRITE | Rights::REMOTE_WRITE)?;
        if from.len() > to.length as usize {
            return Err(RegionError::OutOfRange { bytes: slab.bytes.len() });
        }
        self.staged.writes.push((to, from.to_vec()));
        Ok(())
    }

    fn complete(&mut self, _: PortId, completion: &Completion) {
        self.staged.completions.push(*completion);
    }

    fn dma(&mut self, _: Dma) -> Result<DmaId, DmaRefused> {
        Err(RegionError::Bus.into())
    }

    fn next_command(&mut self, _: PortId) -> Option<Command> {
        self.commands.pop_front()
    }

    fn set_timer(&mut self, timer: TimerId, at: Instant) {
        self.staged.timers.push((timer, at));
    }

    fn commit(&mut self) {
        let Staged { sent, writes, completions, timers } = std::mem::take(&mut self.staged);
        for (to, bytes) in writes {
            let begin = to.offset as usize;
            self.slabs[usize::from(to.slot)].bytes[begin..begin + bytes.len()]
                .copy_from_slice(&bytes);
        }
        self.sent.extend(sent);
        self.completions.extend(completions);
        for (timer, at) in timers {
            self.timers[timer.index()] = at;
        }
    }

    fn abort(&mut self) {
        self.staged = Staged::default();
    }
}
