//! The root's part: admits jobs, follows their ranks, and replies to their front ends.

mod barrier;
mod checking;
mod listing;
mod saving;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use midplane_simhw::time::Instant;

use super::message::{ClientId, Cluster, End, Over, Pairs, Program, RankEvent, Reply};
use crate::channel::geometry::Geometry;
use crate::names::JobId;
use crate::node_core::order::{Action, Order, Outcome};
use crate::schedule::{AdmitError, Policy, Request};
use crate::scheduler_core::{Event, SchedulerConfig, SchedulerCore, Switch};
use barrier::Barrier;
use checking::{Checks, Purpose};
use saving::Saves;
pub(crate) use saving::{Read, Write};

/// Number of switches that are remembered.
const REMEMBERED: usize = 4096;

/// Time for which the streams of a job may stay open after its processes have ended.
const LINGER: Duration = Duration::from_secs(2);

/// A job, and the front end that started it.
#[derive(Debug)]
struct Job {
    client: ClientId,
    /// Its first slot, and the one after its last.
    slots: (u16, u16),
    weight: u8,
    program: Program,
    /// The host of each rank.
    hosts: Vec<u16>,
    ends: Vec<Option<End>>,
    /// Hosts whose ranks' output may not have been received completely.
    open: BTreeSet<u16>,
    is_launched: bool,
    /// True if it has been removed from all hosts.
    is_removed: bool,
    /// Its streams are given up at this time.
    linger_until: Option<Instant>,
    why: Option<String>,
    admitted_at: Instant,
    ran: Duration,
    runs_since: Option<Instant>,
    preemptions: u32,
    /// Preemptions in which its interfaces stayed on their NICs, and the last reason.
    stayed: u32,
    why_stayed: Option<String>,
    barrier: Barrier,
    checks: Checks,
    saves: Saves,
}

impl Job {
    fn ran(&self, now: Instant) -> Duration {
        let since = |began| Duration::from_nanos(now.nanos_since(began));
        self.ran + self.runs_since.map_or(Duration::ZERO, since)
    }

    fn pause(&mut self, at: Instant) {
        self.ran = self.ran(at);
        self.runs_since = None;
    }
}

/// Work for the node core after a call of the job manager.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Checkpoints to be written.
    pub(super) writes: Vec<Write>,
    /// Jobs whose ranks continue, though they are not saved.
    pub(super) go: Vec<JobId>,
    /// Jobs of which a host is lost.
    pub(super) abandoned: Vec<JobId>,
    /// Jobs whose ranks leave the PMI barrier, with what they have put.
    pub(super) barriers: Vec<(JobId, Pairs)>,
}

/// Configuration of the root.
pub(crate) struct RootConfig {
    /// Decides which jobs run in a slice. It places jobs on slots.
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) scheduler: SchedulerConfig,
    /// FIFOs of ranks' channels, if ranks have channels.
    pub(crate) geometry: Option<Geometry>,
    /// Most bytes of states and contexts that the root holds for checkpoints.
    pub(crate) most_saved: u64,
    /// Interval at which each job is cut, to find out whether it is deadlocked or has terminated.
    pub(crate) check_every: Duration,
    /// Names of the hosts, for messages.
    pub(crate) names: Vec<String>,
    /// True if the shell reports when the output of a job's ranks on a host has ended.
    pub(crate) has_streams: bool,
}

/// Whether all daemons are to end.
#[derive(Clone, Copy, Debug)]
enum Quitting {
    No,
    Due,
    Ordered,
}

/// The root's part.
#[derive(Debug)]
pub(crate) struct JobManager {
    scheduler_core: SchedulerCore,
    cluster: Cluster,
    geometry: Option<Geometry>,
    most_saved: u64,
    check_every: Duration,
    slice: Duration,
    has_streams: bool,
    /// Hosts that are connected.
    hosts: BTreeSet<u16>,
    names: Vec<String>,
    jobs: BTreeMap<JobId, Job>,
    /// The last switches, each with the jobs that ran afterwards.
    switches: VecDeque<(Switch, Vec<JobId>)>,
    switch_count: u64,
    next_order: u32,
    quitting: Quitting,
    has_lost_a_host: bool,
    /// Jobs of which a host is lost.
    abandoned: Vec<JobId>,
    /// Jobs whose ranks have all entered the PMI barrier, with what they have put.
    barriers: Vec<(JobId, Pairs)>,
    replies: VecDeque<(ClientId, Reply)>,
}

