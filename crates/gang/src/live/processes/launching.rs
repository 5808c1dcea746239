//! Starts a job's ranks on this host: their programs, variables, streams and terminal.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Access, OFlags, access};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::sync::mpsc;

use super::{Held, Member, Processes, Waits};
use crate::live::adopted;
use crate::live::event::Event;
use crate::live::job_cgroup::JobCgroup;
use crate::live::link::Stream;
use crate::live::pmi::{self, PmiJob};
use crate::live::process::Process;
use crate::live::streams::Opened;
use crate::live::{exec_shim, rank, snapshot};
use crate::node_core::message::{Program, Word};
use crate::node_core::order::{Launch, Outcome};

impl Processes {
    /// Begins to start the ranks of a job that are here, with the states that they were saved with. Returns the files of
    /// their standard streams.
    pub(in crate::live) fn launch(
        &mut self,
        step: u64,
        launch: &Launch,
        mut states: BTreeMap<u16, Vec<u8>>,
    ) -> Vec<Opened> {
        let job = launch.job;
        let places = self.cluster.places(launch);
        let hosts: Vec<u16> = places.iter().map(|place| place.node.0).collect();
        if let Some(groups) = &self.groups {
            let cgroup = groups.cgroup(&format!("job-{job}"));
            self.cgroups.extend(cgroup.ok().map(|cgroup| (job, cgroup)));
        }
        let (mut opened, mut outcome) = (Vec::new(), Outcome::default());
        let own = (0_u16..).zip(&hosts).filter(|(_, host)| **host == self.host);
        let mut own: Vec<u16> = own.map(|(rank, _)| rank).collect();
        if let Err(why) = self.adopt(launch) {
            outcome.failed.push((job, self.host, why));
            own.clear();
        }
        let name = variables(&launch.program).find(|(name, _)| *name == pmi::NAME);
        // A job that was saved before jobs had names has none.
        let name =
            name.map_or_else(|| format!("gang-{job}").into(), |(_, name)| name.to_string_lossy());
        self.pmi.insert(job, PmiJob::new(&name, &hosts));
        for (local, &rank) in own.iter().enumerate() {
            let place = (rank, local, own.len());
            match self.start(launch, &hosts, place, states.remove(&rank)) {
                Ok((held, files)) => {
                    self.reaper.hold(held.process.pid());
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
        let waits = Waits::new(step, self.of_job(job), false);
        self.waits = Some(Waits { outcome, adopted, ..waits });
        opened
    }

    /// Stops the processes that a job adopts here, until its first slice.
    fn adopt(&mut self, launch: &Launch) -> Result<(), String> {
        let Some(adopted) = &launch.program.adopts else { return Ok(()) };
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
        // The reaper has to know it before it stops.
        self.reaper.hold_adopted(cgroup.folder());
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
        state: Option<Vec<u8>>,
    ) -> Result<(Held, Opened), String> {
        let program = &launch.program;
        let terminal = program.terminal.filter(|_| rank == 0);
        let group = self.cgroups.get(&launch.job).map(JobCgroup::folder);
        let adopted = self.adopted.get(&launch.job).map(JobCgroup::folder);
        let (path, mut command) = if program.adopts.is_some() {
            (PathBuf::from("midplane"), exec_shim::holder(adopted, group))
        } else {
            let path = find(program)?;
            let command = exec_shim::rank(&path, &program.command, group, terminal.is_some());
            (path, command)
        };
        let own = variables(program).filter(|(name, _)| !pmi::is_foreign(name.as_bytes()));
        command.env_clear().envs(own).current_dir(OsStr::from_bytes(&program.folder));
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
        command.envs(numbers.map(|(name, number)| (name, number.to_string())));
        command.env(rank::HOSTS, rank::hosts_text(hosts.iter().copied()));
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        // This thread alone starts processes, so that no other process inherits this copy.
        let file = match (self.passes.get(&(launch.job, rank)), &self.nic) {
            (Some(pass), Some(nic)) => {
                let file = rustix::io::dup(&pass.file).map_err(|error| failed(error.into()))?;
                command.env(rank::NIC, nic);
                command.env(rank::CHANNEL, format!("{} {}", file.as_raw_fd(), pass.ticket));
                Some(file)
            }
            _ => None,
        };
        let (ours, theirs) = inherited_pair().map_err(failed)?;
        command.env(snapshot::SNAPSHOTS, theirs.as_raw_fd().to_string());
        let (to_pmi, of_pmi) = inherited_pair().map_err(failed)?;
        command.env(pmi::FD, of_pmi.as_raw_fd().to_string());
        let started = match terminal {
            Some(size) => start_with_terminal(&mut command, rank, size),
            None => start_with_pipes(&mut command, rank),
        };
        drop((file, theirs, of_pmi));
        let (process, terminal, opened) = started.map_err(failed)?;
        let words = self.listen((launch.job, rank), ours, state);
        self.serve_pmi((launch.job, rank), to_pmi);
        Ok((Held { process, terminal, words, is_reported: false }, opened))
    }

    /// Starts the task that answers a rank's MPI library.
    fn serve_pmi(&self, (job, rank): Member, end: OwnedFd) {
        let Some(pmi) = self.pmi.get(&job) else { return };
        let events = self.events.clone();
        let said = move |event| drop(events.send(Event::Rank(job, rank, event)));
        pmi.serve(end, said);
    }

    /// Starts the task that carries a rank's messages about checkpoints.
    fn listen(
        &self,
        member: Member,
        end: OwnedFd,
        state: Option<Vec<u8>>,
    ) -> mpsc::UnboundedSender<Word> {
        let (words, to_rank) = mpsc::unbounded_channel();
        let (events, (job, rank)) = (self.events.clone(), member);
        let said = move |event| drop(events.send(Event::Rank(job, rank, event)));
        tokio::spawn(snapshot::serve(end, state, to_rank, said));
        words
    }
}

/// The variables of a program's environment.
fn variables(program: &Program) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    program.environment.iter().filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
        Some((OsStr::from_bytes(&line[..at]), OsStr::from_bytes(&line[at + 1..])))
    })
}

