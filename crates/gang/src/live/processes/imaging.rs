//! Images of jobs' processes on this host: dumps them while their job is kept suspended, and restores them.

mod restored;

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::launching::{Sockets, start_with_pipes};
use super::{Held, Processes};
use crate::live::criu::{self, DumpedRank, ImageFolder};
use crate::live::event::Event;
use crate::live::exec_shim::{Leftover, RestoredImage};
use crate::live::link::Link;
use crate::live::routes::Routes;
use crate::live::streams::Opened;
use crate::live::{image_link, priority};
use crate::names::{Epoch, JobId};
use crate::node_core::message::{Member, Purpose};
use crate::node_core::order::Launch;
pub(crate) use restored::RestoreEnd;

/// Number of attempts to dial the root for images, and the interval between any two attempts.
const DIALS: usize = 100;
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Default folder for images, if `TMPDIR` is not set. It is on disk, while `/tmp` may be in memory.
const DISK: &str = "/var/tmp";

/// A job that is kept suspended, even in its slices, until it is dumped and the root lets it continue.
#[derive(Debug)]
pub(super) struct Hold {
    /// True if the job would run now without this hold.
    pub(super) runs: bool,
    is_dumped: bool,
    /// Set once the root lets the job continue. Images that are not sent by then are dropped.
    goes: Arc<AtomicBool>,
}

impl Hold {
    /// Drops the images, if they are not sent yet.
    pub(super) fn give_up(&self) {
        self.goes.store(true, Ordering::Relaxed);
    }
}

/// State of a rank until CRIU has restored it, and its process is known.
#[derive(Debug)]
pub(super) struct Restoring {
    folder: PathBuf,
    /// True once CRIU has ended, and a thread reads the folder.
    is_read: bool,
    /// The folder of all ranks' images, removed when the last of these ranks drops it.
    images: Arc<ImageFolder>,
}

/// Returns the kernel's name of the file behind a descriptor.
pub(super) fn name(kind: &str, file: impl AsFd) -> std::io::Result<String> {
    Ok(format!("{kind}:[{}]", rustix::fs::fstat(file)?.st_ino))
}

/// Returns the kernel's names of a rank's standard streams, by the daemon's ends of their pipes.
pub(super) fn standard_of(opened: &Opened) -> std::io::Result<[Option<String>; 3]> {
    let mut names = [const { None }; 3];
    names[0] = opened.input.as_ref().map(|pipe| name("pipe", pipe)).transpose()?;
    for (stream, pipe) in &opened.outputs {
        names[*stream as usize] = Some(name("pipe", pipe)?);
    }
    Ok(names)
}

impl Processes {
    /// Keeps a frozen job frozen, and begins to dump its ranks on this host. A thread sends the images to the root.
    pub(crate) fn dump(&mut self, job: JobId, epoch: Epoch, routes: &Routes) {
        let mut routes = routes.clone();
        if self.of_job(job).is_empty() {
            return;
        }
        if self.holds.contains_key(&job) {
            let why = "an earlier checkpoint of the job is still being given up: try again".into();
            tokio::spawn(async move {
                if let Some((mut sender, _receiver)) = open_soon(&mut routes, (job, epoch)).await {
                    image_link::send_failure(&mut sender, why).await;
                }
            });
            return;
        }
        // The images contain priorities.
        self.relax();
        let prepared = self.prepare(job);
        let goes = Arc::new(AtomicBool::new(false));
        self.holds.insert(job, Hold { runs: false, is_dumped: false, goes: Arc::clone(&goes) });
        let (events, runtime) = (self.events.clone(), tokio::runtime::Handle::current());
        let (mut own_routes, own_goes) = (routes.clone(), Arc::clone(&goes));
        let started = priority::spawn(move || {
            let dumped = prepared.and_then(|(group, ranks, folder)| {
                create(&folder)?;
                criu::dump(&group, &ranks, folder.path())?;
                Ok((ranks, folder))
            });
            let _ = events.send(Event::DumpEnded(job));
            if goes.load(Ordering::Relaxed) {
                return;
            }
            runtime.block_on(async {
                match dumped {
                    Err(why) => refuse(&mut routes, (job, epoch), why, &goes).await,
                    Ok((ranks, folder)) => {
                        send(&mut routes, (job, epoch), (&ranks, folder.path()), &goes).await;
                    }
                }
            });
        });
        if let Err(why) = started {
            let _ = self.events.send(Event::DumpEnded(job));
            tokio::spawn(async move {
                refuse(&mut own_routes, (job, epoch), why, &own_goes).await;
            });
        }
    }

