//! Starts a job's ranks on this host: their programs, environment variables, streams and terminal.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{Held, Processes, Waits, imaging};
use crate::live::adopted;
use crate::live::criu::SharedFiles;
use crate::live::event::Event;
use crate::live::exec_shim::{Image, Leftover};
use crate::live::job_cgroup::JobCgroup;
use crate::live::link::Stream;
use crate::live::pmi::{self, PmiJob};
use crate::live::process::Process;
use crate::live::refusals::Right;
use crate::live::rights::Rights;
use crate::live::routes::Routes;
use crate::live::streams::Opened;
use crate::live::undelivered::CountedState;
use crate::live::{exec_shim, priority, rank, snapshot};
use crate::names::JobId;
use crate::node_core::Input;
use crate::node_core::message::{Member, Program, Word};
use crate::node_core::order::{Launch, Outcome};
use crate::node_core::user::User;

impl Processes {
    /// Looks up the rights of another user on a thread, because the user database may not answer. Then sends
    /// [`Event::Rights`] for this step.
    pub(crate) fn look_up(&self, step: u64, user: User) {
        let (users, events, limit) = (self.users.clone(), self.events.clone(), self.limits.look_up);
        if users.is_own(user.uid) || !users.has_all() {
            // The user database is not needed.
            return drop(events.send(Event::Rights(step, users.rights(&user))));
        }
        let late = format!("user {user} can't be looked up on this host: no answer in {limit:?}");
        let (result, looked_up) = oneshot::channel();
        let started = priority::spawn(move || drop(result.send(users.rights(&user))));
        tokio::spawn(async move {
            let rights = match (started, timeout(limit, looked_up).await) {
                (Err(why), _) => Err(why),
                (Ok(()), Ok(Ok(rights))) => rights,
                (Ok(()), Ok(Err(_))) => Err("its thread has panicked".into()),
                (Ok(()), Err(_)) => Err(late),
            };
            let _ = events.send(Event::Rights(step, rights));
        });
    }

    /// Begins to start a job's ranks on this host with these rights, each with its saved state, if any. Returns the
    /// files of their standard streams.
    pub(crate) fn launch(
        &mut self,
        step: u64,
        launch: &Launch,
        (mut states, rights, routes): (BTreeMap<u16, Vec<u8>>, Result<Rights, String>, &Routes),
    ) -> Vec<Opened> {
        let job = launch.job;
        let places = self.cluster.places(launch);
        let hosts: Vec<u16> = places.iter().map(|place| place.node.0).collect();
        let (mut opened, mut outcome) = (Vec::new(), Outcome::default());
        let own = (0_u16..).zip(&hosts).filter(|(_, host)| **host == self.host);
        let own: Vec<u16> = own.map(|(rank, _)| rank).collect();
        let ready = rights.and_then(|rights| {
            self.open_group(job)?;
            self.adopt(launch)?;
            self.admit(job, &rights);
            self.limit(launch, own.len())?;
            Ok(rights)
        });
        let rights = ready.map_err(|why| outcome.failed.push((job, self.host, why))).ok();
        let name = variables(&launch.program).find(|(name, _)| *name == pmi::NAME);
        // A job that was saved by a version without job names has none.
        let name =
            name.map_or_else(|| format!("gang-{job}").into(), |(_, name)| name.to_string_lossy());
        self.pmi.insert(job, PmiJob::new(&name, &hosts));
        if launch.program.images && rights.is_some() {
            match self.restore(launch, &own, routes) {
                Ok(restored) => opened = restored,
                Err(why) => outcome.failed.push((job, self.host, why)),
            }
        }
        for (local, &rank) in own.iter().enumerate() {
            let Some(rights) = rights.as_ref().filter(|_| !launch.program.images) else { break };
            let place = (rank, local, own.len());
            match self.start(launch, &hosts, place, (rights, states.remove(&rank))) {
                Ok((held, files)) => {
                    self.reaper.hold(Leftover::group(held.process.pid()));
                    self.members.insert((job, rank), held);
                    opened.push(files);
                }
                Err(why) => {
                    outcome.failed.push((job, self.host, why));
                    break;
                }
            }
        }
        self.passes.clear();
        let adopted = self.adopted.contains_key(&job).then_some(job).into_iter().collect();
        let waits = Waits::new(step, self.of_job(job), self.limits.start);
        self.waits = Some(Waits { what: "start", outcome, adopted, ..waits });
        opened
    }

