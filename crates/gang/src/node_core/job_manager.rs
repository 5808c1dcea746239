//! The root's part: admits jobs, tracks their ranks, and replies to their clients.

mod barrier;
mod checking;
mod imaging;
mod job;
mod listing;
mod ranks;
mod saving;
mod takeover;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use midplane_simhw::time::Instant;

use super::interface::Effect;
use super::inventory::Inventories;
use super::message::{ClientId, Cluster, Down, Member, Over, Reply, Word};
use super::reason::bounded;
use super::replica::{Change, Entry, Stage};
use super::state_chunk::StateChunk;
use super::user::User;
use crate::channel::geometry::Geometry;
use crate::names::JobId;
use crate::node_core::order::{Action, Launch, Order, Outcome};
use crate::schedule::Policy;
use crate::scheduler_core::{Event, SchedulerConfig, SchedulerCore, Switch};
use checking::Purpose;
pub(crate) use imaging::Collect;
use job::Job;
#[cfg(feature = "live")]
pub(crate) use saving::Contents;
pub(crate) use saving::{Read, Write};
use takeover::Takeover;

/// Most switches that are remembered, for listings.
const REMEMBERED: usize = 4096;

/// Time for which a job's streams may stay open after its processes have ended, while its client takes the output.
const LINGER: Duration = Duration::from_secs(2);

/// Returns the reply to a request about a job that does not exist.
pub(super) fn no_job(job: JobId) -> String {
    format!("there is no job {job}; `midplane gang list` shows which there are")
}

/// Work for the node core after a call of the job manager.
#[derive(Debug)]
pub(super) enum Out {
    /// A message for this node and all others.
    Everywhere(Down),
    Effect(Effect),
    /// A chunk of a rank's state, for the host where it will be launched.
    Chunk(u16, Member, StateChunk),
}

/// Configuration of the root.
#[derive(Debug)]
pub(crate) struct RootConfig {
    /// Places jobs on slots, and decides which jobs run in a slice.
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) scheduler: SchedulerConfig,
    /// FIFO sizes of ranks' channels; `None` for ranks without channels.
    pub(crate) geometry: Option<Geometry>,
    /// Most bytes of states and contexts of checkpoints that the root holds in memory.
    pub(crate) most_saved: u64,
    /// Interval at which each job is cut, to detect deadlocks and termination.
    pub(crate) check_every: Duration,
    /// Names of the hosts, for messages.
    pub(crate) names: Vec<String>,
    /// True if the shell reports the end of the output of a job's ranks on a host.
    pub(crate) has_streams: bool,
}

/// Progress of the order that ends all daemons.
#[derive(Clone, Copy, Debug)]
enum Quitting {
    No,
    Due,
    Ordered,
}

/// The root's state.
#[derive(Debug)]
pub(crate) struct JobManager {
    /// Number of this host.
    host: u16,
    scheduler_core: SchedulerCore,
    /// Set while a new root waits for daemons that may still run jobs.
    takeover: Option<Takeover>,
    /// Partial inventories of hosts that are joining.
    inventories: Inventories,
    /// Changes for the other daemons; `None` if none of them can be the root.
    changes: Option<VecDeque<Change>>,
    /// The last jobs that have ended, for clients that have lost their root.
    over: VecDeque<Over>,
    /// Number of changes so far, and of those that a majority has stored.
    recorded: u64,
    committed: u64,
    /// The job that the order in progress launches.
    launching: Option<JobId>,
    cluster: Cluster,
    geometry: Option<Geometry>,
    /// Most bytes of a checkpoint that may be read, and of those that are held in memory.
    pub(super) most_saved: u64,
    check_every: Duration,
    has_streams: bool,
    /// Hosts that are connected.
    hosts: BTreeSet<u16>,
    names: Vec<String>,
    jobs: BTreeMap<JobId, Job>,
    /// Clients whose checkpoints are being read.
    restoring: BTreeSet<ClientId>,
    /// The last switches, each with the jobs that ran afterwards.
    switches: VecDeque<(Switch, Vec<JobId>)>,
    switch_count: u64,
    next_order: u32,
    quitting: Quitting,
    has_lost_a_host: bool,
    out: VecDeque<Out>,
    /// Replies, each with the number of changes that must be committed before it is sent.
    replies: VecDeque<(u64, ClientId, Reply)>,
}

