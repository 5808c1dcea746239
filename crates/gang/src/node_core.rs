//! A node's daemon as one state machine without I/O: its place in the tree, its part of each order, and, on the root,
//! the jobs.
//!
//! Two shells run it: daemons of real processes (`live`), and daemons in virtual time ([`daemon`](crate::daemon)). A
//! shell transfers messages and carries out steps and replies; all decisions are made here.

mod agent;
mod children;
pub(crate) mod election;
mod interface;
mod inventory;
mod job_manager;
pub mod message;
pub(crate) mod order;
mod program;
mod reason;
mod relay;
pub(crate) mod replica;
mod requests;
pub(crate) mod size;
pub(crate) mod state_chunk;
mod takeover;
pub(crate) mod user;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_simhw::time::Instant;
use midplane_simhw::wire;

use crate::tree::Tree;
use agent::Agent;
use children::Child;
use election::Election;
pub(crate) use interface::{Effect, Input, Peer, Transmit};
use job_manager::Out;
#[cfg(feature = "live")]
pub(crate) use job_manager::{Collect, Contents, Read, Write};
pub(crate) use job_manager::{JobManager, RootConfig};
pub(crate) use message::ClientId;
use message::{Cluster, Down, Member, RankEvent, Request, Up};
use order::Action;
pub(crate) use order::{Step, StepOutcome};
use relay::Pending;
use replica::Durable;
use state_chunk::{ChunkKind, StateChunk};
use user::{Caller, User};

/// Configuration of a [`NodeCore`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeConfig {
    /// The number of this host.
    pub(crate) host: u16,
    pub(crate) cluster: Cluster,
    /// Silence after which a daemon counts as lost, and the time that it gets for an order, for each level of the tree
    /// below it.
    pub(crate) patience: Duration,
    /// True if ranks have channels.
    pub(crate) has_channels: bool,
    /// Bytes of memory that jobs may claim on this host.
    pub(crate) memory: u64,
    /// True if another host can take over from the root. Otherwise host 0 is the root, and all jobs end with it.
    pub(crate) takes_over: bool,
}

/// One node's daemon.
///
/// A shell calls [`NodeCore::handle`] for each event. After each call, it stores what [`NodeCore::poll_record`]
/// returns, drains [`NodeCore::poll_transmit`], then [`NodeCore::poll_effect`], and reads [`NodeCore::poll_timeout`]
/// again. `now` never decreases.
///
/// A connection delivers messages in order and without gaps until it ends. It may end at any time; messages in transit
/// are lost then. It may also go silent: both ends send a message every quarter of `patience`, and either end closes a
/// connection that was silent for `patience`. If only host 0 can be the root, a daemon that has lost its parent ends
/// all its jobs. It kills their ranks and closes their channels before it carries out another order.
///
/// # A root that dies
///
/// The root's state is a table of jobs. The root sends each change of it to all daemons, and withholds orders and
/// replies until a majority of them has stored it. A daemon that has lost its parent has no root, and keeps its jobs
/// as they are. A majority elects a root for a new term ([`Election`]). The new root waits for half of `patience` or
/// 500 ms at most, until the daemons have joined and have reported what they run. Jobs with ranks on a missing daemon
/// end; all others are suspended on all hosts, and are then scheduled again. A daemon that joins later kills its
/// ranks, because their jobs have ended. A root that is not connected with a majority gives up. A connection leads to
/// the root of one term only.
#[derive(Debug)]
pub(crate) struct NodeCore {
    config: NodeConfig,
    tree: Tree,
    /// The order in progress.
    pending: Option<Pending>,
    /// When the order in progress began.
    order_began: Instant,
    agent: Agent,
    manager: Option<JobManager>,
    /// `None` if only host 0 can be the root.
    election: Option<Election>,
    /// Configuration for the time when this daemon becomes the root.
    standby: Option<RootConfig>,
    durable: Durable,
    is_recorded: bool,
    /// On the root, the last change that each host has stored.
    holds: BTreeMap<u16, u64>,
    /// Requests that wait until the root has taken over, at most one of each connection.
    waiting: VecDeque<(Caller, Request)>,
    /// True if a connection to a parent is open, even if the parent has not admitted this daemon yet.
    has_dialled: bool,
    /// When the last message of the parent arrived, if there is one.
    parent_heard: Option<Instant>,
    /// When the root last gave a sign of life, as far as the parent has reported.
    root_heard: Instant,
    children: BTreeMap<u16, Child>,
    /// When to send [`Down::Present`] and [`Up::Present`] next.
    beat_at: Instant,
    /// True once the order to quit has begun.
    is_quitting: bool,
    transmits: VecDeque<Transmit>,
    effects: VecDeque<Effect>,
}

