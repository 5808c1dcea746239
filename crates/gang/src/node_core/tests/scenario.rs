//! A scenario from a seed: requests of clients, faults, and the conditions that must be true at its end.

use std::num::NonZeroU32;
use std::time::Duration;

use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;

use super::cluster::{Cluster, Event, MEMORY, PATIENCE};

use super::node::program;
use crate::names::JobId;
use crate::node_core::message::{Cluster as Shape, End, Over, Program, Reply, Request};
use crate::node_core::{ClientId, NodeCore};
use crate::scheduler_core::{Phases, PreemptWhenAlone, SchedulerConfig};

/// Totals over all seeds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Report {
    pub(super) jobs: u64,
    pub(super) completed: u64,
    pub(super) saved: u64,
    pub(super) restored: u64,
    pub(super) faults: u64,
    pub(super) lost_messages: u64,
    /// Number of jobs whose claims did not fit.
    pub(super) too_large: u64,
    pub(super) events: u64,
}

impl Report {
    pub(super) fn add(&mut self, other: &Self) {
        self.jobs += other.jobs;
        self.completed += other.completed;
        self.saved += other.saved;
        self.restored += other.restored;
        self.faults += other.faults;
        self.lost_messages += other.lost_messages;
        self.too_large += other.too_large;
        self.events += other.events;
    }
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// An action of the scenario in the period of faults.
#[derive(Clone, Copy, Debug)]
enum Act {
    Submit,
    Checkpoint,
    Restore,
    KillJob,
    ClientLeaves,
    KillRank,
    Stick,
    Crash,
    Boot(u16),
    Break,
    Silence,
    Isolate,
    Heal(u16),
}

fn acts(dice: &mut Rng) -> Vec<(Duration, Act)> {
    let mut acts = Vec::new();
    // Each seed chooses a few kinds of faults.
    let kinds: Vec<Act> = [
        Act::KillJob,
        Act::ClientLeaves,
        Act::KillRank,
        Act::Stick,
        Act::Crash,
        Act::Break,
        Act::Silence,
        Act::Isolate,
    ]
    .into_iter()
    .filter(|_| dice.chance(0.4))
    .collect();
    for _ in 0..dice.between(1, 10) {
        acts.push((millis(dice.below(600)), Act::Submit));
    }
    for _ in 0..dice.below(4) {
        acts.push((millis(50 + dice.below(600)), Act::Checkpoint));
        acts.push((millis(200 + dice.below(800)), Act::Restore));
    }
    if !kinds.is_empty() {
        for _ in 0..dice.below(12) {
            let act = kinds[dice.below(kinds.len() as u64) as usize];
            acts.push((millis(20 + dice.below(900)), act));
        }
    }
    acts
}

struct Scenario {
    cluster: Cluster,
    acts: Vec<Act>,
    report: Report,
    /// Clients whose replies are checked at the end.
    owned: Vec<ClientId>,
    folders: u32,
}

/// Prints the seed of a scenario that panics.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {}", self.0);
        }
    }
}

/// Runs a seed. Panics if an invariant is violated.
pub(super) fn run(seed: u64) -> Report {
    let _seed = SeedOnPanic(seed);
    let mut dice = Rng::new(seed, "scenario");
    let (hosts, arity) = (dice.between(1, 9) as u16, dice.between(1, 3) as u16);
    let shape = Shape { hosts, slots: dice.between(1, 2) as u16, arity };
    let config = SchedulerConfig {
        slice: Duration::from_millis(dice.between(3, 12)),
        phases: if dice.chance(0.5) { Phases::Two } else { Phases::Four },
        preempt_when_alone: match dice.below(3) {
            0 => PreemptWhenAlone::Never,
            1 => PreemptWhenAlone::Always,
            _ => PreemptWhenAlone::Alternately(NonZeroU32::MIN),
        },
        early_wakeup: Duration::from_millis(dice.below(3)),
    };
    let mut cluster = Cluster::new(seed, shape, config, false);
    let mut all = Vec::new();
    for (after, act) in acts(&mut dice) {
        cluster.at(after, Event::Script(all.len()));
        all.push(act);
    }
    let report = Report::default();
    let mut scenario = Scenario { cluster, acts: all, report, owned: Vec::new(), folders: 0 };
    scenario.play();
    scenario.report
}

