//! Measures the memory of this host, or of the control groups that this daemon is in if their limit is lower.

use std::fs;
use std::path::{Path, PathBuf};

use super::job_cgroup::HostCgroups;

/// The kernel's file of this host's memory statistics.
const MEMINFO: &str = "/proc/meminfo";
/// Inverse of the part of memory that jobs can't claim, and that suspended jobs are made to free.
const RESERVED_PART: u64 = 10;

/// Files from which this host's memory is read.
#[derive(Clone, Debug)]
pub(super) struct HostMemory {
    meminfo: PathBuf,
    /// The control groups of this process, from its own up to the topmost.
    groups: Vec<PathBuf>,
}

impl HostMemory {
    /// Finds the control groups of this process.
    pub(super) fn find() -> Self {
        let groups = HostCgroups::find().map(|host| host.above()).unwrap_or_default();
        Self { meminfo: MEMINFO.into(), groups }
    }

    /// Returns the memory of this host in bytes; `None` if unknown.
    pub(super) fn total(&self) -> Option<u64> {
        let limits = self.groups.iter().filter_map(|group| number(&group.join("memory.max")));
        limits.chain(self.line("MemTotal:")).min()
    }

    /// Returns the bytes that jobs may claim: all but the reserve.
    pub(super) fn for_jobs(&self) -> Option<u64> {
        self.total().map(|total| total - total / RESERVED_PART)
    }

    /// Returns by how many bytes the available memory falls short of the reserve.
    pub(super) fn shortage(&self) -> u64 {
        let Some(reserve) = self.total().map(|total| total / RESERVED_PART) else { return 0 };
        let groups = self.groups.iter().filter_map(|group| available_in(group));
        let available = groups.chain(self.line("MemAvailable:")).min();
        available.map_or(0, |available| reserve.saturating_sub(available))
    }

    /// Returns the value of a line of `/proc/meminfo`, in bytes.
    fn line(&self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(&self.meminfo).ok()?;
        let kib = text.lines().find_map(|line| line.strip_prefix(name))?;
        kib.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the bytes that a group with a limit can still allocate. Its inactive file cache counts as free.
fn available_in(group: &Path) -> Option<u64> {
    let (limit, used) =
        (number(&group.join("memory.max"))?, number(&group.join("memory.current"))?);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let cached = cached.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_counts() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        let memory =
            |groups: Vec<PathBuf>| HostMemory { meminfo: folder.path().join("meminfo"), groups };
        assert_eq!(memory(Vec::new()).total(), None);
        assert_eq!(memory(Vec::new()).shortage(), 0);
        write("meminfo", "MemTotal:       1000 kB\nMemFree: 10 kB\nMemAvailable:   60 kB\n");
        assert_eq!(memory(Vec::new()).for_jobs(), Some(900 << 10));
        assert_eq!(memory(Vec::new()).shortage(), 40 << 10);
        let groups = || vec![folder.path().to_owned()];
        write("memory.max", "max\n");
        assert_eq!(memory(groups()).total(), Some(1_000 << 10));
        for (file, text) in [
            ("memory.max", "512000\n"),
            ("memory.current", "500000\n"),
            ("memory.stat", "anon 1\ninactive_file 8000\nactive_file 9\n"),
        ] {
            write(file, text);
        }
        assert_eq!(memory(groups()).total(), Some(512_000));
        assert_eq!(memory(groups()).shortage(), 51_200 - 20_000);
    }
}
