//! Suspends a job's processes on a host by a control group of the job's own (Linux's version 2), if this process may
//! create groups. All processes in the group, including those that ranks have started, are suspended and killed
//! together. The system reports when all of them are suspended.
//!
//! ```text
//! the daemon's own group      no processes, once jobs have the memory controller
//!   gangd-PID.self            the daemon, and what it has started besides jobs
//!   gangd-PID                 no processes
//!     job-1                   the processes of a job, with memory.max
//! ```
//!
//! A group with processes can't delegate controllers to groups below it, so the daemon leaves its own group first. It
//! delegates the memory controller, but not that of processors, which could make the daemon wait for processor time
//! while ranks compute.

mod memory;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Access, access};

pub(super) use memory::{reclaim, step_back};

/// The file that lists the processes of a group. Writing a process's number moves it into the group.
const PROCESSES: &str = "cgroup.procs";
const FREEZE: &str = "cgroup.freeze";
const EVENTS: &str = "cgroup.events";
const KILL: &str = "cgroup.kill";
const MEMORY_MAX: &str = "memory.max";
const MEMORY_EVENTS: &str = "memory.events";
const SWAP_MAX: &str = "memory.swap.max";
/// File that makes the kernel kill all processes of a group when it kills one for lack of memory.
const END_TOGETHER: &str = "memory.oom.group";
/// Prefix of the name of a daemon's folder of groups.
const FOLDER: &str = "gangd-";
/// Seconds after which the events of an adopted group are read again, even if the system reports no change.
const READ_AGAIN: i64 = 1;
/// Error of the system for reads of a file whose group was removed.
const NO_DEVICE: i32 = rustix::io::Errno::NODEV.raw_os_error();

/// Returns the folder of the group in `groups` (`/proc/self/cgroup`), by `mounts` (`/proc/self/mountinfo`).
fn group_folder(mounts: &str, groups: &str) -> Option<PathBuf> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(mount_point(mounts)?.join(own))
}

/// Returns the folder where control groups of version 2 are mounted.
fn mount_point(mounts: &str) -> Option<PathBuf> {
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    line.split(' ').nth(4).map(PathBuf::from)
}

/// The mount point of this host's control groups, and the group of this process.
#[derive(Debug)]
pub(super) struct HostCgroups {
    pub(super) mount: PathBuf,
    own: PathBuf,
}

impl HostCgroups {
    /// Finds the mount point and this process's group.
    ///
    /// # Errors
    /// Control groups of version 2 are not mounted.
    pub(super) fn find() -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let found = mount_point(&mounts).zip(group_folder(&mounts, &groups));
        let (mount, own) =
            found.ok_or_else(|| io::Error::other("control groups of version 2 are not mounted"))?;
        Ok(Self { mount, own })
    }

    /// Returns the groups that this process is in, from its own up to the topmost.
    pub(super) fn above(&self) -> Vec<PathBuf> {
        let is_below = |group: &&Path| group.starts_with(&self.mount);
        self.own.ancestors().take_while(is_below).map(Path::to_owned).collect()
    }

    /// Opens a group that another system has created, to suspend and resume its processes.
    ///
    /// # Errors
    /// The folder is no group below the mount point, this process or a daemon's job runs in it, or this process may
    /// not freeze it.
    pub(super) fn adopt(&self, folder: &Path) -> io::Result<JobCgroup> {
        let folder = folder.canonicalize().map_err(|error| named(folder, &error))?;
        let refused = |why: &str| Err(io::Error::other(format!("{}: {why}", folder.display())));
        if folder == self.mount || !folder.starts_with(&self.mount) {
            return refused(&format!("it is no control group below {}", self.mount.display()));
        }
        if self.own.starts_with(&folder) {
            return refused("the daemon itself runs in this control group");
        }
        let is_of_daemon =
            |part: &std::ffi::OsStr| part.as_encoded_bytes().starts_with(FOLDER.as_bytes());
        if folder.iter().any(is_of_daemon) {
            return refused("it belongs to a job that a gang daemon has started");
        }
        JobCgroup::open(folder.clone()).map_err(|error| {
            let cure = "; the daemon needs the right to write this file: run it as root, or have the group delegated to its user";
            io::Error::new(error.kind(), format!("{}{cure}", named(&folder.join(FREEZE), &error)))
        })
    }
}