impl JobManager {
    /// Creates the root of a cluster in which only host 0 can be the root.
    pub(crate) fn new(cluster: Cluster, config: RootConfig) -> Self {
        let RootConfig { policy, scheduler, geometry, names, has_streams, .. } = config;
        Self {
            host: 0,
            scheduler_core: SchedulerCore::new(policy, scheduler),
            takeover: None,
            inventories: Inventories::default(),
            changes: None,
            over: VecDeque::new(),
            recorded: 0,
            committed: u64::MAX,
            launching: None,
            cluster,
            geometry,
            most_saved: config.most_saved,
            check_every: config.check_every,
            has_streams,
            hosts: BTreeSet::from([0]),
            names,
            jobs: BTreeMap::new(),
            restoring: BTreeSet::new(),
            switches: VecDeque::new(),
            switch_count: 0,
            next_order: 0,
            quitting: Quitting::No,
            has_lost_a_host: false,
            out: VecDeque::new(),
            replies: VecDeque::new(),
        }
    }

    fn name(&self, host: u16) -> &str {
        self.names.get(usize::from(host)).map_or("?", |name| name)
    }

    /// Replies to a client, once a majority has stored all changes so far.
    fn reply(&mut self, client: ClientId, reply: Reply) {
        self.replies.push_back((self.recorded, client, reply));
    }

    fn refuse(&mut self, client: ClientId, why: String) {
        self.reply(client, Reply::Refused(why));
    }

    /// Ends a job for a reason, unless it has already ended.
    pub(super) fn end(&mut self, now: Instant, job: JobId, why: Option<String>) {
        if let Some(it) = self.jobs.get_mut(&job).filter(|it| !it.is_removed) {
            it.pause(now);
            if it.entry.why.is_none() {
                it.entry.why = why.map(bounded);
            }
            let is_new = std::mem::replace(&mut it.entry.stage, Stage::Ending) != Stage::Ending;
            self.scheduler_core.end(now, job);
            if is_new {
                self.record(now, job);
            }
        }
    }

    /// Cancels the checkpoint and the restore of a client that has disconnected. Ends the client's job, or detaches the
    /// client from it if the client may connect again.
    pub(super) fn handle_client_gone(&mut self, now: Instant, client: ClientId, may_return: bool) {
        self.give_up_saving(client);
        self.restoring.remove(&client);
        if may_return {
            for it in self.jobs.values_mut() {
                it.client.take_if(|own| *own == client);
            }
        } else if let Some(job) = self.job_of(client) {
            self.end(now, job, Some("its client has disconnected".into()));
        }
    }

    /// Returns the job that a client has started or attached to.
    pub(super) fn job_of(&self, client: ClientId) -> Option<JobId> {
        self.jobs.iter().find(|(_, job)| job.client == Some(client)).map(|(job, _)| *job)
    }

    /// Begins to restore a job for a client.
    pub(super) fn begin_restore(&mut self, client: ClientId) {
        self.restoring.insert(client);
    }

    /// Returns whether a client has a job, or is restoring one.
    pub(super) fn is_busy(&self, client: ClientId) -> bool {
        self.restoring.contains(&client) || self.job_of(client).is_some()
    }

    pub(crate) fn has(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    /// Returns whether another program has started the processes of a job.
    pub(super) fn adopts(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|it| it.entry.launch.program.adopts.is_some())
    }

    /// Returns why a user may not control a job, or that the job does not exist; `None` if the user may.
    pub(crate) fn refusal_of(&self, user: &User, job: JobId) -> Option<String> {
        let of_over = || self.over.iter().find(|over| over.job == job).map(|over| &over.user);
        let owner = self.jobs.get(&job).map(|it| &it.entry.launch.user).or_else(of_over);
        match owner {
            None => Some(no_job(job)),
            Some(owner) if user.may_control(owner) => None,
            Some(User { uid: 0, .. }) => {
                Some(format!("job {job} is root's: only root may do this"))
            }
            Some(owner) => {
                Some(format!("job {job} is of user {owner}: only {owner} and root may do this"))
            }
        }
    }

