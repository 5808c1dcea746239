//! What a handler may do: everything that a unit lends its extensions.

mod lent;

use std::time::Duration;

use midplane_simhw::hardware::{Hardware, TransmitRefused};
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::profile::Costs;
use midplane_simhw::region::{Access, Payload, RegionError, RegionRef};
use midplane_simhw::time::{Instant, LineRate};
use thiserror::Error;

use crate::admission::{Admission, Steering};
use crate::control::{Body, MAX_MESSAGE, RoundTrip};
use crate::extension::{Epoch, Extension, TimeoutId};
use crate::heap::Heap;
use crate::timeout::Service;
use crate::transmit::{Backlog, BacklogLimit, Message, Packet, Sending, Transmit};
use crate::unit::ExtensionCounters;

pub(crate) use lent::{Asked, Change, Lent, Own, PortNews};

/// Why a control message was not taken.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ControlRefused {
    /// A control message is small by design.
    #[error("a control message has at most {MAX_MESSAGE} bytes, not {0}: send it in parts")]
    TooLong(usize),
    /// The peer is slow, or gone and not declared dead yet.
    #[error(
        "{waiting} control messages to node {to} wait already: send this when some have arrived"
    )]
    QueueFull {
        /// The peer.
        to: NodeId,
        /// Messages that wait.
        waiting: usize,
    },
}

/// Why an extension may not steer.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SteerRefused {
    /// The gate has one steersman.
    #[error("extension {0} steers the gate already")]
    Taken(ExtensionId),
    /// An extension has one admission.
    #[error("the extension has an admission already")]
    Installed,
}

