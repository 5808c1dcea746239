//! Takes charge of the processes that CRIU has restored.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Pid;
use tokio::sync::mpsc;

use crate::live::criu::{self, ImageFolder};
use crate::live::event::Event;
use crate::live::exec_shim::Leftover;
use crate::live::priority;
use crate::live::process::Process;
use crate::live::processes::Processes;
use crate::names::JobId;
use crate::node_core::message::{End, Member, RankEvent};

/// The files that CRIU has left in a rank's folder of images.
#[derive(Debug)]
pub(crate) struct RestoreEnd {
    member: Member,
    /// The process that was CRIU.
    criu: Pid,
    /// True if CRIU reports that it has restored the rank.
    is_restored: bool,
    /// The restored process, if it is known. After a failure, it may exist too.
    pid: Option<Pid>,
    /// An exit code, and the reason why the rank could not be restored, if it is known.
    failure: Option<(i32, String)>,
}

/// Reads on a thread what CRIU has left in a folder, because the folder's disk may hang. Then sends
/// [`Event::Restored`].
fn read(
    (member, criu, end): (Member, Pid, End),
    (folder, images): (PathBuf, Arc<ImageFolder>),
    events: &mpsc::UnboundedSender<Event>,
) {
    let sender = events.clone();
    let started = priority::spawn(move || {
        let pid = criu::pid_of(&folder).ok().and_then(Pid::from_raw);
        let is_restored = end == End::Exited(0) && pid.is_some();
        let failure = if is_restored { None } else { failure(end, &folder) };
        let left = RestoreEnd { member, criu, is_restored, pid, failure };
        let _ = sender.send(Event::Restored(left));
        drop(images);
    });
    if let Err(why) = started {
        let (is_restored, pid, failure) = (false, None, Some((1, why)));
        let left = RestoreEnd { member, criu, is_restored, pid, failure };
        let _ = events.send(Event::Restored(left));
    }
}

/// Returns an exit code, and the reason that is in CRIU's log. Without a log, CRIU was killed, or has written the reason
/// to its standard error.
fn failure(end: End, folder: &Path) -> Option<(i32, String)> {
    match end {
        End::Exited(code) if folder.join(criu::LOG).exists() => Some((code, criu::failure(folder))),
        _ => None,
    }
}

impl Processes {
    /// Begins to read what CRIU has left of those ranks for which it has ended since the last call.
    pub(in crate::live::processes) fn read_restored(&mut self) {
        for (member, held) in &mut self.members {
            let Some(restoring) = held.restoring.as_mut().filter(|it| !it.is_read) else {
                continue;
            };
            let Some(end) = held.process.end() else { continue };
            restoring.is_read = true;
            let of = (restoring.folder.clone(), Arc::clone(&restoring.images));
            let criu = held.process.pid();
            self.reaper.release(&Leftover::group(criu));
            read((*member, criu, end), of, &self.events);
        }
    }

    /// Takes charge of the process that CRIU has restored. Returns the reason, if the rank could not be restored.
    pub(crate) fn restored(&mut self, left: RestoreEnd) -> Option<(JobId, u16, RankEvent)> {
        let RestoreEnd { member, criu, is_restored, pid, failure } = left;
        // The rank's process may have ended before it was known.
        self.have_changed = true;
        let held = self.members.get_mut(&member);
        let held = held.filter(|held| held.restoring.is_some() && held.process.pid() == criu);
        let is_awaited = held.is_some();
        let failure = match (held, pid) {
            (Some(held), Some(pid)) if is_restored => {
                held.restoring = None;
                match Process::adopt(pid) {
                    Ok(mut process) => {
                        process.replace(&held.process);
                        held.process = process;
                        self.reaper.hold(Leftover::group(pid));
                        None
                    }
                    Err(error) => Some((1, format!("the restored process: {error}"))),
                }
            }
            (held, pid) => {
                if let Some(held) = held {
                    held.restoring = None;
                }
                // The process may not have exited yet, and another rank may have this process ID.
                let is_rank = |pid: &Pid| self.members.values().any(|it| it.process.pid() == *pid);
                let stray = pid.filter(|pid| !is_rank(pid));
                self.strays.extend(stray.and_then(|pid| Process::adopt(pid).ok()));
                failure
            }
        };
        let (job, rank) = member;
        let (code, message) = failure.filter(|_| is_awaited)?;
        Some((job, rank, RankEvent::Aborted { code, message }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// Regression: the event loop read the folder itself, and blocked while the folder's disk hung.
    #[test]
    fn what_criu_has_left_is_read_by_a_thread() {
        let disk = tempfile::tempdir().unwrap();
        let (folder, images) = (disk.path().to_owned(), Arc::new(ImageFolder::new(disk.path())));
        // A file that can't be read yet.
        let file = folder.join("gang.json");
        mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (events, mut happens) = mpsc::unbounded_channel();
        let criu = Pid::from_raw(2).unwrap();
        read(((JobId(1), 3), criu, End::Exited(0)), (folder, images), &events);
        assert!(happens.try_recv().is_err());
        let files = r#"{"standard":[null,null,null],"snapshots":"","pmi":""}"#;
        fs::write(&file, format!(r#"{{"pid":7,"files":{files}}}"#)).unwrap();
        let Some(Event::Restored(left)) = happens.blocking_recv() else { panic!("no event") };
        assert_eq!((left.member, left.criu), ((JobId(1), 3), criu));
        assert_eq!((left.is_restored, left.pid), (true, Pid::from_raw(7)));
    }
}
