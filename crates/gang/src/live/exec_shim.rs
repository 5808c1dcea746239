//! Runs this executable again as a child of a daemon: as a rank's shim, as the reaper, or for a tool.
//!
//! A *shim* becomes a rank. It arranges to die with its daemon, enters a process group of its own, and stops. When
//! resumed, it takes the rights of the job's user, and executes the job's program. So no instruction of the program
//! runs outside the job's slices, and the user can't signal the shim before. The shim has only the user's rights
//! before it uses anything that the user has sent.
//!
//! The *reaper* waits until the daemon exits, and then ends and removes what the daemon has left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::File;
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
use serde::{Deserialize, Serialize};

use super::rights::{self, Rights};
use super::{criu, job_cgroup, priority};

const BECOME_RANK: &str = "--become-rank";
const BECOME_REAPER: &str = "--become-reaper";
const BECOME_HOLDER: &str = "--become-holder";
const BECOME_TOOL: &str = "--become-tool";
const BECOME_RESTORED: &str = "--become-restored";
/// This executable, even if its file was renamed or replaced.
const SELF: &str = "/proc/self/exe";
/// Prefix of the names of a program's environment variables until the program starts. The shim has the daemon's rights
/// at first, and its dynamic loader and libraries obey some variables.
const PREFIX: &[u8] = b"+";
/// Exit code of a holder on a host without the adopted control group.
pub const NO_GROUP: i32 = 66;
/// Most attempts to clear control groups that don't become empty, and the pause between two.
const CLEARED: usize = 200;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Timer slack of ranks, in nanoseconds: Linux's default.
const USUAL_SLACK_NS: u64 = 50_000;
/// Exit code by which shells say that a program exists but can't be started.
const CANNOT_START: i32 = 126;

/// Runs the part that this process was started for, if any, and does not return then. Must be the first call in `main`
/// of every program that runs a daemon.
pub fn play_part() {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(part) if part == BECOME_RANK => fail(become_rank(arguments)),
        Some(part) if part == BECOME_REAPER => reap(),
        Some(part) if part == BECOME_HOLDER => std::process::exit(hold(arguments.next())),
        Some(part) if part == BECOME_TOOL => fail(become_tool(arguments)),
        Some(part) if part == BECOME_RESTORED => fail(become_restored(arguments)),
        _ => {}
    }
}

/// Prints why a process could not execute a program, and exits.
fn fail(Err(why): Result<Infallible, String>) -> ! {
    let _ = writeln!(stderr(), "{why}");
    std::process::exit(CANNOT_START)
}

/// Enters a job's control group, if there is one, and gives up the daemon's raised priority.
fn begin(group: &OsStr) -> Result<(), String> {
    if !group.is_empty() {
        let entered = job_cgroup::put(0, group.as_ref());
        entered.map_err(|error| format!("{}: {error}", group.display()))?;
    }
    // Only the daemon itself runs with raised priority.
    priority::lower_this_thread();
    let _ = set_current_timer_slack(NonZeroU64::new(USUAL_SLACK_NS));
    Ok(())
}

/// Description of a rank's process that is to be started.
#[derive(Debug)]
pub(super) struct Image<'a> {
    /// The program, as [`find`] takes it; the first argument is its name.
    pub(super) program: &'a Path,
    pub(super) arguments: &'a [Vec<u8>],
    pub(super) environment: BTreeMap<OsString, OsString>,
    pub(super) folder: &'a Path,
    /// The control group of the job.
    pub(super) group: Option<&'a Path>,
    /// True if standard input is a terminal that becomes the controlling terminal.
    pub(super) has_terminal: bool,
    pub(super) rights: &'a Rights,
}

impl Image<'_> {
    /// Returns a command that starts a stopped shim, which executes the program when resumed.
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

/// Returns a command that executes another program, which dies with the calling thread.
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
    /// The folder of the rank's images.
    pub(super) folder: &'a Path,
    /// The control group of the job.
    pub(super) group: &'a Path,
    /// Descriptor of a pipe that is closed once the images have arrived. Bytes in it are the reason why they can't.
    pub(super) arrived: String,
    /// Descriptors of the rank's sockets for snapshots and PMI.
    pub(super) sockets: [String; 2],
}

impl RestoredImage<'_> {
    /// Returns a command that starts a stopped shim. When resumed, it waits for the images, and then executes CRIU.
    /// The restored process becomes a child of this process.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(SELF);
        command.arg(BECOME_RESTORED).arg(getpid().as_raw_nonzero().to_string());
        command.arg(self.group).arg(self.folder).arg(&self.arrived).args(&self.sockets);
        command
    }
}

