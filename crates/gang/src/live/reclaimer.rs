//! Takes memory from suspended jobs while this host is short of it, on a thread of its own, so that no switch waits
//! for it.
//!
//! While the host keeps its reserve ([`HostMemory::shortage`]), nothing is reclaimed, however often jobs are switched.
//! Otherwise the thread reclaims the shortage, first from the job that was suspended last, because that job runs again
//! last. It reclaims small parts, and stops when the job is resumed. It sets no limit that would have to be removed
//! later.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::clock::now;
use super::host_memory::HostMemory;
use super::{job_cgroup, priority};

/// Interval between two checks for a shortage, while jobs are suspended.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Interval after a check in which no job had memory left to reclaim.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Most bytes that are reclaimed at once, which limits how much a resumed job competes for.
const AT_ONCE: u64 = 8 << 20;

/// A change of a job's control group.
#[derive(Debug)]
enum Change {
    /// The processes are suspended. True if their memory is limited.
    Suspended(PathBuf, bool),
    /// The processes are no longer suspended.
    Left(PathBuf),
}

/// The event loop's handle to the thread.
#[derive(Debug)]
pub(super) struct Reclaimer {
    changes: Sender<Change>,
}

impl Reclaimer {
    /// Starts the thread. It ends when this is dropped.
    pub(super) fn start(memory: HostMemory) -> Self {
        let (changes, told) = channel();
        // If the thread can't be started, suspended jobs keep their memory.
        let _ = std::thread::Builder::new().name("gang memory".into()).spawn(move || {
            priority::lower_this_thread();
            serve(&mut Suspended { changes: told, groups: Vec::new() }, &memory);
        });
        Self { changes }
    }

    /// Reports that the processes of a group are suspended.
    pub(super) fn suspended(&self, group: &Path, has_limit: bool) {
        let _ = self.changes.send(Change::Suspended(group.to_owned(), has_limit));
    }

    /// Reports that the processes of a group will resume or end.
    pub(super) fn left(&self, group: &Path) {
        let _ = self.changes.send(Change::Left(group.to_owned()));
    }
}

/// The groups of suspended jobs, the last suspended one at the end, each with whether its memory is limited.
#[derive(Debug)]
struct Suspended {
    changes: Receiver<Change>,
    groups: Vec<(PathBuf, bool)>,
}

impl Suspended {
    /// Waits for a change and applies it. Returns `false` if none comes within a time, and an error if the daemon
    /// ends.
    fn wait(&mut self, within: Duration) -> Result<bool, RecvTimeoutError> {
        match self.changes.recv_timeout(within) {
            Ok(change) => self.take(change),
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn take(&mut self, change: Change) {
        let (Change::Suspended(group, _) | Change::Left(group)) = &change;
        self.groups.retain(|(other, _)| other != group);
        if let Change::Suspended(group, has_limit) = change {
            self.groups.push((group, has_limit));
        }
    }

    /// Reclaims up to `bytes` bytes from suspended jobs by `take`. Returns how many bytes were reclaimed.
    fn reclaim(
        &mut self,
        bytes: u64,
        mut take: impl FnMut(&Path, u64, bool) -> std::io::Result<()>,
    ) -> u64 {
        let (mut taken, mut given_all) = (0, Vec::new());
        while taken < bytes {
            while let Ok(change) = self.changes.try_recv() {
                self.take(change);
            }
            let mut rest = self.groups.iter().rev().filter(|(group, _)| !given_all.contains(group));
            let Some((group, has_limit)) = rest.next() else { break };
            let part = AT_ONCE.min(bytes - taken);
            match take(group, part, *has_limit) {
                Ok(()) => taken += part,
                Err(_) => given_all.push(group.clone()),
            }
        }
        taken
    }
}

/// Runs the thread until the daemon ends.
fn serve(suspended: &mut Suspended, memory: &HostMemory) {
    let mut pause = CHECK_INTERVAL;
    loop {
        let check_at = now() + pause;
        loop {
            let rest = check_at.since(now());
            match suspended.wait(rest) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => return,
            }
        }
        let shortage = if suspended.groups.is_empty() { 0 } else { memory.shortage() };
        let taken = suspended.reclaim(shortage, job_cgroup::reclaim);
        pause = if shortage > 0 && taken == 0 { IDLE_CHECK_INTERVAL } else { CHECK_INTERVAL };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspended(groups: &[&str]) -> (Sender<Change>, Suspended) {
        let (told, changes) = channel();
        for group in groups {
            told.send(Change::Suspended(group.into(), false)).unwrap();
        }
        (told, Suspended { changes, groups: Vec::new() })
    }

    #[test]
    fn the_job_whose_turn_comes_last_gives_first() {
        let (_told, mut suspended) = suspended(&["a", "b", "c", "a"]);
        let mut left = [("a", 2 * AT_ONCE), ("b", 0), ("c", AT_ONCE)];
        let mut asked = Vec::new();
        let taken = suspended.reclaim(4 * AT_ONCE, |group, bytes, _| {
            asked.push(group.to_str().unwrap().to_owned());
            let of = left.iter_mut().find(|(name, _)| *name == asked[asked.len() - 1]).unwrap();
            of.1 = of.1.checked_sub(bytes).ok_or(std::io::ErrorKind::WouldBlock)?;
            Ok(())
        });
        assert_eq!(asked.join(""), "aaaccb");
        assert_eq!(taken, 3 * AT_ONCE);
    }

    #[test]
    fn a_job_that_is_resumed_meanwhile_gives_no_more() {
        let (told, mut suspended) = suspended(&["a", "b"]);
        let mut asked = Vec::new();
        let taken = suspended.reclaim(2 * AT_ONCE, |group, _, _| {
            asked.push(group.to_owned());
            told.send(Change::Left(group.into())).unwrap();
            Ok(())
        });
        assert_eq!((taken, asked), (2 * AT_ONCE, vec!["b".into(), "a".into()]));
        assert_eq!(suspended.reclaim(1, |_, _, _| Ok(())), 0, "none is suspended");
    }

    #[test]
    fn no_more_is_taken_than_is_missing() {
        let (_told, mut suspended) = suspended(&["a"]);
        let mut parts = Vec::new();
        let taken = suspended.reclaim(AT_ONCE + 5, |_, bytes, _| {
            parts.push(bytes);
            Ok(())
        });
        assert_eq!((taken, parts), (AT_ONCE + 5, vec![AT_ONCE, 5]));
        assert_eq!(suspended.reclaim(0, |_, _, _| panic!("nothing is missing")), 0);
    }
}
