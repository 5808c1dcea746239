//! Measures a background job of four processes under gang scheduling, which is preempted, moved to other daemons, and
//! finished there without losing a message.

use std::path::Path;
use std::time::{Duration, Instant};

use midplane::gang::live::rank::join;
use midplane::gang::live::snapshot::Snapshots;
use midplane::gang::names::Rank;
use midplane_kit::clock::now;
use midplane_kit::hash::fnv1a;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::contest::Site;
use crate::daemons::parts::{self, number, runtime};
use crate::daemons::stage::{Daemons, Stage};

const RANKS: u16 = 4;
/// Messages that each rank sends around the ring, and the processor time to make one. Processor time keeps the share of
/// each phase the same on a busy machine.
const COUNT: u32 = 4_000;
const WORK: Duration = Duration::from_micros(100);
/// Most messages by which a rank's sent ones exceed its received ones, so that all ranks progress alike.
const AHEAD: u32 = 64;
/// Messages that rank 0 has sent when the other job starts, and the line that it prints then.
const COMES: u32 = COUNT / 2;
const HALF: &str = "half of it";
/// Seconds that the other job would run.
const OTHER: &str = "20";
const SLICE_MS: f64 = 20.0;
/// Interval at which an idle rank checks whether it is to be saved.
const POLL: Duration = Duration::from_millis(1);
/// Longest time of the contest.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// Timeout for the other job's first turn.
const PREEMPTED: Duration = Duration::from_secs(10);

/// Progress of a rank.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
struct Progress {
    sent: u32,
    received: u32,
    /// Digest of the received messages, in their order.
    digest: u64,
}

/// Runs the daemon, client or rank that this process was started as; returns false if it was none of them.
pub(crate) fn play_part() -> bool {
    parts::play_part(|words| match *words {
        ["--be-ring"] => Some(runtime().and_then(|runtime| runtime.block_on(ring()))),
        ["--be-other", seconds] => Some(number(seconds).map(other)),
        _ => None,
    })
}

/// Has rank 0 run the job and its daemons on its own host. Returns the ms to the job's end if it is moved, and if it is
/// begun anew.
///
/// # Errors
/// One line: a message was lost, or the job could not be run, saved or restored.
pub(crate) async fn contest(site: &Site<'_>) -> Result<Vec<f64>, String> {
    if site.rank > 0 {
        return Ok(Vec::new());
    }
    // Dropping this future removes the folder, so that a stopped contest leaves no files, and no processes that need them.
    let folder = tempfile::tempdir().map_err(|error| format!("a folder for it: {error}"))?;
    let path = folder.path().to_owned();
    // The measurement starts runtimes of its own, which must not run within this one.
    let measured = tokio::task::spawn_blocking(move || measure(&path)).await;
    let (moved, anew) = measured.unwrap_or_else(|_| Err("the measurement panicked".into()))?;
    Ok(vec![moved, anew])
}

/// Measures the ms to the job's end if it is moved, and if it is begun anew.
///
/// # Errors
/// One line: a message was lost, or the job could not be run, saved or restored.
fn measure(folder: &Path) -> Result<(f64, f64), String> {
    let stage = |name, hosts, slots| {
        let folder = folder.join(name);
        std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let (slice_ms, stretch, fabric) = (SLICE_MS, None, "shm");
        Stage::start_in(&folder, Daemons { hosts, slots, slice_ms, stretch, fabric })
    };
    let (here, there) = (stage("here", 1, RANKS)?, stage("there", 2, RANKS / 2)?);
    let expected = printed(here.run(RANKS, &["--be-ring"])?)?;
    let began = now();
    let mut job = here.begin(RANKS, &["--be-ring"])?;
    job.wait_for(HALF)?;
    let other = here.begin(RANKS, &["--be-other", OTHER])?;
    let number = wait_for_preemption(&here)?;
    let saved = folder.join("saved");
    here.save_and_end(number, &saved)?;
    let moved = began.elapsed();
    // The other job ends here: on other nodes it would take no processor time.
    drop((job, other));
    let (ended, rest) = timed(|| printed(there.restore(&saved)?.lines()?))?;
    let (anew, whole) = timed(|| printed(there.run(RANKS, &["--be-ring"])?))?;
    if ended != expected || anew != expected {
        return Err("a message was lost, doubled or overtaken".into());
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok((ms(moved + rest), ms(moved + whole)))
}

fn timed<T>(run: impl FnOnce() -> Result<T, String>) -> Result<(T, Duration), String> {
    let began: Instant = now();
    let value = run()?;
    Ok((value, began.elapsed()))
}

/// Waits until the first job has been preempted by the other one, and returns its number.
fn wait_for_preemption(here: &Stage) -> Result<u32, String> {
    let began = now();
    while began.elapsed() < PREEMPTED {
        let jobs = here.listing()?.jobs;
        let first = jobs.iter().find(|line| line.command.contains("--be-ring"));
        match first.ok_or("the job ended before the other one started")? {
            line if line.preemptions > 0 => return Ok(line.job.0),
            _ => std::thread::park_timeout(POLL),
        }
    }
    Err("the other job had no turn".into())
}

/// Returns the last lines of the ring's ranks, sorted by rank. The last of `lines` is the client's.
fn printed(mut lines: Vec<String>) -> Result<Vec<String>, String> {
    lines.pop();
    lines.retain(|line| line != HALF);
    lines.sort_unstable();
    match lines.len() == usize::from(RANKS) {
        true => Ok(lines),
        false => Err(format!("{} of {RANKS} ranks ended", lines.len())),
    }
}

/// Uses a processor for `seconds`.
fn other(seconds: f64) {
    let end = now() + Duration::from_secs_f64(seconds);
    while now() < end {
        std::hint::spin_loop();
    }
}

/// Uses [`WORK`] of this thread's processor time.
fn work() {
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let end = used() + WORK;
    while used() < end {
        std::hint::spin_loop();
    }
}

/// Runs a rank: computes, sends messages to the next rank, and receives those of the one before. Can be saved between any
/// two messages.
async fn ring() -> Result<(), String> {
    let (_, mut channel) = join().await.map_err(|error| error.to_string())?;
    let mut snapshots = Snapshots::join().map_err(|error| error.to_string())?;
    let saved = snapshots.take_restored();
    let saved = saved.map(|saved| serde_json::from_slice(&saved)).transpose();
    let mut done: Progress = saved.map_err(|error| error.to_string())?.unwrap_or_default();
    let own = channel.rank().0;
    let next = Rank((own + 1) % channel.ranks());
    loop {
        if snapshots.is_asked() {
            let state = serde_json::to_vec(&done).expect("plain data");
            snapshots.save(&state).map_err(|error| error.to_string())?;
        }
        while let Some((_, bytes)) = channel.try_receive() {
            done.received += 1;
            done.digest = fnv1a(done.digest, &bytes);
        }
        let may_send = done.sent < COUNT.min(done.received + AHEAD);
        if may_send && channel.try_send(next, &done.sent.to_le_bytes()).is_ok() {
            done.sent += 1;
            if own == 0 && done.sent == COMES {
                println!("{HALF}");
            }
            work();
            continue;
        }
        if done.sent == COUNT && done.received == COUNT && channel.is_flushed() {
            println!("{own} {} {:016x}", done.received, done.digest);
            return Ok(());
        }
        let _ = tokio::time::timeout(POLL, channel.room()).await;
    }
}