    /// Creates the control group of a job, if this process may create groups.
    fn open_group(&mut self, job: JobId) -> Result<(), String> {
        let Some(groups) = &self.groups else { return Ok(()) };
        let cgroup = groups.cgroup(&format!("job-{job}"));
        let cgroup = cgroup.map_err(|error| format!("its control group: {error}"))?;
        self.cgroups.insert(job, cgroup);
        Ok(())
    }

    /// Lets ranks of another user open ports on the NIC while the job is on this host.
    fn admit(&mut self, job: JobId, rights: &Rights) {
        if let (Some(nic), Some(user)) = (&self.nic, rights.uid()) {
            nic.admitted.add(user);
            self.guests.insert(job, user);
        }
    }

    /// Limits the memory of a job's ranks on this host to what they claim. Without the memory controller, reports that at the
    /// first job that claims memory.
    fn limit(&mut self, launch: &Launch, ranks: usize) -> Result<(), String> {
        let (Some(each), Some(groups)) = (launch.program.memory, &mut self.groups) else {
            return Ok(());
        };
        if !groups.has_memory() {
            if let Some(error) = groups.take_lack_of_memory() {
                Right::Memory.report_lack(&error);
            }
            return Ok(());
        }
        let Some(cgroup) = self.cgroups.get_mut(&launch.job) else { return Ok(()) };
        let limited = cgroup.limit(each.saturating_mul(ranks as u64));
        limited.map_err(|error| format!("its memory can't be limited: {error}"))
    }

    /// Suspends the processes that a job adopts on this host until the job's first slice.
    fn adopt(&mut self, launch: &Launch) -> Result<(), String> {
        let Some(adopted) = &launch.program.adopts else { return Ok(()) };
        if self.users.has_all() && launch.user.uid != 0 {
            let why = "a daemon of root stops what others have started for root alone: ask root to adopt it, or start a \
                       daemon of your own";
            return Err(why.into());
        }
        let Some(cgroup) = adopted::open(adopted).map_err(|error| error.to_string())? else {
            return Ok(());
        };
        let overlaps = |other: &JobCgroup| {
            let (own, other) = (cgroup.folder(), other.folder());
            own.starts_with(other) || other.starts_with(own)
        };
        if let Some((job, other)) = self.adopted.iter().find(|(_, other)| overlaps(other)) {
            return Err(format!("job {job} has adopted {}", other.folder().display()));
        }
        // The reaper must know the group before it is frozen, so that it is thawed if the daemon dies.
        self.reaper.hold(Leftover::Adopted(cgroup.folder().to_owned()));
        let frozen = cgroup.freeze();
        let folder = cgroup.folder().to_owned();
        self.adopted.insert(launch.job, cgroup);
        frozen.map_err(|error| format!("{}: {error}", folder.display()))
    }