/// Executes CRIU, within the job's slices.
fn become_restored(mut arguments: impl Iterator<Item = OsString>) -> Result<Infallible, String> {
    let mut next = || arguments.next().unwrap_or_default();
    let (daemon, group, folder) = (next(), next(), PathBuf::from(next()));
    let (arrived, snapshots, pmi) = (next(), next(), next());
    let sockets = [snapshots, pmi].map(|number| number.to_string_lossy().into_owned());
    begin(&group)?;
    stop(&daemon, Session::Daemons).map_err(|error| error.to_string())?;
    let pipe = Path::new("/proc/self/fd").join(&arrived);
    let why = std::fs::read_to_string(&pipe).map_err(|error| error.to_string())?;
    if !why.is_empty() {
        return Err(why);
    }
    let standard = [dup(stdin()), dup(stdout()), dup(stderr())].map(|copy| {
        // The duplicate stays open, for the restored process.
        copy.map_or_else(|_| String::new(), |copy| copy.into_raw_fd().to_string())
    });
    let arguments = criu::restore_arguments(&folder, standard, sockets)?;
    let error = Command::new(criu::PROGRAM).args(arguments).exec();
    Err(format!("{}: {error}", criu::PROGRAM))
}

/// Returns the program and the arguments of the holder of an adopted control group: a process that waits until the
/// group is empty. Without a group, the holder exits with [`NO_GROUP`].
pub(super) fn holder(adopted: Option<&Path>) -> (PathBuf, [Vec<u8>; 3]) {
    let adopted = adopted.map_or(&b""[..], |folder| folder.as_os_str().as_bytes());
    let arguments = [b"midplane", BECOME_HOLDER.as_bytes(), adopted].map(<[u8]>::to_vec);
    (PathBuf::from(SELF), arguments)
}

/// Waits until the control group of an adopted job is empty, and returns the holder's exit code.
fn hold(folder: Option<OsString>) -> i32 {
    let folder = folder.filter(|folder| !folder.is_empty());
    match folder.map(|folder| job_cgroup::wait_until_empty(Path::new(&folder))) {
        None => NO_GROUP,
        Some(Ok(())) => 0,
        Some(Err(error)) => {
            let _ = writeln!(stderr(), "midplane gang: {error}");
            1
        }
    }
}

/// Becomes a rank: stops until the first slice, and then executes the job's program.
fn become_rank(mut arguments: impl Iterator<Item = OsString>) -> Result<Infallible, String> {
    let mut next = || arguments.next().unwrap_or_default();
    let (daemon, terminal, group, rights) = (next(), next(), next(), next());
    let (folder, program, name) = (next(), next(), next());
    begin(&group)?;
    let name_of = name.display();
    let session = match terminal == "terminal" {
        true => Session::OfTerminal,
        false if rights::are_foreign(&rights) && has_terminal() => Session::Own,
        false => Session::Daemons,
    };
    stop(&daemon, session).map_err(|error| format!("{name_of}: {error}"))?;
    // The process was resumed: from here on it runs within the job's slices.
    take_rights(&rights).map_err(|error| format!("{name_of}: the rights of its user: {error}"))?;
    // Linux resets the death signal of a process whose user changes.
    die_with(&daemon).map_err(|error| format!("{name_of}: {error}"))?;
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
/// The reason why this thread may execute no such file.
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

/// Takes the rights of the job's user. If the daemon is root's, set-user-ID programs gain no rights: they run as the
/// user.
fn take_rights(rights: &OsStr) -> std::io::Result<()> {
    if geteuid().is_root() {
        set_no_new_privs(true)?;
    }
    rights::take_for_good(rights.to_str().unwrap_or("damaged"))
}

/// The session of a rank.
#[derive(Clone, Copy)]
enum Session {
    /// The daemon's. With autogroup, Linux shares processor time among sessions first: in another session, the raised
    /// priority of a process that is to stop (`Process::hurry`) counts only within that session.
    Daemons,
    /// A session without a terminal, because another user's rank could type into the daemon's.
    Own,
    /// The session of the terminal on standard input.
    OfTerminal,
}

/// Returns whether this process, and thus its daemon, has a controlling terminal.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Arranges that this process dies with its daemon, and stops until the first slice. The process must still be of the
/// daemon's user: others could continue it before the daemon sees that it has stopped.
fn stop(daemon: &OsStr, session: Session) -> rustix::io::Result<()> {
    die_with(daemon)?;
    match session {
        Session::Daemons => setpgid(None, None)?,
        Session::Own => drop(setsid()?),
        Session::OfTerminal => {
            let _ = setsid()?;
            ioctl_tiocsctty(std::io::stdin())?;
        }
    }
    kill_process(getpid(), Signal::STOP)
}

/// Has the system kill this process when its daemon dies.
fn die_with(daemon: &OsStr) -> rustix::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The daemon may have died before the line above.
    let parent = getppid().map(|pid| pid.as_raw_nonzero().to_string());
    match parent.is_none_or(|parent| daemon != &*parent) {
        true => Err(rustix::io::Errno::SRCH),
        false => Ok(()),
    }
}

