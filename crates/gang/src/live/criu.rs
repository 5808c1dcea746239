//! Saves and restores processes that need no support for checkpoints, by the program `criu`.
//!
//! A dump has one folder for each rank: CRIU's images, and a description of the rank's files whose other ends the
//! daemon has. The job is suspended meanwhile. CRIU runs its own code in the processes that it dumps, so their control
//! group must not be frozen then. Therefore one control group contains the rank that is dumped, and another, frozen,
//! contains all other ranks.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::event::poll;
use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};

use super::{exec_shim, job_cgroup};

/// The program's name, looked up in the daemon's `PATH`.
pub(super) const PROGRAM: &str = "criu";
/// Name of the file that describes a rank, in its folder of images.
const DESCRIPTION: &str = "gang.json";
/// CRIU's log, which stays on this host.
pub(super) const LOG: &str = "criu.log";
/// Options of CRIU's `dump` and `restore`: the session and the control group are the daemon's.
const BOTH: [&str; 3] = ["--shell-job", "--manage-cgroups=ignore", "--file-locks"];
/// Most polls for whether the daemon has read all output of a suspended rank, and the time between two polls.
const MOST_POLLS: u32 = 2_000;
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// `O_NONBLOCK` of `open`.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;
/// Most bytes of CRIU's error that are shown.
const SHOWN_BYTES: usize = 300;

/// The files that a rank shares with its daemon, by their kernel names, such as `pipe:[31]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct SharedFiles {
    /// Standard input, output and error; `None` for each that is no pipe of the daemon.
    pub(super) standard: [Option<String>; 3],
    pub(super) snapshots: String,
    pub(super) pmi: String,
}

/// Describes a dumped rank.
#[derive(Debug, Deserialize, Serialize)]
struct Description {
    /// Process ID of the rank's first process. A restored rank's processes have the same IDs again.
    pid: i32,
    files: SharedFiles,
}

/// A rank to be dumped.
#[derive(Debug)]
pub(super) struct DumpedRank {
    pub(super) rank: u16,
    pub(super) pid: i32,
    pub(super) files: SharedFiles,
}

/// A folder of the daemon in its base folder. If it was created, it is removed when this is dropped.
#[derive(Debug)]
pub(super) struct ImageFolder {
    path: PathBuf,
    is_created: AtomicBool,
}

impl ImageFolder {
    /// Chooses a folder, which does not exist yet.
    pub(super) fn new(base: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let path = base.join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        Self { path, is_created: AtomicBool::new(false) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the folder, in a base folder that only this user can change.
    pub(super) fn create(&self) -> Result<(), String> {
        create(&self.path)?;
        self.is_created.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for ImageFolder {
    fn drop(&mut self) {
        if !*self.is_created.get_mut() {
            return;
        }
        let folder = std::mem::take(&mut self.path);
        // The folder may have gigabytes, so a thread removes it. If the system starts no thread, or the daemon ends
        // first, the reaper removes the rest.
        let _ = thread::Builder::new().spawn(move || fs::remove_dir_all(folder));
    }
}

/// Returns the folder of a rank's images.
pub(super) fn of_rank(folder: &Path, rank: u16) -> PathBuf {
    folder.join(format!("rank-{rank}"))
}

/// Creates a folder that only this user can access.
pub(super) fn create(folder: &Path) -> Result<(), String> {
    let created = fs::DirBuilder::new().mode(0o700).create(folder);
    created.map_err(|error| format!("{}: {error}", folder.display()))
}

/// Tests whether CRIU works on this host, as [`lack`] does.
///
/// # Errors
/// The reason, and the cure.
pub(super) fn probe() -> Result<(), String> {
    lack().map_err(|why| {
        format!("{why}; install a criu that is as new as the kernel, and run the daemon as root")
    })
}

/// Tests once whether CRIU works on this host. The first call blocks for about a second.
///
/// # Errors
/// The reason.
pub(super) fn lack() -> Result<(), String> {
    static KNOWN: OnceLock<Result<(), String>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let output = Command::new(PROGRAM).arg("check").stdin(Stdio::null()).output();
        match output {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(format!("{PROGRAM} is not installed"))
            }
            Err(error) => Err(format!("{PROGRAM}: {error}")),
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                let why = last_error(&output.stderr[..]);
                let why = why.unwrap_or_else(|| output.status.to_string());
                Err(format!("{PROGRAM} check fails: {}", why.trim_end_matches('.')))
            }
        }
    });
    known.clone()
}

