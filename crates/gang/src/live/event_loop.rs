//! Connects the node core with a real daemon: passes events to it, and carries out its effects.

use std::collections::BTreeMap;
use std::sync::Arc;

use midplane_simhw::time::Instant;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use super::checkpoints::Checkpoints;
use super::clock::now;
use super::collections::Collections;
use super::event::Event;
use super::link::{Frame, Link};
use super::pmi;
use super::processes::{Processes, RestoreEnd};
use super::record::Record;
use super::refusals::{Refusal, Refusals};
use super::rights::{Rights, Users};
use super::routes::Routes;
use super::streams::{self, Opened, Outlet, SharedInput};
use crate::names::JobId;
use crate::node_core::message::{Down, Purpose, Reply, Request, Up, Word};
use crate::node_core::order::Launch;
use crate::node_core::user::Caller;
use crate::node_core::{ClientId, Effect, Input, NodeCore, Peer, Step, StepOutcome, Transmit};
use crate::steps::StepQueue;

/// The standard streams of a job, at the root.
struct JobStreams {
    /// Sender of frames to the job's client; `None` until the client has found this root.
    client: watch::Sender<Option<mpsc::Sender<Frame>>>,
    output: Outlet,
    /// Sender of the job's input, until the client's connection that feeds the job takes it.
    feed: Option<mpsc::Sender<Frame>>,
    /// A waiting connection, which feeds the job once the present one has ended.
    next_feed: Option<oneshot::Sender<mpsc::Sender<Frame>>>,
    /// The job's input, for the link of the host of rank 0.
    input: SharedInput,
    /// Takes the input from the host's present link when it is dropped.
    present_link: Option<oneshot::Sender<()>>,
}

impl JobStreams {
    /// Passes the feed to the connection that waits for it.
    fn hand_feed(&mut self) {
        if let Some(feed) = self.feed.take() {
            match self.next_feed.take() {
                Some(to) => self.feed = to.send(feed).err(),
                None => self.feed = Some(feed),
            }
        }
    }
}

/// The event loop of a real daemon.
pub(super) struct EventLoop {
    core: NodeCore,
    pub(super) processes: Processes,
    /// Steps for the ranks' channels, if the daemon has a fabric.
    channels: Option<StepQueue>,
    parent: Option<mpsc::UnboundedSender<Up>>,
    /// Senders to children, by connection.
    children: BTreeMap<u64, mpsc::UnboundedSender<Down>>,
    clients: BTreeMap<ClientId, mpsc::Sender<Frame>>,
    streams: BTreeMap<JobId, JobStreams>,
    /// The tasks that carry the streams of ranks on this host to the root.
    carried: Vec<AbortHandle>,
    refusals: Refusals,
    /// The step that starts ranks, and their states, while the rights of their user are looked up.
    starting: Option<(u64, Launch, BTreeMap<u16, Vec<u8>>)>,
    checkpoints: Checkpoints,
    collections: Collections,
    routes: Routes,
    changes: RootChanges,
}

/// Notifies the daemon's tasks when the root changes.
pub(super) struct RootChanges {
    pub(super) root: watch::Sender<Option<u16>>,
    /// The daemons to dial, nearest first.
    pub(super) above: watch::Sender<Vec<u16>>,
    /// The file of votes and jobs, if another host can take over.
    pub(super) record: Option<Record>,
}

/// Sends a reply without blocking; if the queue is full, a task waits for space in it.
fn post(to: &mpsc::Sender<Frame>, frame: Frame) {
    if let Err(mpsc::error::TrySendError::Full(frame)) = to.try_send(frame) {
        let to = to.clone();
        // If the client has disconnected, the reply is dropped.
        tokio::spawn(async move { drop(to.send(frame).await) });
    }
}

impl EventLoop {
    pub(super) fn new(
        core: NodeCore,
        (processes, channels): (Processes, Option<StepQueue>),
        (routes, users): (Routes, Users),
        changes: RootChanges,
    ) -> Self {
        Self {
            core,
            processes,
            channels,
            parent: None,
            children: BTreeMap::new(),
            clients: BTreeMap::new(),
            streams: BTreeMap::new(),
            carried: Vec::new(),
            refusals: Refusals::default(),
            starting: None,
            checkpoints: Checkpoints::new(users, routes.events.clone()),
            collections: Collections::new(routes.events.clone()),
            routes,
            changes,
        }
    }

