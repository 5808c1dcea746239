//! Virtual Interfaces of jobs that take turns.

use std::process::{Command, Stdio};

use midplane_gang::live::client::ClientError;
use midplane_gang::live::message::{Line, Reply, Request, Slice};
use midplane_gang::names::JobId;
use rustix::process::{Pid, Signal, kill_process};

use crate::saved::{checkpoint, checkpoint_soon};
use crate::scenes::{ask_for, listing};
use crate::stage::{Stage, lives, said, wait_until};

fn slices(stage: &Stage) -> Vec<Slice> {
    match ask_for(stage, &Request::Slices) {
        Reply::Slices(slices) => slices,
        other => panic!("{other:?}"),
    }
}

fn line(stage: &Stage, job: u32) -> Option<Line> {
    listing(stage).jobs.into_iter().find(|line| line.job == JobId(job))
}

/// Starts a stage with room for one job of `ranks` ranks at a time.
fn stage(hosts: u16, ranks: u16, slice_ms: u32, network: &'static str) -> Stage {
    // Tests both ways of stopping processes.
    let freezer = if ranks == 4 { "signals" } else { "auto" };
    let stage = Stage::with(hosts, ranks / hosts, slice_ms, (network, freezer));
    wait_until("all are there", || listing(&stage).hosts.iter().all(|here| *here));
    stage
}

/// Runs two jobs of that many ranks each; the ranks of the first are started by shells.
fn two_jobs(stage: &Stage, ranks: u16, count: &str) {
    let itself = itself();
    let by_shell = ["sh", "-c", "\"$0\" --vis \"$1\"; exit $?", &itself, count];
    let commands = [&by_shell[..], &[&itself, "--vis", count]];
    let clients = commands.map(|command| stage.client(ranks, command).spawn().unwrap());
    for client in clients {
        let (code, out, error) = said(client.wait_with_output().unwrap());
        assert_eq!((code, error.as_str()), (0, ""));
        assert_eq!(out.lines().count(), usize::from(ranks), "{out}");
    }
}

/// Runs one job alone, which is never suspended.
fn one_job(stage: &Stage, ranks: u16, count: &str) {
    let (code, out, error) = stage.run(ranks, &[&itself(), "--vis", count]);
    assert_eq!((code, error.as_str(), out.lines().count()), (0, "", usize::from(ranks)));
}

