//! The NIC extension: unreliable messages that leave at the rate that the law allows.
//!
//! The sender's side paces the frames to each destination by its
//! [`Controller`](crate::control::Controller) and stamps them as they leave. The receiver's side
//! reads the stamps and returns an estimate once a group, piggybacked on a message or in a frame of
//! its own. An application posts messages, which wait until the rate allows them, or asks the
//! [`Gate`] first and never waits. A message to [`NodeId::BROADCAST`] leaves at the rate of the
//! slowest destination that sends feedback.
//!
//! If configured, Warp's admission also paces the frames of other extensions to the same
//! destinations. With the tokens of sender coordination, the token schedules the link that has one
//! owner, and Warp paces what is shared behind it.

mod config;
mod listeners;
mod outgoing;
mod pace;
mod sources;
mod ticks;

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, PeerEvent, TimeoutId};
use midplane_nicvm::messages::{self, Messages};
use midplane_nicvm::timeout::Service;
use midplane_nicvm::transmit::Sent;
use midplane_simhw::frame::{Frame, Header};
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::nanos;

use crate::feedback::{FEEDBACK_BYTES, Feedback};
use crate::gate::Gate;
pub use config::WarpConfig;
use outgoing::Path;
use pace::Pace;
use sources::Sources;
use ticks::in_own_time;

/// The extension's number.
pub const WARP: ExtensionId = ExtensionId(FIRST_USER_EXTENSION.0 + 4);

/// Sends `region` to `port` of `node` when the rate allows. Completes when the NIC has read the
/// region. Argument 0 is a tag of 32 bits that is delivered with the message.
pub const SEND: u8 = messages::SEND;
/// Posts `region` as the receive buffer of the next message for this port, as [`messages::RECEIVE`]
/// does.
pub const RECEIVE: u8 = messages::RECEIVE;
/// Completes with the measurements of the path to `node`: rate (argument 0, bytes a second), warp
/// in millionths, queueing delay and feedback delay in nanoseconds.
#[doc(hidden)]
pub const CONTROLLER_STATE: u8 = 3;

/// Flag of a [`SEND`] whose credit the sender has already taken from the [`Gate`].
#[doc(hidden)]
pub const PAID: u16 = 1;

/// Flag of a frame that carries feedback.
const FEEDBACK: u8 = 1;
/// Flag of an empty frame that only carries a stamp.
const PROBE: u8 = 2;
/// Flag of a broadcast frame, and of the feedback about it.
const BROADCAST: u8 = 4;
/// Flag of a message's frame with feedback piggybacked at its end.
const RIDER: u8 = 8;
/// Flag of the first frame after its sender was suspended: its stamp must not be compared with
/// earlier ones.
const ANEW: u8 = 16;

/// Makes a command that sends `region` to `port` of `node`.
#[must_use]
pub fn send(node: NodeId, port: PortId, region: RegionRef, cookie: u64) -> Command {
    Command { extension: WARP, ..messages::send(node, port, region, cookie) }
}

/// Makes a command that posts `region` as the receive buffer of the next message.
#[must_use]
pub fn receive(region: RegionRef, cookie: u64) -> Command {
    Command { extension: WARP, ..messages::receive(region, cookie) }
}

/// The Warp extension.
#[derive(Debug)]
pub struct Warp {
    config: WarpConfig,
    paths: Vec<Path>,
    sources: Sources,
    receiver: Messages,
    /// The incarnation of each peer. Data frames cause no [`PeerEvent`].
    incarnations: BTreeMap<NodeId, Incarnation>,
}

impl Warp {
    /// Creates the extension from `config`. Returns it and the gates of its destinations.
    #[must_use]
    pub fn new(config: WarpConfig) -> (Self, BTreeMap<NodeId, Gate>) {
        let mut gates = BTreeMap::new();
        let mut path = |node: &NodeId| {
            let (path, gate) = Path::new(*node, &config);
            gates.insert(*node, gate);
            path
        };
        let all = config.broadcasts.then_some(NodeId::BROADCAST);
        let paths = config.destinations.iter().chain(&all).map(&mut path).collect();
        let warp = Self {
            paths,
            sources: Sources::new(&config),
            receiver: Messages::new(),
            incarnations: BTreeMap::new(),
            config,
        };
        (warp, gates)
    }