    /// Returns the input of a dump: the job's control group, its ranks, and a folder to create.
    fn prepare(&mut self, job: JobId) -> Result<(PathBuf, Vec<DumpedRank>, ImageFolder), String> {
        if !self.users.has_all() {
            return Err("the host's daemon is not root's, and CRIU needs root".into());
        }
        let group = self.group_of(job)?;
        let members = self.members.range((job, 0)..=(job, u16::MAX));
        let ranks = members.map(|((_, rank), held)| {
            let pid = held.process.pid().as_raw_nonzero().get();
            match held.restoring {
                None => Ok(DumpedRank { rank: *rank, pid, files: held.files.clone() }),
                Some(_) => Err(format!("rank {rank} is not restored yet")),
            }
        });
        let ranks = ranks.collect::<Result<_, String>>()?;
        Ok((group, ranks, self.image_folder()))
    }

    /// Returns the folder of a job's control group.
    fn group_of(&self, job: JobId) -> Result<PathBuf, String> {
        let group = self.cgroups.get(&job).map(|group| group.folder().to_owned());
        let why = "the host's daemon has no control groups: `midplane doctor` says why";
        group.ok_or_else(|| why.into())
    }

    /// Chooses a folder for images. A thread must create it, because its disk may hang.
    fn image_folder(&mut self) -> ImageFolder {
        let base = match &self.images {
            Some(base) => base.clone(),
            None => {
                let disk = std::env::var_os("TMPDIR").map_or_else(|| DISK.into(), PathBuf::from);
                // Other users could create a folder of a name that they know.
                let random = RandomState::new().hash_one(());
                let base = disk.join(format!("gangd-{}-{random:016x}", std::process::id()));
                self.reaper.hold(Leftover::Folder(base.clone()));
                self.images.insert(base).clone()
            }
        };
        ImageFolder::new(&base)
    }

    /// Records that CRIU has finished the dump of a job.
    pub(crate) fn dump_ended(&mut self, job: JobId) {
        if let Some(hold) = self.holds.get_mut(&job) {
            hold.is_dumped = true;
            self.release(job);
        }
    }

    /// Lets a job with a hold continue, as soon as CRIU has finished with it. Returns false if the job has no hold.
    pub(super) fn let_go(&mut self, job: JobId) -> bool {
        let Some(hold) = self.holds.get(&job) else { return false };
        hold.give_up();
        self.release(job);
        true
    }

    fn release(&mut self, job: JobId) {
        let is_over = |hold: &Hold| hold.is_dumped && hold.goes.load(Ordering::Relaxed);
        if !self.holds.get(&job).is_some_and(is_over) {
            return;
        }
        for (_, held) in self.members.range((job, 0)..=(job, u16::MAX)) {
            // CRIU has continued it.
            held.process.halt_again();
        }
        let runs = self.holds.remove(&job).is_some_and(|hold| hold.runs);
        if runs {
            self.resume(&[job]);
        } else if let Some(cgroup) = self.cgroups.get(&job) {
            // CRIU leaves the group in the state in which it found it, so it is frozen again.
            let _ = cgroup.freeze();
        }
    }

    /// Lets all jobs with a hold continue.
    pub(crate) fn release_all(&mut self) {
        for job in self.holds.keys().copied().collect::<Vec<_>>() {
            let _ = self.let_go(job);
        }
    }

