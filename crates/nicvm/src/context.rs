//! The interface that a unit gives to a handler: all that an extension may do.

mod services;

use std::time::Duration;

use midplane_simhw::hardware::{Hardware, TransmitRefused};
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::profile::Costs;
use midplane_simhw::region::{Access, Payload, RegionError, RegionRef};
use midplane_simhw::time::{Instant, LineRate};
use thiserror::Error;

use crate::admission::{Admission, AdmissionUpdate};
use crate::control::{Body, MAX_MESSAGE, RoundTrip};
use crate::extension::{Epoch, Extension, TimeoutId};
use crate::heap::Heap;
use crate::timeout::Service;
use crate::transmit::{Backlog, BacklogLimit, Message, Packet, Sending, Transmit};
use crate::unit::ExtensionCounters;

pub(crate) use services::{Change, Effect, LocalEffect, PortEvent, UnitServices};

/// Most queued effects within the unit before it refuses control messages to itself. Otherwise a handler that sends
/// several messages for each one received would fill the memory within a turn.
const MOST_OWN: usize = 64;

/// Reason for which a control message was refused.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ControlRefused {
    /// The message is longer than [`MAX_MESSAGE`] bytes.
    #[error("a control message has at most {MAX_MESSAGE} bytes, not {0}: send it in parts")]
    TooLong(usize),
    /// The peer is slow, or dead and not declared down yet; or it is this node, and its unit sends itself too many.
    #[error(
        "{waiting} control messages to node {to} wait already: send this when some have arrived"
    )]
    QueueFull {
        /// The peer.
        to: NodeId,
        /// Messages that wait for that peer.
        waiting: usize,
    },
}

/// Reason for which an extension may not control the gate or install an admission.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
#[doc(hidden)]
pub enum GateRefused {
    /// Another extension controls the gate; it has one controller.
    #[error("extension {0} controls the gate already")]
    Taken(ExtensionId),
    /// The extension has installed its admission already; it may have one.
    #[error("the extension has an admission already")]
    Installed,
}

/// The operations that a handler may perform. Their effects are carried out when the handler returns.
pub struct Context<'a> {
    pub(crate) hw: &'a mut dyn Hardware,
    pub(crate) services: &'a mut UnitServices,
    pub(crate) extension: ExtensionId,
    pub(crate) epoch: Epoch,
    pub(crate) heap: &'a Heap,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("extension", &self.extension).finish_non_exhaustive()
    }
}

