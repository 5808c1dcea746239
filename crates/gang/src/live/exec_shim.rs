//! Runs this program once more as a child of a daemon, as a shim or as the reaper.
//!
//! A *shim* becomes a rank. It takes the rights of the job's user, makes itself die with its daemon, takes a process group of its
//! own, stops, and becomes the job's program when it is resumed. So no instruction of the program runs outside of its slices, and
//! nothing that the user has sent takes effect before the shim has the user's rights. The *reaper* waits until the daemon is gone,
//! and then ends what it has left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::{BufRead, Write, stderr, stdin, stdout};
use std::num::NonZeroU64;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::dup;
use rustix::process::{
    Pid, Signal, geteuid, getpid, getppid, ioctl_tiocsctty, kill_process, kill_process_group,
    set_parent_process_death_signal, setpgid, setsid,
};
use rustix::thread::{set_current_timer_slack, set_no_new_privs};

use super::rights::{self, Rights};
use super::{criu, job_cgroup, priority};

const BECOME_RANK: &str = "--become-rank";
const BECOME_KEEPER: &str = "--become-keeper";
const BECOME_HOLDER: &str = "--become-holder";
const BECOME_TOOL: &str = "--become-tool";
const BECOME_RESTORED: &str = "--become-restored";
/// This program, whatever its file is called by now.
const SELF: &str = "/proc/self/exe";
/// Stands before the names of a program's variables until it starts: the dynamic loader and the libraries of the shim, which has
/// the daemon's rights at first, obey some of them.
const PREFIX: &[u8] = b"+";
/// Exit code of a holder whose host has no such control group.
pub const NO_GROUP: i32 = 66;
/// Kinds of what a reaper holds, before its name: groups of processes, files, folders of control groups, adopted control groups,
/// and other folders.
const GROUP: char = 'g';
const FILE: char = 'f';
const CELLS: char = 'c';
const ADOPTED: char = 'a';
const FOLDER: char = 'd';
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
        Some(part) if part == BECOME_RANK => fail(become_rank(arguments)),
        Some(part) if part == BECOME_KEEPER => keep(),
        Some(part) if part == BECOME_HOLDER => std::process::exit(hold(arguments.next())),
        Some(part) if part == BECOME_TOOL => fail(become_tool(arguments)),
        Some(part) if part == BECOME_RESTORED => fail(become_restored(arguments)),
        _ => {}
    }
}

/// Ends a process that could not become a program, with the reason.
fn fail(Err(why): Result<Infallible, String>) -> ! {
    eprintln!("{why}");
    std::process::exit(CANNOT_START)
}

/// Enters a job's control group, unless there is none, and leaves the daemon's priority.
fn begin(group: &OsStr) -> Result<(), String> {
    if !group.is_empty() {
        let entered = job_cgroup::put(0, group.as_ref());
        entered.map_err(|error| format!("{}: {error}", group.display()))?;
    }
    // Only the daemon goes before others.
    priority::lower_this_thread();
    let _ = set_current_timer_slack(NonZeroU64::new(USUAL_SLACK_NS));
    Ok(())
}

/// A process of a rank, before it is started.
#[derive(Debug)]
pub(super) struct Image<'a> {
    /// The program, as [`find`] takes it, and its arguments with its name.
    pub(super) program: &'a Path,
    pub(super) arguments: &'a [Vec<u8>],
    pub(super) environment: BTreeMap<OsString, OsString>,
    pub(super) folder: &'a Path,
    /// The control group that it is in.
    pub(super) group: Option<&'a Path>,
    /// True if its standard input is to be its terminal.
    pub(super) has_terminal: bool,
    pub(super) rights: &'a Rights,
}

impl Image<'_> {
    /// Returns a command that becomes the program once it has been resumed.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(SELF);
        command.arg(BECOME_RANK).arg(getpid().as_raw_nonzero().to_string());
        command.arg(if self.has_terminal { "terminal" } else { "pipes" });
        command.arg(self.group.unwrap_or_else(|| Path::new("")));
        command.arg(self.rights.to_argument()).arg(self.folder).arg(self.program);
        command.args(self.arguments.iter().map(|argument| OsStr::from_bytes(argument)));
        let prefixed = |(name, value): (&OsString, &OsString)| {
            (OsString::from_vec([PREFIX, name.as_bytes()].concat()), value.clone())
        };
        command.env_clear().envs(self.environment.iter().map(prefixed));
        command
    }
}

/// Returns a command that becomes another program, and dies with the thread that starts it.
pub(super) fn tool(program: &str) -> Command {
    let mut command = Command::new(SELF);
    command.arg(BECOME_TOOL).arg(getpid().as_raw_nonzero().to_string()).arg(program);
    command
}

fn become_tool(mut arguments: impl Iterator<Item = OsString>) -> Result<Infallible, String> {
    let mut next = || arguments.next().unwrap_or_default();
    let (daemon, program) = (next(), next());
    die_with(&daemon).map_err(|error| error.to_string())?;
    Err(Command::new(program).args(arguments).exec().to_string())
}

