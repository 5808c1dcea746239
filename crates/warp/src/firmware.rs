//! The extension: unreliable messages that leave at the rate that the law allows.
//!
//! A sender's side paces the frames of each destination by its
//! [`Controller`](crate::control::Controller) and stamps them as they leave; the receiver's side
//! reads the stamps and sends its estimate back, once a group, in a frame of its own. An application
//! posts messages, which wait for their turn, or asks the [`Gate`] first and so never waits. A message
//! to [`NodeId::EVERYBODY`] leaves at the rate that suits the slowest of those who answer. Frames
//! of other extensions to a destination that Warp watches are let pass by its admission as the same
//! rate allows: with the tokens of sender coordination, the token schedules the link that has one
//! owner and Warp paces what is shared behind it.

mod config;
mod listeners;
mod outgoing;
mod pace;

use std::collections::BTreeMap;
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{Extension, FIRST_USER_EXTENSION, InitError, PeerEvent, TimeoutId};
use midplane_nicvm::messages::{self, Messages};
use midplane_nicvm::timeout::Service;
use midplane_nicvm::transmit::{Packet, Sent};
use midplane_simhw::frame::Frame;
use midplane_simhw::hardware::Source as Bytes;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Payload, RegionRef};
use midplane_simhw::time::{Instant, nanos};

use crate::estimate::Estimator;
use crate::feedback::{FEEDBACK_BYTES, Feedback};
use crate::gate::Gate;
pub use config::WarpConfig;
use outgoing::{Path, in_own_time, stamp_of};
use pace::Pace;

/// The extension's number.
pub const WARP: ExtensionId = ExtensionId(FIRST_USER_EXTENSION.0 + 4);

/// Sends `region` to `port` of `node`, when the rate allows; completes when it has been read.
/// Argument 0 is a tag of 32 bits that comes with the message.
pub const SEND: u8 = messages::SEND;
/// Lends `region` to the next message for this port, as [`messages::RECEIVE`] does.
pub const RECEIVE: u8 = messages::RECEIVE;
/// Completes with what is known of the way to `node`: rate (argument 0, bytes a second), warp in
/// millionths, queueing delay and feedback delay in nanoseconds.
pub const KNOWLEDGE: u8 = 3;

/// Flag of a [`SEND`]: its credit was taken from the [`Gate`] before.
pub const PAID: u16 = 1;

/// Flag of a frame that carries feedback.
const FEEDBACK: u8 = 1;
/// Flag of a frame that is a stamp and nothing else.
const PROBE: u8 = 2;
/// Flag of a frame that went to everybody, and of the feedback to it.
const BROADCAST: u8 = 4;

/// A command that sends `region` to `port` of `node`.
#[must_use]
pub fn send(node: NodeId, port: PortId, region: RegionRef, cookie: u64) -> Command {
    Command { extension: WARP, ..messages::send(node, port, region, cookie) }
}

/// A command that lends `region` to the next message.
#[must_use]
pub fn receive(region: RegionRef, cookie: u64) -> Command {
    Command { extension: WARP, ..messages::receive(region, cookie) }
}

/// What is read of one sender's stamps.
#[derive(Debug)]
struct Source {
    estimator: Estimator,
    feedbacks: u32,
    /// The sender's stamps as they were last, whole: what travels is their lower half.
    newest: (u64, u64),
}

/// Warp, as an extension.
#[derive(Debug)]
pub struct Warp {
    config: WarpConfig,
    paths: Vec<Path>,
    /// By sender, and whether it sent to everybody.
    sources: BTreeMap<(NodeId, bool), Source>,
    receiver: Messages,
    /// When the next drain begins, and until when the present one is asked for.
    drain_at: Instant,
    drain_until: Instant,
}

impl Warp {
    /// Warp as `config` says, and the gates of its destinations.
    #[must_use]
    pub fn new(config: WarpConfig) -> (Self, BTreeMap<NodeId, Gate>) {
        let mut gates = BTreeMap::new();
        let mut path = |node: &NodeId| {
            let (path, gate) = Path::new(*node, &config);
            gates.insert(*node, gate);
            path
        };
        let all = config.broadcasts.then_some(NodeId::EVERYBODY);
        let paths = config.destinations.iter().chain(&all).map(&mut path).collect();
        let warp = Self {
            paths,
            sources: BTreeMap::new(),
            receiver: Messages::new(),
            drain_at: Instant::ZERO,
            drain_until: Instant::ZERO,
            config,
        };
        (warp, gates)
    }

    fn path(&self, node: NodeId) -> Option<usize> {
        self.paths.iter().position(|path| path.node == node)
    }