impl Scenario {
    fn play(&mut self) {
        let faults_end = Instant::ZERO + millis(1_200);
        while let Some(number) = self.cluster.run_until(faults_end) {
            self.act(self.acts[number]);
        }
        // Repairs all faults that can be repaired.
        self.cluster.isolated.clear();
        for host in 0..self.cluster.shape.hosts {
            if self.cluster.hosts[usize::from(host)].core.is_none() {
                self.cluster.boot(host);
            }
        }
        while let Some(number) = self.cluster.run_until(faults_end + PATIENCE * 100) {
            self.act(self.acts[number]);
        }
        self.all_are_answered();
        self.cluster_works();
        self.nothing_is_left();
        self.report.faults = self.cluster.faults;
        self.report.lost_messages = self.cluster.network.lost;
        self.report.events = self.cluster.steps;
    }

    fn any_job(&mut self) -> Option<JobId> {
        let jobs: Vec<JobId> = self.cluster.jobs.keys().copied().collect();
        (!jobs.is_empty()).then(|| jobs[self.cluster.dice.below(jobs.len() as u64) as usize])
    }

    fn any_connection(&mut self) -> Option<u64> {
        let all: Vec<u64> = self.cluster.network.connections.keys().copied().collect();
        (!all.is_empty()).then(|| all[self.cluster.dice.below(all.len() as u64) as usize])
    }

    fn act(&mut self, act: Act) {
        let hosts = self.cluster.shape.hosts;
        let host = self.cluster.dice.below(hosts.into()) as u16;
        match act {
            Act::Submit => self.submit(),
            Act::Checkpoint => {
                let Some(job) = self.any_job() else { return };
                self.folders += 1;
                let (folder, end) =
                    (self.folders.to_le_bytes().to_vec(), self.cluster.dice.chance(0.4));
                let owner = self.cluster.jobs[&job];
                if end {
                    self.cluster.harmed.insert(owner);
                }
                let client = self.cluster.request(Request::Checkpoint { job, folder, end });
                self.owned.push(client);
            }
            Act::Restore => {
                let Some(folder) = self.cluster.disk.keys().next().cloned() else { return };
                let client = self.cluster.request(Request::Restore { folder, weight: 1 });
                self.owned.push(client);
            }
            Act::KillJob => {
                let Some(job) = self.any_job() else { return };
                self.cluster.harmed.insert(self.cluster.jobs[&job]);
                let client = self.cluster.request(Request::Kill { job, signal: None });
                self.owned.push(client);
            }
            Act::ClientLeaves => {
                let Some(job) = self.any_job() else { return };
                let client = self.cluster.jobs[&job];
                self.cluster.clients.get_mut(&client).unwrap().is_gone = true;
                self.cluster.call_root(|core, now| {
                    core.handle(
                        now,
                        crate::node_core::Input::ClientGone { client, may_return: false },
                    )
                });
            }
            fault => self.fail(fault, host),
        }
    }

    /// Makes a rank, a daemon or a connection fail.
    fn fail(&mut self, fault: Act, host: u16) {
        match fault {
            Act::KillRank => {
                let ranks = self.cluster.hosts[usize::from(host)].node.processes.keys();
                let Some(member) = ranks.copied().next() else { return };
                self.cluster.harmed.extend(self.cluster.jobs.get(&member.0));
                self.cluster.end_rank(host, member, End::Killed(11));
            }
            Act::Stick => {
                let ranks = self.cluster.hosts[usize::from(host)].node.processes.keys();
                let members: Vec<_> = ranks.copied().collect();
                let Some(first) = members.first() else { return };
                self.cluster.stuck.insert((first.0, host));
                let clients = members.iter().filter_map(|member| self.cluster.jobs.get(&member.0));
                let clients: Vec<_> = clients.copied().collect();
                self.cluster.harmed.extend(clients);
            }
            Act::Crash => {
                let is_silent = self.cluster.dice.chance(0.5);
                self.cluster.crash(host, is_silent);
                self.later(30, Act::Boot(host));
            }
            Act::Boot(host) => {
                if self.cluster.hosts[usize::from(host)].core.is_none() {
                    self.cluster.boot(host);
                }
            }
            Act::Break => {
                if let Some(number) = self.any_connection() {
                    self.cluster.break_connection(number);
                }
            }
            Act::Silence => {
                if let Some(number) = self.any_connection() {
                    self.cluster.silence(number);
                }
            }
            Act::Isolate => {
                self.cluster.isolated.insert(host);
                for (number, _) in self.cluster.network.ends_of(host) {
                    self.cluster.silence(number);
                }
                self.later(50, Act::Heal(host));
            }
            Act::Heal(host) => drop(self.cluster.isolated.remove(&host)),
            _ => unreachable!("it is no fault"),
        }
    }