/// What a handler may do. All of it takes effect when the handler returns.
pub struct Context<'a> {
    pub(crate) hw: &'a mut dyn Hardware,
    pub(crate) lent: &'a mut Lent,
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
    /// This node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.hw.node()
    }

    /// Which life of this NIC this is.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.hw.incarnation()
    }

    /// The time; it does not move within a handler.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.hw.now()
    }

    /// The number of the extension whose handler this is.
    #[must_use]
    pub const fn extension(&self) -> ExtensionId {
        self.extension
    }

    /// The version of the extension whose handler this is.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The memory of this version of the extension: bounded, and its own.
    #[must_use]
    pub const fn heap(&self) -> &Heap {
        self.heap
    }

    /// What an extension of this unit has been called for, in all its versions.
    #[must_use]
    pub fn counters(&self, number: ExtensionId) -> ExtensionCounters {
        self.lent.counters[number.index()]
    }

    /// The rate of the NIC's line.
    #[must_use]
    pub fn line_rate(&self) -> LineRate {
        self.hw.line_rate()
    }

    /// When the last data frame that was handed to the line leaves it.
    #[must_use]
    pub const fn line_free_at(&self) -> Instant {
        self.lent.transmit.line_free_at()
    }

    /// Nanoseconds that a frame with `payload` bytes takes on the NIC's line, with its framing.
    #[must_use]
    pub fn frame_nanos(&self, payload: usize) -> u64 {
        self.hw.line_rate().nanos_for(self.hw.wire_bytes(payload).into())
    }

    /// How much later than was said what waits on the NIC's line leaves it.
    #[must_use]
    pub fn line_lag(&self) -> Duration {
        Duration::from_nanos(self.hw.line_lag())
    }

    /// Most bytes of one frame, with its header.
    #[must_use]
    pub fn mtu_bytes(&self) -> u64 {
        (self.hw.mtu() + midplane_simhw::frame::HEADER_BYTES) as u64
    }

    /// Most bytes of one frame to `to`, with its header, that crosses the path there as one packet; at
    /// most [`Context::mtu_bytes`]. It changes as paths do.
    #[must_use]
    pub fn mtu_bytes_to(&self, to: NodeId) -> u64 {
        (self.hw.mtu_to(to) + midplane_simhw::frame::HEADER_BYTES) as u64
    }

    /// What the NIC costs, where it is simulated; `None` where nobody has told.
    #[must_use]
    pub fn costs(&self) -> Option<Costs> {
        self.hw.costs()
    }

    /// Counts instructions that the handler took: virtual time on a simulated NIC.
    pub fn charge(&mut self, instructions: u64) {
        self.hw.charge(instructions);
    }

    /// Sends a control message to the same extension of another node: reliable, in order. One to
    /// this node is handled in the same turn, after this handler has returned.
    ///
    /// A peer's queue holds bursts, not what one that is cut off misses (see
    /// [`ControlConfig::queue`](crate::control::ControlConfig::queue)).
    ///
    /// # Errors
    /// [`ControlRefused`] says why it is not sent.
    pub fn send_control(&mut self, to: NodeId, message: &[u8]) -> Result<(), ControlRefused> {
        let mut body = [0; MAX_MESSAGE];
        let Some(part) = body.get_mut(..message.len()) else {
            return Err(ControlRefused::TooLong(message.len()));
        };
        part.copy_from_slice(message);
        if to == self.node() {
            let body = Body::new(message).expect("its length is checked");
            self.lent.asked.push(Asked::Own(Own::Control { epoch: self.epoch, body }));
            return Ok(());
        }
        let staged =
            |asked: &&Asked| matches!(asked, Asked::Control { to: other, .. } if *other == to);
        let staged = self.lent.asked.iter().filter(staged).count();
        if self.lent.control.room(to) <= staged {
            self.lent.control_refused += 1;
            let waiting = self.lent.control.pending(to) + staged;
            return Err(ControlRefused::QueueFull { to, waiting });
        }
        let length = message.len() as u8;
        self.lent.asked.push(Asked::Control { to, length, body });
        Ok(())
    }

    /// How long control messages take to a peer and back; `None` before the first came back.
    #[must_use]
    pub fn round_trip(&self, peer: NodeId) -> Option<RoundTrip> {
        self.lent.control.round_trip(peer)
    }

    /// Sends a message; its frames leave when every admission lets them.
    pub fn send(&mut self, message: Message) {
        self.lent.asked.push(Asked::Send(message));
    }

    /// Sends one frame. It leaves at once, past the lanes, if nothing waits and nobody has a say.
    ///
    /// # Errors
    /// [`TransmitRefused::Length`] if it has more bytes than a frame may,
    /// [`TransmitRefused::Region`] if its memory may not be read; nothing is sent then.
    pub fn send_packet(&mut self, packet: &Packet<'_>) -> Result<Sending, TransmitRefused> {
        let staged = |asked: &Asked| matches!(asked, Asked::Send(_) | Asked::SendPacket(_));
        let is_open = self.lent.transmit.is_open(self.extension, packet)
            && !self.lent.asked.iter().any(staged);
        if is_open
            && let Sending::Now(at) = Transmit::send_directly(self.hw, self.extension, packet)?
        {
            self.lent.asked.push(Asked::SentDirectly(at));
            return Ok(Sending::Now(at));
        }
        let waiting = Transmit::waiting(self.hw, self.extension, packet)?;
        self.lent.asked.push(Asked::SendPacket(waiting));
        Ok(Sending::Queued)
    }

    /// Which life of `peer`'s unit control messages have told of; `None` if it was never up, or is
    /// down.
    #[must_use]
    pub fn peer_incarnation(&self, peer: NodeId) -> Option<Incarnation> {
        self.lent.control.peer_incarnation(peer)
    }

    /// Whether `region` may be used as `access` says: for handles that came in a command's arguments
    /// or from the network.
    ///
    /// # Errors
    /// [`RegionError`] says what is not granted.
    pub fn check(&self, region: RegionRef, access: Access) -> Result<(), RegionError> {
        self.hw.check(region, access)
    }

    /// The bytes of registered memory of an application of this node, as they are now: without
    /// what this handler has asked to be written.
    ///
    /// # Errors
    /// [`RegionError`] if the range may not be read.
    pub fn read(&self, from: RegionRef) -> Result<Payload<'_>, RegionError> {
        self.hw.read(from)
    }

    /// Writes into registered memory of an application of this node.
    ///
    /// # Errors
    /// [`RegionError`]; nothing is written then.
    pub fn write(&mut self, to: RegionRef, from: Payload<'_>) -> Result<(), RegionError> {
        self.hw.write(to, from)
    }

    /// Leaves the data frame that this handler is called for on the link; nothing else crosses that until the
    /// extension, which is handed the frame again after whatever else happens to its unit, takes it. `false`
    /// where links don't wait ([`Hardware::leave`]): the frame ends with the handler, as any other.
    pub fn leave_frame(&mut self) -> bool {
        self.hw.leave()
    }

    /// Completes a command of `port`; its application sees it after all earlier writes.
    pub fn complete(&mut self, port: PortId, completion: &Completion) {
        self.hw.complete(port, completion);
    }

    /// Completes `command` with an error.
    pub fn refuse(&mut self, command: &Command, status: Status) {
        self.hw.complete(command.region.port, &Completion::of(command, status));
    }

    /// Gives a command to another extension of this unit, as if the application of
    /// `command.region.port` had posted it, which hears of its end. Handled in the same turn, after
    /// this handler has returned.
    pub fn forward(&mut self, command: Command) {
        self.lent.asked.push(Asked::Own(Own::Command(command)));
    }

    /// Has `extension` run under `number` from now on, as version `epoch`, instead of what runs there.
    /// [`UnitEvent`](crate::extension::UnitEvent) tells what came of it.
    pub fn replace(&mut self, number: ExtensionId, epoch: Epoch, extension: Box<dyn Extension>) {
        self.lent.asked.push(Asked::Change(Change::Replace { number, epoch, extension }));
    }

    /// Takes down what runs under `number`: its commands end with an error from now on.
    pub fn withdraw(&mut self, number: ExtensionId) {
        self.lent.asked.push(Asked::Change(Change::Withdraw(number)));
    }

    /// Sets a timeout, instead of what it was set to.
    pub fn set_timeout(&mut self, timeout: TimeoutId, service: Service, after: Duration) {
        let at = self.now() + after;
        self.set_timeout_at(timeout, service, at);
    }

    /// Sets a timeout to an instant, instead of what it was set to.
    pub fn set_timeout_at(&mut self, timeout: TimeoutId, service: Service, at: Instant) {
        self.lent.asked.push(Asked::SetTimeout { timeout, service, at });
    }

    /// Takes a timeout back.
    pub fn cancel_timeout(&mut self, timeout: TimeoutId) {
        self.lent.asked.push(Asked::CancelTimeout(timeout));
    }

    /// Makes this extension the one that steers the gate and hears the scheduler's news.
    ///
    /// # Errors
    /// [`SteerRefused::Taken`] if another one does.
    pub fn steer_gate(&mut self) -> Result<(), SteerRefused> {
        match self.lent.steersman {
            Some(other) if other != self.extension => Err(SteerRefused::Taken(other)),
            _ => {
                self.lent.asked.push(Asked::Steer);
                Ok(())
            }
        }
    }

    /// The process behind `port` stands still: from now on its commands stay in its ring, its messages
    /// wait, its packets are withdrawn, what was let through the gate for it is given back, and every
    /// extension is told. Nothing happens if it stands still already.
    ///
    /// Its port can't be closed before it goes on: whoever ends a stopped process resumes its ports.
    pub fn stop_port(&mut self, port: PortId) {
        self.lent.asked.push(Asked::StopPort(port));
    }

    /// The process behind `port` goes on. Nothing happens if it does not stand still.
    pub fn resume_port(&mut self, port: PortId) {
        self.lent.asked.push(Asked::ResumePort(port));
    }

    /// Whether the process behind `port` stands still.
    #[must_use]
    pub fn is_stopped(&self, port: PortId) -> bool {
        self.lent.stopped.contains_key(&port)
    }

    /// Gives the transmit scheduler an admission, which asks about every data frame of this unit
    /// from now on. It goes with this extension.
    ///
    /// # Errors
    /// [`SteerRefused::Installed`] if this extension has given it one before.
    pub fn install_admission(
        &mut self,
        admission: impl Admission + 'static,
    ) -> Result<(), SteerRefused> {
        let staged = |asked: &Asked| matches!(asked, Asked::Install(_));
        if self.lent.transmit.has_admission(self.extension) || self.lent.asked.iter().any(staged) {
            return Err(SteerRefused::Installed);
        }
        self.lent.asked.push(Asked::Install(Box::new(admission)));
        Ok(())
    }

    /// Tells this extension's admission something; all that is held is asked about again then.
    pub fn steer(&mut self, steering: Steering) {
        self.lent.asked.push(Asked::Admission(steering));
    }

    /// Lets frames of `bytes` in all, headers included, through the gate to `destination`, instead
    /// of what was allowed before; 0 closes it.
    pub fn allow(&mut self, destination: NodeId, bytes: u64) {
        self.lent.asked.push(Asked::Allow { destination, bytes });
    }

    /// What may still pass the gate to `destination`, in bytes of frames.
    #[must_use]
    pub fn allowance(&self, destination: NodeId) -> u64 {
        self.lent.transmit.allowance(destination)
    }

    /// What waits for the gate to `destination`, up to `limit`; `None` if nothing does.
    #[must_use]
    pub fn backlog(&self, destination: NodeId, limit: BacklogLimit) -> Option<Backlog> {
        self.lent.transmit.backlog(destination, self.hw.mtu_to(destination), limit)
    }

    /// Ends all that this extension has waiting to leave to `destination` with `status`, unsent;
    /// all that waits for the gate as well, if it steers that.
    pub fn give_up(&mut self, destination: NodeId, status: Status) {
        self.lent.asked.push(Asked::GiveUp { destination, status });
    }
}
