//! Images of jobs, at the root: receives them from hosts that save jobs, and sends them to hosts that restore jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::sync::{mpsc, watch};

use super::event::Event;
use super::link::Link;
use super::root_folder::RootFolder;
use super::{criu, image_link, priority};
use crate::checkpoint::{Checkpoint, IMAGES, Manifest, Part};
use crate::names::{Epoch, JobId};
use crate::node_core::{Collect, Input};

/// Images of a job that are being saved.
struct Collection {
    wanted: Collect,
    /// Hosts that have not begun to send their images.
    missing: BTreeSet<u16>,
    /// Hosts whose images are incomplete.
    incomplete: BTreeSet<u16>,
    parts: Vec<Part>,
    /// The folder, once a thread has opened it.
    folder: watch::Receiver<Option<Arc<Unfinished>>>,
    /// Ends the connections when it is dropped.
    canceled: watch::Sender<()>,
}

/// Opens a folder for a checkpoint, creates it if needed, and locks it until the file is dropped.
///
/// # Errors
/// The reason, such as that another checkpoint is being written there.
pub(super) fn lock(folder: &Path) -> Result<File, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(failed)?;
    let opened = File::open(folder).map_err(failed)?;
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(format!(
            "{}: another checkpoint is being written there; name another folder",
            folder.display()
        )),
        // Some file systems have no locks.
        _ => Ok(opened),
    }
}

/// A checkpoint without its manifest. When dropped, removes its files unless the manifest was written.
struct Unfinished {
    folder: PathBuf,
    ranks: u16,
    /// True if the folder was created for this checkpoint.
    is_new: bool,
    _locked: File,
}