impl NodeCore {
    /// Creates the daemon of a node from what it has recorded before. `root` is needed on each daemon that can be the
    /// root.
    pub(crate) fn new(config: NodeConfig, root: Option<RootConfig>, durable: Durable) -> Self {
        let NodeConfig { host, cluster, takes_over, patience, .. } = config;
        let (manager, standby) = match takes_over {
            true => (None, root),
            false => (root.map(|root| JobManager::new(cluster, root)), None),
        };
        Self {
            config,
            tree: Tree::new(cluster.hosts, cluster.arity),
            pending: None,
            order_began: Instant::ZERO,
            agent: Agent::new(config),
            manager,
            election: takes_over.then(|| Election::new(host, cluster.hosts, patience)),
            standby,
            durable,
            is_recorded: true,
            holds: BTreeMap::new(),
            waiting: VecDeque::new(),
            has_dialled: false,
            parent_heard: None,
            root_heard: Instant::ZERO,
            children: BTreeMap::new(),
            beat_at: Instant::ZERO,
            is_quitting: false,
            transmits: VecDeque::new(),
            effects: VecDeque::new(),
        }
    }

    /// Makes this daemon the root. Must be called before it has handled any event.
    pub(crate) fn become_root(&mut self, root: RootConfig) {
        self.manager = Some(JobManager::new(self.config.cluster, root));
    }