    fn start(
        &self,
        launch: &Launch,
        hosts: &[u16],
        (rank, local, locals): (u16, usize, usize),
        (rights, state): (&Rights, Option<Vec<u8>>),
    ) -> Result<(Held, Opened), String> {
        let program = &launch.program;
        let terminal = program.terminal.filter(|_| rank == 0);
        let group = self.cgroups.get(&launch.job).map(JobCgroup::folder);
        let adopted = self.adopted.get(&launch.job).map(JobCgroup::folder);
        let state = state.map(|state| self.undelivered.add(state)).transpose()?;
        let held = exec_shim::holder(adopted);
        let (path, arguments) = match program.adopts {
            Some(_) => (held.0, &held.1[..]),
            None => (find(program, rights)?, &program.command[..]),
        };
        let mut environment = self.environment(launch, (rank, local, locals));
        let mut set =
            |name: &str, value: String| drop(environment.insert(name.into(), value.into()));
        set(rank::HOSTS, rank::hosts_text(hosts.iter().copied()));
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        // Only this thread starts processes, so no other process inherits these duplicates.
        let mut files = Vec::new();
        if let (Some(pass), Some(nic)) = (self.passes.get(&(launch.job, rank)), &self.nic) {
            for file in &pass.files {
                rights.give(file).map_err(failed)?;
            }
            for file in pass.files.iter().chain(&pass.events) {
                files.push(rustix::io::dup(file).map_err(|error| failed(error.into()))?);
            }
            let numbers: Vec<_> = files.iter().map(|file| file.as_raw_fd().to_string()).collect();
            set(rank::NIC, nic.name.clone());
            set(rank::CHANNEL, format!("{} {}", numbers.join(","), pass.ticket));
        }
        let sockets = Sockets::open().map_err(failed)?;
        let [snapshots, pmi] = sockets.numbers();
        set(snapshot::SNAPSHOTS, snapshots);
        set(pmi::FD, pmi);
        let image = Image {
            program: &path,
            arguments,
            environment,
            folder: Path::new(OsStr::from_bytes(&program.folder)),
            group,
            has_terminal: terminal.is_some(),
            rights,
        };
        let mut command = image.command();
        let started = match terminal {
            Some(size) => start_with_terminal(&mut command, rank, size),
            None => start_with_pipes(&mut command, rank),
        };
        drop(files);
        let member = (launch.job, rank);
        self.hold(member, started.map_err(failed)?, sockets, state).map_err(failed)
    }

    /// Starts the tasks that serve a rank, which was just started.
    pub(super) fn hold(
        &self,
        member: Member,
        (process, terminal, opened): Started,
        Sockets { ours: [snapshots, pmi], theirs }: Sockets,
        state: Option<CountedState>,
    ) -> std::io::Result<(Held, Opened)> {
        let files = SharedFiles {
            standard: imaging::standard_of(&opened)?,
            snapshots: imaging::name("socket", &theirs[0])?,
            pmi: imaging::name("socket", &theirs[1])?,
        };
        let words = self.listen(member, snapshots, state);
        self.serve_pmi(member, pmi);
        let restoring = None;
        Ok((Held { process, terminal, words, files, restoring, is_reported: false }, opened))
    }

    /// Returns the environment variables that a rank's client has sent, and the variables with the rank's numbers.
    fn environment(
        &self,
        launch: &Launch,
        (rank, local, locals): (u16, usize, usize),
    ) -> BTreeMap<OsString, OsString> {
        let sent = variables(&launch.program).filter(|(name, _)| !pmi::is_foreign(name.as_bytes()));
        let sent = sent.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let numbers = [
            ("GANG_JOB", launch.job.0),
            ("GANG_RANK", rank.into()),
            ("GANG_SIZE", launch.ranks.into()),
            ("GANG_LOCAL_RANK", local as u32),
            ("GANG_HOST", self.host.into()),
            ("PMI_RANK", rank.into()),
            ("PMI_SIZE", launch.ranks.into()),
            ("MPI_LOCALRANKID", local as u32),
            ("MPI_LOCALNRANKS", locals as u32),
        ];
        let numbers = numbers.map(|(name, number)| (name.into(), number.to_string().into()));
        sent.chain(numbers).collect()
    }

    /// Starts the task that answers a rank's MPI library.
    fn serve_pmi(&self, (job, rank): Member, end: OwnedFd) {
        let Some(pmi) = self.pmi.get(&job) else { return };
        let events = self.events.clone();
        let said = move |event| drop(events.send(Event::Core(Input::Rank(job, rank, event))));
        pmi.serve(end, said);
    }