/// Connected sockets: the daemon's, and one that processes inherit which are started while it is open.
fn inherited_pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    Ok((ours.into(), rustix::io::dup(theirs)?))
}

/// A process, the daemon's side of its terminal, and its streams.
type Started = (Process, Option<OwnedFd>, Opened);

fn start_with_pipes(command: &mut Command, rank: u16) -> std::io::Result<Started> {
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
    let (process, _) = Process::start(command)?;
    let input = Some(ours.try_clone()?);
    let outputs = vec![(Stream::Output, ours.try_clone()?)];
    Ok((process, Some(ours), Opened { rank, input, outputs }))
}

/// The file of a program, as its environment and folder have it.
fn find(program: &Program) -> Result<PathBuf, String> {
    let name = program.command.first().map_or(&[][..], |name| name);
    let shown = String::from_utf8_lossy(name);
    let folder = Path::new(OsStr::from_bytes(&program.folder));
    if !folder.is_dir() {
        return Err(format!("{}: there is no such folder", folder.display()));
    }
    let can = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if name.contains(&b'/') {
        let path = folder.join(OsStr::from_bytes(name));
        return match (can(&path), path.exists()) {
            (true, _) => Ok(path),
            (false, true) => Err(format!("{shown}: it may not be executed")),
            (false, false) => Err(format!("{shown}: there is no such file")),
        };
    }
    let path = program.environment.iter().find_map(|line| line.strip_prefix(b"PATH="));
    let path = OsString::from_vec(path.unwrap_or(b"/usr/local/bin:/usr/bin:/bin").to_vec());
    let found =
        std::env::split_paths(&path).map(|part| folder.join(part).join(OsStr::from_bytes(name)));
    found.into_iter().find(|path| can(path)).ok_or_else(|| format!("{shown}: not found in PATH"))
}