/// Runs the reaper: records the lines of standard input, and clears all that they list once the input ends.
fn reap() -> ! {
    let mut held = BTreeSet::new();
    let _ = setsid();
    priority::lower_this_thread();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str::<(bool, Leftover)>(&line) {
            Ok((true, it)) => drop(held.insert(it)),
            Ok((false, it)) => drop(held.remove(&it)),
            Err(_) => {}
        }
    }
    held.iter().for_each(Leftover::clear);
    std::process::exit(0)
}

/// Returns a text that identifies a file: device, inode and time of the last change, because inode numbers are reused.
fn identity(file: &Path) -> Option<String> {
    let known = std::fs::symlink_metadata(file).ok()?;
    let (second, nanos) = (known.ctime(), known.ctime_nsec());
    Some(format!("{}:{}:{second}:{nanos}", known.dev(), known.ino()))
}

/// Something that a daemon clears when it exits, or else its reaper. Reapers clear in the order of these variants.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) enum Leftover {
    /// An adopted control group, whose processes are resumed.
    Adopted(PathBuf),
    /// A process group, which is killed.
    Group(i32),
    /// A file with its [`identity`], which is removed unless another file has its name by then.
    File(PathBuf, Option<String>),
    /// A folder of control groups, which are cleared.
    Cgroups(PathBuf),
    /// A folder, which is removed with its contents.
    Folder(PathBuf),
}

impl Leftover {
    pub(super) const fn group(leader: Pid) -> Self {
        Self::Group(leader.as_raw_nonzero().get())
    }

    pub(super) fn file(file: &Path) -> Self {
        Self::File(file.to_owned(), identity(file))
    }

    /// Clears this, unless it belongs to another daemon by now.
    pub(super) fn clear(&self) {
        match self {
            Self::Adopted(folder) => job_cgroup::thaw(folder),
            Self::Group(group) => {
                // The group may have ended already.
                let _ = Pid::from_raw(*group).map(|it| kill_process_group(it, Signal::KILL));
            }
            Self::File(file, known) => {
                // The next daemon may already have put its socket there.
                if known.is_some() && identity(file) == *known {
                    let _ = std::fs::remove_file(file);
                }
            }
            Self::Cgroups(folder) => {
                for _ in 0..CLEARED {
                    job_cgroup::clear(folder);
                    if !folder.exists() {
                        break;
                    }
                    std::thread::park_timeout(RETRY_INTERVAL);
                }
                job_cgroup::step_back(folder);
            }
            Self::Folder(folder) => drop(std::fs::remove_dir_all(folder)),
        }
    }

    /// Returns the line by which a daemon has its reaper clear this or, if not `is_held`, forget it.
    fn line(&self, is_held: bool) -> String {
        // A path that is no text can't be sent, so it is not cleared.
        let line = serde_json::to_string(&(is_held, self)).unwrap_or_default();
        format!("{line}\n")
    }
}

/// A daemon's handle to its reaper.
#[derive(Debug)]
pub(super) struct Reaper {
    /// The reaper's standard input. The system closes it when the daemon dies.
    input: Option<ChildStdin>,
    /// All that the reaper clears.
    held: BTreeSet<Leftover>,
}

impl Reaper {
    /// Starts a reaper.
    pub(super) fn start() -> Self {
        let mut reaper = Self { input: None, held: BTreeSet::new() };
        reaper.restart();
        reaper
    }

    /// Starts a reaper process, and sends it all that it must clear. Without a reaper, ranks still die with their
    /// daemon, but processes that ranks have started don't.
    fn restart(&mut self) {
        let mut command = Command::new(SELF);
        command.arg(BECOME_REAPER).stdin(Stdio::piped()).stdout(Stdio::null());
        self.input = command.stderr(Stdio::null()).spawn().ok().and_then(|mut it| it.stdin.take());
        let all: String = self.held.iter().map(|it| it.line(true)).collect();
        if let Some(input) = &mut self.input {
            let _ = input.write_all(all.as_bytes());
        }
    }

    fn send(&mut self, line: &str) {
        let sent = self.input.as_mut().map(|input| input.write_all(line.as_bytes()));
        if !matches!(sent, Some(Ok(()))) {
            self.restart();
        }
    }

    /// Has this cleared when the daemon exits.
    pub(super) fn hold(&mut self, it: Leftover) {
        let line = it.line(true);
        self.held.insert(it);
        self.send(&line);
    }

    /// Forgets something that must no longer be cleared.
    pub(super) fn release(&mut self, it: &Leftover) {
        self.held.remove(it);
        self.send(&it.line(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a daemon that ended removed the socket of the daemon that had followed it.
    #[test]
    fn a_file_that_was_replaced_is_not_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let [socket, next] = ["socket", "next"].map(|name| folder.path().join(name));
        std::fs::write(&socket, "").unwrap();
        let first = Leftover::file(&socket);
        std::fs::write(&next, "").unwrap();
        std::fs::rename(&next, &socket).unwrap();
        first.clear();
        assert!(socket.exists());
        Leftover::file(&socket).clear();
        assert!(!socket.exists());
    }
}