impl JobManager {
    pub(crate) fn new(cluster: Cluster, config: RootConfig) -> Self {
        let RootConfig { policy, scheduler, geometry, names, has_streams, .. } = config;
        Self {
            scheduler_core: SchedulerCore::new(policy, scheduler),
            cluster,
            geometry,
            most_saved: config.most_saved,
            check_every: config.check_every,
            slice: scheduler.slice,
            has_streams,
            hosts: BTreeSet::from([0]),
            names,
            jobs: BTreeMap::new(),
            switches: VecDeque::new(),
            switch_count: 0,
            next_order: 0,
            quitting: Quitting::No,
            has_lost_a_host: false,
            abandoned: Vec::new(),
            barriers: Vec::new(),
            replies: VecDeque::new(),
        }
    }

    fn name(&self, host: u16) -> &str {
        self.names.get(usize::from(host)).map_or("?", |name| name)
    }

    fn reply(&mut self, client: ClientId, reply: Reply) {
        self.replies.push_back((client, reply));
    }

    fn refuse(&mut self, client: ClientId, why: String) {
        self.reply(client, Reply::Refused(why));
    }

    /// Admits a job or refuses it, and replies to its front end.
    pub(super) fn submit(
        &mut self,
        now: Instant,
        client: ClientId,
        (request, ranks): (Request, u16),
        program: Program,
    ) -> Option<JobId> {
        let job = match self.scheduler_core.submit(request, ranks, program.clone()) {
            Ok(job) => job,
            Err(AdmitError::TooLarge { there, .. }) => {
                self.refuse(client, format!("--ranks {ranks}: there are {there} slots"));
                return None;
            }
            Err(error) => {
                self.refuse(client, format!("--ranks {ranks}: {error}"));
                return None;
            }
        };
        let launch = &self.scheduler_core.jobs()[&job].launch;
        let slots = (launch.first, launch.first + launch.nodes);
        let places = self.cluster.places(launch);
        let hosts: Vec<u16> = places.iter().map(|place| place.node.0).collect();
        if let Some(host) = hosts.iter().find(|host| !self.hosts.contains(host)) {
            let why = format!("host {host} ({}) can't be reached", self.name(*host));
            self.scheduler_core.end(now, job);
            self.refuse(client, why);
            return None;
        }
        self.reply(client, Reply::Accepted(job));
        let open = if self.has_streams { hosts.iter().copied().collect() } else { BTreeSet::new() };
        let record = Job {
            client,
            slots,
            weight: request.weight,
            program,
            open,
            hosts,
            ends: vec![None; ranks.into()],
            is_launched: false,
            is_removed: false,
            linger_until: None,
            why: None,
            admitted_at: now,
            ran: Duration::ZERO,
            runs_since: None,
            preemptions: 0,
            stayed: 0,
            why_stayed: None,
            barrier: Barrier::default(),
            checks: Checks::default(),
            saves: Saves::default(),
        };
        self.jobs.insert(job, record);
        Some(job)
    }

    /// Ends a job, with the reason, unless it has ended.
    pub(super) fn end(&mut self, now: Instant, job: JobId, why: Option<String>) {
        if let Some(it) = self.jobs.get_mut(&job).filter(|it| !it.is_removed) {
            it.pause(now);
            if it.why.is_none() {
                it.why = why;
            }
            self.scheduler_core.end(now, job);
        }
    }

    /// Ends the job of a front end that is disconnected, and gives up saving for it.
    pub(super) fn handle_client_gone(&mut self, now: Instant, client: ClientId) {
        self.give_up_saving(client);
        if let Some(job) = self.job_of(client) {
            self.end(now, job, Some("its front end is gone".into()));
        }
    }

    /// Returns the job that a front end has started.
    pub(super) fn job_of(&self, client: ClientId) -> Option<JobId> {
        self.jobs.iter().find(|(_, job)| job.client == client).map(|(job, _)| *job)
    }

