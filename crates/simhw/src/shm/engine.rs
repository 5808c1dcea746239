//! A NIC and its firmware, and one turn of them: whoever has the engine's lock runs it.

use super::inlets::{Inlet, Inlets};
use super::lane::{Extent, Receiver};
use super::link::ShmLink;
use super::rendezvous::Link;
use crate::drops::DropCause;
use crate::frame::{Frame, Header};
use crate::hardware::Firmware;
use crate::id::{NodeId, PortId};
use crate::nic;
use crate::sync::{Ordering, fence};
use crate::time::Instant;

type Nic = nic::Nic<ShmLink>;

/// Frames of one peer that one turn handles: other peers wait no longer than they take.
const FRAMES_PER_TURN: usize = 32;
/// Frames and doorbells between two readings of the clock: they take some 10 us.
const EVENTS_PER_READING: u32 = 64;
/// Polls of one visit.
const LOOKS: u32 = 4;
/// Visits in vain between two readings of the clock: they take half a microsecond.
const LOOKS_PER_READING: u32 = 8;
/// Visits in vain after which whoever looks is taken to go on looking.
const LOOKS_OF_A_POLLER: u32 = 8;

/// A NIC with its firmware and the receiving halves of its links.
pub(super) struct Engine<F> {
    pub(super) unit: nic::Engine<F, ShmLink>,
    inlets: Inlets,
    /// Peers wake this NIC: no thread polls for it.
    is_asleep: bool,
    /// Polls without a result since the last that had one.
    vain_looks: u32,
    /// Turns that applications have given the NIC.
    pub(super) visits: u64,
    /// Frames and doorbells since the last reading of the clock for their sake.
    events: u32,
}

impl<F: Firmware> Engine<F> {
    pub(super) fn new(firmware: F, nic: Nic, port_depth: usize) -> Self {
        let unit = nic::Engine::new(firmware, nic, port_depth);
        Self {
            unit,
            inlets: Inlets::default(),
            is_asleep: false,
            vain_looks: 0,
            visits: 0,
            events: 0,
        }
    }

    pub(super) fn join(&mut self, link: Link) {
        let from = link.node;
        // What the node's former life has published is still its own.
        self.end(from);
        let receiver = self.unit.nic.link.join(link);
        if self.is_asleep {
            receiver.fall_asleep();
            fence(Ordering::SeqCst);
        }
        self.inlets.add(from, receiver);
    }

    pub(super) fn leave(&mut self, node: NodeId) {
        self.end(node);
        self.unit.nic.link.leave(node);
    }

    /// The inlet of `node` ends, after what it holds is handled: its sender is gone.
    fn end(&mut self, node: NodeId) {
        let Self { unit: nic::Engine { firmware, nic, .. }, inlets, .. } = self;
        if let Some(mut inlet) = inlets.remove(node)
            && inlet.receiver.has_frame()
        {
            // No more than it can hold: whoever still writes is no peer.
            let slots = inlet.receiver.slots();
            receive(firmware, nic, &mut inlet, slots);
        }
        nic.wake();
    }

    /// Handles the doorbell of a port.
    pub(super) fn ring(&mut self, id: PortId) {
        self.unit.ring(id);
        self.unit.nic.wake();
        self.count(1);
    }

    /// Counts events; reads the clock once there were enough, because the NIC's own alarms must not wait for a pause.
    #[inline]
    fn count(&mut self, events: u32) {
        self.events += events;
        if self.events >= EVENTS_PER_READING {
            self.events = 0;
            self.unit.nic.time.read();
        }
    }

    /// Handles what has arrived and what is due. Whether there was anything.
    #[inline]
    pub(super) fn turn(&mut self) -> bool {
        let mut was_any = self.receive();
        if self.unit.nic.has_work() {
            self.unit.deliver_delayed();
            self.unit.work();
            was_any = true;
        }
        if was_any {
            self.unit.nic.wake();
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
            self.unit.nic.time.read();
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
        let Self { unit: nic::Engine { firmware, nic, .. }, inlets, .. } = self;
        let mut frames = 0;
        let was_any = inlets.poll(|inlet| frames += receive(firmware, nic, inlet, FRAMES_PER_TURN));
        self.count(frames);
        was_any
    }

    /// Peers wake this NIC from now on; `false` if something has come meanwhile, and they do not.
    pub(super) fn fall_asleep(&mut self) -> bool {
        for inlet in self.inlets.iter() {
            inlet.receiver.fall_asleep();
        }
        fence(Ordering::SeqCst);
        self.is_asleep = true;
        self.vain_looks = 0;
        self.unit.nic.time.read();
        if self.inlets.has_frame() || self.unit.nic.has_work() {
            self.stay_awake();
            return false;
        }
        true
    }

    /// Peers need not wake this NIC: somebody looks.
    pub(super) fn stay_awake(&mut self) {
        if std::mem::take(&mut self.is_asleep) {
            for inlet in self.inlets.iter() {
                inlet.receiver.stay_awake();
            }
        }
    }

    pub(super) const fn is_asleep(&self) -> bool {
        self.is_asleep
    }

    /// Returns when the engine has to do something by itself: the firmware, or its end.
    pub(super) fn next_alarm(&self) -> Instant {
        self.unit.stopping().unwrap_or(Instant::FAR_FUTURE).min(self.unit.nic.next_alarm())
    }

    /// Returns whether the NIC may end: its peers have received what the firmware sent them, or are waited for no
    /// longer.
    pub(super) fn may_stop(&mut self) -> bool {
        self.unit.stop().is_none()
    }
}

impl<F> std::fmt::Debug for Engine<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("nic", &self.unit.nic).finish_non_exhaustive()
    }
}

/// Handles the frames of a peer that has one, up to `most`; returns how many there were.
#[inline]
fn receive(firmware: &mut impl Firmware, nic: &mut Nic, inlet: &mut Inlet, most: usize) -> u32 {
    let mut frames = 0;
    loop {
        deliver(firmware, nic, inlet.from, &mut inlet.receiver);
        frames += 1;
        if frames as usize == most || !inlet.receiver.has_frame() {
            return frames;
        }
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
    } else if header.destination != nic.node {
        nic.counters.drops.add(DropCause::Misrouted);
    } else if !nic.has_faults() || passes_faults(nic, from, receiver, extent) {
        nic.counters.frames_received += 1;
        nic.counters.bytes_received += header.frame_bytes() as u64;
        nic.link.begin_frame(from, extent);
        firmware.on_frame(nic, Frame { header, payload: receiver.payload(extent) });
        nic.end_turn();
    }
    receiver.give_back(extent.length);
}

/// Returns whether the next frame, whose payload lies at `extent`, is handled now: faults may drop or delay it.
#[cold]
fn passes_faults(nic: &mut Nic, from: NodeId, receiver: &Receiver, extent: Extent) -> bool {
    nic.passes_faults(from, || {
        let mut bytes = receiver.header().to_vec();
        bytes.extend_from_slice(&receiver.payload(extent).to_vec());
        bytes
    })
}
