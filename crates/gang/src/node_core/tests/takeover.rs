//! Scenarios from a seed in which roots die, return and are disconnected, and the conditions that must always be true.

use std::collections::BTreeSet;
use std::time::Duration;

use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;

use super::cluster::{Cluster, Event, PATIENCE};
use super::node::program;
use crate::names::JobId;
use crate::node_core::ClientId;
use crate::node_core::message::{Cluster as Shape, End, Over, Reply, Request};
use crate::scheduler_core::tests::two_phases;
use crate::scheduler_core::{Phases, PreemptWhenAlone, SchedulerConfig};

/// Time within which a lost root is replaced and jobs run again. Silence is detected within `PATIENCE`.
const RESUMES_WITHIN: Duration = Duration::from_secs(1);
/// End of the period of faults.
const FAULTS_END: Duration = Duration::from_secs(3);

/// An action of the scenario in the period of faults.
#[derive(Clone, Copy, Debug)]
enum Act {
    Submit,
    Checkpoint,
    CrashRoot,
    Crash,
    Boot(u16),
    Break,
    Silence,
    Partition,
    /// Compares the jobs of a minority's hosts with those at the previous check.
    CheckMinority,
    Heal,
}

/// Totals over all seeds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Report {
    jobs: u64,
    completed: u64,
    roots: u64,
    lost_messages: u64,
}

impl Report {
    pub(super) fn add(&mut self, other: &Self) {
        self.jobs += other.jobs;
        self.completed += other.completed;
        self.roots += other.roots;
        self.lost_messages += other.lost_messages;
    }
}