    /// Sends what may be sent to a destination, and says when to look again.
    fn pump(&mut self, nic: &mut Context<'_>, at: usize) {
        let path = &mut self.paths[at];
        path.pump(nic, at as u64);
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
            nic.steer(Pace::steering(path.node, rate));
        }
    }

    /// Whether feedback of now asks for a drain: all senders at once, for as long as each of them
    /// has feedback to hear it by.
    fn is_draining(&mut self, now: Instant) -> bool {
        if self.config.drain_every == Duration::MAX {
            return false;
        }
        if self.drain_at == Instant::ZERO {
            self.drain_at = now + self.config.first_drain();
        }
        if now >= self.drain_at {
            self.drain_at = now + self.config.drain_every;
            self.drain_until = now.plus_nanos(8 * nanos(self.config.span));
        }
        now < self.drain_until
    }

    /// A stamped frame: it is read, its sender is told, and the message goes on to its port.
    fn on_message(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        let now = nic.now();
        let grouping = self.config.grouping();
        let broadcast = frame.header.flags & BROADCAST;
        let source = self.sources.entry((from, broadcast != 0)).or_insert_with(|| Source {
            estimator: Estimator::new(grouping),
            feedbacks: 0,
            newest: (0, 0),
        });
        let stamp = stamp_of(&frame.header, &mut source.newest, now);
        if let Some(estimate) = source.estimator.handle_arrival(stamp, now) {
            source.feedbacks = source.feedbacks.wrapping_add(1);
            let arrivals = source.estimator.arrivals();
            let mut feedback = Feedback::new(source.feedbacks, estimate, arrivals, now);
            feedback.drain = self.is_draining(now);
            let bytes = feedback.emit();
            // Not by control message: those are acknowledged, on the very way that is full. One
            // that is lost is followed by the next.
            let source = Bytes::Bytes(Payload::from(&bytes[..]));
            let flags = FEEDBACK | broadcast;
            let _ = nic.send_packet(&Packet { flags, source, ..Packet::to(from) });
        }
        if frame.header.flags & PROBE == 0 {
            self.receiver.on_data(nic, from, frame);
        }
    }

    fn complete_knowledge(&self, nic: &mut Context<'_>, command: &Command) {
        let Some(at) = self.path(command.node) else {
            return nic.refuse(command, Status::Invalid);
        };
        let Some(known) = self.paths[at].law.knowledge(nic.now()) else {
            return nic.refuse(command, Status::Invalid);
        };
        let completion = Completion {
            opcode: KNOWLEDGE,
            node: command.node,
            cookie: command.cookie,
            args: [
                known.rate as u64,
                (known.warp * 1e6) as u64,
                nanos(known.queue_delay),
                nanos(known.feedback_delay),
            ],
            ..Completion::default()
        };
        nic.complete(command.region.port, &completion);
    }
}

impl Extension for Warp {
    fn init(&mut self, nic: &mut Context<'_>) -> Result<(), InitError> {
        if self.config.paces_others {
            let reason = "it has an admission already; install it once";
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
                self.paths[at].enqueue(command);
                self.pump(nic, at);
            }
            (RECEIVE, _) => self.receiver.on_command(nic, command),
            (KNOWLEDGE, _) => self.complete_knowledge(nic, &command),
            _ => nic.refuse(&command, Status::Invalid),
        }
    }

    fn on_control(&mut self, _: &mut Context<'_>, _: NodeId, _: &[u8]) {}

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        if frame.header.flags & FEEDBACK == 0 {
            return self.on_message(nic, from, frame);
        }
        let mut bytes = [0; FEEDBACK_BYTES];
        let Some(payload) = frame.payload.slice(0..FEEDBACK_BYTES) else { return };
        payload.copy_to(&mut bytes);
        let way = if frame.header.flags & BROADCAST == 0 { from } else { NodeId::EVERYBODY };
        let (Some(at), Some(feedback)) = (self.path(way), Feedback::parse(&bytes)) else {
            return;
        };
        let feedback = in_own_time(feedback, nic.now());
        self.paths[at].law.handle_feedback(nic.now(), from, &feedback);
        self.paths[at].steer_lead(nic);
        self.pump(nic, at);
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, timeout: TimeoutId) {
        let at = (timeout.0 / 2) as usize;
        let Some(path) = self.paths.get_mut(at) else { return };
        if timeout.0 % 2 == 1 {
            path.law.handle_timeout(nic.now());
        }
        self.pump(nic, at);
    }

    fn on_port_closed(&mut self, nic: &mut Context<'_>, port: PortId) {
        self.receiver.on_port_closed(nic, port);
        self.paths.iter_mut().for_each(|path| path.on_port_closed(port));
    }

    fn on_peer(&mut self, nic: &mut Context<'_>, event: PeerEvent) {
        let (PeerEvent::Up(node, _) | PeerEvent::Restarted(node, _) | PeerEvent::Down(node)) =
            event;
        if !matches!(event, PeerEvent::Up(..)) {
            // Its clock and its path are others from now on.
            self.sources.retain(|(from, _), _| *from != node);
            for at in 0..self.paths.len() {
                if self.paths[at].node == node || self.paths[at].node == NodeId::EVERYBODY {
                    self.paths[at].law.forget(node);
                    self.pump(nic, at);
                }
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

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        for path in &mut self.paths {
            path.end(nic);
        }
        self.receiver.deactivate(nic);
    }
}
