//! The root's own part: jobs and their front ends.

mod saving;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use midplane_simhw::time::Instant;
use tokio::sync::mpsc;

use super::link::Frame;
use super::message::{Cluster, Line, Listing, Over, Program, Reply, Slice};
use super::process::End;
use crate::channel::geometry::Geometry;
use crate::daemon::{Action, Order, Outcome};
use crate::names::JobId;
use crate::schedule::{AdmitError, Policy, Request};
use crate::scheduler_core::{Event, SchedulerConfig, SchedulerCore, Switch};
use saving::Saves;
pub(super) use saving::{Read, Write};

/// Switches that are remembered.
const REMEMBERED: usize = 4096;

/// A front end's connection.
pub(super) type ClientId = u64;

/// A job and whoever waits for it.
#[derive(Debug)]
struct Job {
    client: ClientId,
    reply: mpsc::Sender<Frame>,
    /// Taken by whoever feeds the job.
    feed: Option<mpsc::Sender<Frame>>,
    /// Taken by the host of rank 0.
    input: Option<mpsc::Receiver<Frame>>,
    slots: (u16, u16),
    weight: u8,
    program: Program,
    hosts: Vec<u16>,
    ends: Vec<Option<End>>,
    /// Hosts whose ranks may have something to say still.
    open: BTreeSet<u16>,
    /// Its hosts were told of it.
    launched: bool,
    /// Nothing of it is left anywhere.
    gone: bool,
    why: Option<String>,
    taken: Instant,
    ran: Duration,
    runs_since: Option<Instant>,
    preemptions: u32,
    /// Those in which its interfaces stayed on the NICs that would have been saved, and why at last.
    stayed: u32,
    why_stayed: Option<String>,
    saves: Saves,
}

/// What the scheduler core has to say.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Jobs that are gone, and whose streams are not.
    pub(super) lingering: Vec<JobId>,
    /// Checkpoints to be written.
    pub(super) writes: Vec<Write>,
    /// Jobs whose ranks may go on after all.
    pub(super) go: Vec<JobId>,
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

/// The root's own part.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) scheduler_core: SchedulerCore<Program>,
    cluster: Cluster,
    /// The FIFOs of ranks' channels, if they have any.
    geometry: Option<Geometry>,
    /// Most bytes that are held of what is being saved.
    most_saved: u64,
    slice: Duration,
    hosts: BTreeSet<u16>,
    /// What each host is called.
    names: Vec<String>,
    jobs: BTreeMap<JobId, Job>,
    switches: VecDeque<(Switch, Vec<JobId>)>,
    switch_count: u64,
    next_order: u32,
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Sends without waiting, behind what is on its way already.
pub(super) fn post(to: &mpsc::Sender<Frame>, frame: Frame) {
    if let Err(mpsc::error::TrySendError::Full(frame)) = to.try_send(frame) {
        let to = to.clone();
        // Whoever is gone needs no answer.
        tokio::spawn(async move { drop(to.send(frame).await) });
    }
}

impl Root {
    pub(super) fn new(
        policy: Box<dyn Policy>,
        config: SchedulerConfig,
        (cluster, geometry, most_saved): (Cluster, Option<Geometry>, u64),
        names: Vec<String>,
    ) -> Self {
        Self {
            scheduler_core: SchedulerCore::new(policy, config),
            cluster,
            geometry,
            most_saved,
            slice: config.slice,
            hosts: BTreeSet::from([0]),
            names,
            jobs: BTreeMap::new(),
            switches: VecDeque::new(),
            switch_count: 0,
            next_order: 0,
        }
    }

    fn name(&self, host: u16) -> &str {
        self.names.get(usize::from(host)).map_or("?", |name| name)
    }