/// Returns the last error in CRIU's log, without its place in CRIU's source.
fn last_error(log: impl io::Read) -> Option<String> {
    let lines = BufReader::new(log).lines().map_while(Result::ok);
    let errors = lines.filter_map(|line| {
        let (_, error) = line.split_once("Error (")?;
        let (place, text) = error.split_once("): ")?;
        // The last line says only that CRIU has failed.
        (!place.is_empty() && !text.contains("FAILED")).then(|| text.to_owned())
    });
    let mut last = errors.last()?;
    let end = (0..=SHOWN_BYTES.min(last.len())).rev().find(|end| last.is_char_boundary(*end));
    last.truncate(end.unwrap_or_default());
    Some(last)
}

/// Returns why CRIU has failed, by its log in a folder.
pub(super) fn failure(folder: &Path) -> String {
    let log = File::open(folder.join(LOG)).ok();
    let why = log.and_then(last_error).unwrap_or_else(|| "it has given no reason".into());
    format!("{PROGRAM}: {why}")
}

/// Dumps ranks of a job, which are frozen in its control group before and after. Blocks.
///
/// # Errors
/// The reason, from CRIU or the system.
pub(super) fn dump(group: &Path, ranks: &[DumpedRank], folder: &Path) -> Result<(), String> {
    probe()?;
    let failed = |error: io::Error| format!("{}: {error}", group.display());
    let parted = Parted::new(group).map_err(failed)?;
    let roots: Vec<i32> = ranks.iter().map(|it| it.pid).collect();
    let trees = trees(&job_cgroup::processes(&parted.rest).map_err(failed)?, &roots)?;
    for it in ranks {
        wait_for_output(it).map_err(|why| format!("rank {}: {why}", it.rank))?;
        let folder = of_rank(folder, it.rank);
        create(&folder)?;
        let tree = trees.get(&it.pid).map_or(&[][..], Vec::as_slice);
        tree.iter().try_for_each(|pid| job_cgroup::put(*pid, &parted.one)).map_err(failed)?;
        let dumped = dump_rank(&parted.one, it, &folder);
        job_cgroup::put_all(&parted.one, &parted.rest).map_err(failed)?;
        // CRIU leaves the processes stopped. They are resumed now, but stay frozen by their control group.
        tree.iter().filter_map(|pid| Pid::from_raw(*pid)).for_each(|pid| {
            let _ = kill_process(pid, Signal::CONT);
        });
        dumped.map_err(|why| format!("rank {}: {why}", it.rank))?;
    }
    Ok(())
}

/// Waits until the daemon has read all output of a rank. CRIU saves the data in the rank's pipes, so the restored rank
/// would write unread output again.
fn wait_for_output(it: &DumpedRank) -> Result<(), String> {
    let mut polls = 0;
    for number in [1, 2] {
        let path = format!("/proc/{}/fd/{number}", it.pid);
        let found = fs::read_link(&path).ok();
        let ours = it.files.standard[number].as_ref().map(PathBuf::from);
        if ours.is_none() || found != ours {
            continue;
        }
        let failed = |error: io::Error| format!("{path}: {error}");
        let pipe = File::options().read(true).custom_flags(NONBLOCK).open(&path).map_err(failed)?;
        while ioctl_fionread(&pipe).map_err(|error| failed(error.into()))? > 0 {
            polls += 1;
            if polls > MOST_POLLS {
                return Err(
                    "its client does not read its output: resume reading, and save it again".into(),
                );
            }
            poll(&mut [], Some(&POLL_INTERVAL)).map_err(|error| failed(error.into()))?;
        }
    }
    Ok(())
}