    /// Starts the task that carries a rank's messages about checkpoints.
    fn listen(
        &self,
        member: Member,
        end: OwnedFd,
        state: Option<CountedState>,
    ) -> mpsc::UnboundedSender<Word> {
        let (words, to_rank) = mpsc::unbounded_channel();
        let (events, (job, rank)) = (self.events.clone(), member);
        let said = move |event| drop(events.send(Event::Core(Input::Rank(job, rank, event))));
        tokio::spawn(snapshot::serve(end, (state, self.budget.clone()), to_rank, said));
        words
    }
}

/// Returns the names and values of a program's environment variables.
fn variables(program: &Program) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    program.environment.iter().filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
        Some((OsStr::from_bytes(&line[..at]), OsStr::from_bytes(&line[at + 1..])))
    })
}

/// Finds the file of a program, so that the daemon can refuse a missing one at once. Does not access other users'
/// files, because their file systems may hang. Their shims find the program in the job's first slice.
fn find(program: &Program, rights: &Rights) -> Result<PathBuf, String> {
    let name = OsStr::from_bytes(program.command.first().map_or(&[][..], |name| name));
    if rights.uid().is_some() {
        return Ok(name.into());
    }
    let folder = Path::new(OsStr::from_bytes(&program.folder));
    if !folder.is_dir() {
        return Err(format!("{}: there is no such folder", folder.display()));
    }
    let path = variables(program).find(|(name, _)| *name == "PATH").map(|(_, value)| value);
    exec_shim::find(name, folder, path)
}

/// A rank's sockets for snapshots and for PMI: the daemon's ends, and those that processes inherit which are started while they
/// are open.
pub(super) struct Sockets {
    ours: [OwnedFd; 2],
    theirs: [OwnedFd; 2],
}

impl Sockets {
    pub(super) fn open() -> std::io::Result<Self> {
        let pair = || -> std::io::Result<(OwnedFd, OwnedFd)> {
            let (ours, theirs) = UnixStream::pair()?;
            Ok((ours.into(), rustix::io::dup(theirs)?))
        };
        let ((snapshots, of_rank), (pmi, of_library)) = (pair()?, pair()?);
        Ok(Self { ours: [snapshots, pmi], theirs: [of_rank, of_library] })
    }

    /// Returns the numbers that the rank finds them by.
    pub(super) fn numbers(&self) -> [String; 2] {
        self.theirs.each_ref().map(|socket| socket.as_raw_fd().to_string())
    }
}

/// A process, the daemon's side of its terminal, and its streams.
type Started = (Process, Option<OwnedFd>, Opened);

pub(super) fn start_with_pipes(command: &mut Command, rank: u16) -> std::io::Result<Started> {
    command.stdin(if rank == 0 { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (process, mut child) = Process::start(command)?;
    let input = child.stdin.take().map(OwnedFd::from);
    let output = child.stdout.take().map(|it| (Stream::Output, OwnedFd::from(it)));
    let error = child.stderr.take().map(|it| (Stream::Error, OwnedFd::from(it)));
    let outputs = output.into_iter().chain(error).collect();
    Ok((process, None, Opened { rank, input, outputs }))
}

fn start_with_terminal(
    command: &mut Command,
    rank: u16,
    (rows, columns): (u16, u16),
) -> std::io::Result<Started> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let theirs = File::from(rustix::fs::open(&*name, flags, rustix::fs::Mode::empty())?);
    tcsetwinsize(&ours, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
    // Nothing may fail once the process runs.
    let input = Some(ours.try_clone()?);
    let outputs = vec![(Stream::Output, ours.try_clone()?)];
    let (process, _) = Process::start(command)?;
    Ok((process, Some(ours), Opened { rank, input, outputs }))
}