    fn path(&self, node: NodeId) -> Option<usize> {
        self.paths.iter().position(|path| path.node == node)
    }

    /// Sends what the rate allows to a destination, and sets the timeouts for the next call.
    fn pump(&mut self, nic: &mut Context<'_>, at: usize) {
        let path = &mut self.paths[at];
        path.pump(nic, at as u64, &mut self.sources);
        let pace = TimeoutId(2 * at as u32);
        match path.poll_pace(nic) {
            Some(when) => nic.set_timeout_at(pace, Service::Exact, when),
            None => nic.cancel_timeout(pace),
        }
        let validity = TimeoutId(2 * at as u32 + 1);
        match path.law.poll_timeout() {
            Some(when) => nic.set_timeout_at(validity, Service::Exact, when),
            None => nic.cancel_timeout(validity),
        }
        let rate = path.law.rate(nic.now());
        if path.has_new_rate(rate) {
            nic.update_admission(Pace::update(path.node, rate));
        }
    }

    /// Processes a stamped frame: updates the estimate and delivers the message to its port.
    fn on_message(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        let now = nic.now();
        let is_probe = frame.header.flags & PROBE != 0;
        let back = self.path(from).map(|at| &self.paths[at]);
        self.sources.handle_frame(nic, &frame.header, back.is_some_and(|path| path.is_used(now)));
        if !is_probe {
            self.receiver.on_data(nic, from, frame);
        }
        self.set_feedback_timeout(nic);
    }

    /// Processes feedback by `from` about the path `way`, which is `from` or the broadcast.
    fn on_feedback(
        &mut self,
        nic: &mut Context<'_>,
        way: NodeId,
        from: NodeId,
        bytes: &Payload<'_>,
    ) {
        let Some(bytes) = bytes.slice(0..FEEDBACK_BYTES) else { return };
        let mut copy = [0; FEEDBACK_BYTES];
        bytes.copy_to(&mut copy);
        let (Some(at), Some(feedback)) = (self.path(way), Feedback::parse(&copy)) else { return };
        let feedback = in_own_time(feedback, nic.now());
        self.paths[at].law.handle_feedback(nic.now(), from, &feedback);
        self.paths[at].adapt_lead(nic);
        self.pump(nic, at);
    }

    /// Notes the incarnation of a peer, and forgets the path if the peer has restarted. Returns false
    /// if a former incarnation sent the frame.
    fn see(&mut self, nic: &mut Context<'_>, node: NodeId, incarnation: Incarnation) -> bool {
        let last = self.incarnations.entry(node).or_insert(incarnation);
        if last.is_newer_than(incarnation) {
            return false;
        }
        if std::mem::replace(last, incarnation) != incarnation {
            self.forget(nic, node);
        }
        true
    }

    /// Discards the estimates of the paths from and to a peer, whose clock and path may have changed.
    fn forget(&mut self, nic: &mut Context<'_>, node: NodeId) {
        self.sources.forget(node);
        for at in 0..self.paths.len() {
            if self.paths[at].node == node || self.paths[at].node == NodeId::BROADCAST {
                self.paths[at].law.forget(node);
                self.pump(nic, at);
            }
        }
    }

    /// Sets the timeout for feedback that found no message to be piggybacked on.
    fn set_feedback_timeout(&self, nic: &mut Context<'_>) {
        let timeout = TimeoutId(2 * self.paths.len() as u32);
        match self.sources.poll_timeout() {
            Some(at) => nic.set_timeout_at(timeout, Service::Exact, at),
            None => nic.cancel_timeout(timeout),
        }
    }

    fn complete_state(&self, nic: &mut Context<'_>, command: &Command) {
        let Some(at) = self.path(command.node) else {
            return nic.refuse(command, Status::Invalid);
        };
        let Some(known) = self.paths[at].law.state(nic.now()) else {
            return nic.refuse(command, Status::Invalid);
        };
        let args = [
            known.rate as u64,
            (known.warp * 1e6) as u64,
            nanos(known.queue_delay),
            nanos(known.feedback_delay),
        ];
        let completion = Completion { args, ..Completion::of(command, Status::Done) };
        nic.complete(command.region.port, &completion);
    }
}