struct Scenario {
    cluster: Cluster,
    acts: Vec<Act>,
    owned: Vec<ClientId>,
    /// Jobs of each host of a minority at the last check.
    seen: Vec<(u16, u32, String)>,
    /// Jobs that are admitted before this may have lost hosts.
    harmed_until: Instant,
    report: Report,
    seed: u64,
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn cluster(seed: u64, dice: &mut Rng) -> Cluster {
    let (hosts, arity) = (dice.between(3, 9) as u16, dice.between(1, 4) as u16);
    let shape = Shape { hosts, slots: dice.between(1, 2) as u16, arity };
    let config = SchedulerConfig {
        slice: millis(dice.between(3, 12)),
        phases: if dice.chance(0.7) { Phases::Two } else { Phases::Four },
        preempt_when_alone: match dice.chance(0.5) {
            true => PreemptWhenAlone::Never,
            false => PreemptWhenAlone::Always,
        },
        early_wakeup: millis(seed % 3),
    };
    Cluster::new(seed, shape, config, true)
}

fn start(seed: u64, acts: impl FnOnce(&mut Rng) -> Vec<(Duration, Act)>) -> Scenario {
    let mut dice = Rng::new(seed, "takeover");
    let mut cluster = cluster(seed, &mut dice);
    let mut all = Vec::new();
    for (after, act) in acts(&mut dice) {
        cluster.at(after, Event::Script(all.len()));
        all.push(act);
    }
    let (owned, seen, report) = (Vec::new(), Vec::new(), Report::default());
    let harmed_until = Instant::ZERO;
    Scenario { cluster, acts: all, owned, seen, harmed_until, report, seed }
}

/// Runs a seed with many faults. Panics if an invariant is violated.
pub(super) fn run(seed: u64) -> Report {
    let mut scenario = start(seed, |dice| {
        let kinds: Vec<Act> =
            [Act::CrashRoot, Act::Crash, Act::Break, Act::Silence, Act::Partition]
                .into_iter()
                .filter(|_| dice.chance(0.5))
                .collect();
        let mut acts = Vec::new();
        for _ in 0..dice.between(2, 12) {
            acts.push((millis(dice.below(2_800)), Act::Submit));
        }
        for _ in 0..dice.below(3) {
            acts.push((millis(dice.below(2_800)), Act::Checkpoint));
        }
        if !kinds.is_empty() {
            for _ in 0..dice.between(1, 8) {
                let act = kinds[dice.below(kinds.len() as u64) as usize];
                acts.push((millis(200 + dice.below(2_600)), act));
            }
        }
        acts
    });
    scenario.play(Instant::ZERO + FAULTS_END);
    scenario.heal();
    scenario.play(Instant::ZERO + FAULTS_END + PATIENCE * 50);
    scenario.all_are_answered();
    scenario.cluster_works();
    scenario.nothing_is_left();
    scenario.report
}

/// Runs a seed in which only the root dies, once. All jobs without ranks on its host must complete.
pub(super) fn run_with_one_death(seed: u64) -> Report {
    let mut scenario = start(seed, |dice| {
        let mut acts: Vec<_> =
            (0..dice.between(2, 6)).map(|_| (millis(150 + dice.below(250)), Act::Submit)).collect();
        acts.push((millis(300 + dice.below(300)), Act::CrashRoot));
        acts
    });
    while scenario.report.roots == 0 {
        scenario.play_one(Instant::ZERO + FAULTS_END);
    }
    let died_at = scenario.cluster.now;
    scenario.play(died_at + RESUMES_WITHIN);
    // A new job is admitted and gets a slice, unless it has been placed on the host that died.
    let asked_at = scenario.cluster.now;
    let client = scenario.submit(1, millis(5));
    scenario.play(asked_at + PATIENCE * 4);
    let has_resumed = scenario.cluster.resumed_at > asked_at;
    match scenario.cluster.clients[&client].replies.first() {
        Some(Reply::Accepted(_)) if has_resumed => {}
        Some(Reply::Refused(why)) if why.contains("can't be reached") => {}
        other => panic!("no root has taken over: {other:?}; {}", scenario.cluster.explain()),
    }
    let jobs: Vec<JobId> = scenario.cluster.jobs.keys().copied().collect();
    jobs.into_iter().for_each(|job| scenario.cluster.strangers_are_refused(job));
    scenario.play(Instant::ZERO + FAULTS_END);
    scenario.heal();
    scenario.play(Instant::ZERO + FAULTS_END + PATIENCE * 50);
    scenario.all_are_answered();
    scenario.nothing_is_left();
    scenario.report
}

/// Runs a seed in which the root dies while the ranks of each host have put far more by PMI than a message carries.
/// Jobs without ranks on its host must complete. Returns the bytes of the longest report of a host to the next root.
pub(super) fn run_with_long_reports(seed: u64) -> u64 {
    let mut scenario = start(seed, |_| vec![(millis(600), Act::CrashRoot)]);
    let shape = Shape { hosts: 3, slots: 2, arity: 2 };
    scenario.cluster = Cluster::new(seed, shape, two_phases(millis(5)), true);
    scenario.cluster.value_bytes = 1_500_000;
    scenario.cluster.at(millis(600), Event::Script(0));
    scenario.play(Instant::ZERO + millis(200));
    for _ in 0..24 {
        scenario.submit(2, millis(60));
    }
    scenario.play(Instant::ZERO + FAULTS_END);
    scenario.heal();
    scenario.play(Instant::ZERO + FAULTS_END + PATIENCE * 50);
    scenario.all_are_answered();
    scenario.nothing_is_left();
    assert!(scenario.report.roots == 1 && scenario.report.completed > 4, "{:?}", scenario.report);
    scenario.cluster.longest_report
}

/// Crashes the root, host 0, while host 1 stops two jobs at once: one with ranks on both hosts, and one on host 1 alone.
/// If `is_silent`, no connection ends. Returns the cluster and the clients of both jobs.
fn lose_the_root_in_a_stop(seed: u64, is_silent: bool) -> (Cluster, [ClientId; 2]) {
    let shape = Shape { hosts: 3, slots: 3, arity: 2 };
    let preempt_when_alone = PreemptWhenAlone::Always;
    let config = SchedulerConfig { preempt_when_alone, ..two_phases(millis(5)) };
    let mut cluster = Cluster::new(seed, shape, config, true);
    cluster.run_until(Instant::ZERO + millis(150));
    assert_eq!(cluster.root(), Some(0), "seed {seed}");
    let clients = [4, 2].map(|ranks| {
        let program = program(Duration::from_secs(1));
        cluster.request(Request::Run { ranks, weight: 1, program })
    });
    cluster.run_until(cluster.now + millis(60));
    let hosts = clients.map(|client| cluster.clients[&client].hosts.clone());
    assert_eq!(hosts, [BTreeSet::from([0, 1]), BTreeSet::from([1])], "seed {seed}");
    let jobs = clients.map(|client| cluster.clients[&client].job.expect("it was admitted"));
    let is_stopping = (0..10_000).any(|_| {
        cluster.run_until(cluster.now + Duration::from_micros(20));
        cluster.stops(1, &jobs)
    });
    assert!(is_stopping, "seed {seed}: {}", cluster.explain());
    cluster.crash(0, is_silent);
    (cluster, clients)
}

fn has_completed(cluster: &Cluster, client: ClientId) -> bool {
    let last = cluster.clients[&client].replies.last();
    let Some(Reply::Over(Over { ranks, .. })) = last else { return false };
    ranks.iter().all(|(_, end)| *end == Some(End::Exited(0)))
}

/// Regression: the jobs that were suspended together with a job of the lost host stayed suspended.
#[test]
fn a_job_runs_without_a_root_although_another_does_not_become_quiescent() {
    let (mut cluster, clients) = lose_the_root_in_a_stop(0, false);
    cluster.crash(2, false);
    cluster.run_until(cluster.now + PATIENCE * 3);
    let runs = clients.map(|client| {
        let job = cluster.clients[&client].job.expect("it was admitted");
        let node = &cluster.hosts[1].node;
        let members = node.ranks_of(&[job]).into_iter();
        members.map(|member| node.processes[&member].runs_since.is_some()).collect::<Vec<_>>()
    });
    assert_eq!(runs, [vec![false], vec![true, true]], "{}", cluster.explain());
    cluster.boot(0);
    cluster.boot(2);
    cluster.run_until(cluster.now + PATIENCE * 100);
    let completed = clients.map(|client| has_completed(&cluster, client));
    assert_eq!(completed, [false, true], "{}", cluster.explain());
}

/// Regression: the next root ended the job that has no rank on the lost host, just before it had taken over.
#[test]
fn a_job_that_is_stopped_with_one_of_the_lost_host_survives_a_takeover() {
    let mut roots = 0;
    for seed in 0..20 {
        let (mut cluster, [_, client]) = lose_the_root_in_a_stop(seed, false);
        cluster.run_until(cluster.now + PATIENCE / 4);
        if cluster.root() != Some(1) {
            continue;
        }
        roots += 1;
        cluster.run_until(cluster.now + PATIENCE * 100);
        assert!(has_completed(&cluster, client), "seed {seed}: {}", cluster.explain());
    }
    assert!(roots > 0, "host 1 never takes over");
}

/// Regression: host 1 ended both jobs before it had noticed that the root was lost.
#[test]
fn a_job_that_is_stopped_with_one_of_the_lost_host_survives_a_root_that_goes_silent() {
    for seed in 0..20 {
        let (mut cluster, [_, client]) = lose_the_root_in_a_stop(seed, true);
        cluster.run_until(cluster.now + PATIENCE * 100);
        assert!(has_completed(&cluster, client), "seed {seed}: {}", cluster.explain());
    }
}

/// Prints the seed of a scenario that panics.
impl Drop for Scenario {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {}", self.seed);
        }
    }
}

