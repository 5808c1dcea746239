//! A NIC with its firmware, and its turns. The thread that holds the engine's lock runs them.

use super::lane::Receiver;
use super::link::ShmLink;
use super::rendezvous::Link;
use super::rx_links::{RxLink, RxLinks};
use crate::drops::DropCause;
use crate::frame::{Frame, Header};
use crate::hardware::Firmware;
use crate::id::{NodeId, PortId};
use crate::nic;
use crate::region::Payload;
use crate::sync::{Ordering, fence};
use crate::time::Instant;

type Nic = nic::Nic<ShmLink>;

/// Most frames of one peer that one turn handles: it bounds how long other peers wait.
const FRAMES_PER_TURN: usize = 32;
/// Frames and doorbells between two readings of the clock: they take some 10 us.
const EVENTS_PER_READING: u32 = 64;
/// Most polls of one visit.
const POLLS_PER_VISIT: u32 = 4;
/// Idle visits between two readings of the clock: they take half a microsecond.
const IDLE_VISITS_PER_READING: u32 = 8;
/// Idle visits in a row after which an application is assumed to keep polling.
const POLLER_VISITS: u32 = 8;

/// A NIC with its firmware and the receiving halves of its links.
pub(super) struct Engine<F> {
    pub(super) unit: nic::Engine<F, ShmLink>,
    rx_links: RxLinks,
    /// True while the wake-up is armed: peers signal this NIC, because no thread polls it.
    is_armed: bool,
    /// Visits in a row that found nothing.
    idle_visits: u32,
    /// Visits of applications since the start.
    pub(super) visits: u64,
    /// Frames and doorbells since they last caused a reading of the clock.
    events: u32,
}

impl<F: Firmware> Engine<F> {
    pub(super) fn new(firmware: F, nic: Nic, port_depth: usize) -> Self {
        let unit = nic::Engine::new(firmware, nic, port_depth);
        Self {
            unit,
            rx_links: RxLinks::default(),
            is_armed: false,
            idle_visits: 0,
            visits: 0,
            events: 0,
        }
    }

    pub(super) fn join(&mut self, link: Link) {
        let from = link.node;
        // Frames of the node's earlier incarnation are handled first.
        self.end(from);
        let receiver = self.unit.nic.link.join(link);
        if self.is_armed {
            receiver.arm_wakeup();
            fence(Ordering::SeqCst);
        }
        self.rx_links.add(from, receiver);
    }

    pub(super) fn leave(&mut self, node: NodeId) {
        self.end(node);
        self.unit.nic.link.leave(node);
    }