/// Adds the file's path to its error.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The control groups of a daemon's jobs, and the folder that contains them.
#[derive(Debug)]
pub(super) struct JobCgroups {
    folder: PathBuf,
    /// True if jobs' groups have the memory controller.
    has_memory: bool,
    /// The reason why they don't, until it is reported.
    lack_of_memory: Option<io::Error>,
}

impl JobCgroups {
    /// Creates the folder of the jobs' groups, in the group of this process.
    ///
    /// # Errors
    /// The reason why this process can't create groups.
    pub(super) fn open() -> io::Result<Self> {
        let own = HostCgroups::find()?.own;
        // Groups with processes can be created only below a group whose processes this process may move.
        let processes = own.join(PROCESSES);
        access(&processes, Access::WRITE_OK).map_err(|error| named(&processes, &error.into()))?;
        let folder = own.join(format!("{FOLDER}{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| named(&folder, &error))?;
        let cgroups = Self { folder, has_memory: false, lack_of_memory: None };
        // Linux has both files since 5.14.
        for name in [FREEZE, KILL] {
            let file = cgroups.folder.join(name);
            access(&file, Access::WRITE_OK).map_err(|error| named(&file, &error.into()))?;
        }
        Ok(cgroups)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Creates the group of a job.
    pub(super) fn cgroup(&self, name: &str) -> io::Result<JobCgroup> {
        let folder = self.create(name)?;
        let group = JobCgroup::open_own(folder.clone());
        group.inspect_err(|_| drop(fs::remove_dir(&folder)))
    }

    /// Creates the folder of a group. If an earlier job's processes are still in a group of this name, the new one gets a
    /// number as well.
    fn create(&self, name: &str) -> io::Result<PathBuf> {
        let (mut folder, mut number) = (self.folder.join(name), 0);
        while let Err(error) = fs::create_dir(&folder) {
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(named(&folder, &error));
            }
            number += 1;
            folder = self.folder.join(format!("{name}.{number}"));
        }
        Ok(folder)
    }

    /// Returns whether jobs' groups have the memory controller.
    pub(super) const fn has_memory(&self) -> bool {
        self.has_memory
    }

    /// Keeps the reason why jobs' groups lack the memory controller, to report it once a job needs that.
    pub(super) fn keep_lack_of_memory(&mut self, error: io::Error) {
        self.lack_of_memory = Some(error);
    }

    /// Returns the kept reason, once.
    pub(super) const fn take_lack_of_memory(&mut self) -> Option<io::Error> {
        self.lack_of_memory.take()
    }
}

fn group_above(folder: &Path) -> &Path {
    folder.parent().unwrap_or(folder)
}

/// Writes to an existing file of a group.
fn write_to(group: &Path, file: &str, text: &str) -> io::Result<()> {
    let path = group.join(file);
    let opened = File::options().write(true).truncate(true).open(&path);
    opened.and_then(|mut it| it.write_all(text.as_bytes())).map_err(|error| named(&path, &error))
}

impl Drop for JobCgroups {
    fn drop(&mut self) {
        clear(&self.folder);
    }
}

/// Kills all processes in the groups of a folder, and removes those groups that are empty by then.
pub(super) fn clear(folder: &Path) {
    let _ = fs::write(folder.join(KILL), "1");
    remove_with_all_below(folder);
}

/// Removes a group and the groups below it, as far as they are empty.
fn remove_with_all_below(folder: &Path) {
    for group in fs::read_dir(folder).into_iter().flatten().flatten() {
        if group.file_type().is_ok_and(|it| it.is_dir()) {
            remove_with_all_below(&group.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

/// Orders the system to freeze a group.
pub(super) fn freeze(folder: &Path) -> io::Result<()> {
    fs::write(folder.join(FREEZE), "1")
}

/// Returns the processes of a group, without those of groups below it.
pub(super) fn processes(folder: &Path) -> io::Result<Vec<i32>> {
    let path = folder.join(PROCESSES);
    let text = fs::read_to_string(&path).map_err(|error| named(&path, &error))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

/// Moves a process into a group; 0 stands for this process.
pub(super) fn put(pid: i32, group: &Path) -> io::Result<()> {
    fs::write(group.join(PROCESSES), pid.to_string())
}

/// Moves all processes of a frozen group into another group.
pub(super) fn put_all(from: &Path, to: &Path) -> io::Result<()> {
    processes(from)?.into_iter().try_for_each(|pid| put(pid, to))
}

/// Returns the parent of a process; `None` if there is no such process.
pub(super) fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
}

/// Thaws a group, if it still exists.
pub(super) fn thaw(folder: &Path) {
    let _ = fs::write(folder.join(FREEZE), "0");
}

/// Waits until no process runs in a group or in groups below it, or the group is removed.
pub(super) fn wait_until_empty(folder: &Path) -> io::Result<()> {
    let is_gone = |error: &io::Error| {
        error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_DEVICE)
    };
    let events = match File::open(folder.join(EVENTS)) {
        Err(error) if is_gone(&error) => return Ok(()),
        opened => opened.map_err(|error| named(folder, &error))?,
    };
    loop {
        let mut text = [0; 64];
        match events.read_at(&mut text, 0) {
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(named(folder, &error)),
            Ok(read) if !has_line(&text[..read], b"populated 1") => return Ok(()),
            Ok(_) => {}
        }
        let timeout = rustix::time::Timespec { tv_sec: READ_AGAIN, tv_nsec: 0 };
        let mut file = [PollFd::new(&events, PollFlags::PRI)];
        poll(&mut file, Some(&timeout))?;
    }
}

fn has_line(text: &[u8], line: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').any(|other| other == line)
}

/// The control group of a job.
#[derive(Debug)]
pub(super) struct JobCgroup {
    folder: PathBuf,
    freeze: File,
    events: File,
    /// Kills the processes of a group that the daemon has created. It stays open, because the daemon may have no
    /// descriptor left when the job ends.
    kill: Option<File>,
    /// Most bytes of memory that the job's processes may use; `None` for no limit.
    limit: Option<u64>,
}

impl JobCgroup {
    fn open(folder: PathBuf) -> io::Result<Self> {
        let freeze = File::options().write(true).open(folder.join(FREEZE))?;
        let events = File::open(folder.join(EVENTS))?;
        Ok(Self { freeze, events, kill: None, limit: None, folder })
    }

    /// Opens a group that this daemon has created.
    fn open_own(folder: PathBuf) -> io::Result<Self> {
        let kill = File::options().write(true).open(folder.join(KILL))?;
        Ok(Self { kill: Some(kill), ..Self::open(folder)? })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Orders the system to freeze the group. [`JobCgroup::is_frozen`] returns whether that is done.
    pub(super) fn freeze(&self) -> io::Result<()> {
        (&self.freeze).write_all(b"1")
    }

    /// Lets the processes of the group resume.
    pub(super) fn thaw(&self) -> io::Result<()> {
        (&self.freeze).write_all(b"0")
    }

    /// Returns whether every thread in the group is frozen. Reads `cgroup.events`, because `cgroup.freeze` tells only
    /// what was ordered.
    #[must_use]
    pub(super) fn is_frozen(&self) -> bool {
        // A group that was removed has no processes.
        self.has_event(b"frozen 1") != Some(false)
    }

    /// Limits the memory of the group, and denies it swap space. If it needs more, the kernel kills all of its
    /// processes.
    pub(super) fn limit(&mut self, bytes: u64) -> io::Result<()> {
        write_to(&self.folder, END_TOGETHER, "1")?;
        // A system without swap may lack this file.
        let _ = write_to(&self.folder, SWAP_MAX, "0");
        write_to(&self.folder, MEMORY_MAX, &bytes.to_string())?;
        self.limit = Some(bytes);
        Ok(())
    }

    pub(super) const fn memory_limit(&self) -> Option<u64> {
        self.limit
    }

    /// Returns whether the kernel has killed processes of the group for lack of memory.
    pub(super) fn has_run_out(&self) -> bool {
        let events = fs::read_to_string(self.folder.join(MEMORY_EVENTS)).unwrap_or_default();
        let ended = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        ended.is_some_and(|count| count != "0")
    }

    /// Kills all processes of the group, if this daemon has created it.
    pub(super) fn kill(&self) {
        if let Some(mut kill) = self.kill.as_ref() {
            let _ = kill.write_all(b"1");
        }
    }

    /// Removes the group and those that its processes have made below it, as far as they are empty. Returns whether the
    /// group no longer exists.
    pub(super) fn remove(&self) -> bool {
        let is_removed = || match fs::remove_dir(&self.folder) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if is_removed() {
            return true;
        }
        if self.has_event(b"populated 0") == Some(true) {
            remove_with_all_below(&self.folder);
            return is_removed();
        }
        false
    }

    /// Returns whether `cgroup.events` has this line; `None` if the group was removed.
    fn has_event(&self, line: &[u8]) -> Option<bool> {
        let mut text = [0; 64];
        self.events.read_at(&mut text, 0).ok().map(|read| has_line(&text[..read], line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_s_group_is_below_the_mount_of_version_2() {
        let mounts = "24 1 0:21 / /proc rw - proc proc rw\n\
                      31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let own = group_folder(mounts, "1:cpu:/old\n0::/user.slice/a.scope\n");
        assert_eq!(own.as_deref(), Some(Path::new("/sys/fs/cgroup/user.slice/a.scope")));
        assert_eq!(group_folder(mounts, "1:cpu:/old\n"), None);
        assert_eq!(group_folder("24 1 0:21 / /proc rw - proc proc rw\n", "0::/\n"), None);
    }

    /// Regression: a job of a new root had no group while processes of an earlier job of its number were still ending.
    #[test]
    fn a_job_whose_number_was_used_before_gets_a_group_of_its_own() {
        let own = tempfile::tempdir().unwrap();
        let folder = own.path().to_owned();
        let cgroups = JobCgroups { folder, has_memory: false, lack_of_memory: None };
        fs::create_dir(own.path().join("job-1")).unwrap();
        assert_eq!(cgroups.create("job-1").unwrap(), own.path().join("job-1.1"));
    }

    /// Regression: the group of a job that had made groups of its own was never removed, and its files stayed open.
    #[test]
    fn a_group_with_empty_groups_below_it_is_removed() {
        let own = tempfile::tempdir().unwrap();
        let folder = own.path().join("job-1");
        fs::create_dir_all(folder.join("one/inner")).unwrap();
        let files = [FREEZE, EVENTS, KILL].map(|name| folder.join(name));
        files.iter().for_each(|file| fs::write(file, "populated 0\n").unwrap());
        let group = JobCgroup::open_own(folder.clone()).unwrap();
        // A group's own files don't keep the system from removing it.
        files.iter().for_each(|file| fs::remove_file(file).unwrap());
        let busy = folder.join("one/busy");
        fs::write(&busy, "").unwrap();
        assert!(!group.remove() && folder.exists());
        fs::remove_file(&busy).unwrap();
        assert!(group.remove() && !folder.exists());
    }

    /// Regression: without a descriptor left, the daemon killed no process of the group.
    #[test]
    fn a_group_is_killed_without_another_descriptor() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name| folder.path().join(name);
        [FREEZE, EVENTS, KILL].iter().for_each(|name| fs::write(file(*name), "").unwrap());
        let group = JobCgroup::open_own(folder.path().to_owned()).unwrap();
        fs::rename(file(KILL), file("opened before")).unwrap();
        group.kill();
        assert_eq!(fs::read_to_string(file("opened before")).unwrap(), "1");
        assert!(!file(KILL).exists());
    }
}