    pub(super) fn has(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    /// Returns the ranks of a job that are on a host.
    pub(super) fn ranks_on(&self, job: JobId, host: u16) -> BTreeSet<u16> {
        let hosts = self.jobs.get(&job).map_or(&[][..], |it| &it.hosts);
        (0..).zip(hosts).filter(|(_, its)| **its == host).map(|(rank, _)| rank).collect()
    }

    /// Returns the host of a job's rank.
    pub(super) fn host_of(&self, job: JobId, rank: u16) -> Option<u16> {
        self.jobs.get(&job)?.hosts.get(usize::from(rank)).copied()
    }

    /// Notes that the output of a job's ranks on a host has been received completely.
    pub(super) fn handle_streams_done(&mut self, now: Instant, job: JobId, host: u16) {
        if let Some(it) = self.jobs.get_mut(&job) {
            it.open.remove(&host);
        }
        self.finish(now, job);
    }

    /// Takes a change of a rank. Returns true if the job's ranks that wait to be saved continue.
    pub(super) fn handle_rank(
        &mut self,
        now: Instant,
        (job, rank): (JobId, u16),
        event: RankEvent,
    ) -> bool {
        match event {
            RankEvent::Ended(end) => self.rank_ended(now, job, rank, end),
            RankEvent::Able => {
                self.able(job, rank);
                false
            }
            RankEvent::Left => self.left(job, rank),
            RankEvent::Chunk(chunk) => self.add_chunk(now, job, rank, &chunk),
            RankEvent::BarrierIn(pairs) => {
                self.barrier_in(now, job, rank, pairs);
                false
            }
            RankEvent::Aborted { code, message } => {
                self.abort(now, job, rank, (code, &message));
                false
            }
        }
    }

    fn rank_ended(&mut self, now: Instant, job: JobId, rank: u16, end: End) -> bool {
        let Some(it) = self.jobs.get_mut(&job) else { return false };
        let Some(slot) = it.ends.get_mut(usize::from(rank)) else { return false };
        slot.get_or_insert(end);
        let all = it.ends.iter().all(Option::is_some);
        let failed = end != End::Exited(0) && !it.program.keep_going && it.ends.len() > 1;
        if all || failed {
            let host = it.hosts[usize::from(rank)];
            let what = match end {
                End::Exited(code) => format!("ended with code {code}"),
                End::Killed(signal) => format!("was killed by signal {signal}"),
                End::Lost => "is lost".into(),
            };
            let why = (failed && !all)
                .then(|| format!("rank {rank} on host {host} ({}) {what}", self.name(host)));
            self.end(now, job, why);
        }
        self.check_barrier(now, job);
        let go = self.left(job, rank);
        self.finish(now, job);
        go
    }

    /// Notes that hosts are connected. If one was, it has lost its connection meanwhile, and all that ran on it.
    pub(super) fn hosts_here(&mut self, now: Instant, hosts: &[u16]) {
        let again: Vec<u16> =
            hosts.iter().copied().filter(|host| self.hosts.contains(host)).collect();
        self.hosts_gone(now, &again);
        self.hosts.extend(hosts.iter().filter(|host| **host < self.cluster.hosts));
    }

    /// Notes that hosts are lost, and ends the jobs that have ranks there.
    pub(super) fn hosts_gone(&mut self, now: Instant, hosts: &[u16]) {
        self.has_lost_a_host |= !hosts.is_empty();
        for host in hosts {
            self.hosts.remove(host);
            let why = format!("host {host} ({}) is gone", self.name(*host));
            for job in self.jobs.keys().copied().collect::<Vec<_>>() {
                let it = self.jobs.get_mut(&job).expect("its key was just read");
                if !it.hosts.contains(host) {
                    continue;
                }
                it.open.remove(host);
                for (at, end) in it.hosts.iter().zip(&mut it.ends) {
                    if at == host {
                        end.get_or_insert(End::Lost);
                    }
                }
                self.abandoned.push(job);
                self.end(now, job, Some(why.clone()));
                self.finish(now, job);
            }
        }
    }

    /// Wakes a job for which input has arrived, if its program asks for that.
    pub(super) fn arrived(&mut self, job: JobId) {
        if self.jobs.get(&job).is_some_and(|it| it.program.woken) {
            self.scheduler_core.wake(job);
        }
    }

    /// Orders all daemons to end, unless that is ordered.
    pub(super) const fn quit(&mut self) {
        if matches!(self.quitting, Quitting::No) {
            self.quitting = Quitting::Due;
        }
    }

    /// Returns whether all hosts are connected, or one was lost.
    pub(super) fn is_ready(&self) -> bool {
        self.has_lost_a_host || self.hosts.len() == usize::from(self.cluster.hosts)
    }

    /// Returns the last switches.
    pub(super) fn switches(&self) -> impl Iterator<Item = &Switch> {
        self.switches.iter().map(|(switch, _)| switch)
    }

    /// Returns the next order, if it is time for one.
    pub(super) fn poll_order(&mut self, now: Instant) -> Option<Order> {
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
        }
        self.next_order += 1;
        Some(Order { number: self.next_order, action })
    }

