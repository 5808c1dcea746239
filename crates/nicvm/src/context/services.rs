//! The services that a unit provides to its extensions, and the effects that handlers request.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_simhw::hardware::Hardware;
use midplane_simhw::id::{DmaId, ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Status};
use midplane_simhw::region::RegionRef;
use midplane_simhw::time::Instant;

use crate::admission::{Admission, AdmissionUpdate};
use crate::control::{Address, Body, Control, MAX_MESSAGE};
use crate::extension::{Epoch, Extension, TimeoutId};
use crate::timeout::{Service, Timeouts};
use crate::transmit::{Message, Transmit, WaitingPacket};
use crate::unit::ExtensionCounters;

/// One effect that a handler has requested; it is carried out when the handler returns.
pub(crate) enum Effect {
    Control { to: NodeId, length: u8, body: [u8; MAX_MESSAGE] },
    SetTimeout { timeout: TimeoutId, service: Service, at: Instant },
    CancelTimeout(TimeoutId),
    Send(Message),
    SendPacket(WaitingPacket),
    Install(Box<dyn Admission>),
    Admission(AdmissionUpdate),
    Allow { destination: NodeId, bytes: u64, messages: u32, until: Instant },
    GiveUp { destination: NodeId, status: Status },
    WithdrawRegion(RegionRef),
    Steer,
    StopPort(PortId),
    ResumePort(PortId),
    WatchPort(PortId),
    Arrived(PortId),
    Local(LocalEffect),
    Change(Change),
    Fence { dma: DmaId, token: u64 },
}

/// An effect within the handler's own unit.
pub(crate) enum LocalEffect {
    /// A control message of an extension to itself.
    Control { epoch: Epoch, body: Body },
    /// A command for another extension.
    Command(Command),
}

/// A change of the unit's extensions, carried out between two handlers.
pub(crate) enum Change {
    Replace { number: ExtensionId, epoch: Epoch, extension: Box<dyn Extension> },
    Withdraw(ExtensionId),
}

/// The parts of a unit that its extensions use through their [`Context`](super::Context).
pub(crate) struct UnitServices {
    pub(crate) control: Control,
    pub(crate) timeouts: Timeouts,
    pub(crate) transmit: Transmit,
    pub(crate) effects: Vec<Effect>,
    /// Counts the control messages among the effects by destination, sorted. Those to this node include its commands.
    pub(crate) staged: Vec<(NodeId, usize)>,
    /// True if, since the last turn's end, an effect was carried out that requires work at the end of the turn.
    pub(crate) needs_turn_end: bool,
    /// The extension that controls the gate.
    pub(crate) gate_controller: Option<ExtensionId>,
    /// Control messages that were refused because a peer's queue was full.
    pub(crate) control_refused: u64,
    /// Effects within this unit that are not yet dispatched, oldest first.
    pub(crate) own: VecDeque<(ExtensionId, LocalEffect)>,
    /// Changes of the extensions that are not yet carried out, oldest first.
    pub(crate) changes: VecDeque<Change>,
    /// Handler-call counts of each extension, by its number.
    pub(crate) counters: Box<[ExtensionCounters; 256]>,
    /// Suspended ports.
    pub(crate) stopped: BTreeMap<PortId, Suspension>,
    /// Fences that have not ended, with the versions of extensions that asked for them and their tokens, in order.
    pub(crate) fences: VecDeque<(DmaId, ExtensionId, Epoch, u64)>,
    /// Events of ports and admissions that extensions are not yet notified of.
    pub(crate) port_events: VecDeque<PortEvent>,
}

/// The suspension of a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspension {
    since: Instant,
    /// True if the next arrival for the port must be reported.
    pub(crate) is_watched: bool,
}

/// An event of a port or of the admissions, of which extensions are notified. A resumption carries the time for which
/// the port was suspended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PortEvent {
    Stopped(PortId),
    Resumed(PortId, Duration),
    Arrived(PortId),
    /// An admission was installed or removed.
    Admission,
}

impl UnitServices {
    /// Carries out all effects of a handler that has returned.
    #[inline]
    pub(crate) fn commit(&mut self, hw: &mut dyn Hardware, extension: ExtensionId, epoch: Epoch) {
        if !self.effects.is_empty() {
            self.carry_out(hw, extension, epoch);
        }
        self.transmit.commit();
        hw.commit();
    }

