//! The hardware as a turn of the firmware uses it: the modelled NIC, and the network behind it.

use super::super::active_faults::CompletionFault;
use super::super::event_queue::{Event, EventQueue};
use super::super::network::Network;
use super::{Effect, Nic, Route, Saved, Stored};
use crate::frame::Header;
use crate::hardware::{Dma, DmaRefused, Hardware, Source, TIMERS, TransmitRefused};
use crate::id::{DmaId, Incarnation, NodeId, PortId, TimerId};
use crate::port::{Command, Completion};
use crate::profile::{Costs, DmaCost, Loopback, Notice};
use crate::region::{Access, Payload, RegionError, RegionRef};
use crate::time::{Instant, LineRate, nanos};
use crate::trace::{Engine, Record};

/// Nanoseconds after which a NIC whose link is stopped retries to send.
const RETRY_NS: u64 = 10_000;

/// The hardware that one turn of the firmware uses.
pub(in crate::sim) struct SimHardware<'a> {
    pub(in crate::sim) nic: &'a mut Nic,
    pub(in crate::sim) network: &'a mut Network,
    pub(in crate::sim) queue: &'a mut EventQueue,
    pub(in crate::sim) now: Instant,
    /// The payload of the frame that is being handled.
    pub(in crate::sim) current: &'a [u8],
    /// Picoseconds that the turn has taken.
    pub(in crate::sim) cost_ps: u64,
    /// The factor by which an instruction takes longer than usual.
    pub(in crate::sim) times: u64,
    /// The number of the frame that is being handled.
    pub(in crate::sim) frame: Option<u64>,
    /// True if that frame came from this node itself.
    pub(in crate::sim) looped: bool,
    /// True if the firmware leaves that frame on the link.
    pub(in crate::sim) left: bool,
}