impl Context<'_> {
    /// Returns the number of this node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.hw.node()
    }

    /// Returns this NIC's incarnation.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.hw.incarnation()
    }

    /// Draws 32 bytes that no other process can guess, for keys; see [`Hardware::secret`].
    pub fn secret(&mut self) -> [u8; 32] {
        self.hw.secret()
    }

    /// Returns the time; it does not advance within a handler.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.hw.now()
    }

    /// Returns the number of the extension whose handler this is.
    #[must_use]
    pub const fn extension(&self) -> ExtensionId {
        self.extension
    }

    /// Returns the version of the extension whose handler this is.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the bounded memory of this version of the extension.
    #[must_use]
    pub const fn heap(&self) -> &Heap {
        self.heap
    }

    /// Returns the handler-call counts of an extension of this unit, over all its versions.
    #[must_use]
    pub fn counters(&self, number: ExtensionId) -> ExtensionCounters {
        self.services.counters[number.index()]
    }

    /// Returns the rate of the NIC's line.
    #[must_use]
    pub fn line_rate(&self) -> LineRate {
        self.hw.line_rate()
    }

    /// Returns when the last data frame that was handed to the line leaves it.
    #[must_use]
    #[doc(hidden)]
    pub const fn line_free_at(&self) -> Instant {
        self.services.transmit.line_free_at()
    }

    /// Returns how many nanoseconds a frame with `payload` bytes occupies the NIC's line, framing included.
    #[must_use]
    pub fn frame_nanos(&self, payload: usize) -> u64 {
        self.hw.line_rate().nanos_for(self.hw.wire_bytes(payload).into())
    }

    /// Returns how much later the frames queued on the NIC's line leave it than was predicted.
    #[must_use]
    #[doc(hidden)]
    pub fn line_lag(&self) -> Duration {
        Duration::from_nanos(self.hw.line_lag())
    }

    /// Returns the largest frame in bytes, header included.
    #[must_use]
    pub fn mtu_bytes(&self) -> u64 {
        (self.hw.mtu() + midplane_simhw::frame::HEADER_BYTES) as u64
    }

    /// Returns the largest frame to `to` in bytes, header included, that crosses the path as one packet. It is at most
    /// [`Context::mtu_bytes`], and changes as paths do.
    #[must_use]
    pub fn mtu_bytes_to(&self, to: NodeId) -> u64 {
        (self.hw.mtu_to(to) + midplane_simhw::frame::HEADER_BYTES) as u64
    }

    /// Returns the cost model of a simulated NIC; `None` if the hardware has none.
    #[must_use]
    pub fn costs(&self) -> Option<Costs> {
        self.hw.costs()
    }

    /// Charges instructions that the handler executed: virtual time on a simulated NIC.
    pub fn charge(&mut self, instructions: u64) {
        self.hw.charge(instructions);
    }

    /// Sends a control message to the same extension of another node: reliable, in order. A message to this node is
    /// handled in the same turn, after this handler has returned; while 64 such messages or commands wait, it is
    /// refused.
    ///
    /// The queue to a peer is sized for bursts, not for the messages that a disconnected peer misses (see
    /// [`ControlConfig::queue`](crate::control::ControlConfig::queue)).
    ///
    /// # Errors
    /// [`ControlRefused`] says why the message is not sent.
    pub fn send_control(&mut self, to: NodeId, message: &[u8]) -> Result<(), ControlRefused> {
        let mut body = [0; MAX_MESSAGE];
        let Some(part) = body.get_mut(..message.len()) else {
            return Err(ControlRefused::TooLong(message.len()));
        };
        part.copy_from_slice(message);
        if self.control_room(to) == 0 {
            self.services.control_refused += 1;
            let is_own = to == self.node();
            let waiting = if is_own { self.own_waiting() } else { self.control_pending(to) };
            return Err(ControlRefused::QueueFull { to, waiting });
        }
        self.services.count_staged(to);
        if to == self.node() {
            let body = Body::new(message).expect("its length is checked");
            self.services
                .effects
                .push(Effect::Local(LocalEffect::Control { epoch: self.epoch, body }));
            return Ok(());
        }
        let length = message.len() as u8;
        self.services.effects.push(Effect::Control { to, length, body });
        Ok(())
    }

    /// Returns how many control messages to `to` would be accepted now.
    pub(crate) fn control_room(&self, to: NodeId) -> usize {
        if to == self.node() {
            return MOST_OWN.saturating_sub(self.own_waiting());
        }
        self.services.control.room(to).saturating_sub(self.services.staged_to(to))
    }

    /// Counts the effects within this unit that are not dispatched yet, those of this handler included.
    fn own_waiting(&self) -> usize {
        self.services.own.len() + self.services.staged_to(self.node())
    }

    /// Counts the control messages of all extensions to `to` that are queued or not acknowledged.
    pub(crate) fn control_pending(&self, to: NodeId) -> usize {
        self.services.control.pending(to) + self.services.staged_to(to)
    }

    /// Returns the round-trip times of control messages to a peer; `None` before the first measurement.
    #[must_use]
    pub fn round_trip(&self, peer: NodeId) -> Option<RoundTrip> {
        self.services.control.round_trip(peer)
    }

    /// Sends a message; its frames leave when every admission allows it.
    pub fn send(&mut self, message: Message) {
        let UnitServices { effects, control, transmit, .. } = &mut *self.services;
        // Control messages go first, and the effects of a handler in their order.
        let may_bypass = effects.is_empty() && control.is_idle();
        if !(may_bypass && transmit.send_at_once(self.hw, &message)) {
            effects.push(Effect::Send(message));
        }
    }

    /// Sends one frame. If nothing waits and no admission applies, it bypasses the queue and leaves at once.
    ///
    /// A packet without a token that would have to wait is dropped, as if the network had lost it, if this extension's
    /// queued packets take 8 MiB for its destination, or 64 MiB in all. The destination has then stopped reading, or an
    /// admission holds too much. The unit counts the packet
    /// ([`UnitCounters::packets_dropped`](crate::unit::UnitCounters::packets_dropped)).
    ///
    /// # Errors
    /// [`TransmitRefused::Length`] if it has more bytes than a frame may, [`TransmitRefused::Region`] if its memory may
    /// not be read. Then nothing is sent.
    pub fn send_packet(&mut self, packet: &Packet<'_>) -> Result<Sending, TransmitRefused> {
        let staged = |effect: &Effect| matches!(effect, Effect::Send(_) | Effect::SendPacket(_));
        let is_open = self.services.transmit.is_open(self.extension, packet)
            && !self.services.effects.iter().any(staged);
        if is_open
            && let Sending::Now(at) = Transmit::send_directly(self.hw, self.extension, packet)?
        {
            self.services.transmit.on_sent_directly(at);
            return Ok(Sending::Now(at));
        }
        let waiting = Transmit::waiting(self.hw, (self.extension, self.epoch), packet)?;
        self.services.effects.push(Effect::SendPacket(waiting));
        Ok(Sending::Queued)
    }

    /// Returns the number of a message that this handler sends as packets; it is unique within this unit.
    pub(crate) const fn next_message(&mut self) -> u32 {
        self.services.transmit.next_message()
    }

    /// Returns whether packets of this extension wait to leave to `to`.
    pub(crate) fn has_waiting(&self, to: NodeId) -> bool {
        self.services.transmit.has_waiting(self.extension, to)
    }

    /// Returns the incarnation of `peer`'s unit, as last reported by control messages; `None` if the peer was never up,
    /// or is down.
    #[must_use]
    pub fn peer_incarnation(&self, peer: NodeId) -> Option<Incarnation> {
        self.services.control.peer_incarnation(peer)
    }

    /// Checks that `region` grants `access`. For handles that arrived in a command's arguments or over the network.
    ///
    /// # Errors
    /// [`RegionError`] says which right is missing.
    pub fn check(&self, region: RegionRef, access: Access) -> Result<(), RegionError> {
        self.hw.check(region, access)
    }

    /// Reads registered memory of an application of this node, as it is now: writes of this handler are not visible
    /// yet.
    ///
    /// # Errors
    /// [`RegionError`] if the range may not be read.
    pub fn read(&self, from: RegionRef) -> Result<Payload<'_>, RegionError> {
        self.hw.read(from)
    }

    /// Writes into registered memory of an application of this node.
    ///
    /// # Errors
    /// [`RegionError`]; then nothing is written.
    pub fn write(&mut self, to: RegionRef, from: Payload<'_>) -> Result<(), RegionError> {
        self.hw.write(to, from)
    }

    /// Requests a call of [`Extension::on_written`] with this token once all earlier writes are in memory, those of
    /// this handler included. Returns `false` if no call follows, because all writes are in memory when the handler
    /// has returned.
    pub fn fence(&mut self, token: u64) -> bool {
        let dma = self.hw.fence();
        self.services.effects.extend(dma.map(|dma| Effect::Fence { dma, token }));
        dma.is_some()
    }

    /// Completes a command of `port`; its application sees the completion after all earlier writes.
    pub fn complete(&mut self, port: PortId, completion: &Completion) {
        self.hw.complete(port, completion);
    }

    /// Completes `command` with an error.
    pub fn refuse(&mut self, command: &Command, status: Status) {
        self.hw.complete(command.region.port, &Completion::of(command, status));
    }

    /// Passes a command to another extension of this unit, as if the application of `command.region.port` had posted
    /// it; that application receives the completion. Handled in the same turn, after this handler has returned.
    pub fn forward(&mut self, command: Command) {
        self.services.count_staged(self.hw.node());
        self.services.effects.push(Effect::Local(LocalEffect::Command(command)));
    }

    /// Replaces the extension under `number` with `extension`, as version `epoch`. A
    /// [`UnitEvent`](crate::extension::UnitEvent) reports the outcome.
    pub fn replace(&mut self, number: ExtensionId, epoch: Epoch, extension: Box<dyn Extension>) {
        self.services.effects.push(Effect::Change(Change::Replace { number, epoch, extension }));
    }

    /// Takes down the extension under `number`: its commands complete with an error from now on.
    pub fn withdraw(&mut self, number: ExtensionId) {
        self.services.effects.push(Effect::Change(Change::Withdraw(number)));
    }

    /// Sets a timeout to `after` from now, replacing its former setting.
    pub fn set_timeout(&mut self, timeout: TimeoutId, service: Service, after: Duration) {
        let at = self.now() + after;
        self.set_timeout_at(timeout, service, at);
    }

    /// Sets a timeout to an instant, replacing its former setting.
    pub fn set_timeout_at(&mut self, timeout: TimeoutId, service: Service, at: Instant) {
        self.services.effects.push(Effect::SetTimeout { timeout, service, at });
    }

    /// Cancels a timeout.
    pub fn cancel_timeout(&mut self, timeout: TimeoutId) {
        self.services.effects.push(Effect::CancelTimeout(timeout));
    }

    /// Makes this extension the gate's controller, which receives the scheduler's
    /// [`TransmitEvent`](crate::extension::TransmitEvent).
    ///
    /// # Errors
    /// [`GateRefused::Taken`] if another extension controls the gate.
    #[doc(hidden)]
    pub fn control_gate(&mut self) -> Result<(), GateRefused> {
        match self.services.gate_controller {
            Some(other) if other != self.extension => Err(GateRefused::Taken(other)),
            _ => {
                self.services.effects.push(Effect::Steer);
                Ok(())
            }
        }
    }

    /// Suspends `port`, because its process is suspended. From now on its commands stay in its ring, its messages wait,
    /// its packets are withdrawn, its gate allowance is returned, and every extension is notified. Does nothing if the
    /// port is suspended already.
    ///
    /// A suspended port can't be closed: a caller that kills a suspended process resumes its ports first.
    #[doc(hidden)]
    pub fn suspend_port(&mut self, port: PortId) {
        self.services.effects.push(Effect::StopPort(port));
    }

    /// Resumes `port`, because its process runs again. Does nothing if the port is not suspended.
    #[doc(hidden)]
    pub fn resume_port(&mut self, port: PortId) {
        self.services.effects.push(Effect::ResumePort(port));
    }

    /// Watches a suspended port: all extensions are notified of the next data that arrives for it
    /// ([`Extension::on_port_arrival`]), once. The watch ends with the suspension. Does nothing if the port is not
    /// suspended.
    ///
    /// [`Extension::on_port_arrival`]: crate::extension::Extension::on_port_arrival
    #[doc(hidden)]
    pub fn watch_port(&mut self, port: PortId) {
        self.services.effects.push(Effect::WatchPort(port));
    }

    /// Reports that data has arrived for `port`, which its extension keeps or refuses because the port is suspended.
    /// Does nothing unless the port is suspended and watched.
    #[doc(hidden)]
    pub fn note_arrival(&mut self, port: PortId) {
        if self.services.stopped.get(&port).is_some_and(|stopped| stopped.is_watched) {
            self.services.effects.push(Effect::Arrived(port));
        }
    }

    /// Opens the gate of `port`, as [`Hardware::open_gate`]: from now on its host may bypass this NIC. Returns the
    /// number that the host needs; `None` if the port has no gate, is suspended, or has a post under way.
    #[doc(hidden)]
    pub fn open_gate(&mut self, port: PortId) -> Option<u64> {
        if self.is_suspended(port) { None } else { self.hw.open_gate(port) }
    }

    /// Closes the gate of `port` at once, as [`Hardware::close_gate`]. Returns whether no post is under way; if one
    /// is, call it again later. Suspending a port closes its gate, too.
    #[doc(hidden)]
    pub fn close_gate(&mut self, port: PortId) -> bool {
        self.hw.close_gate(port)
    }

    /// Returns whether any extension has installed an admission: then every frame must pass this NIC.
    #[must_use]
    #[doc(hidden)]
    pub fn has_admission(&self) -> bool {
        self.services.transmit.has_admissions()
    }

    /// Returns whether `port` is suspended.
    #[must_use]
    #[doc(hidden)]
    pub fn is_suspended(&self, port: PortId) -> bool {
        self.services.stopped.contains_key(&port)
    }

    /// Installs an admission in the transmit scheduler, which consults it about every data frame of this unit from now
    /// on. The admission is removed with this version of the extension.
    ///
    /// # Errors
    /// [`GateRefused::Installed`] if this version of the extension has installed one before.
    #[doc(hidden)]
    pub fn install_admission(
        &mut self,
        admission: impl Admission + 'static,
    ) -> Result<(), GateRefused> {
        let staged = |effect: &Effect| matches!(effect, Effect::Install(_));
        if self.services.transmit.has_admission(self.extension, self.epoch)
            || self.services.effects.iter().any(staged)
        {
            return Err(GateRefused::Installed);
        }
        self.services.effects.push(Effect::Install(Box::new(admission)));
        Ok(())
    }

    /// Passes `update` to this extension's admission; the scheduler then asks again about all held frames.
    #[doc(hidden)]
    pub fn update_admission(&mut self, update: AdmissionUpdate) {
        self.services.effects.push(Effect::Admission(update));
    }

    /// Sets the gate's allowance for `destination` to `bytes` of frames, headers included, replacing the former
    /// allowance; 0 closes the gate. From `until` on, what is left of it counts as used up.
    #[doc(hidden)]
    pub fn allow(&mut self, destination: NodeId, bytes: u64, until: Instant) {
        self.allow_messages(destination, bytes, u32::MAX, until);
    }

    /// Sets the gate's allowance as [`Context::allow`] does. At most `messages` messages and packets may begin to leave;
    /// those of which a part has left don't count.
    pub(crate) fn allow_messages(
        &mut self,
        destination: NodeId,
        bytes: u64,
        messages: u32,
        until: Instant,
    ) {
        self.services.effects.push(Effect::Allow { destination, bytes, messages, until });
    }

    /// Returns the bytes of frames that may still pass the gate to `destination`.
    #[must_use]
    #[doc(hidden)]
    pub fn allowance(&self, destination: NodeId) -> u64 {
        self.services.transmit.allowance(destination)
    }

    /// Returns the backlog that waits for the gate to `destination`, counted up to `limit`; `None` if nothing waits.
    #[must_use]
    #[doc(hidden)]
    pub fn backlog(&self, destination: NodeId, limit: BacklogLimit) -> Option<Backlog> {
        self.services.transmit.backlog(destination, self.hw.mtu_to(destination), limit)
    }

    /// Cancels the waiting packets of this extension whose bytes would be read from `region`.
    pub(crate) fn cancel_reads(&mut self, region: RegionRef) {
        self.services.effects.push(Effect::WithdrawRegion(region));
    }

    /// Cancels all unsent messages and packets of this extension to `destination`: they end with `status`. If this
    /// extension controls the gate, also cancels those of other extensions that wait at the gate for `destination`.
    pub fn cancel_sends(&mut self, destination: NodeId, status: Status) {
        self.services.effects.push(Effect::GiveUp { destination, status });
    }
}