    /// Removes the receiving half of a link whose sender is disconnected, after its frames are handled.
    fn end(&mut self, node: NodeId) {
        let Self { unit: nic::Engine { firmware, nic, .. }, rx_links, .. } = self;
        if let Some(mut rx_link) = rx_links.remove(node)
            && rx_link.receiver.has_frame()
        {
            // At most as many as there are slots: a process that still writes is no longer a peer.
            let slots = rx_link.receiver.slots();
            receive(firmware, nic, &mut rx_link, slots);
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

    /// Runs one turn: handles arrived frames and due alarms. Returns whether there were any.
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

    /// Runs turns on an application's thread, until one of them finds something. Runs up to `POLLS_PER_VISIT`,
    /// because another turn costs less than another call. After a visit that found something it runs one, because
    /// the caller has an event to handle.
    #[inline]
    pub(super) fn visit(&mut self) -> bool {
        self.visits += 1;
        let polls = if self.idle_visits == 0 { 1 } else { POLLS_PER_VISIT };
        for poll in 0..polls {
            if poll > 0 {
                std::hint::spin_loop();
            }
            if self.turn() {
                self.idle_visits = 0;
                return true;
            }
        }
        self.idle_visits = self.idle_visits.saturating_add(1);
        // Reads the clock while there is nothing to do, so that frames and alarms need not.
        if self.idle_visits.is_multiple_of(IDLE_VISITS_PER_READING) {
            self.unit.nic.time.read();
        }
        false
    }

    /// Returns whether an application keeps polling although the wake-up is armed.
    pub(super) const fn is_polled_while_armed(&self) -> bool {
        self.is_armed && self.idle_visits >= POLLER_VISITS
    }

    /// Handles the frames that peers have published.
    #[inline]
    fn receive(&mut self) -> bool {
        let Self { unit: nic::Engine { firmware, nic, .. }, rx_links, .. } = self;
        let mut frames = 0;
        let was_any =
            rx_links.poll(|rx_link| frames += receive(firmware, nic, rx_link, FRAMES_PER_TURN));
        self.count(frames);
        was_any
    }

    /// Arms the wake-up: peers signal this NIC from now on. Returns `false`, and does not arm it, if a frame or an
    /// alarm is already there.
    pub(super) fn arm_wakeup(&mut self) -> bool {
        for rx_link in self.rx_links.iter() {
            rx_link.receiver.arm_wakeup();
        }
        fence(Ordering::SeqCst);
        self.is_armed = true;
        self.idle_visits = 0;
        self.unit.nic.time.read();
        if self.rx_links.has_frame() || self.unit.nic.has_work() {
            self.disarm_wakeup();
            return false;
        }
        true
    }

    /// Disarms the wake-up: peers need not signal this NIC, because a thread polls it.
    pub(super) fn disarm_wakeup(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            for rx_link in self.rx_links.iter() {
                rx_link.receiver.disarm_wakeup();
            }
        }
    }

    pub(super) const fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// Returns when the engine needs a turn without an event: for an alarm, or to end.
    pub(super) fn next_alarm(&self) -> Instant {
        self.unit.stopping().unwrap_or(Instant::FAR_FUTURE).min(self.unit.nic.next_alarm())
    }

    /// Returns whether the NIC may end: its peers have received what the firmware sent them, or the time to wait for
    /// them is over.
    pub(super) fn may_stop(&mut self) -> bool {
        self.unit.stop().is_none()
    }
}

impl<F> std::fmt::Debug for Engine<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("nic", &self.unit.nic).finish_non_exhaustive()
    }
}

/// Handles the frames of a peer that has at least one, up to `most`; returns how many it handled.
#[inline]
fn receive(firmware: &mut impl Firmware, nic: &mut Nic, rx_link: &mut RxLink, most: usize) -> u32 {
    let mut frames = 0;
    loop {
        deliver(firmware, nic, rx_link.from, &mut rx_link.receiver);
        frames += 1;
        if frames as usize == most || !rx_link.receiver.has_frame() {
            return frames;
        }
    }
}

/// Checks a frame and hands it to the firmware. An invalid frame is dropped and counted.
#[inline]
fn deliver(firmware: &mut impl Firmware, nic: &mut Nic, from: NodeId, receiver: &mut Receiver) {
    let header = Header::parse_alone(&receiver.header()).ok();
    let found = header.and_then(|h| Some((h, receiver.extent(h.length.into())?)));
    let Some((header, extent)) = found else {
        nic.counters.drops.add(DropCause::Malformed);
        receiver.release(0);
        return;
    };
    if header.source != from {
        nic.counters.drops.add(DropCause::Stranger);
    } else if header.destination != nic.node {
        nic.counters.drops.add(DropCause::Misrouted);
    } else if !nic.has_faults() || passes_faults(nic, &header, receiver.payload(extent)) {
        nic.counters.frames_received += 1;
        nic.counters.bytes_received += header.frame_bytes() as u64;
        nic.link.begin_frame(from, extent);
        nic.hand(firmware, Frame { header, payload: receiver.payload(extent) });
    }
    receiver.release(extent.length);
}

/// Returns whether a frame is handled now: faults may drop or delay it. Its header is not read again, since the peer may
/// have changed it.
#[cold]
fn passes_faults(nic: &mut Nic, header: &Header, payload: Payload<'_>) -> bool {
    nic.passes_faults(header.source, || {
        let mut bytes = header.emit().to_vec();
        bytes.extend_from_slice(&payload.to_vec());
        bytes
    })
}