    /// Begins to restore the ranks of a job on this host from images, which are fetched from the root.
    pub(super) fn restore(
        &mut self,
        launch: &Launch,
        own: &[u16],
        routes: &Routes,
    ) -> Result<Vec<Opened>, String> {
        if !self.users.has_all() || launch.user.uid != 0 {
            return Err("only root restores images of processes, by a daemon of root".into());
        }
        let group = self.group_of(launch.job)?;
        let images = Arc::new(self.image_folder());
        let (mut all, mut waiting) = (Vec::new(), Vec::new());
        for rank in own {
            let folder = criu::of_rank(images.path(), *rank);
            let (mut held, opened, arrived) = self
                .start_restored((launch.job, *rank), &folder, &group)
                .map_err(|error| format!("{}: {error}", criu::PROGRAM))?;
            let images = Arc::clone(&images);
            held.restoring = Some(Restoring { folder, is_read: false, images });
            self.reaper.hold(Leftover::group(held.process.pid()));
            self.members.insert((launch.job, *rank), held);
            all.push(opened);
            waiting.push(arrived);
        }
        let (ranks, job) = (own.to_vec(), launch.job);
        let (mut routes, runtime) = (routes.clone(), tokio::runtime::Handle::current());
        priority::spawn(move || {
            let fetched = criu::probe()
                .and_then(|()| create(&images))
                .and_then(|()| runtime.block_on(fetch(&mut routes, job, (&ranks, images.path()))));
            if let Err(why) = fetched {
                for pipe in &mut waiting {
                    // A killed rank no longer reads its pipe.
                    let _ = pipe.write_all(format!("it can't be restored: {why}").as_bytes());
                }
            }
        })?;
        Ok(all)
    }

    /// Starts a suspended process that becomes CRIU and restores a rank. Also returns the pipe that it waits for.
    fn start_restored(
        &self,
        (job, rank): Member,
        folder: &Path,
        group: &Path,
    ) -> std::io::Result<(Held, Opened, std::io::PipeWriter)> {
        let (arrived, arrives) = std::io::pipe()?;
        let arrived = rustix::io::dup(&arrived)?;
        let sockets = Sockets::open()?;
        let image = RestoredImage {
            folder,
            group,
            arrived: arrived.as_raw_fd().to_string(),
            sockets: sockets.numbers(),
        };
        let mut command = image.command();
        command.stdin(Stdio::null());
        let started = start_with_pipes(&mut command, rank)?;
        drop(arrived);
        let (held, opened) = self.hold((job, rank), started, sockets, None)?;
        Ok((held, opened, arrives))
    }
}

/// Creates a folder for images, and at first use also its base folder. Blocks while their disk hangs.
fn create(folder: &ImageFolder) -> Result<(), String> {
    let path = folder.path();
    let base = path.parent().unwrap_or(path);
    let created = criu::create(base);
    match fs::symlink_metadata(base) {
        // Other users could create the folder once an error has named it.
        Ok(metadata) => image_link::check_owner(base, &metadata)?,
        Err(_) => created?,
    }
    folder.create()
}

/// Sends the images of a job's ranks on this host to the root, unless `goes` is set before the root can be reached.
async fn send(
    routes: &mut Routes,
    of: (JobId, Epoch),
    (ranks, folder): (&[DumpedRank], &Path),
    goes: &AtomicBool,
) {
    let Some((mut sender, _receiver)) = open_unless(routes, of, goes).await else { return };
    match image_link::list(folder, ranks.iter().map(|it| it.rank)) {
        Err(why) => image_link::send_failure(&mut sender, why).await,
        Ok(files) => {
            if image_link::send_dumped(&mut sender).await.is_ok() {
                // The root reports what it has received, so errors are ignored here.
                let _ = image_link::send(&mut sender, folder, &files, None).await;
            }
        }
    }
}

/// Reports to the root why there are no images, unless `goes` is set before the root can be reached.
async fn refuse(routes: &mut Routes, of: (JobId, Epoch), why: String, goes: &AtomicBool) {
    let Some((mut sender, _receiver)) = open_unless(routes, of, goes).await else { return };
    image_link::send_failure(&mut sender, why).await;
}

/// Connects to the root, which keeps the job suspended until then, however long that takes. Returns `None` once `goes`
/// is set.
async fn open_unless(routes: &mut Routes, of: (JobId, Epoch), goes: &AtomicBool) -> Option<Link> {
    let is_over = || goes.load(Ordering::Relaxed);
    open(routes, of, is_over).await.filter(|_| !is_over())
}