impl Scenario {
    fn play(&mut self, until: Instant) {
        while self.play_one(until) {}
    }

    /// Runs until the next action is done. Returns false if there is none before an instant.
    fn play_one(&mut self, until: Instant) -> bool {
        let Some(number) = self.cluster.run_until(until) else { return false };
        self.act(self.acts[number]);
        true
    }

    fn later(&mut self, after: Duration, act: Act) {
        self.cluster.at(after, Event::Script(self.acts.len()));
        self.acts.push(act);
    }

    fn act(&mut self, act: Act) {
        let hosts = self.cluster.shape.hosts;
        match act {
            Act::Submit => {
                let slots = u64::from(hosts * self.cluster.shape.slots);
                let ranks = self.cluster.dice.between(1, slots) as u16;
                let work = Duration::from_micros(self.cluster.dice.below(150_000));
                self.submit(ranks, work);
            }
            Act::Checkpoint => {
                let Some(&job) = self.cluster.jobs.keys().next() else { return };
                let folder = self.acts.len().to_le_bytes().to_vec();
                let request = Request::Checkpoint { job, folder, end: false };
                // The request may fail with the job's root, but the job continues.
                let _ = self.cluster.request(request);
            }
            Act::CrashRoot => {
                let Some(root) = self.cluster.root() else { return };
                self.harm(BTreeSet::from([root]));
                self.report.roots += 1;
                self.crash(root);
            }
            Act::Crash => {
                let host = self.cluster.dice.below(hosts.into()) as u16;
                self.harm_all();
                self.crash(host);
            }
            Act::Boot(host) => {
                if self.cluster.hosts[usize::from(host)].core.is_none() {
                    self.cluster.boot(host);
                }
            }
            Act::Break | Act::Silence => {
                self.harm_all();
                let all: Vec<u64> = self.cluster.network.connections.keys().copied().collect();
                if all.is_empty() {
                    return;
                }
                let number = all[self.cluster.dice.below(all.len() as u64) as usize];
                match act {
                    Act::Break => self.cluster.break_connection(number),
                    _ => self.cluster.silence(number),
                }
            }
            Act::Partition => self.partition(),
            Act::CheckMinority => self.check_minority(),
            Act::Heal => {
                self.check_minority();
                self.seen.clear();
                self.cluster.groups.fill(0);
            }
        }
    }