    /// Takes a job, or says why not; the front end is told.
    pub(super) fn submit(
        &mut self,
        now: Instant,
        (client, reply): (ClientId, mpsc::Sender<Frame>),
        (ranks, weight): (u16, u8),
        program: Program,
    ) -> Option<JobId> {
        let refuse = |why: String| post(&reply, Frame::message(&Reply::Refused(why)));
        let request = Request { nodes: ranks, weight };
        let job = match self.scheduler_core.submit(request, ranks, program.clone()) {
            Ok(job) => job,
            Err(AdmitError::TooLarge { there, .. }) => {
                refuse(format!("--ranks {ranks}: there are {there} slots"));
                return None;
            }
            Err(error) => {
                refuse(format!("--ranks {ranks}: {error}"));
                return None;
            }
        };
        let first = self.scheduler_core.jobs()[&job].launch.first;
        let hosts: Vec<u16> = (0..ranks).map(|rank| self.cluster.host_of(first + rank)).collect();
        if let Some(host) = hosts.iter().find(|host| !self.hosts.contains(host)) {
            let why = format!("host {host} ({}) can't be reached", self.name(*host));
            self.scheduler_core.end(now, job);
            refuse(why);
            return None;
        }
        let (feed, input) = mpsc::channel(super::streams::QUEUE);
        post(&reply, Frame::message(&Reply::Accepted(job)));
        let job_record = Job {
            client,
            reply,
            feed: Some(feed),
            input: Some(input),
            slots: (first, first + ranks),
            weight,
            program,
            open: hosts.iter().copied().collect(),
            hosts,
            ends: vec![None; ranks.into()],
            launched: false,
            gone: false,
            why: None,
            taken: now,
            ran: Duration::ZERO,
            runs_since: None,
            preemptions: 0,
            stayed: 0,
            why_stayed: None,
            saves: Saves::default(),
        };
        self.jobs.insert(job, job_record);
        Some(job)
    }

    /// Ends a job, if it has not ended already; and why.
    pub(super) fn end(&mut self, now: Instant, job: JobId, why: Option<String>) {
        if let Some(it) = self.jobs.get_mut(&job).filter(|it| !it.gone) {
            it.pause(now);
            if it.why.is_none() {
                it.why = why;
            }
            self.scheduler_core.end(now, job);
        }
    }

    /// A front end is gone: nothing is saved for it any longer, and its job ends.
    pub(super) fn client_gone(&mut self, now: Instant, client: ClientId) {
        self.give_up_saving(client);
        if let Some(job) = self.job_of(client) {
            self.end(now, job, Some("its front end is gone".into()));
        }
    }

    /// The job of a front end, if it has one.
    pub(super) fn job_of(&self, client: ClientId) -> Option<JobId> {
        self.jobs.iter().find(|(_, job)| job.client == client).map(|(job, _)| *job)
    }

