//! Jobs of random programs: what the daemons report of each is true, and none is missed.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use midplane_gang::channel::{Channel, SendError};
use midplane_gang::live::clock::now;
use midplane_gang::live::message::Request;
use midplane_gang::live::rank::join;
use midplane_gang::names::{JobId, Rank};
use midplane_gang::wait::WaitState;
use midplane_simhw::rng::Rng;

use crate::scenes::{ask_for, listing};
use crate::stage::{Stage, wait_until};

/// Jobs that take turns at the same time.
const AT_ONCE: u64 = 40;
const BATCHES: u64 = 5;
/// Acts of each rank.
const ACTS: usize = 10;
/// Time within which each job is cut at least twice.
const TWO_CUTS: Duration = Duration::from_secs(15);
/// Limit for all of a batch to be reported.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug)]
enum Act {
    Work(Duration),
    Send(u16, u32),
    Receive(Option<u16>, Option<u32>),
}

/// Returns each rank's acts.
fn programs(seed: u64) -> Vec<Vec<Act>> {
    let mut dice = Rng::new(seed, "programs");
    let ranks = dice.between(2, 4);
    let mut act = |own: u64| {
        let (other, tag) = (dice.below(ranks), dice.below(3) as u32);
        match dice.below(5) {
            1 | 2 if other != own => Act::Send(other as u16, tag),
            3 | 4 if !seed.is_multiple_of(4) => {
                let from = dice.chance(0.7).then_some(other as u16);
                Act::Receive(from, dice.chance(0.7).then_some(tag))
            }
            _ => Act::Work(Duration::from_micros(dice.below(20_000))),
        }
    };
    (0..ranks).map(|own| (0..ACTS).map(|_| act(own)).collect()).collect()
}

/// Runs this rank's acts, and writes how many are done; then only takes messages.
pub(crate) async fn run(folder: &str, seed: u64) {
    let (_, mut channel) = join().await.unwrap();
    let own = channel.rank();
    let mut held = Vec::new();
    for (at, act) in programs(seed).swap_remove(own.index()).into_iter().enumerate() {
        match act {
            Act::Work(time) => tokio::time::sleep(time).await,
            Act::Send(to, tag) => send(&mut channel, Rank(to), tag).await,
            Act::Receive(from, tag) => receive(&mut channel, &mut held, from.map(Rank), tag).await,
        }
        let file = Path::new(folder).join(format!("{seed}.{}", own.0));
        std::fs::write(file, (at + 1).to_string()).unwrap();
    }
    loop {
        while channel.try_receive().is_some() {}
        channel.wait_as(WaitState::Idle).await.unwrap();
    }
}

async fn send(channel: &mut Channel, to: Rank, tag: u32) {
    while channel.try_send(to, &tag.to_le_bytes()) == Err(SendError::Full) {
        channel.wait_as(WaitState::Send { to }).await.unwrap();
    }
}

async fn receive(
    channel: &mut Channel,
    held: &mut Vec<(Rank, u32)>,
    from: Option<Rank>,
    tag: Option<u32>,
) {
    loop {
        while let Some((from, bytes)) = channel.try_receive() {
            held.push((from, u32::from_le_bytes(bytes[..].try_into().unwrap())));
        }
        let matching = |message: &(Rank, u32)| {
            from.is_none_or(|from| from == message.0) && tag.is_none_or(|tag| tag == message.1)
        };
        if let Some(at) = held.iter().position(matching) {
            held.remove(at);
            return;
        }
        channel.wait_as(WaitState::Receive { from, tag }).await.unwrap();
    }
}

struct Job {
    seed: u64,
    ranks: u16,
    /// Acts that each rank had done when the job was reported first.
    done_at_report: Option<Vec<usize>>,
}

impl Job {
    fn done(&self, stage: &Stage) -> Vec<usize> {
        let done = |rank| {
            let text = stage.file(&format!("{}.{rank}", self.seed)).unwrap_or_default();
            text.parse().unwrap_or(0)
        };
        (0..self.ranks).map(done).collect()
    }