    /// Handles an event.
    pub(crate) fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Parent => self.dialled(now),
            Input::Down(down) => self.take_down(now, down),
            Input::Child { host, connection } => self.take_child(now, host, connection),
            Input::Up(connection, up) => self.take_up(now, connection, up),
            Input::Disconnected(peer) => self.disconnected(now, peer),
            Input::Ballot(from, ballot) => {
                self.elect(now, |election, own| election.handle(now, from, ballot, own));
            }
            Input::StepDone(number, done) => self.agent.handle_step_done(number, done),
            Input::Rank(job, rank, event) => {
                if self.agent.note(job, rank, &event) {
                    self.up(now, Up::Rank { job, rank, event });
                }
            }
            Input::Arrived(job) => {
                if self.agent.note_arrival(job) {
                    self.up(now, Up::Arrived { host: self.config.host, job });
                }
            }
            Input::Request(caller, request) => self.request(now, caller, request),
            Input::ClientGone { client, may_return } => {
                self.waiting.retain(|(caller, _)| caller.client != client);
                self.at_root(|root| root.handle_client_gone(now, client, may_return));
            }
            Input::StreamsDone(host, job) => {
                self.at_root(|root| root.handle_streams_done(now, job, host));
            }
            Input::StreamsPaused(job, at) => self.at_root(|root| root.handle_pause(job, at)),
            Input::Fed(job) => self.at_root(|root| root.arrived(job)),
            Input::Written(job, client, done) => {
                self.at_root(|root| root.handle_written(now, (job, client), done))
            }
            Input::Dumped(host, job) => self.at_root(|root| root.handle_dumped(job, host)),
            Input::Read(read) => self.at_root(|root| root.restore(now, *read)),
            Input::Submit(client, job, program) => {
                let caller = Caller { client, user: User::default() };
                self.at_root(|root| {
                    root.admit(now, caller, job, (program, false));
                });
            }
            Input::Quit => self.at_root(JobManager::quit),
        }
        self.settle(now);
    }

    /// Passes an event to the job manager, if this daemon is the root.
    fn at_root(&mut self, event: impl FnOnce(&mut JobManager)) {
        self.manager.as_mut().map(event);
    }

    /// Carries out all work that is due at `now`.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if let Some(manager) = &mut self.manager {
            manager.handle_timeout(now);
        }
        self.elect(now, |election, own| election.handle_timeout(now, own));
        self.beat(now);
        self.lose_silent(now);
        if self.stop_until().is_some_and(|until| until <= now) {
            for ((job, rank), why) in self.agent.give_up_stop() {
                self.up(now, Up::Rank { job, rank, event: RankEvent::Failed { why } });
            }
        }
        self.settle(now);
    }

    /// Returns the state to be stored before the next message is sent, if it has changed.
    #[must_use]
    pub(crate) fn poll_record(&mut self) -> Option<&Durable> {
        (!std::mem::replace(&mut self.is_recorded, true)).then_some(&self.durable)
    }

    /// Returns the next message for another daemon.
    #[must_use]
    pub(crate) fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// Returns the next effect for the shell to carry out.
    #[must_use]
    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns when to call [`NodeCore::handle_timeout`], unless another call comes first.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let manager = self.manager.as_ref().and_then(JobManager::poll_timeout);
        let beat = self.has_peers().then_some(self.beat_at);
        let all = manager.into_iter().chain(beat).chain(self.silent_at());
        let election = self.election.as_ref().and_then(|election| election.deadline);
        all.chain(self.stop_until()).chain(election).min()
    }

    /// Returns the job manager, on the root.
    pub(crate) const fn root(&self) -> Option<&JobManager> {
        self.manager.as_ref()
    }

    /// Returns whether this daemon is connected with a parent.
    pub(crate) const fn has_parent(&self) -> bool {
        self.parent_heard.is_some()
    }

    /// Returns the hosts of the children.
    pub(crate) fn children(&self) -> impl Iterator<Item = u16> {
        self.children.keys().copied()
    }

    /// Returns whether this node has no jobs and no steps left.
    pub(crate) fn is_empty(&self) -> bool {
        self.agent.is_empty()
    }

    /// Describes what this daemon waits for; contains no programs or environment variables.
    pub(crate) fn explain(&self, now: Instant) -> String {
        let Self { config, order_began, children, agent, .. } = self;
        let since = now.since(*order_began);
        let waits: Vec<u16> = self.waits_for().collect();
        let scheduler_core = self.manager.as_ref().map(JobManager::scheduler_core);
        let root = self.election.as_ref().map(|election| (election.root(), self.durable.term));
        format!(
            "host {}: root and term {root:?}; the last order began {since:?} ago; children that have not reported: {waits:?}; children: \
             {children:?}; {scheduler_core:?}; {}",
            config.host,
            agent.explain()
        )
    }

    /// Returns when this node gives up jobs whose channels are not quiescent, which is before its parent gives the
    /// node up. A root that takes over gives up none: it ends the jobs of lost hosts first. A daemon gives up none while
    /// the root has been silent since the stop began: the channels may wait for a root that is lost, and then the jobs
    /// without ranks on its host continue.
    fn stop_until(&self) -> Option<Instant> {
        if self.manager.as_ref().is_some_and(JobManager::is_taking_over) {
            return None;
        }
        let began = self.agent.stop_began()?;
        let has_parent = self.election.is_some() && self.parent_heard.is_some();
        // A sign of life may be late, or may have left the root just after the order.
        let is_root_silent = has_parent && self.root_heard <= began + self.config.patience / 8;
        (!is_root_silent).then(|| began + self.config.patience / 2)
    }

    /// Makes all progress that needs no further event.
    fn settle(&mut self, now: Instant) {
        loop {
            if self.election.is_some() {
                self.settle_takeover(now);
            }
            // The reply to a job's admission precedes its first order.
            self.drain_manager(now);
            let order = self.manager.as_mut().and_then(|manager| manager.poll_order(now));
            let begins = order.is_some();
            order.into_iter().for_each(|order| self.begin(now, order));
            if !self.agent.is_clearing()
                && let Some((number, action)) = self.poll_own_part()
            {
                self.is_quitting = matches!(action, Action::Quit);
                self.agent.begin(number, action);
            }
            if let Some((number, step)) = self.agent.poll_step(now) {
                self.effects.push_back(Effect::Step(number, step));
            }
            let own = self.agent.poll_done();
            let is_done = own.is_some();
            if let Some((number, outcome)) = own {
                self.report_cut(now);
                self.handle_own_part(number, outcome);
            }
            let Some((number, outcome)) = self.poll_report() else {
                if begins || is_done {
                    continue;
                }
                break;
            };
            match &mut self.manager {
                Some(manager) => manager.handle_outcome(now, &outcome),
                None => self.up(now, Up::Report { number, outcome }),
            }
            if self.is_quitting {
                self.effects.push_back(Effect::Quit);
            }
        }
    }

    fn drain_manager(&mut self, now: Instant) {
        let Some(manager) = &mut self.manager else { return };
        manager.drain(now);
        self.replicate(now);
        while let Some(out) = self.manager.as_mut().and_then(JobManager::poll_out) {
            match out {
                Out::Everywhere(down) => self.everywhere(now, down),
                Out::Effect(effect) => self.effects.push_back(effect),
                Out::Chunk(host, member, chunk) => self.forward_chunk(now, host, member, chunk),
            }
        }
        if let Some(manager) = &mut self.manager {
            let replies = std::iter::from_fn(|| manager.poll_reply());
            self.effects.extend(replies.map(|(client, reply)| Effect::Reply(client, reply)));
        }
    }

    /// Handles a message of this node or of a child if this is the root; otherwise forwards it to the parent.
    fn up(&mut self, now: Instant, up: Up) {
        let Some(manager) = &mut self.manager else {
            // Without a parent there is no receiver, so the message is dropped.
            if self.parent_heard.is_some() {
                self.transmits.push_back(Transmit::Up(up));
            }
            return;
        };
        match up {
            Up::Rank { job, rank, event } => manager.handle_rank(now, (job, rank), event),
            Up::Here(hosts) => manager.hosts_here(now, &hosts),
            Up::Gone(hosts) => manager.hosts_gone(now, &hosts),
            Up::Joined { host, at, bytes, is_last } => {
                manager.handle_part(now, (host, at), &bytes, is_last);
            }
            Up::Holds { host, position } => self.note_held(host, position),
            Up::Arrived { host, job } if !manager.ranks_on(job, host).is_empty() => {
                manager.arrived(job);
            }
            Up::Arrived { .. } => {}
            Up::Report { .. } | Up::Present | Up::HasChunk => {}
        }
    }

    /// Carries out a message of the root on this node, and sends it to all children.
    fn everywhere(&mut self, now: Instant, down: Down) {
        match &down {
            Down::Signal { job, signal } => self.effects.push_back(Effect::Signal(*job, *signal)),
            Down::Resize { job, size } => self.effects.push_back(Effect::Resize(*job, *size)),
            Down::Say(job, word) => self.effects.push_back(Effect::Say(*job, *word)),
            Down::BarrierOut(job, number, pairs)
                if self.agent.note_barrier_out(*job, *number, pairs) =>
            {
                self.effects.push_back(Effect::BarrierOut(*job, pairs.clone()));
            }
            Down::Abandon(job) => {
                self.agent.abandon(*job);
                // The hosts below may have waited for the lost host, so they get their full time again.
                self.order_began = now;
            }
            Down::Drop { host, jobs } if *host == self.config.host => self.agent.drop_jobs(jobs),
            _ => {}
        }
        self.send_children(&down);
    }

    /// Forwards a chunk to the host where its rank will be launched.
    fn forward_chunk(&mut self, now: Instant, host: u16, (job, rank): Member, chunk: StateChunk) {
        if host == self.config.host {
            self.agent.add_chunk(job, rank, &chunk);
            self.up(now, Up::HasChunk);
        } else if let Some(child) = self.child_above(host) {
            self.send_child(child, Down::Chunk { host, job, rank, chunk });
        }
    }

    /// Sends the contexts of a cut to the root.
    fn report_cut(&mut self, now: Instant) {
        for (job, context) in std::mem::take(&mut self.agent.cut) {
            let rank = context.rank.0;
            // If a context is too long to encode, the root reports the rank whose context is missing.
            let Ok(bytes) = wire::encode_long(&context) else { continue };
            for chunk in state_chunk::split(ChunkKind::Context, bytes.into()) {
                self.up(now, Up::Rank { job, rank, event: RankEvent::Chunk(chunk) });
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