    /// Whether there is such a job.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.jobs.contains_key(&job)
    }

    /// Where a job's input goes, for whoever feeds it.
    pub(super) fn take_feed(&mut self, job: JobId) -> Option<mpsc::Sender<Frame>> {
        self.jobs.get_mut(&job)?.feed.take()
    }

    /// Where a job's output goes, and where its input comes from, for a host of its.
    pub(super) fn ends_of(
        &mut self,
        job: JobId,
        host: u16,
    ) -> Option<(mpsc::Sender<Frame>, Option<mpsc::Receiver<Frame>>)> {
        let it = self.jobs.get_mut(&job)?;
        let input = if it.hosts.first() == Some(&host) { it.input.take() } else { None };
        Some((it.reply.clone(), input))
    }

    /// The ranks of a job that are on a host.
    pub(super) fn ranks_on(&self, job: JobId, host: u16) -> BTreeSet<u16> {
        let hosts = self.jobs.get(&job).map_or(&[][..], |it| &it.hosts);
        (0..).zip(hosts).filter(|(_, its)| **its == host).map(|(rank, _)| rank).collect()
    }

    /// The host of a job's rank.
    pub(super) fn host_of(&self, job: JobId, rank: u16) -> Option<u16> {
        self.jobs.get(&job)?.hosts.get(usize::from(rank)).copied()
    }

    /// A host's ranks of a job have nothing more to say.
    pub(super) fn streams_done(&mut self, now: Instant, job: JobId, host: u16) {
        if let Some(it) = self.jobs.get_mut(&job) {
            it.open.remove(&host);
        }
        self.finish(now, job);
    }

    /// A rank has ended. `true` as [`Root::left`] has it.
    pub(super) fn rank_ended(&mut self, now: Instant, job: JobId, rank: u16, end: End) -> bool {
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
        let go = self.left(job, rank);
        self.finish(now, job);
        go
    }

    /// These hosts can be reached.
    pub(super) fn hosts_here(&mut self, hosts: &[u16]) {
        self.hosts.extend(hosts.iter().filter(|host| **host < self.cluster.hosts));
    }

    /// These hosts can't be reached any more: what runs there is as good as dead.
    pub(super) fn hosts_gone(&mut self, now: Instant, hosts: &[u16]) {
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
                self.end(now, job, Some(why.clone()));
                self.finish(now, job);
            }
        }
    }

    /// Something has arrived for a job from outside.
    pub(super) fn arrived(&mut self, job: JobId) {
        if self.jobs.get(&job).is_some_and(|it| it.program.woken) {
            self.scheduler_core.wake(job);
        }
    }

    /// The next order, if it is time for one.
    pub(super) fn poll_order(&mut self, now: Instant) -> Option<Order<Program>> {
        let action = self.scheduler_core.poll_order(now)?;
        if let Action::Launch(launch) = &action
            && let Some(it) = self.jobs.get_mut(&launch.job)
        {
            it.launched = true;
        }
        self.next_order += 1;
        Some(Order { number: self.next_order, action })
    }

    /// Whoever still holds a stream of a job that is gone is not waited for.
    pub(super) fn overdue(&mut self, now: Instant, job: JobId) {
        if let Some(it) = self.jobs.get_mut(&job) {
            it.open.clear();
        }
        self.finish(now, job);
    }

    /// What came of an order.
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

    /// What the scheduler core has to say.
    pub(super) fn drain(&mut self, now: Instant) -> News {
        let mut news = News::default();
        while let Some(event) = self.scheduler_core.poll_event() {
            match event {
                Event::Switched(switch) => self.switched(switch),
                Event::Removed(job) => {
                    self.scheduler_core.forget(job);
                    if let Some(it) = self.jobs.get_mut(&job) {
                        it.gone = true;
                    }
                    self.finish(now, job);
                    news.lingering.extend(self.jobs.contains_key(&job).then_some(job));
                }
                Event::Stayed(job, why) => {
                    if let Some(it) = self.jobs.get_mut(&job) {
                        it.stayed += 1;
                        it.why_stayed = Some(why.to_string());
                    }
                }
                Event::Cut(job, epoch) => match self.cut(job, epoch) {
                    Some(write) => news.writes.push(write),
                    None => news.go.push(job),
                },
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

    /// Tells a job's front end how it went, once all of it is known and said.
    fn finish(&mut self, now: Instant, job: JobId) {
        let through = |it: &Job| it.gone && (!it.launched || it.open.is_empty());
        if !self.jobs.get(&job).is_some_and(through) {
            return;
        }
        let Some(mut it) = self.jobs.remove(&job) else { return };
        it.saves.job_ended(job);
        let over = Over {
            job,
            ranks: it.hosts.iter().copied().zip(it.ends).collect(),
            why: it.why,
            seconds: seconds(Duration::from_nanos(now.nanos_since(it.taken))),
            run_seconds: seconds(it.ran),
            preemptions: it.preemptions,
        };
        post(&it.reply, Frame::message(&Reply::Over(over)));
    }

    /// All that the cluster does.
    pub(super) fn listing(&self, now: Instant) -> Listing {
        let quantiles = |of: &dyn Fn(&Switch) -> Duration| {
            let real = self.switches.iter().filter(|(switch, _)| !switch.stopped.is_empty());
            let mut all: Vec<f64> = real.map(|(switch, _)| micros(of(switch))).collect();
            all.sort_by(f64::total_cmp);
            [0.5, 0.99].map(|part| {
                let at = (all.len() as f64 * part) as usize;
                all.get(at.min(all.len().saturating_sub(1))).copied().unwrap_or(0.0)
            })
        };
        let line = |(job, it): (&JobId, &Job)| Line {
            job: *job,
            slots: it.slots,
            weight: it.weight,
            runs: it.runs_since.is_some(),
            ended: it.ends.iter().flatten().count() as u16,
            preemptions: it.preemptions,
            stayed: it.stayed,
            why_stayed: it.why_stayed.clone(),
            seconds: seconds(Duration::from_nanos(now.nanos_since(it.taken))),
            run_seconds: seconds(it.ran(now)),
            command: it.program.shown(),
        };
        Listing {
            hosts: (0..self.cluster.hosts).map(|host| self.hosts.contains(&host)).collect(),
            slots: self.cluster.slots,
            slice_ms: self.slice.as_secs_f64() * 1e3,
            switches: self.switch_count,
            freeze_us: quantiles(&|switch| switch.freeze),
            switch_us: quantiles(&|switch| {
                Duration::from_nanos(switch.end().nanos_since(switch.at))
            }),
            jobs: self.jobs.iter().map(line).collect(),
        }
    }

    /// The last switches.
    pub(super) fn slices(&self) -> Vec<Slice> {
        let slice = |(switch, running): &(Switch, Vec<JobId>)| Slice {
            at_us: switch.at.nanos_since(Instant::ZERO) as f64 / 1e3,
            freeze_us: micros(switch.freeze),
            save_us: micros(switch.save),
            restore_us: micros(switch.restore),
            stopped: switch.stopped.clone(),
            switch_us: switch.end().nanos_since(switch.at) as f64 / 1e3,
            running: running.clone(),
        };
        self.switches.iter().map(slice).collect()
    }
}