/// Connects to the root for images of a job, in at most [`DIALS`] attempts.
async fn open_soon(routes: &mut Routes, of: (JobId, Epoch)) -> Option<Link> {
    let mut dials = 1..DIALS;
    open(routes, of, || dials.next().is_none()).await
}

/// Connects to the root for images of a job. After each failed attempt, returns `None` if `gives_up` returns true.
async fn open(
    routes: &mut Routes,
    (job, epoch): (JobId, Epoch),
    mut gives_up: impl FnMut() -> bool,
) -> Option<Link> {
    loop {
        if let Some((_, link)) = routes.open(Purpose::Images(job, epoch)).await {
            return Some(link);
        }
        if gives_up() {
            return None;
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Fetches the images of a job's ranks on this host from the root.
async fn fetch(
    routes: &mut Routes,
    job: JobId,
    (ranks, folder): (&[u16], &Path),
) -> Result<(), String> {
    let link = open_soon(routes, (job, Epoch(0))).await;
    let (_sender, mut receiver) = link.ok_or("the root can't be reached")?;
    image_link::receive(&mut receiver, folder, ranks, || ()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::live::snapshot::Budget;

    /// Regression: the event loop created the folders itself, and blocked while their disk hung.
    #[test]
    fn a_folder_that_can_t_be_created_is_reported_by_a_thread() {
        let disk = tempfile::tempdir().unwrap();
        let base = disk.path().join("images");
        let folders = [(); 3].map(|()| ImageFolder::new(&base));
        assert!(!base.exists());
        folders[..2].iter().for_each(|folder| create(folder).unwrap());
        assert!(folders[..2].iter().all(|folder| folder.path().is_dir()));
        fs::set_permissions(&base, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(create(&folders[2]).unwrap_err().contains("may have written it"));
        let lost = ImageFolder::new(&disk.path().join("missing/images"));
        let why = create(&lost).unwrap_err();
        assert!(why.contains("missing/images: No such file"), "{why}");
    }

    /// Regression: the daemon removed a folder of another user after it had refused to use it.
    #[test]
    fn a_folder_that_the_daemon_has_not_created_stays() {
        let disk = tempfile::tempdir().unwrap();
        let folder = ImageFolder::new(disk.path());
        fs::create_dir(folder.path()).unwrap();
        let path = folder.path().to_owned();
        assert!(create(&folder).is_err());
        drop(folder);
        assert!(path.exists());
    }

    /// Regression: the host gave its images up after five seconds, and the root kept the job suspended.
    #[test]
    fn the_root_hears_of_a_dump_however_late_it_can_be_reached() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let ((root, root_is), (events, mut happens)) =
                (watch::channel(Some(1)), mpsc::unbounded_channel());
            let mut routes = Routes {
                host: 0,
                addresses: Vec::new().into(),
                credentials: None,
                patience: RETRY_INTERVAL,
                root: root_is,
                events,
                budget: Budget::default(),
            };
            let of = (JobId(1), Epoch(2));
            // Host 1 can't be dialled.
            refuse(&mut routes, of, "no disk".into(), &AtomicBool::new(true)).await;
            assert!(open_soon(&mut routes, of).await.is_none());
            let (goes, mut late) = (AtomicBool::new(false), routes.clone());
            tokio::spawn(async move { refuse(&mut routes, of, "no disk".into(), &goes).await });
            sleep(Duration::from_secs(60)).await;
            assert!(happens.try_recv().is_err());
            root.send_replace(Some(0));
            let event = happens.recv().await;
            let Some(Event::Link(0, Purpose::Images(JobId(1), Epoch(2)), mut link)) = event else {
                panic!("no link")
            };
            let received = image_link::receive(&mut link.1, Path::new(""), &[], || ()).await;
            assert_eq!(received.unwrap_err(), "no disk");
            // The root lets the job continue while it is dialled.
            refuse(&mut late, of, "no disk".into(), &AtomicBool::new(true)).await;
            let Some(Event::Link(.., mut link)) = happens.recv().await else { panic!("no link") };
            let received = image_link::receive(&mut link.1, Path::new(""), &[], || ()).await;
            assert_ne!(received.unwrap_err(), "no disk");
        });
    }
}