    fn carry_out(&mut self, hw: &mut dyn Hardware, extension: ExtensionId, epoch: Epoch) {
        let now = hw.now();
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                // Control messages go first.
                Effect::Send(message)
                    if self.control.is_idle() && self.transmit.send_at_once(hw, &message) =>
                {
                    continue;
                }
                Effect::Control { to, length, body } => {
                    let body = &body[..usize::from(length)];
                    let address = Address { extension, epoch };
                    self.control.send(now, to, address, body).expect("checked when it was asked");
                }
                Effect::SetTimeout { timeout, service, at } => {
                    self.timeouts.set(now, (extension, timeout), service, at);
                }
                Effect::CancelTimeout(timeout) => self.timeouts.cancel((extension, timeout)),
                Effect::Send(message) => self.transmit.enqueue(message),
                Effect::SendPacket(packet) => self.transmit.enqueue_packet(now, packet),
                Effect::StopPort(port) => self.suspend_port(hw, port),
                Effect::ResumePort(port) => self.resume_port(now, port),
                Effect::WatchPort(port) => {
                    self.stopped.entry(port).and_modify(|stopped| stopped.is_watched = true);
                }
                Effect::Arrived(port) => self.note_arrival(port),
                Effect::Install(admission) => {
                    self.transmit.install(extension, epoch, admission);
                    self.port_events.push_back(PortEvent::Admission);
                }
                Effect::Admission(update) => self.transmit.update(now, extension, update),
                Effect::Allow { destination, bytes, messages, until } => {
                    self.transmit.allow(destination, (bytes, messages), until);
                }
                Effect::WithdrawRegion(region) => {
                    self.transmit.withdraw(hw, Status::Region, |waiting| {
                        let read = waiting.region.filter(|_| waiting.extension == extension);
                        read.is_some_and(|read| overlap(read, region))
                    });
                }
                Effect::GiveUp { destination, status } => {
                    let steers = self.gate_controller == Some(extension);
                    self.transmit.withdraw(hw, status, |waiting| {
                        let own = waiting.extension == extension || (steers && waiting.controlled);
                        own && waiting.node == destination
                    });
                }
                Effect::Steer => self.gate_controller = Some(extension),
                Effect::Local(own) => self.own.push_back((extension, own)),
                Effect::Change(change) => self.changes.push_back(change),
                Effect::Fence { dma, token } => {
                    self.fences.push_back((dma, extension, epoch, token));
                }
            }
            self.needs_turn_end = true;
        }
        self.effects = effects;
        self.staged.clear();
    }

    /// Counts one more control message to `to` among the effects, or one more command of this node.
    pub(crate) fn count_staged(&mut self, to: NodeId) {
        match self.staged.binary_search_by_key(&to, |(node, _)| *node) {
            Ok(at) => self.staged[at].1 += 1,
            Err(at) => self.staged.insert(at, (to, 1)),
        }
    }

    /// Returns how many control messages to `to` are among the effects; they are queued when the handler returns.
    pub(crate) fn staged_to(&self, to: NodeId) -> usize {
        let at = self.staged.binary_search_by_key(&to, |(node, _)| *node);
        at.map_or(0, |at| self.staged[at].1)
    }

    fn suspend_port(&mut self, hw: &mut dyn Hardware, port: PortId) {
        if let Entry::Vacant(entry) = self.stopped.entry(port) {
            entry.insert(Suspension { since: hw.now(), is_watched: false });
            hw.close_gate(port);
            // Applies registrations whose doorbell has not arrived, so that it cannot change the saved state later.
            hw.apply_registrations(port);
            self.transmit.park(hw, port);
            self.port_events.push_back(PortEvent::Stopped(port));
        }
    }

    fn resume_port(&mut self, now: Instant, port: PortId) {
        if let Some(Suspension { since, .. }) = self.stopped.remove(&port) {
            self.transmit.unpark(port);
            let suspended_for = Duration::from_nanos(now.nanos_since(since));
            self.port_events.push_back(PortEvent::Resumed(port, suspended_for));
        }
    }

    /// Reports the first arrival for a port since the watch began, and ends the watch.
    fn note_arrival(&mut self, port: PortId) {
        let stopped = self.stopped.get_mut(&port);
        if stopped.is_some_and(|stopped| std::mem::take(&mut stopped.is_watched)) {
            self.port_events.push_back(PortEvent::Arrived(port));
        }
    }

    /// Forgets a closed port's suspension.
    pub(crate) fn forget_port(&mut self, port: PortId) {
        self.stopped.remove(&port);
        self.transmit.unpark(port);
    }

    /// Drops all effects of a handler that has panicked or refused.
    pub(crate) fn abort(&mut self, hw: &mut dyn Hardware) {
        self.effects.clear();
        self.staged.clear();
        self.transmit.abort();
        hw.abort();
    }
}

/// Returns whether two ranges of registered memory have a byte in common.
fn overlap(a: RegionRef, b: RegionRef) -> bool {
    let is_same = (a.port, a.slot, a.generation) == (b.port, b.slot, b.generation);
    let ends = [a, b].map(|range| u64::from(range.offset) + u64::from(range.length));
    is_same && u64::from(a.offset) < ends[1] && u64::from(b.offset) < ends[0]
}
