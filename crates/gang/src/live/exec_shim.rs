//! What a daemon's children are first: this program once more, in one of two parts.
//!
//! A *stub* becomes a rank: it makes itself die with its daemon, takes a process group of its own, stops, and
//! becomes the job's program when it is resumed: no instruction of the program runs outside of its
//! slices. The *reaper* ends what a daemon has left behind when that is gone, however it went.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, getpid, getppid, ioctl_tiocsctty, kill_process, kill_process_group,
    set_parent_process_death_signal, setpgid, setsid,
};
use rustix::thread::set_current_timer_slack;

use super::{job_cgroup, priority};

const BECOME_RANK: &str = "--become-rank";
const BECOME_KEEPER: &str = "--become-keeper";
const BECOME_HOLDER: &str = "--become-holder";
/// This program, whatever its file is called by now.
const SELF: &str = "/proc/self/exe";
/// Exit code of a holder whose host has no such control group.
pub const NO_GROUP: i32 = 66;
/// How often groups are cleared that don't become empty, and how long after each other.
const CLEARED: usize = 200;
const AGAIN: Duration = Duration::from_millis(10);
/// How much later than asked for a process's naps may end: Linux's default.
const USUAL_SLACK_NS: u64 = 50_000;
/// How shells say that a program is there and can't be started.
const CANNOT_START: i32 = 126;

/// To be called first in `main` of whatever runs a daemon: plays the part that this process was started
/// for, if it was, and does not return then.
pub fn play_part() {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(part) if part == BECOME_RANK => std::process::exit(become_rank(arguments)),
        Some(part) if part == BECOME_KEEPER => keep(),
        Some(part) if part == BECOME_HOLDER => std::process::exit(hold(arguments.next())),
        _ => {}
    }
}

/// A command that becomes `program` once it has been resumed, in a control group if one is given.
#[must_use]
pub fn rank(
    program: &Path,
    arguments: &[Vec<u8>],
    group: Option<&Path>,
    terminal: bool,
) -> Command {
    use std::os::unix::ffi::OsStringExt;
    let mut command = Command::new(SELF);
    let arguments = arguments.iter().map(|argument| OsString::from_vec(argument.clone()));
    command.arg(BECOME_RANK).arg(getpid().as_raw_nonzero().to_string());
    command.arg(if terminal { "terminal" } else { "pipes" });
    command.arg(group.unwrap_or_else(|| Path::new("")));
    command.arg(program).args(arguments);
    command
}

/// Returns a command that becomes the holder of an adopted control group, as [`rank`] becomes a program: it waits until the
/// group is empty. Without a group, it exits with [`NO_GROUP`].
pub(super) fn holder(adopted: Option<&Path>, group: Option<&Path>) -> Command {
    use std::os::unix::ffi::OsStrExt;
    let adopted = adopted.map_or(&b""[..], |folder| folder.as_os_str().as_bytes());
    let arguments = [b"midplane", BECOME_HOLDER.as_bytes(), adopted].map(<[u8]>::to_vec);
    rank(Path::new(SELF), &arguments, group, false)
}

/// Waits until the control group of an adopted job is empty; returns the exit code.
fn hold(folder: Option<OsString>) -> i32 {
    let folder = folder.filter(|folder| !folder.is_empty());
    match folder.map(|folder| job_cgroup::wait_until_empty(Path::new(&folder))) {
        None => NO_GROUP,
        Some(Ok(())) => 0,
        Some(Err(error)) => {
            eprintln!("midplane gang: {error}");
            1
        }
    }
}

/// The exit code of a program that could not be started.
fn become_rank(mut arguments: impl Iterator<Item = OsString>) -> i32 {
    let mut next = || arguments.next().unwrap_or_default();
    let (daemon, terminal, group, program, name) = (next(), next(), next(), next(), next());
    if !group.is_empty()
        && let Err(error) = job_cgroup::enter(group.as_ref())
    {
        eprintln!("{}: {error}", group.display());
        return CANNOT_START;
    }
    let prepared = set_parent_process_death_signal(Some(Signal::KILL)).and_then(|()| {
        // It may have died before it was asked for.
        let parent = getppid().map(|pid| pid.as_raw_nonzero().to_string());
        if parent.is_none_or(|parent| daemon != *parent) {
            return Err(rustix::io::Errno::SRCH);
        }
        if terminal == "terminal" {
            let _ = setsid()?;
            ioctl_tiocsctty(std::io::stdin())?;
        } else {
            // Where the system shares processors out by sessions first (autogroup), those that are to
            // stop come before those that are not only within one.
            setpgid(None, None)?;
        }
        // Only the daemon goes before others.
        priority::lower_this_thread();
        let _ = set_current_timer_slack(NonZeroU64::new(USUAL_SLACK_NS));
        kill_process(getpid(), Signal::STOP)
    });
    if let Err(error) = prepared {
        eprintln!("{}: {error}", name.display());
        return CANNOT_START;
    }
    let error = Command::new(&program).arg0(&name).args(arguments).exec();
    eprintln!("{}: {error}", name.display());
    CANNOT_START
}