/// Hosts, ranks, the network, and the messages that each rank sends each other one at each level.
type Setup = (u16, u16, &'static str, u32);

fn rounds(setups: &[Setup], least: usize) {
    for (hosts, ranks, network, count) in setups {
        let stage = stage(*hosts, *ranks, 3, network);
        one_job(&stage, *ranks, &(count / 10).to_string());
        two_jobs(&stage, *ranks, &count.to_string());
        let slices = slices(&stage);
        let switches: Vec<_> = slices.iter().filter(|slice| !slice.stopped.is_empty()).collect();
        println!(
            "  {hosts} hosts, {ranks} ranks, {network}: {} preemptions; a switch {:.0} us (99 %: {:.0}), of it {:.0} \
             (99 %: {:.0}) until all was suspended",
            switches.len(),
            part(&switches, 0.5, |slice| slice.switch_us),
            part(&switches, 0.99, |slice| slice.switch_us),
            part(&switches, 0.5, |slice| slice.freeze_us),
            part(&switches, 0.99, |slice| slice.freeze_us),
        );
        assert!(switches.len() > least, "{}", switches.len());
        assert_eq!(stage.run(1, &[&itself(), "--vis-left"]), (0, "0\n".into(), String::new()));
    }
}

/// Returns a quantile of a time of these switches: the share `part` of them took no longer.
fn part(switches: &[&Slice], part: f64, of: impl Fn(&Slice) -> f64) -> f64 {
    let mut all: Vec<f64> = switches.iter().map(|slice| of(slice)).collect();
    all.sort_by(f64::total_cmp);
    let at = (all.len() as f64 * part) as usize;
    all.get(at).copied().unwrap_or_default()
}

fn itself() -> String {
    std::env::current_exe().unwrap().to_str().unwrap().to_owned()
}

pub(crate) fn hundreds() {
    let setups = [
        (1, 2, "shm", 700),
        (1, 4, "shm", 200),
        (2, 4, "shm", 150),
        (2, 2, "shm", 600),
        (2, 2, "UDP", 800),
    ];
    rounds(&setups, 100);
}

pub(crate) fn thousands() {
    let setups = [(1, 2, "shm", 10_000), (2, 4, "shm", 1_500), (2, 2, "UDP", 5_000)];
    rounds(&setups, 1_000);
}

/// Contexts stay on the NIC: operations of a suspended rank must wait, for a slice many times as long as all of them
/// take.
pub(crate) fn nothing_goes_on() {
    let stage = stage(1, 2, 200, "shm");
    let itself = itself();
    let other = stage.client(2, &[&itself, "--vis", "1000000"]).spawn().unwrap();
    wait_until("it is there", || line(&stage, 1).is_some());
    let (code, out, error) = stage.run(2, &[&itself, "--vis-writing", "30"]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(out, "1\n", "of 30 times");
    let end = Request::Kill { job: JobId(1), signal: None };
    assert!(matches!(ask_for(&stage, &end), Reply::Done));
    assert_eq!(said(other.wait_with_output().unwrap()).0, 137);
}

/// A rank dies at any time: while its job runs, or while it is suspended.
pub(crate) fn a_rank_dies() {
    let stage = stage(2, 4, 5, "shm");
    let itself = itself();
    let script = format!(
        "echo $$ > {}/rank-$GANG_JOB-$GANG_RANK; exec \"$0\" --vis \"$1\"",
        stage.path().display()
    );
    // A rank of another checkout's job 1, as far as its environment and its command line say.
    let mut stranger = Command::new("sh");
    stranger.args(["-c", "read line", "--vis"]).env("GANG_JOB", "1").stdin(Stdio::piped());
    let mut stranger = stranger.spawn().unwrap();
    for round in 0..4 {
        // Each round has four jobs.
        let (doomed, other) = (4 * round + 1, 4 * round + 2);
        let client = stage.client(4, &["sh", "-c", &script, &itself, "1000000"]).spawn().unwrap();
        wait_until("it is there", || line(&stage, doomed).is_some());
        let beside = stage.client(4, &[&itself, "--vis", "300"]).spawn().unwrap();
        wait_until("they take turns", || {
            [doomed, other]
                .iter()
                .all(|job| line(&stage, *job).is_some_and(|it| it.preemptions > 3))
        });
        let ranks = ranks_of(&stage, doomed);
        std::thread::park_timeout(std::time::Duration::from_millis(3 * u64::from(round)));
        kill_process(Pid::from_raw(ranks[2] as i32).unwrap(), Signal::KILL).unwrap();
        let (code, _, error) = said(client.wait_with_output().unwrap());
        assert!(code == 137 && error.contains("was killed by signal 9"), "{code} {error}");
        wait_until("its other ranks end", || !ranks.iter().any(|pid| lives(*pid)));
        let (code, _, error) = said(beside.wait_with_output().unwrap());
        assert_eq!((code, error.as_str()), (0, ""), "round {round}");
        for _ in 0..2 {
            let left = stage.run(2, &[&itself, "--vis-left"]);
            assert_eq!(left, (0, "0\n0\n".into(), String::new()), "round {round}");
        }
    }
    assert!(stranger.try_wait().unwrap().is_none(), "a process that is no rank was ended");
    drop(stranger.stdin.take());
    stranger.wait().unwrap();
}

/// Returns the process numbers of a job's ranks, which each rank has written to a file of the stage.
fn ranks_of(stage: &Stage, job: u32) -> [u32; 4] {
    [0, 1, 2, 3].map(|rank| stage.number(&format!("rank-{job}-{rank}")))
}

pub(crate) fn no_checkpoint() {
    let stage = stage(1, 1, 5, "shm");
    let folder = stage.path().join("saved");
    let client = stage.client(1, &[&itself(), "--vis-saved"]).spawn().unwrap();
    let mut why = String::new();
    wait_until("it is refused", || match checkpoint(&stage, 1, &folder, false) {
        Err(ClientError::Refused(said)) if said.contains("Virtual Interfaces") => {
            why = said;
            true
        }
        Err(ClientError::Refused(said)) if said.contains("can't be saved") => false,
        Err(ClientError::Refused(said)) if said.contains("no job") => false,
        other => panic!("{other:?}"),
    });
    assert!(why.contains("job 1: its ranks on host 0 have Virtual Interfaces"), "{why}");
    assert!(!folder.exists());
    checkpoint_soon(&stage, 1, &folder, true);
    assert_eq!(said(client.wait_with_output().unwrap()).0, 137);
}
