//! A NIC and its firmware, and one turn of them: whoever has the engine's lock runs it.

use super::lane::Receiver;
use super::nic::Nic;
use super::rendezvous::Link;
use crate::drops::DropCause;
use crate::frame::{Frame, Header};
use crate::hardware::{Firmware, Hardware, STOP_PATIENCE, TIMERS};
use crate::host::OpenError;
use crate::id::{NodeId, PortId};
use crate::port::{Bell, Grant, Port, PortNumbers, PortOptions, far_port, port};
use crate::region::Payload;
use crate::sync::{Ordering, fence};
use crate::time::Instant;

/// Frames of one peer that one turn handles: other peers wait no longer than they take.
const FRAMES_PER_TURN: usize = 32;
/// Frames to itself, ends of transfers and alarms that one turn handles.
const WORK_PER_TURN: usize = 32;
/// Polls of one visit.
const LOOKS: u32 = 4;
/// Visits in vain between two readings of the clock: they take half a microsecond.
const LOOKS_PER_READING: u32 = 8;
/// Visits in vain after which whoever looks is taken to go on looking.
const LOOKS_OF_A_POLLER: u32 = 8;

/// The receiving side of a peer.
#[derive(Debug)]
struct Inlet {
    from: NodeId,
    receiver: Receiver,
}

/// A NIC with its firmware.
pub(super) struct Engine<F> {
    firmware: F,
    pub(super) nic: Nic,
    inlets: Vec<Inlet>,
    numbers: PortNumbers,
    port_depth: usize,
    /// Ports that close once the firmware has taken what was posted.
    leaving: Vec<PortId>,
    /// Peers wake this NIC: no thread polls for it.
    is_asleep: bool,
    /// Polls without a result since the last that had one.
    vain_looks: u32,
    /// Turns that applications have given the NIC.
    pub(super) visits: u64,
    /// The firmware has given back what others wait for; until when they are waited for.
    stopping: Option<Instant>,
}

impl<F: Firmware> Engine<F> {
    pub(super) fn new(firmware: F, nic: Nic, port_depth: usize) -> Self {
        let mut engine = Self {
            firmware,
            nic,
            inlets: Vec::new(),
            numbers: PortNumbers::default(),
            port_depth,
            leaving: Vec::new(),
            is_asleep: false,
            vain_looks: 0,
            visits: 0,
            stopping: None,
        };
        engine.call(|firmware, nic| firmware.on_start(nic));
        engine
    }

    /// One call of the firmware.
    #[inline]
    fn call(&mut self, call: impl FnOnce(&mut F, &mut Nic)) {
        call(&mut self.firmware, &mut self.nic);
        self.nic.end_turn();
    }

    pub(super) fn join(&mut self, link: Link) {
        let from = link.node;
        // What the node's former life has published is still its own.
        self.end(from);
        let receiver = self.nic.join(link);
        if self.is_asleep {
            receiver.fall_asleep();
            fence(Ordering::SeqCst);
        }
        self.inlets.push(Inlet { from, receiver });
    }

    pub(super) fn leave(&mut self, node: NodeId) {
        self.end(node);
        self.nic.leave(node);
    }

    /// The inlet of `node` ends, after what it holds is handled: its sender is gone.
    fn end(&mut self, node: NodeId) {
        let Self { firmware, nic, inlets, .. } = self;
        for Inlet { from, receiver } in inlets.iter_mut().filter(|inlet| inlet.from == node) {
            // No more than it can hold: whoever still writes is no peer.
            for _ in 0..receiver.slots() {
                if !receiver.has_frame() {
                    break;
                }
                deliver(firmware, nic, *from, receiver);
            }
        }
        inlets.retain(|inlet| inlet.from != node);
        nic.wake();
    }

    pub(super) fn open(
        &mut self,
        options: &PortOptions,
        bell: Box<dyn Bell>,
    ) -> Result<Port, OpenError> {
        let name = self.numbers.claim(self.nic.node(), options)?;
        let (port, end) = port(name, options.depth_or(self.port_depth), bell);
        self.nic.open_port(name.id, end);
        Ok(port)
    }

    /// Opens a port for another process.
    pub(super) fn grant(&mut self, options: &PortOptions) -> Result<Grant, OpenError> {
        let name = self.numbers.claim(self.nic.node(), options)?;
        match far_port(name, options.depth_or(self.port_depth)) {
            Ok((end, grant)) => {
                self.nic.open_port(name.id, end);
                Ok(grant)
            }
            Err(error) => {
                self.numbers.release(name.id);
                Err(error)
            }
        }
    }

    /// A port was rung: the firmware looks at it now.
    pub(super) fn ring(&mut self, id: PortId) {
        self.nic.read_clock();
        if let Some(port) = self.nic.ports.at(id) {
            port.sync();
        }
        self.call(|firmware, nic| firmware.on_doorbell(nic, id));
        if !self.close(id) && self.nic.is_leaving(id) && !self.leaving.contains(&id) {
            self.leaving.push(id);
        }
        self.nic.wake();
    }

    /// A port whose application is gone closes once all that it has posted is taken; whether that is so.
    fn close(&mut self, id: PortId) -> bool {
        let has_closed = self.nic.has_closed(id);
        if has_closed {
            self.call(|firmware, nic| firmware.on_port_closed(nic, id));
            self.numbers.release(id);
        }
        has_closed
    }