    /// Wakes a job for which input or data has arrived, if its program requests that.
    pub(super) fn arrived(&mut self, job: JobId) {
        if self.jobs.get(&job).is_some_and(|it| it.entry.launch.program.woken) {
            self.scheduler_core.wake(job);
        }
    }

    /// Orders all daemons to end, unless that was already ordered.
    pub(super) const fn quit(&mut self) {
        if matches!(self.quitting, Quitting::No) {
            self.quitting = Quitting::Due;
        }
    }

    /// Returns the host of each rank of a job.
    fn hosts_of(&self, launch: &Launch) -> Vec<u16> {
        self.cluster.places(launch).iter().map(|place| place.node.0).collect()
    }

    /// Returns whether all hosts are connected, or one was lost.
    pub(crate) fn is_ready(&self) -> bool {
        self.has_lost_a_host || self.hosts.len() == usize::from(self.cluster.hosts)
    }

    /// Returns the last switches.
    pub(crate) fn switches(&self) -> impl Iterator<Item = &Switch> {
        self.switches.iter().map(|(switch, _)| switch)
    }

    /// Returns the next order, if one is due.
    pub(super) fn poll_order(&mut self, now: Instant) -> Option<Order> {
        if self.waits_for_majority() {
            return None;
        }
        let action = match (self.scheduler_core.poll_order(now), self.quitting) {
            (Some(action), _) => action,
            (None, Quitting::Due) if self.scheduler_core.is_idle() => {
                self.quitting = Quitting::Ordered;
                Action::Quit
            }
            (None, _) => return None,
        };
        if let Action::Launch(launch) = &action
            && let Some(it) = self.jobs.get_mut(&launch.job)
        {
            it.is_launched = true;
            self.launching = Some(launch.job);
        }
        self.next_order += 1;
        Some(Order { number: self.next_order, action })
    }

    /// Handles the outcome of the order in progress, from all hosts.
    pub(super) fn handle_outcome(&mut self, now: Instant, outcome: &Outcome) {
        for (job, host) in &outcome.has_interfaces {
            if let Some(it) = self.jobs.get_mut(job) {
                it.saves.has_interfaces(*host);
            }
        }
        self.scheduler_core.handle_outcome(now);
        for (job, host, why) in &outcome.failed {
            // A host that refuses a job may never report the end of the job's streams.
            if self.launching == Some(*job)
                && let Some(it) = self.jobs.get_mut(job)
            {
                it.open.remove(host);
                it.is_refused = true;
            }
            let why = format!("host {host} ({}): {why}", self.name(*host));
            self.end(now, *job, Some(why));
        }
        let launched = self.launching.take();
        if let Some((job, it)) = launched.and_then(|job| Some((job, self.jobs.get_mut(&job)?)))
            && it.entry.stage == Stage::Admitted
        {
            it.entry.stage = Stage::Launched;
            self.record(now, job);
        }
    }

    /// Queues a message for all nodes. It is sent after the changes so far.
    fn everywhere(&mut self, down: Down) {
        self.out.push_back(Out::Everywhere(down));
    }

    /// Lets the ranks of a job that are blocked by a checkpoint continue.
    fn let_go(&mut self, job: JobId) {
        self.everywhere(Down::Say(job, Word::Go));
    }

    /// Returns the next work for the node core.
    pub(super) fn poll_out(&mut self) -> Option<Out> {
        self.out.pop_front()
    }

    /// Handles the scheduler's events.
    pub(super) fn drain(&mut self, now: Instant) {
        while let Some(event) = self.scheduler_core.poll_event() {
            match event {
                Event::Switched(switch) => self.switched(switch),
                Event::Removed(job) => {
                    self.scheduler_core.forget(job);
                    if let Some(it) = self.jobs.get_mut(&job) {
                        it.is_removed = true;
                        it.linger_until = Some(now + LINGER);
                        if it.entry.is_restored && !it.is_launched {
                            self.everywhere(Down::Abandon(job));
                        }
                    }
                    self.finish(now, job);
                }
                Event::Cut(job, epoch) => {
                    match self.jobs.get_mut(&job).and_then(|it| it.checks.ordered.pop_front()) {
                        Some(Purpose::Check) => self.check(job, epoch),
                        Some(Purpose::Images) => {
                            if let Some(collect) = self.begin_images(job, epoch) {
                                self.out.push_back(Out::Effect(Effect::Collect(collect)));
                                self.everywhere(Down::Say(job, Word::Dump(epoch)));
                            }
                        }
                        _ => {
                            let write = self.cut(job, epoch);
                            if write.as_ref().is_none_or(|write| write.go) {
                                self.let_go(job);
                            }
                            self.out.extend(write.map(|it| Out::Effect(Effect::Write(it))));
                        }
                    }
                }
            }
        }
    }