    /// Compares a report with what the ranks have done since the first one.
    fn check(&mut self, stage: &Stage, report: &str) {
        let done = self.done(stage);
        let named = self.named(report);
        let before = self.done_at_report.get_or_insert_with(|| done.clone());
        for rank in named {
            let rank = usize::from(rank);
            assert_eq!(
                before[rank], done[rank],
                "seed {}: rank {rank} went on: {report}",
                self.seed
            );
        }
    }

    /// Returns the ranks that a report says are blocked for ever: all if the job has terminated.
    fn named(&self, report: &str) -> BTreeSet<u16> {
        if report.starts_with("it has terminated") {
            return (0..self.ranks).collect();
        }
        let named = report.split("rank ").filter_map(|part| part.split_once(" waits for "));
        named.map(|(rank, _)| rank.parse().unwrap()).collect()
    }

    /// Checks the last report: it names exactly the ranks that have not done all of their acts.
    fn check_last(&self, stage: &Stage, report: &str) {
        let done = self.done(stage);
        let stuck: BTreeSet<u16> =
            (0..self.ranks).filter(|rank| done[usize::from(*rank)] < ACTS).collect();
        let has_terminated = report.starts_with("it has terminated");
        assert_eq!(has_terminated, stuck.is_empty(), "seed {}: {report}: {done:?}", self.seed);
        if !has_terminated {
            assert_eq!(self.named(report), stuck, "seed {}: {report}: {done:?}", self.seed);
        }
    }
}

/// Two hundred jobs, forty at a time, on two hosts.
pub(crate) fn reports_are_true() {
    let mut terminated = 0;
    for batch in 0..BATCHES {
        terminated += run_batch(batch * AT_ONCE..(batch + 1) * AT_ONCE);
    }
    let all = BATCHES * AT_ONCE;
    println!("{terminated} of {all} jobs have terminated, the others are deadlocked");
    assert!(terminated > all / 10 && terminated < all * 9 / 10, "this shows little");
}

/// Returns how many of the jobs with these seeds have terminated.
fn run_batch(seeds: std::ops::Range<u64>) -> u64 {
    let stage = Stage::with_network(2, 2, 10, "shm");
    wait_until("both hosts are there", || listing(&stage).hosts == [true, true]);
    let itself = std::env::current_exe().unwrap();
    let folder = stage.path().to_str().unwrap().to_owned();
    let mut clients = Vec::new();
    let mut jobs: Vec<Job> = Vec::new();
    for seed in seeds {
        let ranks = programs(seed).len() as u16;
        let command = [itself.to_str().unwrap(), "--random", &folder, &seed.to_string()];
        clients.push(stage.client(ranks, &command).spawn().unwrap());
        jobs.push(Job { seed, ranks, done_at_report: None });
        wait_until("the job is listed", || listing(&stage).jobs.len() == jobs.len());
    }
    let begun = now();
    let mut all_reported = None;
    while all_reported.is_none_or(|since| now() < since + TWO_CUTS) {
        assert!(now() < begun + PATIENCE, "some job is not reported");
        std::thread::park_timeout(Duration::from_millis(50));
        for (job, listed) in jobs.iter_mut().zip(listing(&stage).jobs) {
            assert!(listed.command.ends_with(&format!(" {}", job.seed)), "{}", listed.command);
            if let Some(report) = &listed.stuck {
                job.check(&stage, report);
            }
        }
        if all_reported.is_none() && jobs.iter().all(|job| job.done_at_report.is_some()) {
            all_reported = Some(now());
        }
    }
    let mut terminated = 0;
    for (job, listed) in jobs.iter().zip(listing(&stage).jobs) {
        let report = listed.stuck.expect("a report is not taken back");
        job.check_last(&stage, &report);
        terminated += u64::from(report.starts_with("it has terminated"));
    }
    for (job, client) in (1..).zip(clients) {
        ask_for(&stage, &Request::Kill { job: JobId(job), signal: None });
        assert_eq!(stage.end(client).0, 137);
    }
    terminated
}
