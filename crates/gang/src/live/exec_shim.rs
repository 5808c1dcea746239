//! Runs this program once more as a child of a daemon, as a shim or as the reaper.
//!
//! A *shim* becomes a rank. It takes the rights of the job's user, makes itself die with its daemon, takes a process group of its
//! own, stops, and becomes the job's program when it is resumed. So no instruction of the program runs outside of its slices, and
//! nothing that the user has sent takes effect before the shim has the user's rights. The *reaper* waits until the daemon is gone,
//! and then ends what it has left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
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
        Some(part) if part == BECOME_TOOL => std::process::exit(become_tool(arguments)),
        Some(part) if part == BECOME_RESTORED => std::process::exit(become_restored(arguments)),
        _ => {}
    }
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

fn become_tool(mut arguments: impl Iterator<Item = OsString>) -> i32 {
    let (daemon, program) =
        (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    if die_with(&daemon).is_ok() {
        let _ = Command::new(program).args(arguments).exec();
    }
    CANNOT_START
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

/// Becomes CRIU, in the job's own slice. Returns the exit code of one that could not be started.
fn become_restored(mut arguments: impl Iterator<Item = OsString>) -> i32 {
    let mut next = || arguments.next().unwrap_or_default();
    let (daemon, group, folder) = (next(), PathBuf::from(next()), PathBuf::from(next()));
    let (arrived, snapshots, pmi) = (next(), next(), next());
    let sockets = [snapshots, pmi].map(|number| number.to_string_lossy().into_owned());
    let begun = job_cgroup::enter(&group).map_err(|error| format!("{}: {error}", group.display()));
    priority::lower_this_thread();
    let _ = set_current_timer_slack(NonZeroU64::new(USUAL_SLACK_NS));
    let begun = begun.and_then(|()| stop(&daemon, false).map_err(|error| error.to_string()));
    let arguments = begun.and_then(|()| {
        let pipe = Path::new("/proc/self/fd").join(&arrived);
        let why = std::fs::read_to_string(&pipe).map_err(|error| error.to_string())?;
        if !why.is_empty() {
            return Err(why);
        }
        let standard = [dup(stdin()), dup(stdout()), dup(stderr())].map(|copy| {
            // It stays open, for the restored process.
            copy.map_or_else(|_| String::new(), |copy| copy.into_raw_fd().to_string())
        });
        criu::restore_arguments(&folder, standard, sockets)
    });
    match arguments {
        Ok(arguments) => {
            let error = Command::new(criu::PROGRAM).args(arguments).exec();
            eprintln!("{}: {error}", criu::PROGRAM);
        }
        Err(why) => eprintln!("{why}"),
    }
    CANNOT_START
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

/// Becomes a program. Returns the exit code of one that could not be started.
fn become_rank(mut arguments: impl Iterator<Item = OsString>) -> i32 {
    let mut next = || arguments.next().unwrap_or_default();
    let (daemon, terminal, group, rights) = (next(), next(), next(), next());
    let (folder, program, name) = (next(), next(), next());
    if !group.is_empty()
        && let Err(error) = job_cgroup::enter(group.as_ref())
    {
        eprintln!("{}: {error}", group.display());
        return CANNOT_START;
    }
    // Only the daemon goes before others.
    priority::lower_this_thread();
    let _ = set_current_timer_slack(NonZeroU64::new(USUAL_SLACK_NS));
    if let Err(error) = take_rights(&rights) {
        eprintln!("{}: the rights of its user: {error}", name.display());
        return CANNOT_START;
    }
    if let Err(error) = stop(&daemon, terminal == "terminal") {
        eprintln!("{}: {error}", name.display());
        return CANNOT_START;
    }
    // From here on this is the job's own slice.
    if let Err(error) = std::env::set_current_dir(&folder) {
        eprintln!("{}: {error}", folder.display());
        return CANNOT_START;
    }
    let own = std::env::vars_os().filter_map(|(variable, value)| {
        let variable = variable.as_bytes().strip_prefix(PREFIX)?.to_vec();
        Some((OsString::from_vec(variable), value))
    });
    let own: BTreeMap<OsString, OsString> = own.collect();
    let path = own.get(OsStr::new("PATH")).map(OsString::as_os_str);
    let found = match find(&program, Path::new(&folder), path) {
        Ok(found) => found,
        Err(why) => {
            eprintln!("{why}");
            return CANNOT_START;
        }
    };
    let error = Command::new(&found).arg0(&name).args(arguments).env_clear().envs(own).exec();
    eprintln!("{}: {error}", name.display());
    CANNOT_START
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
    let mut groups = BTreeSet::new();
    let (mut files, mut cells, mut adopted) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut folders = BTreeSet::new();
    let _ = setsid();
    priority::lower_this_thread();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match line.split_at_checked(1) {
            Some(("+", group)) => drop(group.parse::<i32>().map(|group| groups.insert(group))),
            Some(("-", group)) => drop(group.parse::<i32>().map(|group| groups.remove(&group))),
            Some(("f", named)) => drop(files.insert(named.to_owned())),
            Some(("c", folder)) => drop(cells.insert(PathBuf::from(folder))),
            Some(("d", folder)) => drop(folders.insert(PathBuf::from(folder))),
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
        job_cgroup::step_back(&folder);
    }
    for folder in folders {
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
    groups: BTreeSet<i32>,
    /// Files by identity and name.
    files: BTreeSet<String>,
    cells: BTreeSet<PathBuf>,
    adopted: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl Reaper {
    /// Starts one.
    #[must_use]
    pub fn start() -> Self {
        let (groups, files, cells) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (adopted, folders) = (BTreeSet::new(), BTreeSet::new());
        let mut reaper = Self { said: None, groups, files, cells, adopted, folders };
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
        let folders = self.folders.iter().map(|folder| format!("d{}\n", folder.display()));
        let all: String = groups.chain(files).chain(cells).chain(adopted).chain(folders).collect();
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

    /// Has this folder removed, with all that is in it, when the daemon is gone.
    pub(crate) fn hold_folder(&mut self, folder: &Path) {
        self.folders.insert(folder.to_owned());
        self.say(&format!("d{}\n", folder.display()));
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