impl SimHardware<'_> {
    /// Returns the instant up to which the turn's work is done.
    pub(in crate::sim) const fn reached(&self) -> Instant {
        self.now.plus_nanos(self.cost_ps.div_ceil(1000))
    }

    /// Charges the time until the firmware is called, including the host's interrupt if it `interrupts`. A frame from
    /// the own node is free: the sender's turn was charged.
    pub(in crate::sim) fn begin_event(&mut self, interrupts: bool) {
        if self.looped {
            return;
        }
        self.charge(u64::from(self.nic.profile.event_instructions));
        if self.nic.host.runs_firmware && interrupts {
            self.cost_ps += u64::from(self.nic.host.interrupt_ns) * 1000;
        }
    }

    /// Stages a frame to this node itself, within the host.
    fn transmit_looped(
        &mut self,
        header: &Header,
        source: Source<'_>,
        loopback: Loopback,
    ) -> Result<Instant, TransmitRefused> {
        self.begin();
        self.cost_ps += loopback.frame_ns(usize::from(header.length)) * 1000;
        let arrives = self.reached();
        let key = self.network.prepare_looped(self.nic.node, *header, arrives);
        self.nic.staged.frames.push((key, Route::Loopback(arrives)));
        self.gather(key, source)?;
        Ok(self.nic.clock.read(arrives))
    }

    /// Saves the state that an abort restores.
    fn begin(&mut self) {
        if self.nic.staged.saved.is_none() {
            let line = self.network.uplinks[self.nic.node.index()].checkpoint();
            let (gather_free, next_dma) = (self.nic.engines.gather_free, self.nic.next_dma);
            self.nic.staged.saved = Some(Saved { line, gather_free, next_dma });
        }
    }

    fn begin_dma(&mut self) -> DmaId {
        self.begin();
        let dma = DmaId(self.nic.next_dma);
        self.nic.next_dma = self.nic.next_dma.wrapping_add(1);
        dma
    }

    fn store(&mut self, from: Payload<'_>) -> Stored {
        if let Some(bytes) = from.as_bytes() {
            let offset = (bytes.as_ptr() as usize).wrapping_sub(self.current.as_ptr() as usize);
            if offset.checked_add(bytes.len()).is_some_and(|end| end <= self.current.len()) {
                return Stored::Current(offset..offset + bytes.len());
            }
        }
        let start = self.nic.staged.bytes.len();
        self.nic.staged.bytes.resize(start + from.len(), 0);
        from.copy_to(&mut self.nic.staged.bytes[start..]);
        Stored::Staged(start..start + from.len())
    }

    /// Copies the payload into the frame.
    fn gather(&mut self, key: u32, source: Source<'_>) -> Result<(), RegionError> {
        let payload = &mut self.network.frames.at(key).payload;
        let from = match source {
            Source::Bytes(from) => from,
            Source::Region(at) => self.nic.ports.read(at)?,
        };
        match from.as_bytes() {
            Some(bytes) => {
                payload.clear();
                payload.extend_from_slice(bytes);
            }
            None => {
                payload.resize(from.len(), 0);
                from.copy_to(payload);
            }
        }
        Ok(())
    }

    /// Checks that the host's memory can be accessed: a fault may prevent it.
    #[inline]
    fn reach_host(&mut self) -> Result<(), RegionError> {
        let active_faults = &mut self.network.active_faults;
        let error =
            if active_faults.is_none() { None } else { active_faults.memory_error(self.nic.node) };
        error.map_or(Ok(()), Err)
    }

    /// Checks that a transmit slot is free. Urgent frames need none.
    fn claim_transmit_slot(&mut self) -> Result<(), TransmitRefused> {
        let node = self.nic.node;
        let (mut waiting, mut first) = self.network.uplinks[node.index()].waiting(self.now);
        let standing = self.network.back_pressure.at_end_of(self.network.hosts[node.index()].0);
        if standing > 0 {
            // The link resumes at an unknown time, so the firmware retries soon.
            waiting += standing;
            first = first.max(self.now.plus_nanos(RETRY_NS));
        }
        if waiting < usize::from(self.nic.profile.transmit_slots) {
            return Ok(());
        }
        let until = first.max(self.now.plus_nanos(1));
        let until = self.network.shared.not_before(node, until);
        Err(TransmitRefused::Busy { until: self.nic.clock.not_before(until) })
    }

    /// Returns when the line may begin with a frame: once enough of it is gathered that the line never waits for the
    /// rest. Also returns the begin and end of the DMA transfer.
    fn gather_ahead(&mut self, reached: Instant, length: usize) -> (Instant, (Instant, Instant)) {
        let profile = &self.nic.profile;
        let begins = self.nic.engines.gather_free.max(reached);
        let whole = profile.gather.nanos(length);
        let (piece, pieces) = self.network.pieces(length);
        let first = profile.gather.nanos(length.min(piece as usize));
        let rate = self.network.uplinks[self.nic.node.index()].rate();
        let rest_on_line = rate.nanos_for(u64::from(piece) * u64::from(pieces - 1));
        self.nic.engines.gather_free = begins.plus_nanos(whole);
        let ready = begins.plus_nanos(first.max(whole.saturating_sub(rest_on_line)));
        (ready, (begins, self.nic.engines.gather_free))
    }

    fn launch(&mut self, key: u32, route: Route) {
        let node = self.nic.node;
        match route {
            Route::Loopback(at) => {
                self.network.launch_looped(key);
                self.queue
                    .schedule(at, Event::Looped { node, frame: key, restarts: self.nic.restarts });
                return;
            }
            Route::Line(Some((begins, ends))) => {
                let number = self.network.frames.at(key).number;
                let engine = Engine::Gather(node);
                self.network.watch.busy(engine, begins, ends, "gather", Some(number));
            }
            Route::Line(None) => {}
        }
        self.network.launch(self.queue, key);
    }

    fn apply(&mut self, effect: Effect, bytes: &[u8], at: Instant) {
        match effect {
            Effect::Write { to, from } => {
                let from = match from {
                    Stored::Current(range) => &self.current[range],
                    Stored::Staged(range) => &bytes[range],
                };
                let engines = &mut self.nic.engines;
                let begins = engines.scatter_free.max(at);
                engines.scatter_free =
                    begins.plus_nanos(self.nic.profile.scatter.nanos(from.len()));
                let (engine, ends) = (Engine::Scatter(self.nic.node), engines.scatter_free);
                self.network.watch.busy(engine, begins, ends, "scatter", self.frame);
                // The access was checked when the write was staged; a write to a region deregistered since is dropped.
                let _ = self.nic.ports.write(to, Payload::from(from));
            }
            Effect::Complete { port, completion } => self.complete_at(at, port, completion),
            Effect::Timer { timer, at } => self.nic.set_alarm(self.queue, timer, at),
            Effect::Copy { transfer, dma } => self.copy_at(at, transfer, dma),
            Effect::Fence { dma } => {
                let event =
                    Event::DmaDone { node: self.nic.node, dma, restarts: self.nic.restarts };
                self.queue.schedule(self.nic.engines.scatter_free.max(at), event);
            }
        }
    }

    fn complete_at(&mut self, at: Instant, port: PortId, completion: Completion) {
        let nic = &mut *self.nic;
        let engines = &mut nic.engines;
        let seen = at
            .max(engines.scatter_free)
            .max(engines.gather_free)
            .plus_nanos(nanos(nic.profile.completion))
            .max(engines.last_completion);
        engines.last_completion = seen;
        self.network.watch.show(&Record::Completed { at: seen, node: nic.node, port });
        let at_once = self.network.active_faults.is_none() && nic.host.notice == Notice::Polled;
        if seen <= self.now && nic.completions.is_empty() && at_once {
            nic.publish(port, &completion, CompletionFault::None);
            return;
        }
        nic.completions.push_back(Some((port, completion)));
        self.queue.schedule(seen, Event::Completion { node: nic.node, restarts: nic.restarts });
    }

    fn copy_at(&mut self, at: Instant, transfer: Dma, dma: DmaId) {
        let nic = &mut *self.nic;
        let bytes = transfer.from.length as usize;
        let engines = &mut nic.engines;
        engines.gather_free =
            engines.gather_free.max(at).plus_nanos(nic.profile.gather.nanos(bytes));
        engines.scatter_free = engines
            .scatter_free
            .max(engines.gather_free)
            .plus_nanos(nic.profile.scatter.nanos(bytes));
        if let Ok(from) = nic.ports.read(transfer.from) {
            let _ = nic.ports.write(transfer.to, from);
        }
        let event = Event::DmaDone { node: nic.node, dma, restarts: nic.restarts };
        self.queue.schedule(nic.engines.scatter_free, event);
    }
}

