//! Gives jobs' control groups the memory controller, and reclaims memory from suspended jobs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::{JobCgroups, PROCESSES, SWAP_MAX, group_above, named, parent_of, processes, write_to};

/// Files that list the controllers of a group, and those that it delegates to groups below it.
const CONTROLLERS: &str = "cgroup.controllers";
const HANDED_DOWN: &str = "cgroup.subtree_control";
/// File that every group has except the topmost, which may both have processes and delegate controllers.
const TYPE: &str = "cgroup.type";
const MEMORY: &str = "memory";
/// The file that reclaims memory. Linux has it since 5.19.
const RECLAIM: &str = "memory.reclaim";
/// Suffix of the name of the daemon's own group.
const SELF: &str = ".self";

impl JobCgroups {
    /// Tests whether jobs' groups can have the memory controller.
    ///
    /// # Errors
    /// The reason why they can't.
    pub(crate) fn can_have_memory(&self) -> io::Result<()> {
        let own = group_above(&self.folder);
        let has = |file: &str| {
            let path = own.join(file);
            let text = fs::read_to_string(&path).map_err(|error| named(&path, &error))?;
            io::Result::Ok(text.split_whitespace().any(|it| it == MEMORY))
        };
        let refused = |why: String| Err(io::Error::other(format!("{} {why}", own.display())));
        if !has(CONTROLLERS)? {
            return refused("has no memory controller".to_owned());
        }
        let path = own.join(HANDED_DOWN);
        access(&path, Access::WRITE_OK).map_err(|error| named(&path, &error.into()))?;
        let others = match own.join(TYPE).exists() && !has(HANDED_DOWN)? {
            true => processes(own)?.into_iter().find(|pid| !is_below_this_process(*pid)),
            false => None,
        };
        match others {
            Some(pid) => refused(format!("has another process, {pid}, in it")),
            None => Ok(()),
        }
    }

    /// Gives jobs' groups the memory controller. Moves this process and all processes that it has started out of its
    /// group, so that the group can delegate the controller.
    ///
    /// # Errors
    /// The reason why that fails; nothing is changed then.
    pub(crate) fn take_memory(&mut self) -> io::Result<()> {
        self.can_have_memory()?;
        let own = group_above(&self.folder);
        let taken =
            self.step_aside().and_then(|()| hand_down(own)).and_then(|()| hand_down(&self.folder));
        if taken.is_err() {
            step_back(&self.folder);
        }
        self.has_memory = taken.is_ok();
        taken
    }

    /// Moves this process and all processes that it has started out of its group, unless that is the topmost.
    fn step_aside(&self) -> io::Result<()> {
        let (own, aside) = (group_above(&self.folder), aside(&self.folder));
        let processes = if own.join(TYPE).exists() { processes(own)? } else { Vec::new() };
        if !processes.is_empty() {
            fs::create_dir(&aside).map_err(|error| named(&aside, &error))?;
        }
        processes.into_iter().try_for_each(|pid| write_to(&aside, PROCESSES, &pid.to_string()))
    }
}

/// Returns the group of the daemon itself, a sibling of the folder of its jobs' groups.
fn aside(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(SELF);
    name.into()
}

fn hand_down(group: &Path) -> io::Result<()> {
    write_to(group, HANDED_DOWN, "+memory")
}

/// Returns whether a process is this one or one of its descendants.
fn is_below_this_process(pid: i32) -> bool {
    let started_by = |pid: &i32| parent_of(*pid).filter(|pid| *pid > 0);
    std::iter::successors(Some(pid), started_by).any(|pid| pid as u32 == std::process::id())
}

/// Moves the daemon's processes back to the group that it left, if it left one, and removes the daemon's own group.
pub(crate) fn step_back(folder: &Path) {
    let (own, aside) = (group_above(folder), aside(folder));
    if !aside.exists() {
        return;
    }
    let _ = write_to(own, HANDED_DOWN, "-memory");
    for pid in processes(&aside).into_iter().flatten() {
        let _ = write_to(own, PROCESSES, &pid.to_string());
    }
    let _ = fs::remove_dir(aside);
}

/// Moves up to `bytes` bytes of memory of a group of suspended processes to files and swap space.
///
/// # Errors
/// The system's error: less memory could be reclaimed, or the group or the file does not exist.
pub(crate) fn reclaim(group: &Path, bytes: u64, has_limit: bool) -> io::Result<()> {
    // A group with a limit may use swap space only while it is suspended.
    if has_limit {
        let _ = write_to(group, SWAP_MAX, "max");
    }
    let reclaimed = write_to(group, RECLAIM, &bytes.to_string());
    if has_limit {
        let _ = write_to(group, SWAP_MAX, "0");
    }
    reclaimed
}