fn dump_rank(group: &Path, it: &DumpedRank, folder: &Path) -> Result<(), String> {
    let text = serde_json::to_vec(&Description { pid: it.pid, files: it.files.clone() });
    let text = text.expect("a description can be written as JSON");
    let file = folder.join(DESCRIPTION);
    fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut command = exec_shim::tool(PROGRAM);
    command.arg("dump").args(BOTH).arg("--leave-stopped");
    command.args(["--tree", &it.pid.to_string(), "--log-file", LOG, "-v2", "--images-dir"]);
    command.arg(folder).arg("--freeze-cgroup").arg(group);
    for socket in [&it.files.snapshots, &it.files.pmi] {
        command.arg("--external").arg(external(socket));
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().map_err(|error| format!("{PROGRAM}: {error}"))?;
    if status.success() { Ok(()) } else { Err(failure(folder)) }
}

/// Returns CRIU's name of a socket whose other end is outside the rank: `unix[7]` for `socket:[7]`.
fn external(socket: &str) -> String {
    socket.replace("socket:", "unix")
}

/// Returns the processes of each rank: its first process and all processes below it.
fn trees(all: &[i32], roots: &[i32]) -> Result<BTreeMap<i32, Vec<i32>>, String> {
    let parents: BTreeMap<i32, i32> =
        all.iter().filter_map(|pid| Some((*pid, job_cgroup::parent_of(*pid)?))).collect();
    let mut trees: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for pid in all {
        let mut above = *pid;
        while !roots.contains(&above) {
            above = *parents.get(&above).ok_or_else(|| {
                format!("process {pid} has left the process that started it: {PROGRAM} saves only a rank and its children")
            })?;
        }
        trees.entry(above).or_default().push(*pid);
    }
    Ok(trees)
}

/// The control groups of a job while it is dumped: one rank at a time is not frozen.
#[derive(Debug)]
struct Parted {
    job: PathBuf,
    /// The rank that is being dumped.
    one: PathBuf,
    /// All other ranks, frozen.
    rest: PathBuf,
}

impl Parted {
    /// Creates both groups, and moves the processes of a frozen group to `rest`.
    fn new(job: &Path) -> io::Result<Self> {
        let parted = Self { job: job.into(), one: job.join("one"), rest: job.join("rest") };
        for group in [&parted.one, &parted.rest] {
            fs::create_dir(group)?;
            job_cgroup::freeze(group)?;
        }
        job_cgroup::put_all(job, &parted.rest)?;
        job_cgroup::thaw(job);
        Ok(parted)
    }
}

impl Drop for Parted {
    fn drop(&mut self) {
        // Fails if the job was killed meanwhile.
        let _ = job_cgroup::freeze(&self.job);
        for group in [&self.one, &self.rest] {
            let _ = job_cgroup::put_all(group, &self.job);
            let _ = fs::remove_dir(group);
        }
    }
}

/// Returns the arguments with which CRIU restores a rank from a folder. `standard` are duplicates of the standard
/// streams' descriptors, which CRIU closes; `sockets` are the descriptors of the snapshots' and PMI's sockets.
///
/// # Errors
/// The reason why the folder describes no rank.
pub(super) fn restore_arguments(
    folder: &Path,
    standard: [String; 3],
    sockets: [String; 2],
) -> Result<Vec<OsString>, String> {
    let Description { files, .. } = description(folder)?;
    let mut arguments: Vec<OsString> = vec!["restore".into()];
    arguments.extend(BOTH.map(Into::into));
    let rest =
        ["--restore-detached", "--restore-sibling", "--log-file", LOG, "-v2", "--images-dir"];
    arguments.extend(rest.map(Into::into));
    arguments.push(folder.into());
    let mut named = Vec::new();
    for (number, name) in standard.into_iter().zip(&files.standard) {
        named.extend(name.as_ref().map(|name| (name, number)));
    }
    for (number, socket) in sockets.into_iter().zip([&files.snapshots, &files.pmi]) {
        arguments.extend(["--external".into(), external(socket).into()]);
        named.push((socket, number));
    }
    for (name, number) in named {
        arguments.extend(["--inherit-fd".into(), format!("fd[{number}]:{name}").into()]);
    }
    Ok(arguments)
}

/// Returns the process ID of the first process of a rank that was restored from a folder.
///
/// # Errors
/// The reason why the folder describes no rank.
pub(super) fn pid_of(folder: &Path) -> Result<i32, String> {
    description(folder).map(|it| it.pid)
}

fn description(folder: &Path) -> Result<Description, String> {
    let file = folder.join(DESCRIPTION);
    let text = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_criu_is_shown_without_its_place() {
        let log = "(00.1) Warn  (criu/kerndat.c:9): no\n\
                   (00.2) Error (criu/sk-inet.c:187): inet: Connected TCP socket, consider using --tcp-established option.\n\
                   (00.3) Error (criu/cr-dump.c:1781): Dumping FAILED.\n";
        let shown = "inet: Connected TCP socket, consider using --tcp-established option.";
        assert_eq!(last_error(log.as_bytes()).as_deref(), Some(shown));
        assert_eq!(last_error(&b"Looks good.\n"[..]), None);
        let long = format!("Error (a:1): {}", "\u{e4}".repeat(SHOWN_BYTES));
        assert!(last_error(long.as_bytes()).is_some_and(|shown| shown.len() <= SHOWN_BYTES));
    }

    #[test]
    fn a_process_that_has_left_its_rank_is_named() {
        let own = std::process::id() as i32;
        assert_eq!(trees(&[own], &[own]).unwrap()[&own], [own]);
        assert!(trees(&[own], &[1 << 30]).unwrap_err().contains("has left"));
    }
}
