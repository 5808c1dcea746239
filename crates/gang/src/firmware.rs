//! The NIC extension: runs the contexts of one NIC, of which each channel has at most one active.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use midplane_nicvm::context::Context;
use midplane_nicvm::extension::{Extension, TimeoutId};
use midplane_nicvm::timeout::Service;
use midplane_simhw::frame::Frame;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::{Access, Payload, Rights};
use midplane_simhw::wire;
use slab::Slab;

use crate::channel::command::{
    ATTACH, AWAIT_ARRIVAL, CLOSE, NOTIFY, NicState, OPEN, OpenRequest, RESTORE, RESUME_PORT, SAVE,
    SAVE_FORGETS, SAVE_MEASURES, START, STOP, STOP_PORT, WAIT, WATCH_PORT,
};
use crate::channel::config::{GangConfig, GangCounters};
use crate::channel::endpoint::{Endpoint, Phase, Shared};
use crate::channel::frame::PmFrame;
use crate::names::{ChannelId, Epoch, JobId, Rank};

/// The extension's only timeout.
const TIMEOUT: TimeoutId = TimeoutId(0);

/// The extension that runs a NIC's channels, modelled on PM.
#[derive(Debug, Default)]
pub struct Gang {
    config: GangConfig,
    counters: GangCounters,
    contexts: Slab<Endpoint>,
    /// Index of each context, by channel, job and rank.
    by_name: BTreeMap<(ChannelId, JobId, Rank), usize>,
    arrivals: Arrivals,
    /// Ports that the [port suspender](crate::port_suspender::PortSuspender) has suspended.
    suspended: BTreeSet<PortId>,
    timeout_at: Option<midplane_simhw::time::Instant>,
}

