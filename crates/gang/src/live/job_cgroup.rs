//! Where a job's processes on a host stand still: a control group of their own (Linux's version 2), if
//! this process may make some. What runs in it, whoever started it and when, stops and ends together, and
//! the system says when all of it stands.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// The file that says which processes are in a group, and takes more of them.
const PROCESSES: &str = "cgroup.procs";
const FREEZE: &str = "cgroup.freeze";
const EVENTS: &str = "cgroup.events";
const KILL: &str = "cgroup.kill";

/// Returns the folder of this process's control group, if processes may be put into groups below it.
fn own_group() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let missing = || io::Error::other("control groups of version 2 are not mounted");
    let folder = group_folder(&mounts, &groups).ok_or_else(missing)?;
    let processes = folder.join(PROCESSES);
    access(&processes, Access::WRITE_OK).map_err(|error| named(&processes, &error.into()))?;
    Ok(folder)
}

/// Returns the folder of the group in `groups` (/proc/self/cgroup), by `mounts` (/proc/self/mountinfo).
fn group_folder(mounts: &str, groups: &str) -> Option<PathBuf> {
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount).join(own))
}

/// Adds the file to its error.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The groups of a daemon's jobs.
#[derive(Debug)]
pub(super) struct JobCgroups {
    folder: PathBuf,
}

impl JobCgroups {
    /// Makes a folder for them, in the group of this process.
    ///
    /// # Errors
    /// The reason why this process can make no groups.
    pub(super) fn open() -> io::Result<Self> {
        let folder = own_group()?.join(format!("gangd-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| named(&folder, &error))?;
        let cgroups = Self { folder };
        // Neither file is older than Linux 5.14.
        for name in [FREEZE, KILL] {
            let file = cgroups.folder.join(name);
            access(&file, Access::WRITE_OK).map_err(|error| named(&file, &error.into()))?;
        }
        Ok(cgroups)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// One for a job.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn cgroup(&self, name: &str) -> io::Result<JobCgroup> {
        let folder = self.folder.join(name);
        fs::create_dir(&folder)?;
        let freeze = File::options().write(true).open(folder.join(FREEZE))?;
        let events = File::open(folder.join(EVENTS))?;
        Ok(JobCgroup { freeze, events, folder })
    }
}

impl Drop for JobCgroups {
    fn drop(&mut self) {
        clear(&self.folder);
    }
}

/// Kills all that is in the groups of a folder, and removes them as far as they are empty.
pub(super) fn clear(folder: &Path) {
    let _ = fs::write(folder.join(KILL), "1");
    for group in fs::read_dir(folder).into_iter().flatten().flatten() {
        if group.path().is_dir() {
            let _ = fs::remove_dir(group.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

/// Puts this process into a group.
///
/// # Errors
/// What the system says.
pub(super) fn enter(group: &Path) -> io::Result<()> {
    fs::write(group.join(PROCESSES), "0")
}

/// A job's group.
#[derive(Debug)]
pub(super) struct JobCgroup {
    folder: PathBuf,
    freeze: File,
    events: File,
}

impl JobCgroup {
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Orders all of it to stand still; it does when [`JobCgroup::is_frozen`] says so.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn freeze(&self) -> io::Result<()> {
        (&self.freeze).write_all(b"1")
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn thaw(&self) -> io::Result<()> {
        (&self.freeze).write_all(b"0")
    }

    /// Whether every process and thread of it stands still. The order's own file says what was ordered,
    /// and not that.
    #[must_use]
    pub(super) fn is_frozen(&self) -> bool {
        let mut text = [0; 64];
        let read = self.events.read_at(&mut text, 0).unwrap_or(0);
        text[..read].split(|byte| *byte == b'\n').any(|line| line == b"frozen 1")
    }

    /// Kills all of it.
    pub(super) fn kill(&self) {
        let _ = fs::write(self.folder.join(KILL), "1");
    }

    /// Removes it, if nothing is in it any longer.
    #[must_use]
    pub(super) fn remove(&self) -> bool {
        match fs::remove_dir(&self.folder) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
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
}