    /// Handles an event, most often by passing it to the core.
    pub(super) fn handle(&mut self, event: Event) {
        let now = now();
        match event {
            Event::Core(input) => self.core.handle(now, input),
            Event::Parent(to) => {
                self.parent = Some(to);
                self.core.handle(now, Input::Parent);
            }
            Event::Child { host, connection, to } => {
                self.children.insert(connection, to);
                self.core.handle(now, Input::Child { host, connection });
            }
            Event::ChildLost(connection) => {
                self.core.handle(now, Input::Disconnected(Peer::Child(connection)));
                self.children.remove(&connection);
            }
            Event::Refused(refusal) => self.refusals.report(now, refusal),
            Event::Link(host, Purpose::Streams(job), link) => self.carry_from(host, job, *link),
            Event::Link(host, Purpose::Images(job, epoch), link) => {
                let ranks = self.core.root().map(|root| root.ranks_on(job, host));
                let ranks = ranks.into_iter().flatten().collect();
                self.collections.take((host, job, epoch), ranks, *link);
            }
            Event::Link(..) => unreachable!("all other connections have tasks of their own"),
            Event::Request(caller, request, reply, _end) => self.request(caller, request, reply),
            Event::Checked(caller, checked) => match checked {
                Err(why) => self.reply(caller.client, &Reply::Refused(why)),
                Ok(request) if self.clients.contains_key(&caller.client) => {
                    self.core.handle(now, Input::Request(caller, request));
                }
                // The client has left meanwhile.
                Ok(_) => {}
            },
            Event::Feed(user, job, to) => {
                let refusal = self.core.root().map(|root| root.refusal_of(&user, job));
                let may_feed = refusal.is_some_and(|why| why.is_none());
                if let Some(streams) = self.streams.get_mut(&job).filter(|_| may_feed) {
                    streams.next_feed = Some(to);
                    streams.hand_feed();
                }
            }
            Event::Unfed(job, feed) => {
                if let Some(streams) = self.streams.get_mut(&job) {
                    streams.feed.get_or_insert(feed);
                    streams.hand_feed();
                }
            }
            Event::ClientGone { client, may_return } => {
                self.core.handle(now, Input::ClientGone { client, may_return });
                self.clients.remove(&client);
            }
            Event::Rights(number, rights) => self.start(number, rights),
            Event::Opened(job, passes) => self.processes.add_passes(job, passes),
            Event::Dumped(host, job, epoch) => {
                // Ignores the reports of an earlier request.
                if self.collections.has(job, epoch) {
                    self.core.handle(now, Input::Dumped(host, job));
                }
            }
            Event::Collected(of, received) => self.collections.collected(of, received),
            Event::DumpEnded(job) => self.processes.dump_ended(job),
            Event::Restored(left) => self.restored(left),
        }
    }