    fn crash(&mut self, host: u16) {
        let is_silent = self.cluster.dice.chance(0.5);
        self.cluster.crash(host, is_silent);
        let after = millis(5 + self.cluster.dice.below(600));
        self.later(after, Act::Boot(host));
    }

    /// Splits the hosts into two groups for a while.
    fn partition(&mut self) {
        self.harm_all();
        if self.cluster.groups.contains(&1) {
            return;
        }
        let hosts = self.cluster.shape.hosts;
        for host in 0..hosts {
            self.cluster.groups[usize::from(host)] = u8::from(self.cluster.dice.chance(0.4));
        }
        let first = self.cluster.dice.below(hosts.into()) as usize;
        self.cluster.groups[first] = 1;
        let group = |host: u16| self.cluster.groups[usize::from(host)];
        let split = self.cluster.network.connections.iter();
        let split = split.filter(|(_, it)| group(it.child) != group(it.parent));
        for number in split.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.cluster.silence(number);
        }
        let lasts = millis(50 + self.cluster.dice.below(900));
        if lasts > PATIENCE * 4 {
            self.later(PATIENCE * 4, Act::CheckMinority);
        }
        self.later(lasts, Act::Heal);
    }

    /// Checks that no daemon of a minority starts, ends or switches a job, and that jobs that were to be suspended run
    /// on.
    fn check_minority(&mut self) {
        let is_first = self.seen.is_empty();
        let groups = self.cluster.groups.clone();
        if self.cluster.now < Instant::ZERO + PATIENCE * 4 || !groups.contains(&1) {
            return;
        }
        for group in [0, 1] {
            let of_group = |host: &u16| groups[usize::from(*host)] == group;
            let members: Vec<u16> = (0..self.cluster.shape.hosts).filter(of_group).collect();
            if members.len() > usize::from(self.cluster.shape.hosts / 2) {
                continue;
            }
            for host in members {
                let it = &self.cluster.hosts[usize::from(host)];
                let now = (host, it.incarnation, it.node.shown());
                let same = |(host, incarnation, _): &&(u16, u32, String)| {
                    (*host, *incarnation) == (now.0, now.1)
                };
                if is_first {
                    self.seen.push(now);
                } else if let Some(before) = self.seen.iter().find(same) {
                    assert_eq!(*before, now, "a minority of {groups:?}");
                }
            }
        }
    }

    /// Records that jobs with a rank on one of these hosts may fail.
    fn harm(&mut self, hosts: BTreeSet<u16>) {
        let is_harmed = |it: &&ClientId| !self.cluster.clients[*it].hosts.is_disjoint(&hosts);
        let harmed: Vec<ClientId> = self.owned.iter().filter(is_harmed).copied().collect();
        self.cluster.harmed.extend(harmed);
    }

    fn harm_all(&mut self) {
        self.harmed_until = self.cluster.now + PATIENCE * 12;
        self.cluster.harmed.extend(self.owned.iter().copied());
    }

    fn submit(&mut self, ranks: u16, work: Duration) -> ClientId {
        let weight = self.cluster.dice.between(1, 3) as u8;
        let client = self.cluster.request(Request::Run { ranks, weight, program: program(work) });
        self.owned.push(client);
        if self.cluster.now < self.harmed_until {
            self.cluster.harmed.insert(client);
        }
        client
    }

    /// Repairs all faults that can be repaired.
    fn heal(&mut self) {
        self.check_minority();
        self.seen.clear();
        self.cluster.groups.fill(0);
        for host in 0..self.cluster.shape.hosts {
            if self.cluster.hosts[usize::from(host)].core.is_none() {
                self.cluster.boot(host);
            }
        }
    }

    /// Checks that every client of an admitted job has the job's end, and that jobs without faults have completed.
    fn all_are_answered(&mut self) {
        for client in std::mem::take(&mut self.owned) {
            let it = &self.cluster.clients[&client];
            if it.job.is_none() {
                continue;
            }
            self.report.jobs += 1;
            let Some(Reply::Over(Over { ranks, why, .. })) = it.replies.last() else {
                panic!("{it:?} was admitted and has no end; {}", self.cluster.explain());
            };
            let all = ranks.iter().all(|(_, end)| *end == Some(End::Exited(0)));
            self.report.completed += u64::from(all);
            let may_fail = self.cluster.harmed.contains(&client);
            assert!(all || may_fail, "{it:?} did not complete: {why:?}");
        }
        self.report.lost_messages = self.cluster.network.lost;
    }

    /// Checks that a job on all slots completes.
    fn cluster_works(&mut self) {
        let ranks = self.cluster.shape.hosts * self.cluster.shape.slots;
        let client = self.submit(ranks, millis(20));
        self.play(self.cluster.now + PATIENCE * 20);
        let last = self.cluster.clients[&client].replies.last();
        let Some(Reply::Over(Over { ranks, .. })) = last else {
            panic!("the last job: {last:?}; {}", self.cluster.explain());
        };
        assert!(ranks.iter().all(|(_, end)| *end == Some(End::Exited(0))), "{ranks:?}");
    }

    /// Checks that no process and no context remains, and that exactly one daemon is the root.
    fn nothing_is_left(&self) {
        let explain = || self.cluster.explain();
        let roots = self.cluster.hosts.iter().filter_map(|host| host.core.as_ref());
        assert_eq!(roots.filter(|core| core.manager.is_some()).count(), 1, "{}", explain());
        for (number, host) in self.cluster.hosts.iter().enumerate() {
            let core = host.core.as_ref().expect("all hosts are up");
            let node = &host.node;
            assert!(
                node.is_empty() && core.is_empty(),
                "host {number} has {node:?}; {}",
                explain()
            );
            assert!(core.durable.table.jobs.is_empty(), "host {number}: {}", explain());
        }
    }
}
