//! A root that takes over: which jobs continue, and which changes it sends to the other daemons.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_simhw::time::Instant;

use super::{Job, JobManager, RootConfig, no_job};
use crate::names::JobId;
use crate::node_core::NodeConfig;
use crate::node_core::message::{ClientId, Down, End, Held, Inventory, Over, Reply};
use crate::node_core::replica::{Change, Entry, Stage, Table, remember};

/// Most time that a new root waits for the daemons.
const LONGEST: Duration = Duration::from_millis(500);

/// The period in which daemons join a new root.
#[derive(Debug)]
pub(super) struct Takeover {
    pub(super) until: Instant,
    /// The jobs that each joined host has reported.
    pub(super) reported: BTreeMap<u16, BTreeMap<JobId, Held>>,
}

impl JobManager {
    /// Creates a root that takes over the jobs of a table. Daemons get half of `patience` to join, or [`LONGEST`].
    pub(crate) fn take_over(
        now: Instant,
        node: &NodeConfig,
        config: RootConfig,
        table: &Table,
    ) -> Self {
        let mut manager = Self::new(node.cluster, config);
        manager.host = node.host;
        manager.hosts.clear();
        let until = now + (node.patience / 2).min(LONGEST);
        manager.takeover = Some(Takeover { until, reported: BTreeMap::new() });
        // Sending the table itself counts as the first change.
        (manager.changes, manager.recorded, manager.committed) = (Some(VecDeque::new()), 1, 0);
        manager.scheduler_core.number_after(table.last_job);
        manager.over.clone_from(&table.over);
        for (job, entry) in &table.jobs {
            let hosts = manager.hosts_of(&entry.launch);
            let record = Job::new(now, None, entry.clone(), hosts);
            manager.jobs.insert(*job, record);
        }
        manager
    }

    /// Ends this root, and returns its configuration for its next term.
    pub(crate) fn retire(self) -> RootConfig {
        let (policy, scheduler) = self.scheduler_core.retire();
        let Self { geometry, most_saved, check_every, names, has_streams, .. } = self;
        RootConfig { policy, scheduler, geometry, most_saved, check_every, names, has_streams }
    }

    /// Returns whether the root still waits for daemons that may run jobs.
    pub(crate) const fn is_taking_over(&self) -> bool {
        self.takeover.is_some()
    }

    /// Returns the number of connected hosts, this one included.
    pub(crate) fn connected(&self) -> usize {
        self.hosts.len()
    }

    /// Handles a part of a joining host's inventory. Once it is complete, the host joins, and ends jobs that must not
    /// run there.
    pub(crate) fn handle_part(
        &mut self,
        now: Instant,
        place: (u16, u64),
        bytes: &[u8],
        is_last: bool,
    ) {
        if let Some(inventory) = self.inventories.add(place, bytes, is_last) {
            let host = inventory.host;
            let jobs = self.joined(now, inventory);
            self.everywhere(Down::Drop { host, jobs });
        }
    }

    /// Records that a host has joined. Returns those of its jobs that must not run there.
    pub(crate) fn joined(
        &mut self,
        now: Instant,
        Inventory { host, jobs }: Inventory,
    ) -> Vec<JobId> {
        if self.hosts.contains(&host) {
            self.hosts_gone(now, &[host]);
        }
        self.hosts.insert(host);
        let Some(takeover) = &mut self.takeover else {
            return jobs.into_iter().map(|held| held.job).collect();
        };
        let is_its = |held: &Held| {
            let job: Option<&Job> = self.jobs.get(&held.job);
            // A job that was not launched on all hosts is launched again on all of them.
            job.is_some_and(|job| job.entry.stage != Stage::Admitted && job.hosts.contains(&host))
        };
        let (own, unknown): (Vec<Held>, Vec<Held>) = jobs.into_iter().partition(is_its);
        for held in &own {
            let Some(it) = self.jobs.get_mut(&held.job) else { continue };
            for (rank, end) in &held.ends {
                if it.hosts.get(usize::from(*rank)) == Some(&host) {
                    it.entry.ends[usize::from(*rank)].get_or_insert(*end);
                }
            }
            it.saves.able.extend(&held.able);
        }
        let own = own.into_iter().map(|held| (held.job, held)).collect();
        takeover.reported.insert(host, own);
        unknown.into_iter().map(|held| held.job).collect()
    }