impl Gang {
    /// Creates the extension, without contexts.
    #[must_use]
    pub fn new(config: GangConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Returns the counters of the NIC's channels.
    #[must_use]
    pub const fn counters(&self) -> &GangCounters {
        &self.counters
    }

    fn with<T>(
        &mut self,
        nic: &mut Context<'_>,
        work: impl FnOnce(&mut Slab<Endpoint>, &mut Shared<'_, '_>) -> T,
    ) -> T {
        let mut local = VecDeque::new();
        let Self { counters, contexts, by_name, .. } = self;
        let mut shared = Shared { nic, counters, local: &mut local };
        let result = work(contexts, &mut shared);
        // Frames between ranks of this node are delivered at once, without the link.
        while let Some((frame, bytes)) = shared.local.pop_front() {
            let name = (frame.channel, frame.job, frame.to);
            let Some(&at) = by_name.get(&name) else { continue };
            if let Some(endpoint) = contexts.get_mut(at) {
                endpoint.begin(&mut shared);
                endpoint.on_frame(&mut shared, &frame, Payload::from(&bytes[..]));
                endpoint.pump(&mut shared);
            }
        }
        self.set_timeout(nic);
        result
    }

    fn set_timeout(&mut self, nic: &mut Context<'_>) {
        let next = self.contexts.iter().filter_map(|(_, endpoint)| endpoint.next_timeout()).min();
        if next != self.timeout_at {
            self.timeout_at = next;
            match next {
                Some(at) => nic.set_timeout_at(TIMEOUT, Service::Exact, at.max(nic.now())),
                None => nic.cancel_timeout(TIMEOUT),
            }
        }
    }

    fn open(&mut self, nic: &Context<'_>, command: &Command) -> Result<u64, Status> {
        let port = command.region.port;
        let bytes = nic.read(command.region).map_err(|_| Status::Region)?.to_vec();
        let request: OpenRequest = wire::decode(&bytes).map_err(|_| Status::Invalid)?;
        let (channel, name) = (request.channel, (request.channel, request.job, request.rank));
        let endpoint = Endpoint::new(port, request).ok_or(Status::Invalid)?;
        nic.check(endpoint.memory, Access::local(port, Rights::LOCAL))
            .map_err(|_| Status::Region)?;
        let frame = nic.mtu_bytes() - midplane_simhw::frame::HEADER_BYTES as u64;
        if u64::from(endpoint.geometry.message) > frame {
            return Err(Status::Truncated);
        }
        if channel.0 >= self.config.channels || self.by_name.contains_key(&name) {
            return Err(Status::Refused);
        }
        let at = self.contexts.insert(endpoint);
        self.by_name.insert(name, at);
        Ok(at as u64)
    }

    fn close(&mut self, nic: &mut Context<'_>, at: usize) {
        let Some(mut endpoint) = self.contexts.try_remove(at) else { return };
        self.by_name.remove(&(endpoint.channel, endpoint.job, endpoint.rank));
        self.with(nic, |_, shared| endpoint.end(shared));
    }

    /// Starts a context. Returns `Refused` if it is not parked, or another context runs on the channel.
    fn start(&mut self, at: usize, epoch: Epoch) -> Result<(), Status> {
        let channel = self.contexts.get(at).ok_or(Status::Invalid)?.channel;
        let runs = |it: &Endpoint| it.channel == channel && it.phase == Phase::Running;
        if self.contexts.iter().any(|(_, it)| runs(it)) || !self.contexts[at].start(epoch) {
            return Err(Status::Refused);
        }
        Ok(())
    }

    fn save(&mut self, nic: &mut Context<'_>, at: usize, command: &Command) -> Result<u64, Status> {
        let endpoint = self.contexts.get_mut(at).ok_or(Status::Invalid)?;
        if endpoint.phase != Phase::Parked {
            return Err(Status::Refused);
        }
        let bytes = wire::encode(&endpoint.save()).map_err(|_| Status::Truncated)?;
        if command.args[1] & SAVE_MEASURES == 0 {
            if bytes.len() > command.region.length as usize {
                return Err(Status::Truncated);
            }
            nic.write(command.region, Payload::from(&bytes[..])).map_err(|_| Status::Region)?;
        }
        if command.args[1] & SAVE_FORGETS != 0 {
            endpoint.forget();
        }
        Ok(bytes.len() as u64)
    }

    fn restore(&mut self, nic: &Context<'_>, at: usize, command: &Command) -> Result<(), Status> {
        let endpoint = self.contexts.get_mut(at).ok_or(Status::Invalid)?;
        let bytes = nic.read(command.region).map_err(|_| Status::Region)?.to_vec();
        let state: NicState = wire::decode(&bytes).map_err(|_| Status::Invalid)?;
        if endpoint.restore(nic, &state) { Ok(()) } else { Err(Status::Invalid) }
    }

    /// Stops, watches or resumes a port. All extensions are notified before the port receives the completion.
    fn control_port(&mut self, nic: &mut Context<'_>, command: &Command) -> Result<u64, Status> {
        let port = u16::try_from(command.args[0]).map(PortId).map_err(|_| Status::Invalid)?;
        if self.config.port_suspender != Some(command.region.port) || port == command.region.port {
            return Err(Status::Refused);
        }
        match command.opcode {
            STOP_PORT => {
                self.suspended.insert(port);
                nic.suspend_port(port);
            }
            WATCH_PORT if !nic.is_suspended(port) => return Err(Status::Invalid),
            WATCH_PORT => {
                nic.watch_port(port);
                self.arrivals.watch(port, command.args[1]);
            }
            _ => {
                self.suspended.remove(&port);
                nic.resume_port(port);
            }
        }
        Ok(0)
    }

    /// Returns the context that a command names, if the command's port may send it.
    fn context_of(&self, command: &Command) -> Option<usize> {
        let at = usize::try_from(command.args[0]).ok()?;
        let endpoint = self.contexts.get(at)?;
        let port = command.region.port;
        let allowed = match command.opcode {
            ATTACH => {
                endpoint.key == command.args[1] && endpoint.user.is_none_or(|user| user == port)
            }
            NOTIFY | WAIT => endpoint.user == Some(port),
            STOP | SAVE | RESTORE | START | CLOSE => endpoint.controller == port,
            _ => false,
        };
        allowed.then_some(at)
    }

    fn carry_out(&mut self, nic: &mut Context<'_>, at: usize, command: Command) {
        let done = match command.opcode {
            ATTACH | NOTIFY => {
                return self.touch(nic, at, |endpoint, shared| {
                    endpoint.user = Some(command.region.port);
                    endpoint.on_notify(shared, &command);
                });
            }
            WAIT => return self.touch(nic, at, |endpoint, shared| endpoint.wait(shared, command)),
            STOP => return self.touch(nic, at, |endpoint, shared| endpoint.stop(shared, command)),
            SAVE => self.save(nic, at, &command),
            RESTORE => self.restore(nic, at, &command).map(|()| 0),
            #[expect(clippy::cast_possible_truncation, reason = "an epoch has 32 bits")]
            START => self.start(at, Epoch(command.args[1] as u32)).map(|()| 0),
            _ => {
                self.close(nic, at);
                Ok(0)
            }
        };
        complete(nic, &command, done);
        if command.opcode == START {
            self.set_timeout(nic);
        }
    }

    /// Applies `work` to a context, and then sends all that may be sent.
    fn touch(
        &mut self,
        nic: &mut Context<'_>,
        at: usize,
        work: impl FnOnce(&mut Endpoint, &mut Shared<'_, '_>),
    ) {
        self.with(nic, |contexts, shared| {
            if let Some(endpoint) = contexts.get_mut(at) {
                endpoint.begin(shared);
                work(endpoint, shared);
                endpoint.pump(shared);
            }
        });
    }
}

fn complete(nic: &mut Context<'_>, command: &Command, done: Result<u64, Status>) {
    let (status, value) = match done {
        Ok(value) => (Status::Done, value),
        Err(status) => (status, 0),
    };
    let completion = Completion { args: [value, 0, 0, 0], ..Completion::of(command, status) };
    nic.complete(command.region.port, &completion);
}

impl Extension for Gang {
    fn on_command(&mut self, nic: &mut Context<'_>, command: Command) {
        if command.opcode == OPEN {
            let done = self.open(nic, &command);
            complete(nic, &command, done);
        } else if command.opcode == AWAIT_ARRIVAL {
            let is_allowed = self.config.arrival_watcher == Some(command.region.port);
            if !is_allowed || !self.arrivals.wait(nic, command) {
                nic.refuse(&command, Status::Refused);
            }
        } else if matches!(command.opcode, STOP_PORT | RESUME_PORT | WATCH_PORT) {
            let done = self.control_port(nic, &command);
            complete(nic, &command, done);
        } else if let Some(at) = self.context_of(&command) {
            self.carry_out(nic, at, command);
        } else {
            nic.refuse(&command, Status::Invalid);
        }
    }