impl Unfinished {
    fn create(folder: PathBuf, ranks: u16) -> Result<Self, String> {
        let is_new = !folder.exists();
        let _locked = lock(&folder)?;
        // What is removed if the checkpoint fails must be its own.
        let mut places = (0..ranks).map(|rank| criu::of_rank(&folder, rank));
        if let Some(taken) = places.find(|place| place.exists()) {
            return Err(format!("{}: it exists; name another folder", taken.display()));
        }
        Ok(Self { folder, ranks, is_new, _locked })
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if Checkpoint::is_at(&self.folder) {
            return;
        }
        for rank in 0..self.ranks {
            let _ = fs::remove_dir_all(criu::of_rank(&self.folder, rank));
        }
        if self.is_new {
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// The images of all jobs that are being saved or restored, at the root.
pub(super) struct Collections {
    saved: BTreeMap<JobId, Collection>,
    restored: BTreeMap<JobId, PathBuf>,
    events: mpsc::UnboundedSender<Event>,
}

impl Collections {
    pub(super) const fn new(events: mpsc::UnboundedSender<Event>) -> Self {
        Self { saved: BTreeMap::new(), restored: BTreeMap::new(), events }
    }

    /// Begins to collect the images of a job. A thread opens the folder, because the folder's disk may hang.
    pub(super) fn collect(&mut self, wanted: Collect) {
        let folder = PathBuf::from(OsString::from_vec(wanted.folder.clone()));
        let (job, client, ranks) = (wanted.job, wanted.client, wanted.ranks);
        let (opened, opens) = watch::channel(None);
        let collection = Collection {
            missing: wanted.hosts.clone(),
            incomplete: wanted.hosts.clone(),
            wanted,
            parts: Vec::new(),
            folder: opens,
            canceled: watch::Sender::new(()),
        };
        discard(self.saved.insert(job, collection));
        let events = self.events.clone();
        let started = priority::spawn(move || match Unfinished::create(folder, ranks) {
            // If the checkpoint was given up meanwhile, this removes the folder.
            Ok(folder) => drop(opened.send(Some(Arc::new(folder)))),
            Err(why) => drop(events.send(Event::Core(Input::Written(job, client, Err(why))))),
        });
        if let Err(why) = started {
            let _ = self.events.send(Event::Core(Input::Written(job, client, Err(why))));
        }
    }

    /// Serves a job's images in a folder to the hosts that fetch them.
    pub(super) fn serve(&mut self, job: JobId, folder: Vec<u8>) {
        self.restored.insert(job, PathBuf::from(OsString::from_vec(folder)));
    }

    /// Drops jobs that are no longer being saved or restored.
    pub(super) fn retain(&mut self, saves: impl Fn(JobId) -> bool, has: impl Fn(JobId) -> bool) {
        let over: Vec<JobId> = self.saved.keys().copied().filter(|job| !saves(*job)).collect();
        over.iter().for_each(|job| discard(self.saved.remove(job)));
        self.restored.retain(|job, _| has(*job));
    }

    /// Handles a host's connection that saves or restores the images of these ranks of a job.
    pub(super) fn take(
        &mut self,
        (host, job, epoch): (u16, JobId, Epoch),
        ranks: Vec<u16>,
        (mut sender, mut receiver): Link,
    ) {
        let (events, runtime) = (self.events.clone(), tokio::runtime::Handle::current());
        if let Some(it) = self.saved.get_mut(&job).filter(|it| it.wanted.epoch == epoch) {
            if !it.missing.remove(&host) {
                return;
            }
            let (mut folder, mut canceled) = (it.folder.clone(), it.canceled.subscribe());
            let sent = events.clone();
            let started = priority::spawn(move || {
                let dumped = || drop(events.send(Event::Dumped(host, job, epoch)));
                let receiving = async {
                    // If the folder can't be opened, that is reported already.
                    let opened = folder.wait_for(Option::is_some).await.ok()?.clone()?;
                    let path = &opened.folder;
                    Some(image_link::receive(&mut receiver, path, &ranks, dumped).await)
                };
                let received = runtime.block_on(async {
                    tokio::select! {
                        received = receiving => received,
                        _ = canceled.changed() => None,
                    }
                });
                if let Some(received) = received {
                    let received = received.map_err(|why| format!("host {host}: {why}"));
                    let _ = events.send(Event::Collected((host, job, epoch), received));
                }
            });
            if let Err(why) = started {
                let _ = sent.send(Event::Collected((host, job, epoch), Err(why)));
            }
        } else if let Some(folder) = self.restored.get(&job).cloned() {
            // If it is not started, the connection ends, which the host reports.
            let _ = priority::spawn(move || {
                runtime.block_on(async {
                    let found = RootFolder::open(&folder).and_then(|opened| {
                        let files = image_link::list(opened.path(), ranks.into_iter())?;
                        let parts = read(opened.path())?.parts;
                        Ok((opened, files, parts))
                    });
                    match found {
                        Ok((opened, files, parts)) => {
                            let path = opened.path();
                            let _ = image_link::send(&mut sender, path, &files, Some(&parts)).await;
                        }
                        Err(why) => image_link::send_failure(&mut sender, why).await,
                    }
                });
            });
        }
    }

    /// Returns whether the images of this cut of a job are being saved.
    pub(super) fn has(&self, job: JobId, epoch: Epoch) -> bool {
        self.saved.get(&job).is_some_and(|it| it.wanted.epoch == epoch)
    }

    /// Records the files of a host, or the reason why it has none. Sends [`Input::Written`] once all hosts' files have
    /// arrived.
    pub(super) fn collected(
        &mut self,
        (host, job, epoch): (u16, JobId, Epoch),
        received: Result<Vec<Part>, String>,
    ) {
        let of_epoch = |it: &&mut Collection| it.wanted.epoch == epoch;
        let Some(it) = self.saved.get_mut(&job).filter(of_epoch) else { return };
        match received {
            Ok(parts) => it.parts.extend(parts),
            Err(why) => {
                let client = it.wanted.client;
                discard(self.saved.remove(&job));
                return drop(self.events.send(Event::Core(Input::Written(job, client, Err(why)))));
            }
        }
        it.incomplete.remove(&host);
        if !it.incomplete.is_empty() {
            return;
        }
        let Some(Collection { wanted, parts, folder, .. }) = self.saved.remove(&job) else {
            return;
        };
        let Collect { client, ranks, program, .. } = wanted;
        let events = self.events.clone();
        let started = priority::spawn(move || {
            let folder = folder.borrow().clone().expect("all hosts have written to it");
            let bytes = parts.iter().map(|part| part.bytes).sum();
            let ranks = ranks.into();
            let manifest = Manifest { format: IMAGES, job, epoch, ranks, program, parts };
            let written = manifest.write_to(&folder.folder).map_err(|error| error.to_string());
            let _ = events.send(Event::Core(Input::Written(job, client, written.map(|()| bytes))));
        });
        if let Err(why) = started {
            let _ = self.events.send(Event::Core(Input::Written(job, client, Err(why))));
        }
    }
}

/// Ends the connections of a checkpoint that was given up. A thread removes its files, because their disk may hang.
fn discard(given_up: Option<Collection>) {
    if let Some(Collection { folder, .. }) = given_up {
        let _ = priority::spawn(move || drop(folder));
    }
}

/// Reads the manifest of a folder of images, and checks that only this user could have written it.
pub(super) fn read(folder: &Path) -> Result<Manifest, String> {
    for path in [folder, &folder.join(crate::checkpoint::MANIFEST)] {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        image_link::check_owner(path, &fs::symlink_metadata(path).map_err(failed)?)?;
    }
    let manifest = Manifest::read_from(folder).map_err(|error| error.to_string())?;
    if manifest.format != IMAGES || u16::try_from(manifest.ranks).is_err() {
        return Err(format!("{}: it has no images of processes", folder.display()));
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a checkpoint that failed removed the folders of ranks that were there before.
    #[test]
    fn a_failed_checkpoint_removes_nothing_that_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let kept = criu::of_rank(folder.path(), 1);
        fs::create_dir(&kept).unwrap();
        let refused = Unfinished::create(folder.path().into(), 2).err().unwrap();
        assert!(refused.contains("rank-1: it exists"), "{refused}");
        assert!(kept.exists());
        fs::remove_dir(&kept).unwrap();
        let begun = Unfinished::create(folder.path().into(), 2).unwrap();
        fs::create_dir(&kept).unwrap();
        drop(begun);
        assert!(!kept.exists() && folder.path().exists());
    }

    /// Regression: the event loop made and removed folders itself, and blocked while their disk hung.
    #[test]
    fn a_folder_that_can_t_be_opened_is_reported_by_a_thread() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let folder = file.path().join("saved").into_os_string().into_vec();
        let (events, mut happens) = mpsc::unbounded_channel();
        let mut collections = Collections::new(events);
        let (job, epoch, program) = (JobId(1), Epoch(3), String::new());
        let hosts = BTreeSet::from([0]);
        collections.collect(Collect { job, client: 2, epoch, hosts, ranks: 1, folder, program });
        assert!(collections.has(job, epoch));
        let event = happens.blocking_recv();
        let Some(Event::Core(Input::Written(of, 2, Err(why)))) = event else { panic!("no error") };
        assert!(of == job && why.contains("saved"), "{why}");
        collections.retain(|_| false, |_| false);
        assert!(!collections.has(job, epoch));
    }

    /// Regression: both wrote their files there, and the one that failed removed those of the other.
    #[test]
    fn two_checkpoints_are_not_written_to_one_folder_at_a_time() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("saved");
        let first = Unfinished::create(folder.clone(), 2).unwrap();
        let refused = [Unfinished::create(folder.clone(), 2).err(), lock(&folder).err()];
        for why in refused {
            assert!(why.is_some_and(|why| why.contains("another checkpoint is being written")));
        }
        assert!(folder.exists());
        drop(first);
        assert!(!folder.exists() && lock(&folder).is_ok());
    }
}