    fn switched(&mut self, switch: Switch) {
        for job in &switch.stopped {
            if let Some(it) = self.jobs.get_mut(job) {
                it.pause(switch.at);
                it.entry.preemptions += 1;
            }
        }
        for job in &switch.started {
            let runs = self.scheduler_core.running().contains(job);
            if let Some(it) = self.jobs.get_mut(job).filter(|_| runs) {
                it.runs_since = Some(switch.end());
            }
        }
        self.switch_count += 1;
        if self.switches.len() == REMEMBERED {
            self.switches.pop_front();
        }
        self.switches.push_back((switch, self.scheduler_core.running().to_vec()));
    }

    /// Closes the streams of jobs whose linger time is over, and begins a check that is due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let is_over = |(_, it): &(&JobId, &Job)| it.linger_until.is_some_and(|at| at <= now);
        let over: Vec<JobId> = self.jobs.iter().filter(is_over).map(|(job, _)| *job).collect();
        for job in over {
            self.close_streams(now, job);
        }
        self.begin_check(now);
    }

    /// Returns whether a job's processes have ended, but perhaps not its streams.
    #[cfg(feature = "live")]
    pub(crate) fn lingers(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|it| it.linger_until.is_some())
    }

    /// Keeps a job's streams open, because its client kept output waiting until `at`.
    pub(super) fn handle_pause(&mut self, job: JobId, at: Instant) {
        if let Some(until) = self.jobs.get_mut(&job).and_then(|it| it.linger_until.as_mut()) {
            *until = (at + LINGER).max(*until);
        }
    }

    /// Closes the streams of a job, if its processes have ended.
    pub(super) fn close_streams(&mut self, now: Instant, job: JobId) {
        if let Some(it) = self.jobs.get_mut(&job).filter(|it| it.is_removed) {
            it.open.clear();
            self.finish(now, job);
        }
    }

    /// Returns when to call [`JobManager::handle_timeout`] and [`JobManager::poll_order`].
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let lingering = self.jobs.values().filter_map(|it| it.linger_until);
        let takeover = self.takeover.as_ref().map(|takeover| takeover.until);
        let next = self.scheduler_core.poll_timeout().filter(|_| !self.waits_for_majority());
        let check = self.next_check().map(|(_, at)| at);
        lingering.chain(check).chain(next).chain(takeover).min()
    }

    /// Reports a job's end to its client, once the job is removed everywhere and its output was received.
    fn finish(&mut self, now: Instant, job: JobId) {
        let is_complete = |it: &Job| {
            it.is_removed && (!it.is_launched || !self.has_streams || it.open.is_empty())
        };
        if !self.jobs.get(&job).is_some_and(is_complete) {
            return;
        }
        let Some(mut it) = self.jobs.remove(&job) else { return };
        if let Some((client, reply)) = it.saves.job_ended(job) {
            self.reply(client, reply);
        }
        let seconds = it.age(now).as_secs_f64();
        let Entry { launch, ends, why, preemptions, .. } = it.entry;
        let over = Over {
            job,
            user: launch.user,
            ranks: it.hosts.into_iter().zip(ends).collect(),
            why,
            seconds,
            run_seconds: it.ran.as_secs_f64(),
            preemptions,
        };
        self.record_over(&over);
        if let Some(client) = it.client {
            self.reply(client, Reply::Over(over));
        }
    }

    /// Returns the next reply to a client.
    pub(super) fn poll_reply(&mut self) -> Option<(ClientId, Reply)> {
        let is_due = self.replies.front().is_some_and(|reply| reply.0 <= self.committed);
        let (_, client, reply) = if is_due { self.replies.pop_front()? } else { return None };
        Some((client, reply))
    }

    /// Returns the scheduler's core.
    pub(crate) const fn scheduler_core(&self) -> &SchedulerCore {
        &self.scheduler_core
    }
}