    fn later(&mut self, most: u64, act: Act) {
        let after = millis(5 + self.cluster.dice.below(most * 5));
        self.cluster.at(after, Event::Script(self.acts.len()));
        self.acts.push(act);
    }

    fn submit(&mut self) {
        let slots = u64::from(self.cluster.shape.hosts * self.cluster.shape.slots);
        let ranks = self.cluster.dice.between(1, slots) as u16;
        let work = Duration::from_micros(self.cluster.dice.below(60_000));
        let weight = self.cluster.dice.between(1, 3) as u8;
        let claim = work.as_micros() as u64 % (MEMORY + 2);
        let program = Program { memory: self.cluster.memory.map(|_| claim), ..program(work) };
        let client = self.cluster.request(Request::Run { ranks, weight, program });
        self.owned.push(client);
        // The job's ranks can be saved once they run.
        if let Some(Reply::Accepted(job)) = self.cluster.clients[&client].replies.first() {
            let job = *job;
            for rank in 0..ranks {
                self.cluster.call_root(|core: &mut NodeCore, now| {
                    let able = crate::node_core::RankEvent::Able;
                    core.handle(now, crate::node_core::Input::Rank(job, rank, able));
                });
            }
        }
    }

    /// Checks that every client that has not left has its last reply, and that jobs without faults have completed.
    fn all_are_answered(&mut self) {
        for client in std::mem::take(&mut self.owned) {
            let it = &self.cluster.clients[&client];
            let last = it.replies.last();
            self.report.jobs += u64::from(matches!(it.replies.first(), Some(Reply::Accepted(_))));
            self.report.saved += u64::from(matches!(last, Some(Reply::Saved(_))));
            if it.is_gone {
                continue;
            }
            let Some(last) = last.filter(|last| !matches!(last, Reply::Accepted(_))) else {
                panic!(
                    "{:?} has no last reply: {:?}; {}",
                    it.request,
                    it.replies,
                    self.cluster.explain()
                );
            };
            let Reply::Over(Over { ranks, why, .. }) = last else { continue };
            let all = ranks.iter().all(|(_, end)| *end == Some(End::Exited(0)));
            self.report.completed += u64::from(all);
            if matches!(it.request, Request::Restore { .. }) {
                self.report.restored += u64::from(all);
            }
            let is_refused = why.as_ref().is_some_and(|why| why.contains("does not fit"))
                && ranks.iter().all(|(_, end)| end.is_none());
            self.report.too_large += u64::from(is_refused);
            assert!(
                all || self.cluster.harmed.contains(&client)
                    || is_refused && self.cluster.memory.is_some(),
                "{:?} was not harmed, and did not complete: {ranks:?}, {why:?}",
                it.request
            );
        }
    }

    /// Checks that a job on all slots completes.
    fn cluster_works(&mut self) {
        let ranks = self.cluster.shape.hosts * self.cluster.shape.slots;
        // The earlier jobs have freed all memory.
        let memory = self.cluster.memory.map(|_| MEMORY);
        let program = Program { memory, ..program(millis(20)) };
        let client = self.cluster.request(Request::Run { ranks, weight: 1, program });
        self.cluster.run_until(self.cluster.now + PATIENCE * 20);
        let last = self.cluster.clients[&client].replies.last();
        let Some(Reply::Over(Over { ranks, .. })) = last else {
            panic!("the last job: {last:?}; {}", self.cluster.explain());
        };
        assert!(ranks.iter().all(|(_, end)| *end == Some(End::Exited(0))), "{ranks:?}");
    }

    /// Checks that no process and no context remains, and that each daemon knows that.
    fn nothing_is_left(&self) {
        for (number, host) in self.cluster.hosts.iter().enumerate() {
            let core = host.core.as_ref().expect("all hosts are up");
            let node = &host.node;
            assert!(node.is_empty() && core.is_empty(), "host {number} has {node:?}");
        }
        assert!(self.cluster.jobs.is_empty(), "{:?} are left", self.cluster.jobs);
        let above = (1..self.cluster.shape.hosts)
            .filter(|host| self.cluster.network.above(*host).is_none());
        assert_eq!(above.count(), 0, "hosts without a parent");
    }
}