#[cfg(test)]
mod tests {
    use super::super::{END_TOGETHER, EVENTS, FREEZE, JobCgroup, MEMORY_EVENTS, MEMORY_MAX};
    use super::*;

    /// Creates ordinary files in place of control groups, as they are while this process runs in the daemon's own
    /// group.
    fn fake(controllers: &str, processes: &str) -> (tempfile::TempDir, JobCgroups) {
        let own = tempfile::tempdir().unwrap();
        let folder = own.path().join("gangd-1");
        let aside = own.path().join("gangd-1.self");
        fs::create_dir_all(folder.join("job-1")).unwrap();
        for (file, text) in [
            (own.path().join(TYPE), "domain\n"),
            (own.path().join(CONTROLLERS), controllers),
            (own.path().join(HANDED_DOWN), ""),
            (own.path().join(PROCESSES), processes),
            (folder.join(HANDED_DOWN), ""),
        ] {
            fs::write(file, text).unwrap();
        }
        for file in [FREEZE, EVENTS, END_TOGETHER, SWAP_MAX, MEMORY_MAX, RECLAIM] {
            fs::write(folder.join("job-1").join(file), "").unwrap();
        }
        assert!(!aside.exists());
        (own, JobCgroups { folder, has_memory: false, lack_of_memory: None })
    }

    fn read(folder: &Path, file: &str) -> String {
        fs::read_to_string(folder.join(file)).unwrap()
    }

    #[test]
    fn memory_is_handed_down_to_jobs_where_it_is_there() {
        let (own, mut cgroups) = fake("cpu memory pids\n", "");
        cgroups.take_memory().unwrap();
        assert!(cgroups.has_memory);
        assert_eq!(read(own.path(), HANDED_DOWN), "+memory");
        assert_eq!(read(&cgroups.folder, HANDED_DOWN), "+memory");
        assert!(!aside(&cgroups.folder).exists(), "no process was in the way");
    }

    #[test]
    fn a_group_that_can_t_hand_memory_down_stays_as_it_is() {
        for (controllers, processes, why) in [
            ("cpu pids\n", "", " has no memory controller"),
            ("memory\n", "1\n", " has another process, 1, in it"),
        ] {
            let (own, mut cgroups) = fake(controllers, processes);
            let error = cgroups.take_memory().unwrap_err().to_string();
            assert!(error.ends_with(why), "{error}");
            assert_eq!(read(own.path(), HANDED_DOWN), "");
            assert!(!cgroups.has_memory && !aside(&cgroups.folder).exists());
        }
    }

    #[test]
    fn a_daemon_that_can_t_be_moved_returns_to_its_group() {
        // The new group lacks the file that accepts processes.
        let (own, mut cgroups) = fake("memory\n", &format!("{}\n", std::process::id()));
        assert!(cgroups.take_memory().is_err());
        assert_eq!(read(own.path(), HANDED_DOWN), "-memory");
        assert!(!aside(&cgroups.folder).exists());
    }

    #[test]
    fn a_job_is_limited_to_its_claim_and_has_swap_only_while_it_stands_still() {
        let (_own, cgroups) = fake("memory\n", "");
        let folder = cgroups.folder.join("job-1");
        let mut cgroup = JobCgroup::open(folder.clone()).unwrap();
        cgroup.limit(2 << 30).unwrap();
        let values = [END_TOGETHER, SWAP_MAX, MEMORY_MAX].map(|file| read(&folder, file));
        assert_eq!(values, ["1", "0", "2147483648"]);
        reclaim(&folder, 4_096, true).unwrap();
        assert_eq!([RECLAIM, SWAP_MAX].map(|file| read(&folder, file)), ["4096", "0"]);
        fs::remove_file(folder.join(RECLAIM)).unwrap();
        assert!(reclaim(&folder, 4_096, true).is_err());
        assert_eq!(read(&folder, SWAP_MAX), "0");
        assert!(!folder.join(RECLAIM).exists(), "no file is made");
        fs::write(folder.join(SWAP_MAX), "of its owner").unwrap();
        let _ = reclaim(&folder, 4_096, false);
        assert_eq!(read(&folder, SWAP_MAX), "of its owner");
    }

    #[test]
    fn a_job_has_run_out_of_memory_once_the_kernel_has_ended_a_process() {
        let (_own, cgroups) = fake("memory\n", "");
        let cgroup = JobCgroup::open(cgroups.folder.join("job-1")).unwrap();
        assert!(!cgroup.has_run_out(), "there is no controller");
        for (count, has) in [(0, false), (1, true), (12, true)] {
            let text = format!("low 0\nmax 7\noom 3\noom_kill {count}\noom_group_kill 0\n");
            fs::write(cgroup.folder.join(MEMORY_EVENTS), text).unwrap();
            assert_eq!(cgroup.has_run_out(), has);
        }
    }
}