    /// Takes over the jobs, once all daemons that may run some have joined or the time is over.
    pub(crate) fn poll_takeover(&mut self, now: Instant) {
        let Some(takeover) = &self.takeover else { return };
        let mut needed = self.jobs.values().flat_map(|it| &it.hosts);
        let is_majority = self.hosts.len() > usize::from(self.cluster.hosts / 2);
        let is_complete = is_majority && needed.all(|host| self.hosts.contains(host));
        if !is_complete && now < takeover.until {
            return;
        }
        let reported = self.takeover.take().map(|takeover| takeover.reported).unwrap_or_default();
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for job in jobs {
            self.resume(now, job, &reported);
            // Ranks that are blocked by a checkpoint wait for the lost root.
            self.let_go(job);
        }
    }

    /// Takes over a job, or ends it.
    fn resume(
        &mut self,
        now: Instant,
        job: JobId,
        reported: &BTreeMap<u16, BTreeMap<JobId, Held>>,
    ) {
        let Some(it) = self.jobs.get_mut(&job) else { return };
        let held = reported.values().filter_map(|jobs| jobs.get(&job));
        let epoch = held.map(|held| held.epoch).max().unwrap_or_default();
        let missing = it.hosts.iter().find(|host| !self.hosts.contains(host)).copied();
        let has = |host: &u16| reported.get(host).is_some_and(|jobs| jobs.contains_key(&job));
        let lost = it.hosts.iter().find(|host| !has(host)).copied();
        self.scheduler_core.readmit(
            now,
            (it.entry.launch.clone(), it.entry.weight, it.entry.stage),
            epoch,
        );
        it.open.retain(|host| self.hosts.contains(host));
        // No host reports ranks that have ended with their host or were never started there.
        if it.entry.stage != Stage::Admitted {
            for (host, end) in it.hosts.iter().zip(&mut it.entry.ends) {
                if !has(host) {
                    end.get_or_insert(End::Lost);
                }
            }
        }
        if missing.is_some() {
            self.everywhere(Down::Abandon(job));
        }
        let name = |host| format!("host {host} ({}) is gone", self.name(host));
        let why = match self.jobs[&job].entry.stage {
            Stage::Ending => return,
            Stage::Admitted if self.jobs[&job].entry.is_restored => {
                Some("the root that read its checkpoint is gone: restore it again".to_owned())
            }
            Stage::Admitted => missing.map(name),
            Stage::Launched => lost.map(name),
        };
        match why {
            Some(why) => self.end(now, job, Some(why)),
            None => {
                let ends = self.jobs[&job].entry.ends.clone();
                for (rank, end) in (0..).zip(ends) {
                    if let Some(end) = end {
                        self.judge(now, job, (rank, end));
                        self.left(job, rank);
                    }
                }
                self.restore_barrier(now, job, reported.values().filter_map(|it| it.get(&job)));
            }
        }
    }

    /// Makes a client that of a job without one. Returns the reply; `None` if it was queued.
    pub(crate) fn attach(&mut self, client: ClientId, job: JobId) -> Option<Reply> {
        if let Some(over) = self.over.iter().find(|over| over.job == job) {
            return Some(Reply::Over(over.clone()));
        }
        match self.jobs.get_mut(&job) {
            None => Some(Reply::Refused(no_job(job))),
            Some(Job { client: Some(_), .. }) => {
                Some(Reply::Refused(format!("job {job} has a client")))
            }
            Some(it) => {
                it.client = Some(client);
                self.reply(client, Reply::Accepted(job));
                None
            }
        }
    }

    /// Queues the present state of a job for the other daemons.
    pub(super) fn record(&mut self, now: Instant, job: JobId) {
        let entry = |it: &Job| Entry {
            seconds: [it.age(now), it.ran(now)].map(|time| time.as_secs_f64()),
            ..it.entry.clone()
        };
        if let (Some(changes), Some(it)) = (&mut self.changes, self.jobs.get(&job)) {
            changes.push_back(Change::Job(Box::new(entry(it))));
            self.recorded += 1;
        }
    }

    /// Queues the result of a job that has ended for the other daemons.
    pub(super) fn record_over(&mut self, over: &Over) {
        if let Some(changes) = &mut self.changes {
            changes.push_back(Change::Over(over.clone()));
            self.recorded += 1;
            remember(&mut self.over, over.clone());
        }
    }

    /// Returns the next change to send to the other daemons.
    pub(crate) fn poll_change(&mut self) -> Option<Change> {
        self.changes.as_mut()?.pop_front()
    }

    /// Sets the number of changes that a majority has stored.
    pub(crate) const fn commit(&mut self, changes: u64) {
        self.committed = changes;
    }

    /// Returns whether orders are withheld now.
    pub(super) const fn waits_for_majority(&self) -> bool {
        self.takeover.is_some() || self.committed < self.recorded
    }
}