/// A rank that CRIU restores.
#[derive(Debug)]
pub(super) struct RestoredImage<'a> {
    /// The folder of its images.
    pub(super) folder: &'a Path,
    /// The control group that it is in.
    pub(super) group: &'a Path,
    /// The number of a pipe that ends once the images are there. What it holds says why they never are.
    pub(super) arrived: String,
    /// The numbers of its sockets for snapshots and PMI.
    pub(super) sockets: [String; 2],
}

impl RestoredImage<'_> {
    /// Returns a command that becomes CRIU once it has been resumed and the images are there. The restored process is a child of
    /// this one's parent.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(SELF);
        command.arg(BECOME_RESTORED).arg(getpid().as_raw_nonzero().to_string());
        command.arg(self.group).arg(self.folder).arg(&self.arrived).args(&self.sockets);
        command
    }
}

/// Becomes CRIU, in the job's own slice.
fn become_restored(mut arguments: impl Iterator<Item = OsString>) -> Result<Infallible, String> {
    let mut next = || arguments.next().unwrap_or_default();
    let (daemon, group, folder) = (next(), next(), PathBuf::from(next()));
    let (arrived, snapshots, pmi) = (next(), next(), next());
    let sockets = [snapshots, pmi].map(|number| number.to_string_lossy().into_owned());
    begin(&group)?;
    stop(&daemon, false).map_err(|error| error.to_string())?;
    let pipe = Path::new("/proc/self/fd").join(&arrived);
    let why = std::fs::read_to_string(&pipe).map_err(|error| error.to_string())?;
    if !why.is_empty() {
        return Err(why);
    }
    let standard = [dup(stdin()), dup(stdout()), dup(stderr())].map(|copy| {
        // It stays open, for the restored process.
        copy.map_or_else(|_| String::new(), |copy| copy.into_raw_fd().to_string())
    });
    let arguments = criu::restore_arguments(&folder, standard, sockets)?;
    let error = Command::new(criu::PROGRAM).args(arguments).exec();
    Err(format!("{}: {error}", criu::PROGRAM))
}