    /// Takes the outcome of the order under way, from all hosts.
    pub(super) fn handle_outcome(&mut self, now: Instant, outcome: &Outcome) {
        for of in &outcome.interfaces {
            if let Some(it) = self.jobs.get_mut(&of.job) {
                it.saves.has_interfaces(of.host);
            }
        }
        self.scheduler_core.handle_outcome(now, outcome);
        for (job, host, why) in &outcome.failed {
            let why = format!("host {host} ({}): {why}", self.name(*host));
            self.end(now, *job, Some(why));
        }
    }

    /// Takes the scheduler's events, and returns what follows from them.
    pub(super) fn drain(&mut self, now: Instant) -> News {
        let abandoned = std::mem::take(&mut self.abandoned);
        let barriers = std::mem::take(&mut self.barriers);
        let mut news = News { abandoned, barriers, ..News::default() };
        while let Some(event) = self.scheduler_core.poll_event() {
            match event {
                Event::Switched(switch) => self.switched(switch),
                Event::Removed(job) => {
                    self.scheduler_core.forget(job);
                    if let Some(it) = self.jobs.get_mut(&job) {
                        it.is_removed = true;
                        it.linger_until = Some(now + LINGER);
                    }
                    self.finish(now, job);
                }
                Event::Stayed(job, why) => {
                    if let Some(it) = self.jobs.get_mut(&job) {
                        it.stayed += 1;
                        it.why_stayed = Some(why.to_string());
                    }
                }
                Event::Cut(job, epoch) => {
                    match self.jobs.get_mut(&job).and_then(|it| it.checks.complete()) {
                        Some(Purpose::Check) => self.check(job, epoch),
                        _ => match self.cut(job, epoch) {
                            Some(write) => news.writes.push(write),
                            None => news.go.push(job),
                        },
                    }
                }
            }
        }
        news
    }

    fn switched(&mut self, switch: Switch) {
        for job in &switch.stopped {
            if let Some(it) = self.jobs.get_mut(job) {
                it.pause(switch.at);
                it.preemptions += 1;
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

    /// Gives up the streams of jobs that have lingered for too long.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let is_over = |(_, it): &(&JobId, &Job)| it.linger_until.is_some_and(|at| at <= now);
        let over: Vec<JobId> = self.jobs.iter().filter(is_over).map(|(job, _)| *job).collect();
        for job in over {
            if let Some(it) = self.jobs.get_mut(&job) {
                it.open.clear();
            }
            self.finish(now, job);
        }
        self.begin_check(now);
    }

    /// Returns when to call [`JobManager::handle_timeout`] and [`JobManager::poll_order`].
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let lingering = self.jobs.values().filter_map(|it| it.linger_until);
        let check = self.next_check().map(|(_, at)| at);
        lingering.chain(check).chain(self.scheduler_core.poll_timeout()).min()
    }

    /// Reports a job's end to its front end, once everything about it is known and its output has been received.
    fn finish(&mut self, now: Instant, job: JobId) {
        let is_complete = |it: &Job| it.is_removed && (!it.is_launched || it.open.is_empty());
        if !self.jobs.get(&job).is_some_and(is_complete) {
            return;
        }
        let Some(mut it) = self.jobs.remove(&job) else { return };
        self.replies.extend(it.saves.job_ended(job));
        let over = Over {
            job,
            ranks: it.hosts.iter().copied().zip(it.ends).collect(),
            why: it.why,
            seconds: Duration::from_nanos(now.nanos_since(it.admitted_at)).as_secs_f64(),
            run_seconds: it.ran.as_secs_f64(),
            preemptions: it.preemptions,
        };
        self.reply(it.client, Reply::Over(over));
    }

    /// Returns the next reply to a front end.
    pub(super) fn poll_reply(&mut self) -> Option<(ClientId, Reply)> {
        self.replies.pop_front()
    }

    /// Returns the scheduler's core.
    pub(crate) const fn scheduler_core(&self) -> &SchedulerCore {
        &self.scheduler_core
    }
}