impl Extension for Warp {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        if self.config.paces_others {
            let reason = "the extension has an admission already; install Warp once";
            let refused = |_| InitError::Refused { extension: WARP, reason };
            nic.install_admission(Pace::default()).map_err(refused)?;
        }
        for at in 0..self.paths.len() {
            self.paths[at].begin(nic);
            if self.config.paces_others {
                self.pump(nic, at);
            }
        }
        Ok(())
    }

    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        match (command.opcode, self.path(command.node)) {
            (SEND, Some(at)) => {
                self.paths[at].enqueue(nic, command);
                self.pump(nic, at);
            }
            (RECEIVE, _) => self.receiver.on_command(nic, command),
            (CONTROLLER_STATE, _) => self.complete_state(nic, &command),
            _ => nic.refuse(&command, Status::Invalid),
        }
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        if !self.see(nic, from, frame.header.incarnation) {
            return;
        }
        let flags = frame.header.flags;
        if flags & FEEDBACK != 0 {
            let way = if flags & BROADCAST == 0 { from } else { NodeId::BROADCAST };
            return self.on_feedback(nic, way, from, &frame.payload);
        }
        let end = frame.payload.len().checked_sub(FEEDBACK_BYTES).filter(|_| flags & RIDER != 0);
        let Some(end) = end else { return self.on_message(nic, from, frame) };
        let whole = frame.payload.len();
        let parts = (frame.payload.slice(0..end), frame.payload.slice(end..whole));
        let (Some(message), Some(rider)) = parts else { return };
        self.on_feedback(nic, from, from, &rider);
        let header = Header { length: end as u16, ..frame.header };
        self.on_message(nic, from, &Frame { header, payload: message });
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        let at = (timeout.0 / 2) as usize;
        let Some(path) = self.paths.get_mut(at) else {
            self.sources.handle_timeout(nic);
            return self.set_feedback_timeout(nic);
        };
        if timeout.0 % 2 == 1 {
            path.law.handle_timeout(nic.now());
        }
        self.pump(nic, at);
    }

    fn on_port_suspended(&mut self, nic: &mut Context<'_>, _: PortId) {
        for at in 0..self.paths.len() {
            self.paths[at].on_port_suspended(nic);
            self.pump(nic, at);
        }
    }

    fn on_port_resumed(&mut self, nic: &mut Context<'_>, port: PortId, suspended: Duration) {
        for at in 0..self.paths.len() {
            self.paths[at].on_port_resumed(nic, port, suspended);
            self.pump(nic, at);
        }
    }

    fn on_port_closed(&mut self, nic: &mut Context<'_>, port: PortId) {
        self.receiver.on_port_closed(nic, port);
        self.paths.iter_mut().for_each(|path| path.on_port_closed(nic, port));
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        match event {
            PeerEvent::Up(..) => {}
            PeerEvent::Down(node) => self.forget(nic, node),
            // If a data frame has shown the restart, the new estimates stay.
            PeerEvent::Restarted(node, incarnation) => {
                self.see(nic, node, incarnation);
            }
        }
    }

    fn on_sent(&mut self, nic: &mut Context<'_>, sent: Sent) {
        let at = sent.token as usize;
        if at < self.paths.len() {
            self.paths[at].on_sent(nic, sent);
            self.pump(nic, at);
        }
    }

    fn outstanding_commands(&mut self) -> Vec<Command> {
        let unsent = self.paths.iter_mut().flat_map(|path| path.take_commands());
        unsent.chain(self.receiver.outstanding_commands()).collect()
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for path in &mut self.paths {
            path.end(nic);
        }
        self.receiver.deactivate(nic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dissector;

    #[test]
    fn the_dissector_knows_all_flags() {
        let flags = [
            (FEEDBACK, "feedback"),
            (PROBE, "probe"),
            (BROADCAST, "broadcast"),
            (RIDER, "rider"),
            (ANEW, "anew"),
        ];
        assert_eq!(dissector::table("warp_flags"), dissector::names(flags));
    }
}