impl Hardware for SimHardware<'_> {
    fn node(&self) -> NodeId {
        self.nic.node
    }

    fn incarnation(&self) -> Incarnation {
        self.nic.incarnation
    }

    fn secret(&mut self) -> [u8; 32] {
        let mut secret = [0; 32];
        self.network.secrets.fill(&mut secret);
        secret
    }

    fn now(&self) -> Instant {
        self.nic.clock.read(self.now)
    }

    fn mtu(&self) -> usize {
        self.nic.profile.mtu
    }

    fn line_rate(&self) -> LineRate {
        self.network.uplinks[self.nic.node.index()].rate()
    }

    fn wire_bytes(&self, payload: usize) -> u32 {
        self.network.wire_bytes(payload)
    }

    fn line_lag(&self) -> u64 {
        self.network.uplinks[self.nic.node.index()].lag()
    }

    fn costs(&self) -> Option<Costs> {
        let nic = self.nic.profile;
        Some(Costs { nic, piece: self.network.pieces(nic.mtu).0 as usize })
    }

    fn charge(&mut self, instructions: u64) {
        let cost_ps = instructions * u64::from(self.nic.profile.instruction_ps);
        self.cost_ps += cost_ps * self.times;
    }

    fn transmit(
        &mut self,
        header: &Header,
        source: Source<'_>,
    ) -> Result<Instant, TransmitRefused> {
        let length = match source {
            Source::Bytes(bytes) => bytes.len(),
            Source::Region(at) => at.length as usize,
        };
        let mtu = self.nic.profile.mtu;
        if length > mtu || length != usize::from(header.length) {
            return Err(TransmitRefused::Length { mtu });
        }
        let loopback = self.nic.host.loopback.filter(|_| header.destination == self.nic.node);
        if !header.is_urgent() && loopback.is_none() {
            self.claim_transmit_slot()?;
        }
        if let Source::Region(at) = source {
            self.nic.ports.read(at)?;
            self.reach_host()?;
        }
        if let Some(loopback) = loopback {
            return self.transmit_looped(header, source, loopback);
        }
        self.begin();
        let reached = self.reached();
        let (ready, gathered) = match source {
            // A kernel's frames lie in the host's memory.
            Source::Bytes(_) if !self.nic.host.runs_firmware => (reached, None),
            _ => {
                let (ready, gathered) = self.gather_ahead(reached, length);
                (ready, Some(gathered))
            }
        };
        let (key, leaves) = self.network.prepare(self.nic.node, *header, ready);
        self.gather(key, source)?;
        self.nic.staged.frames.push((key, Route::Line(gathered)));
        Ok(self.nic.clock.read(leaves))
    }

    fn check(&self, region: RegionRef, access: Access) -> Result<(), RegionError> {
        self.nic.ports.check(region, access)
    }

    fn read(&self, from: RegionRef) -> Result<Payload<'_>, RegionError> {
        self.nic.ports.read(from)
    }

    fn write(&mut self, to: RegionRef, from: Payload<'_>) -> Result<(), RegionError> {
        self.nic.ports.check_write(to, from.len())?;
        self.reach_host()?;
        // Data from the own node is copied once, when it is sent.
        if self.nic.host.runs_firmware && !self.looped {
            self.cost_ps += self.nic.host.copy.nanos(from.len()) * 1000;
        }
        let from = self.store(from);
        self.nic.staged.effects.push(Effect::Write { to, from });
        Ok(())
    }

    fn complete(&mut self, port: PortId, completion: &Completion) {
        self.nic.staged.effects.push(Effect::Complete { port, completion: *completion });
    }

    fn dma(&mut self, transfer: Dma) -> Result<DmaId, DmaRefused> {
        self.nic.ports.read(transfer.from)?;
        self.nic.ports.check_write(transfer.to, transfer.from.length as usize)?;
        self.reach_host()?;
        let dma = self.begin_dma();
        self.nic.staged.effects.push(Effect::Copy { transfer, dma });
        Ok(dma)
    }

    fn fence(&mut self) -> Option<DmaId> {
        if self.nic.profile.scatter == DmaCost::default() {
            return None;
        }
        let dma = self.begin_dma();
        self.nic.staged.effects.push(Effect::Fence { dma });
        Some(dma)
    }

    fn open_gate(&mut self, port: PortId) -> Option<u64> {
        self.nic.ports.open_gate(port)
    }

    fn close_gate(&mut self, port: PortId) -> bool {
        self.nic.ports.close_gate(port)
    }

    fn apply_registrations(&mut self, port: PortId) {
        if let Some(port) = self.nic.ports.at(port) {
            port.sync();
        }
    }

    fn next_command(&mut self, port: PortId) -> Option<Command> {
        let mut command = self.nic.ports.next_command(port)?;
        if !self.network.active_faults.is_none() {
            self.network.active_faults.damage(self.nic.node, &mut command);
        }
        Some(command)
    }

    fn set_timer(&mut self, timer: TimerId, at: Instant) {
        assert!(timer.index() < TIMERS, "a NIC has {TIMERS} alarms");
        self.nic.staged.effects.push(Effect::Timer { timer, at });
    }

    fn leave(&mut self) -> bool {
        self.left |= self.frame.is_some() && self.network.back_pressure.is_on();
        self.left
    }

    fn commit(&mut self) {
        let at = self.reached();
        let mut frames = std::mem::take(&mut self.nic.staged.frames);
        for (key, route) in frames.drain(..) {
            self.launch(key, route);
        }
        self.nic.staged.frames = frames;
        let mut effects = std::mem::take(&mut self.nic.staged.effects);
        let mut bytes = std::mem::take(&mut self.nic.staged.bytes);
        for effect in effects.drain(..) {
            self.apply(effect, &bytes, at);
        }
        bytes.clear();
        self.nic.staged.effects = effects;
        self.nic.staged.bytes = bytes;
        self.nic.staged.saved = None;
    }

    fn abort(&mut self) {
        let staged = &mut self.nic.staged;
        if staged.saved.is_none() && staged.effects.is_empty() {
            return;
        }
        for (key, _) in staged.frames.drain(..).rev() {
            self.network.frames.unallocate(key);
        }
        staged.effects.clear();
        staged.bytes.clear();
        if let Some(saved) = staged.saved.take() {
            let engines = &mut self.nic.engines;
            self.network.uplinks[self.nic.node.index()].restore(saved.line);
            engines.gather_free = saved.gather_free;
            self.nic.next_dma = saved.next_dma;
        }
    }
}