/// Returns the program and the arguments of the holder of an adopted control group: it waits until the group is empty. Without a
/// group, it exits with [`NO_GROUP`].
pub(super) fn holder(adopted: Option<&Path>) -> (PathBuf, [Vec<u8>; 3]) {
    let adopted = adopted.map_or(&b""[..], |folder| folder.as_os_str().as_bytes());
    let arguments = [b"midplane", BECOME_HOLDER.as_bytes(), adopted].map(<[u8]>::to_vec);
    (PathBuf::from(SELF), arguments)
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

/// Becomes the program of a rank.
fn become_rank(mut arguments: impl Iterator<Item = OsString>) -> Result<Infallible, String> {
    let mut next = || arguments.next().unwrap_or_default();
    let (daemon, terminal, group, rights) = (next(), next(), next(), next());
    let (folder, program, name) = (next(), next(), next());
    begin(&group)?;
    let name_of = name.display();
    take_rights(&rights).map_err(|error| format!("{name_of}: the rights of its user: {error}"))?;
    stop(&daemon, terminal == "terminal").map_err(|error| format!("{name_of}: {error}"))?;
    // From here on this is the job's own slice.
    let entered = std::env::set_current_dir(&folder);
    entered.map_err(|error| format!("{}: {error}", folder.display()))?;
    let own = std::env::vars_os().filter_map(|(variable, value)| {
        let variable = variable.as_bytes().strip_prefix(PREFIX)?.to_vec();
        Some((OsString::from_vec(variable), value))
    });
    let own: BTreeMap<OsString, OsString> = own.collect();
    let path = own.get(OsStr::new("PATH")).map(OsString::as_os_str);
    let found = find(&program, Path::new(&folder), path)?;
    let error = Command::new(&found).arg0(&name).args(arguments).env_clear().envs(own).exec();
    Err(format!("{name_of}: {error}"))
}

/// Returns the file of a program. A name without a slash is looked up in `path`, the value of `PATH`.
///
/// # Errors
/// The reason why there is none that this thread may execute.
pub(super) fn find(name: &OsStr, folder: &Path, path: Option<&OsStr>) -> Result<PathBuf, String> {
    let shown = name.display();
    let can = |path: &Path| {
        path.is_file() && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    };
    if name.as_bytes().contains(&b'/') {
        let path = folder.join(name);
        return match (can(&path), path.exists()) {
            (true, _) => Ok(path),
            (false, true) => Err(format!("{shown}: it may not be executed")),
            (false, false) => Err(format!("{shown}: there is no such file")),
        };
    }
    let path = path.unwrap_or_else(|| OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let mut found = std::env::split_paths(path).map(|part| folder.join(part).join(name));
    found.find(|path| can(path)).ok_or_else(|| format!("{shown}: not found in PATH"))
}

/// Takes the rights of the job's user. What a daemon of root starts gains no others: programs that are set-user-ID run as the user.
fn take_rights(rights: &OsStr) -> std::io::Result<()> {
    if geteuid().is_root() {
        set_no_new_privs(true)?;
    }
    rights::take_for_good(rights.to_str().unwrap_or("damaged"))
}

/// Ties this process to its daemon, and stops it until its first slice. The rights must have been taken: the system unties a process
/// whose user changes.
fn stop(daemon: &OsStr, has_terminal: bool) -> rustix::io::Result<()> {
    die_with(daemon)?;
    if has_terminal {
        let _ = setsid()?;
        ioctl_tiocsctty(std::io::stdin())?;
    } else {
        // Where the system shares processors out by sessions first (autogroup), those that are to
        // stop come before those that are not only within one.
        setpgid(None, None)?;
    }
    kill_process(getpid(), Signal::STOP)
}

/// Has the system kill this process when its daemon dies.
fn die_with(daemon: &OsStr) -> rustix::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have died before it was asked for.
    let parent = getppid().map(|pid| pid.as_raw_nonzero().to_string());
    match parent.is_none_or(|parent| daemon != &*parent) {
        true => Err(rustix::io::Errno::SRCH),
        false => Ok(()),
    }
}

/// The reaper's part: notes what is said on standard input, and ends it all once nothing more is.
fn keep() -> ! {
    let mut held = BTreeSet::new();
    let _ = setsid();
    priority::lower_this_thread();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match line.split_at_checked(1) {
            Some(("+", it)) => drop(held.insert(it.to_owned())),
            Some(("-", it)) => drop(held.remove(it)),
            _ => {}
        }
    }
    let of = |kind: char| held.iter().filter_map(move |it| it.strip_prefix(kind));
    of(ADOPTED).for_each(|folder| job_cgroup::thaw(folder.as_ref()));
    for group in of(GROUP).filter_map(|group| Pid::from_raw(group.parse().ok()?)) {
        // It may be gone.
        let _ = kill_process_group(group, Signal::KILL);
    }
    for (known, file) in of(FILE).filter_map(|named| named.split_once(' ')) {
        // The next daemon may have its socket there already.
        if identity(file.as_ref()).as_deref() == Some(known) {
            let _ = std::fs::remove_file(file);
        }
    }
    for folder in of(CELLS).map(Path::new) {
        for _ in 0..CLEARED {
            job_cgroup::clear(folder);
            if !folder.exists() {
                break;
            }
            std::thread::park_timeout(AGAIN);
        }
        job_cgroup::step_back(folder);
    }
    for folder in of(FOLDER) {
        let _ = std::fs::remove_dir_all(folder);
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
    /// The names of what is held, each behind its kind.
    held: BTreeSet<String>,
}

impl Reaper {
    /// Starts one.
    #[must_use]
    pub fn start() -> Self {
        let mut reaper = Self { said: None, held: BTreeSet::new() };
        reaper.restart();
        reaper
    }

    /// Without a reaper ranks still die with their daemon, but not what they have started.
    fn restart(&mut self) {
        let mut command = Command::new(SELF);
        command.arg(BECOME_KEEPER).stdin(Stdio::piped()).stdout(Stdio::null());
        self.said = command.stderr(Stdio::null()).spawn().ok().and_then(|mut it| it.stdin.take());
        let all: String = self.held.iter().map(|it| format!("+{it}\n")).collect();
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

    fn add(&mut self, kind: char, name: impl Display) {
        let it = format!("{kind}{name}");
        self.held.insert(it.clone());
        self.say(&format!("+{it}\n"));
    }

    fn remove(&mut self, kind: char, name: impl Display) {
        let it = format!("{kind}{name}");
        self.held.remove(&it);
        self.say(&format!("-{it}\n"));
    }

    /// These processes are to end with the daemon.
    pub fn hold(&mut self, group: Pid) {
        self.add(GROUP, group.as_raw_nonzero());
    }

    /// They have ended.
    pub fn release(&mut self, group: Pid) {
        self.remove(GROUP, group.as_raw_nonzero());
    }

    /// Has this file removed when the daemon is gone, unless another file has its name by then.
    pub(crate) fn hold_file(&mut self, file: &Path) {
        if let Some(known) = identity(file) {
            self.add(FILE, format_args!("{known} {}", file.display()));
        }
    }

    /// Control groups below this folder end with the daemon.
    pub(crate) fn hold_cells(&mut self, folder: &Path) {
        self.add(CELLS, folder.display());
    }

    /// Has this folder removed, with all that is in it, when the daemon is gone.
    pub(crate) fn hold_folder(&mut self, folder: &Path) {
        self.add(FOLDER, folder.display());
    }

    /// Has the adopted processes of this control group continue when the daemon is gone.
    pub(crate) fn hold_adopted(&mut self, folder: &Path) {
        self.add(ADOPTED, folder.display());
    }

    /// Forgets a control group that is adopted no longer.
    pub(crate) fn release_adopted(&mut self, folder: &Path) {
        self.remove(ADOPTED, folder.display());
    }
}