    fn on_data(&mut self, nic: &mut Context<'_>, from: NodeId, frame: &Frame<'_>) {
        let Some(read) = PmFrame::parse(&frame.header) else {
            self.counters.foreign += 1;
            return;
        };
        let Some(&at) = self.by_name.get(&(read.channel, read.job, read.to)) else {
            // The job has not started on this node, or has ended: the sender tries again, or ends as well.
            self.counters.stale += 1;
            return;
        };
        if !self.contexts.get(at).is_some_and(|endpoint| endpoint.admits(read.from, from)) {
            self.counters.foreign += 1;
            return;
        }
        self.touch(nic, at, |endpoint, shared| endpoint.on_frame(shared, &read, frame.payload));
    }

    fn on_timeout(&mut self, nic: &mut Context<'_>, _: TimeoutId) {
        self.timeout_at = None;
        self.with(nic, |contexts, shared| {
            for (_, endpoint) in contexts.iter_mut() {
                endpoint.on_timeout(shared);
                endpoint.pump(shared);
            }
        });
    }

    fn on_port_arrival(&mut self, nic: &mut Context<'_>, port: PortId) {
        self.arrivals.on_arrival(nic, port);
    }

    fn on_port_resumed(&mut self, _: &mut Context<'_>, port: PortId, _: Duration) {
        self.arrivals.forget(port);
    }

    fn outstanding_commands(&mut self) -> Vec<Command> {
        let held = self.contexts.iter_mut().flat_map(|(_, endpoint)| endpoint.take_held());
        self.arrivals.waiting.take().into_iter().chain(held).collect()
    }

    fn on_port_closed(&mut self, nic: &mut Context<'_>, port: PortId) {
        self.arrivals.on_port_closed(port);
        self.suspended.remove(&port);
        if self.config.port_suspender == Some(port) {
            // A suspended port can't be closed, and its daemon is gone.
            std::mem::take(&mut self.suspended).into_iter().for_each(|port| nic.resume_port(port));
        }
        let mut closed = Vec::new();
        for (at, endpoint) in &mut self.contexts {
            endpoint.on_port_closed(port);
            closed.extend((endpoint.controller == port).then_some(at));
        }
        closed.into_iter().for_each(|at| self.close(nic, at));
    }

    fn deactivate(&mut self, nic: &mut Context<'_>) {
        let all: Vec<usize> = self.contexts.iter().map(|(at, _)| at).collect();
        all.into_iter().for_each(|at| self.close(nic, at));
    }
}

/// The watched ports, and the ports for which data has arrived. Each port is in at most one of the two.
#[derive(Debug, Default)]
struct Arrivals {
    /// Tags of ports whose next arrival will be reported.
    watched: BTreeMap<PortId, u64>,
    /// Tags of ports whose arrival is not reported yet.
    arrived: BTreeMap<PortId, u64>,
    /// The outstanding command, which completes with the next arrival.
    waiting: Option<Command>,
}

impl Arrivals {
    /// Reports the next arrival for a port, with this tag.
    fn watch(&mut self, port: PortId, tag: u64) {
        self.arrived.remove(&port);
        self.watched.insert(port, tag);
    }

    /// Stores the command that completes with the next arrival. Returns false if another command is outstanding.
    fn wait(&mut self, nic: &mut Context<'_>, command: Command) -> bool {
        let is_free = self.waiting.is_none();
        if is_free {
            self.waiting = Some(command);
            self.report(nic);
        }
        is_free
    }

    fn on_arrival(&mut self, nic: &mut Context<'_>, port: PortId) {
        if let Some(tag) = self.watched.remove(&port) {
            self.arrived.insert(port, tag);
            self.report(nic);
        }
    }

    /// Forgets a port that is no longer suspended.
    fn forget(&mut self, port: PortId) {
        self.watched.remove(&port);
        self.arrived.remove(&port);
    }

    /// Forgets a closed port, and its outstanding command, if any.
    fn on_port_closed(&mut self, port: PortId) {
        self.forget(port);
        self.waiting.take_if(|command| command.region.port == port);
    }

    /// Completes the outstanding command, if there is an arrival.
    fn report(&mut self, nic: &mut Context<'_>) {
        if let Some(command) = &self.waiting
            && let Some((_, tag)) = self.arrived.pop_first()
        {
            complete(nic, command, Ok(tag));
            self.waiting = None;
        }
    }
}