    /// Handles what has arrived and what is due. Whether there was anything.
    #[inline]
    pub(super) fn turn(&mut self) -> bool {
        let mut was_any = self.receive();
        if self.nic.has_work() {
            self.work();
            was_any = true;
        }
        if was_any {
            self.nic.wake();
        }
        was_any
    }

    /// A turn that an application has time for. It looks a few times, for the next look costs less than
    /// coming back; but once after something has come, when whoever has it waits for this to return.
    #[inline]
    pub(super) fn visit(&mut self) -> bool {
        self.visits += 1;
        let looks = if self.vain_looks == 0 { 1 } else { LOOKS };
        for look in 0..looks {
            if look > 0 {
                std::hint::spin_loop();
            }
            if self.turn() {
                self.vain_looks = 0;
                return true;
            }
        }
        self.vain_looks = self.vain_looks.saturating_add(1);
        // Read when nothing hurries, and not at every look: frames and alarms find it read.
        if self.vain_looks.is_multiple_of(LOOKS_PER_READING) {
            self.nic.read_clock();
        }
        false
    }

    /// Whether an application has begun to look again and again while peers still wake this NIC.
    pub(super) const fn is_polled_asleep(&self) -> bool {
        self.is_asleep && self.vain_looks >= LOOKS_OF_A_POLLER
    }

    /// Handles the frames that peers have published.
    #[inline]
    fn receive(&mut self) -> bool {
        let Self { firmware, nic, inlets, .. } = self;
        let mut was_any = false;
        for Inlet { from, receiver } in inlets {
            for _ in 0..FRAMES_PER_TURN {
                if !receiver.has_frame() {
                    break;
                }
                was_any = true;
                deliver(firmware, nic, *from, receiver);
            }
        }
        was_any
    }

    /// What the NIC has for itself.
    fn work(&mut self) {
        for _ in 0..WORK_PER_TURN {
            let Some(frame) = self.nic.looped_frame() else { break };
            let (header, payload) = Header::parse(&frame).expect("this NIC has made it");
            let frame = Frame { header, payload: Payload::from(payload) };
            self.call(|firmware, nic| firmware.on_frame(nic, frame));
        }
        for _ in 0..WORK_PER_TURN {
            let Some(dma) = self.nic.ended_dma() else { break };
            self.call(|firmware, nic| firmware.on_dma_done(nic, dma));
        }
        self.nic.read_clock();
        for _ in 0..TIMERS {
            let Some(timer) = self.nic.expired_timer() else { break };
            self.call(|firmware, nic| firmware.on_timer(nic, timer));
        }
        // The firmware may have taken the last that was posted just now.
        for id in std::mem::take(&mut self.leaving) {
            if !self.close(id) && self.nic.is_leaving(id) {
                self.leaving.push(id);
            }
        }
    }

    /// Peers wake this NIC from now on; `false` if something has come meanwhile, and they do not.
    pub(super) fn fall_asleep(&mut self) -> bool {
        for inlet in &self.inlets {
            inlet.receiver.fall_asleep();
        }
        fence(Ordering::SeqCst);
        self.is_asleep = true;
        self.vain_looks = 0;
        self.nic.read_clock();
        if self.inlets.iter().any(|inlet| inlet.receiver.has_frame()) || self.nic.has_work() {
            self.stay_awake();
            return false;
        }
        true
    }

    /// Peers need not wake this NIC: somebody looks.
    pub(super) fn stay_awake(&mut self) {
        if std::mem::take(&mut self.is_asleep) {
            for inlet in &self.inlets {
                inlet.receiver.stay_awake();
            }
        }
    }

    pub(super) const fn is_asleep(&self) -> bool {
        self.is_asleep
    }

    /// When the engine has to do something by itself: the firmware, or its end.
    pub(super) fn next_alarm(&self) -> Instant {
        self.stopping.unwrap_or(Instant::FAR_FUTURE).min(self.nic.next_alarm())
    }

    /// Whether the firmware was told that the NIC ends.
    pub(super) const fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// While the NIC ends: whether peers have what the firmware gives back, or are waited for no
    /// longer.
    pub(super) fn may_stop(&mut self) -> bool {
        self.nic.read_clock();
        let now = self.nic.now();
        let until = match self.stopping {
            Some(until) => until,
            None => {
                self.call(|firmware, nic| firmware.on_stop(nic));
                *self.stopping.insert(now + STOP_PATIENCE)
            }
        };
        let may = self.firmware.may_stop() || now >= until;
        if may {
            self.nic.wake();
        }
        may
    }
}

impl<F> std::fmt::Debug for Engine<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("nic", &self.nic).finish_non_exhaustive()
    }
}

/// Checks a frame and hands it to the firmware. What is wrong is counted, never answered.
#[inline]
fn deliver(firmware: &mut impl Firmware, nic: &mut Nic, from: NodeId, receiver: &mut Receiver) {
    let header = Header::parse_alone(&receiver.header()).ok();
    let found = header.and_then(|h| Some((h, receiver.extent(h.length.into())?)));
    let Some((header, extent)) = found else {
        nic.counters.drops.add(DropCause::Malformed);
        receiver.give_back(0);
        return;
    };
    if header.source != from {
        nic.counters.drops.add(DropCause::Stranger);
    } else if header.destination != nic.node() {
        nic.counters.drops.add(DropCause::Misrouted);
    } else {
        nic.counters.frames_received += 1;
        nic.counters.bytes_received += header.frame_bytes() as u64;
        nic.begin_frame(from, extent);
        firmware.on_frame(nic, Frame { header, payload: receiver.payload(extent) });
        nic.end_turn();
    }
    receiver.give_back(extent.length);
}