/// The reaper's part: notes what is said on standard input, and ends it all once nothing more is.
fn keep() -> ! {
    let mut groups = BTreeSet::new();
    let (mut files, mut cells, mut adopted) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let _ = setsid();
    priority::lower_this_thread();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match line.split_at_checked(1) {
            Some(("+", group)) => drop(group.parse::<i32>().map(|group| groups.insert(group))),
            Some(("-", group)) => drop(group.parse::<i32>().map(|group| groups.remove(&group))),
            Some(("f", named)) => drop(files.insert(named.to_owned())),
            Some(("c", folder)) => drop(cells.insert(PathBuf::from(folder))),
            Some(("a", folder)) => drop(adopted.insert(PathBuf::from(folder))),
            Some(("r", folder)) => drop(adopted.remove(Path::new(folder))),
            _ => {}
        }
    }
    for folder in adopted {
        job_cgroup::thaw(&folder);
    }
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        // It may be gone.
        let _ = kill_process_group(group, Signal::KILL);
    }
    for (known, file) in files.iter().filter_map(|named| named.split_once(' ')) {
        // The next daemon may have its socket there already.
        if identity(file.as_ref()).as_deref() == Some(known) {
            let _ = std::fs::remove_file(file);
        }
    }
    for folder in cells {
        for _ in 0..CLEARED {
            job_cgroup::clear(&folder);
            if !folder.exists() {
                break;
            }
            std::thread::park_timeout(AGAIN);
        }
    }
    std::process::exit(0)
}

/// Returns what tells a file from others of its name: device, inode, and when it was last changed, because inodes are used
/// again.
fn identity(file: &Path) -> Option<String> {
    let known = std::fs::symlink_metadata(file).ok()?;
    let (second, nanos) = (known.ctime(), known.ctime_nsec());
    Some(format!("{}:{}:{second}:{nanos}", known.dev(), known.ino()))
}

/// A daemon's hold on its reaper.
#[derive(Debug)]
pub struct Reaper {
    /// Closed by the system when the daemon dies.
    said: Option<ChildStdin>,
    groups: BTreeSet<i32>,
    /// Files by identity and name.
    files: BTreeSet<String>,
    cells: BTreeSet<PathBuf>,
    adopted: BTreeSet<PathBuf>,
}

impl Reaper {
    /// Starts one.
    #[must_use]
    pub fn start() -> Self {
        let (groups, files, cells) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut reaper = Self { said: None, groups, files, cells, adopted: BTreeSet::new() };
        reaper.restart();
        reaper
    }

    /// Without a reaper ranks still die with their daemon, but not what they have started.
    fn restart(&mut self) {
        let mut command = Command::new(SELF);
        command.arg(BECOME_KEEPER).stdin(Stdio::piped()).stdout(Stdio::null());
        self.said = command.stderr(Stdio::null()).spawn().ok().and_then(|mut it| it.stdin.take());
        let groups = self.groups.iter().map(|group| format!("+{group}\n"));
        let files = self.files.iter().map(|file| format!("f{file}\n"));
        let cells = self.cells.iter().map(|folder| format!("c{}\n", folder.display()));
        let adopted = self.adopted.iter().map(|folder| format!("a{}\n", folder.display()));
        let all: String = groups.chain(files).chain(cells).chain(adopted).collect();
        if let Some(said) = &mut self.said {
            let _ = said.write_all(all.as_bytes());
        }
    }

    fn say(&mut self, line: &str) {
        let wrote = self.said.as_mut().map(|said| said.write_all(line.as_bytes()));
        if !matches!(wrote, Some(Ok(()))) {
            self.restart();
        }
    }

    /// These processes are to end with the daemon.
    pub fn hold(&mut self, group: Pid) {
        self.groups.insert(group.as_raw_nonzero().get());
        self.say(&format!("+{}\n", group.as_raw_nonzero()));
    }

    /// They have ended.
    pub fn release(&mut self, group: Pid) {
        self.groups.remove(&group.as_raw_nonzero().get());
        self.say(&format!("-{}\n", group.as_raw_nonzero()));
    }

    /// Has this file removed when the daemon is gone, unless another file has its name by then.
    pub(crate) fn hold_file(&mut self, file: &Path) {
        let Some(known) = identity(file) else { return };
        let named = format!("{known} {}", file.display());
        self.files.insert(named.clone());
        self.say(&format!("f{named}\n"));
    }

    /// Control groups below this folder end with the daemon.
    pub(crate) fn hold_cells(&mut self, folder: &Path) {
        self.cells.insert(folder.to_owned());
        self.say(&format!("c{}\n", folder.display()));
    }

    /// Has the adopted processes of this control group continue when the daemon is gone.
    pub(crate) fn hold_adopted(&mut self, folder: &Path) {
        self.adopted.insert(folder.to_owned());
        self.say(&format!("a{}\n", folder.display()));
    }

    /// Forgets a control group that is adopted no longer.
    pub(crate) fn release_adopted(&mut self, folder: &Path) {
        self.adopted.remove(folder);
        self.say(&format!("r{}\n", folder.display()));
    }
}