    fn request(&mut self, caller: Caller, mut request: Request, reply: mpsc::Sender<Frame>) {
        if let Request::Run { program, .. } = &mut request {
            let name = format!("{}=gang-{}-{}", pmi::NAME, std::process::id(), now().as_nanos());
            // A job may start jobs.
            let is_name = |it: &Vec<u8>| {
                it.strip_prefix(pmi::NAME.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
            };
            program.environment.retain(|it| !is_name(it));
            program.environment.push(name.into_bytes());
        }
        self.clients.insert(caller.client, reply);
        match &request {
            Request::Checkpoint { folder, .. } => {
                let folder = folder.clone();
                self.checkpoints.check(caller, &folder, request);
            }
            _ => self.core.handle(now(), Input::Request(caller, request)),
        }
    }

    /// Carries out all that can be done now; timeouts only if no event is queued. Returns when to call this again if no
    /// event comes before.
    pub(super) fn turn(&mut self, is_queue_empty: bool) -> Option<Instant> {
        // What has happened comes before timeouts.
        self.hear_processes();
        self.report_pauses();
        if is_queue_empty {
            self.core.handle_timeout(now());
        }
        loop {
            self.hear_processes();
            if let (Some(durable), Some(record)) =
                (self.core.poll_record(), &mut self.changes.record)
            {
                record.write(durable);
            }
            while let Some(transmit) = self.core.poll_transmit() {
                self.send(transmit);
            }
            let Some(effect) = self.core.poll_effect() else { break };
            self.carry_out(effect);
        }
        let root = self.core.root();
        self.streams.retain(|job, _| root.is_some_and(|root| root.has(*job)));
        self.collections.retain(
            |job| root.is_some_and(|root| root.collects(job)),
            |job| root.is_some_and(|root| root.has(job)),
        );
        // This comes after all messages, because no other host waits for it.
        self.processes.relax();
        let check = self.processes.check_again().map(|interval| now() + interval);
        self.core.poll_timeout().into_iter().chain(check).min()
    }

    /// Reports clients that keep the last output of their jobs waiting.
    fn report_pauses(&mut self) {
        let now = now();
        for (job, streams) in &self.streams {
            let lingers = self.core.root().is_some_and(|root| root.lingers(*job));
            if let Some(at) = streams.output.paused_at(now).filter(|_| lingers) {
                self.core.handle(now, Input::StreamsPaused(*job, at));
            }
        }
    }

    /// Passes ends of processes, and the end of the step under way, to the core.
    fn hear_processes(&mut self) {
        for (job, rank, event) in self.processes.ended() {
            self.core.handle(now(), Input::Rank(job, rank, event));
        }
        if let Some((step, outcome)) = self.processes.poll_done() {
            self.core.handle(now(), Input::StepDone(step, Ok(outcome.into())));
        }
    }

    /// Handles the end of a rank's restoring.
    fn restored(&mut self, left: RestoreEnd) {
        if let Some((job, rank, why)) = self.processes.restored(left) {
            self.core.handle(now(), Input::Rank(job, rank, why));
        }
    }

    fn send(&self, transmit: Transmit) {
        // The task that reads a connection reports its end, so send errors are ignored.
        match transmit {
            Transmit::Up(up) => drop(self.parent.as_ref().map(|to| to.send(up))),
            Transmit::Down(connection, down) => {
                if let Some(to) = self.children.get(&connection) {
                    let _ = to.send(down);
                }
            }
            Transmit::Ballot(to, ballot) => self.routes.send_ballot(to, ballot),
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Step(number, step) => self.step(number, step),
            Effect::Reply(client, reply) => self.reply(client, &reply),
            Effect::Say(job, Word::Dump(epoch)) => self.processes.dump(job, epoch, &self.routes),
            Effect::Say(job, word) => self.processes.say(job, word),
            Effect::BarrierOut(job, pairs) => self.processes.barrier_out(job, pairs),
            Effect::Signal(job, signal) => self.processes.signal(job, signal),
            Effect::Resize(job, size) => self.processes.resize(job, size),
            Effect::Write(write) => self.checkpoints.write(write),
            Effect::Read { caller, folder, weight, most } => {
                self.checkpoints.read((caller, weight), &folder, most);
            }
            Effect::Collect(collect) => self.collections.collect(collect),
            Effect::Serve(job, folder) => self.collections.serve(job, folder),
            Effect::Disconnect(Peer::Parent) => {
                self.parent = None;
                if self.routes.addresses.len() <= 2 {
                    // No other root takes over, and a restarted one gives the numbers of these jobs to others.
                    self.carried.drain(..).for_each(|carried| carried.abort());
                }
            }
            Effect::Disconnect(Peer::Child(connection)) => {
                self.children.remove(&connection);
            }
            Effect::Refused(host) => self.refusals.report(now(), Refusal::Connected(host)),
            // Only in virtual time does the root order this; a real daemon ends by a signal.
            Effect::Quit => {}
            Effect::Seek(above) => drop(self.changes.above.send_replace(above)),
            Effect::Root(root) => {
                // A lost root never lets dumped jobs continue, so their holds are released here.
                self.processes.release_all();
                let _ = self.changes.root.send_replace(root);
            }
            Effect::Deposed => {
                self.clients.clear();
                self.streams.clear();
            }
        }
    }

    /// Starts the ranks of the step of this number, unless another step has begun since.
    fn start(&mut self, number: u64, rights: Result<Rights, String>) {
        if let Some((_, launch, states)) = self.starting.take_if(|step| step.0 == number) {
            let with = (states, rights, &self.routes);
            let opened = self.processes.launch(number, &launch, with);
            self.carry(launch.job, opened);
        }
    }

    fn step(&mut self, number: u64, step: Step) {
        self.starting = None;
        match step {
            Step::Start(launch, states) => {
                self.processes.look_up(number, launch.user.clone());
                self.starting = Some((number, launch, states));
            }
            Step::Suspend(jobs) => self.processes.suspend(number, &jobs),
            Step::Resume(jobs) => {
                self.processes.resume(&jobs);
                self.core.handle(now(), Input::StepDone(number, Ok(StepOutcome::default())));
            }
            Step::Kill(jobs) => self.processes.kill(number, &jobs),
            other => match &self.channels {
                Some(channels) => channels.push((number, other)),
                None => {
                    self.core.handle(now(), Input::StepDone(number, Ok(StepOutcome::default())));
                }
            },
        }
    }

    fn reply(&mut self, client: ClientId, reply: &Reply) {
        if let Reply::Over(over) = reply {
            // Also if the client has left: its connection stays open as long as a stream has its sender.
            drop(self.streams.remove(&over.job));
        }
        let Some(to) = self.clients.get(&client).cloned() else { return };
        post(&to, Frame::message(reply));
        if let Reply::Accepted(job) = reply {
            let _ = self.streams_of(*job).client.send_replace(Some(to));
        }
    }

    /// Describes what this daemon waits for, for SIGUSR1.
    pub(super) fn explain(&self) -> String {
        format!("{}; {}", self.core.explain(now()), self.processes.explain())
    }

    /// Returns whether all processes have ended.
    pub(super) fn is_empty(&mut self) -> bool {
        let _ = self.processes.ended();
        self.processes.is_empty()
    }

    /// Returns the streams of a job at the root; creates them on first use.
    fn streams_of(&mut self, job: JobId) -> &mut JobStreams {
        self.streams.entry(job).or_insert_with(|| {
            let (feed, input) = mpsc::channel(streams::QUEUE);
            let (client, output) = watch::channel(None);
            let output = Outlet::new(output);
            let (feed, input) = (Some(feed), Arc::new(Mutex::new(input)));
            JobStreams { client, output, feed, next_feed: None, input, present_link: None }
        })
    }

    /// Starts the tasks that carry the streams of a job's ranks on this host.
    fn carry(&mut self, job: JobId, opened: Vec<Opened>) {
        let (output, from_ranks) = mpsc::channel(streams::QUEUE);
        let (to_rank, input) = mpsc::channel(streams::QUEUE);
        let mut input = Some(input);
        self.carried.retain(|carried| !carried.is_finished());
        self.carried.push(self.routes.carry(job, from_ranks, to_rank));
        for opened in opened {
            let own = if opened.rank == 0 { input.take() } else { None };
            streams::carry(opened, &output, own);
        }
    }

    /// Carries the streams of a job's ranks on another host, at the root.
    fn carry_from(&mut self, host: u16, job: JobId, link: Link) {
        let Some(root) = self.core.root() else { return };
        let ranks = root.ranks_on(job, host);
        if ranks.is_empty() {
            tokio::spawn(streams::refuse(link));
            return;
        }
        let has_rank_0 = ranks.contains(&0);
        let streams = self.streams_of(job);
        let input = has_rank_0.then(|| {
            let (present, replaced) = oneshot::channel();
            drop(streams.present_link.replace(present));
            (Arc::clone(&streams.input), replaced)
        });
        let ends = (streams.output.clone(), input);
        let routes = self.routes.clone();
        tokio::spawn(async move {
            let done = || drop(routes.events.send(Event::Core(Input::StreamsDone(host, job))));
            tokio::select! {
                () = streams::at_root(link, &ranks, ends, &routes, done) => {}
                // The link ends, so that the host connects to the next root with further output.
                () = routes.root_leaves(routes.host) => {}
            }
        });
    }
}
