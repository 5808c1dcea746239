//! The daemons of a run, and the jobs under them.

use std::io::{BufRead, BufReader, Read};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use midplane::gang::live::client::{ask, checkpoint};
use midplane::gang::live::message::{Listing, Reply, Request, Slice};
use midplane::gang::names::JobId;

use super::parts::{KEY, runtime};
use crate::folder::Folder;
use midplane_kit::processes;
use serde::{Deserialize, Serialize};

/// Time limit for daemons to find each other.
const MEET: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// The daemons of a run: its own, or running ones whose first daemon serves a socket on this host.
pub struct Stage {
    socket: PathBuf,
    daemons: Vec<Child>,
    /// Holds the sockets of this run's own daemons.
    _folder: Option<Folder>,
}

/// Parameters of a run's daemons.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Daemons<'a> {
    pub hosts: u16,
    /// Slots of each host.
    pub slots: u16,
    pub slice_ms: f64,
    /// Preempts a job that is alone at the ends of this many slices, then not at the ends of as many; `None`: never.
    pub stretch: Option<NonZeroU32>,
    pub fabric: &'a str,
}

/// Creates a key for one run. Only this user can read the process's environment.
fn fresh_key() -> Result<String, String> {
    let mut bytes = [0; 32];
    let mut file = std::fs::File::open("/dev/urandom").map_err(|error| error.to_string())?;
    file.read_exact(&mut bytes).map_err(|error| error.to_string())?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("1:{digits}"))
}

impl Stage {
    /// Starts daemons on this host, and waits until they have found each other.
    pub fn start(of: Daemons<'_>) -> Result<Self, String> {
        let folder = Folder::create();
        let folder = folder.map_err(|error| format!("starting a daemon: {error}"))?;
        let mut stage = Self::start_in(folder.path(), of)?;
        stage._folder = Some(folder);
        Ok(stage)
    }

    /// Starts daemons with their sockets in a folder that only this user can read; the caller removes the folder.
    pub fn start_in(folder: &Path, of: Daemons<'_>) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("starting a daemon: {error}");
        let is_joined = of.hosts > 1 || of.fabric == "udp";
        let peers = match is_joined {
            true => processes::free_addresses(of.hosts.into())?,
            false => Vec::new(),
        };
        let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
        let (peers, key) = (peers.join(","), fresh_key()?);
        let parameters = serde_json::to_string(&of).expect("plain data");
        let socket = folder.join("0.socket");
        let mut stage = Self { socket, daemons: Vec::new(), _folder: None };
        for host in 0..of.hosts {
            let mut daemon = Command::new(std::env::current_exe().map_err(failed)?)
                .arg("--be-daemon")
                .arg(folder.join(format!("{host}.socket")))
                .args([&host.to_string(), &parameters, &peers])
                .env(KEY, &key)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(failed)?;
            let output = daemon.stdout.take().expect("it is a pipe");
            stage.daemons.push(daemon);
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).map_err(failed)?;
            if line != "ready\n" {
                return Err("a daemon did not start".into());
            }
        }
        for _ in 0..MEET.as_millis() / POLL.as_millis() {
            if stage.listing()?.hosts.iter().all(|here| *here) {
                return Ok(stage);
            }
            std::thread::park_timeout(POLL);
        }
        Err(format!("the daemons did not find each other within {MEET:?}"))
    }

    /// Uses daemons that are already running.
    ///
    /// # Errors
    /// One line, if no daemon serves the socket.
    pub fn of_others(socket: PathBuf) -> Result<Self, String> {
        let stage = Self { socket, daemons: Vec::new(), _folder: None };
        stage.listing().map(|_| stage)
    }

    fn ask(&self, request: &Request) -> Result<Reply, String> {
        let asked = runtime()?.block_on(ask(&self.socket, request));
        asked.map_err(|error| format!("{}: {error}", self.socket.display()))
    }

    /// Returns the daemons' listing of hosts and jobs.
    ///
    /// # Errors
    /// One line, if the daemons do not answer.
    pub fn listing(&self) -> Result<Listing, String> {
        match self.ask(&Request::List)? {
            Reply::Listing(listing) => Ok(listing),
            _ => Err("the daemon has exited".into()),
        }
    }

    /// Runs a job of this program with these arguments to its end; returns the lines of its client.
    pub fn run(&self, ranks: u16, command: &[&str]) -> Result<Vec<String>, String> {
        self.begin(ranks, command)?.lines()
    }

    /// Starts a job of this program.
    pub fn begin(&self, ranks: u16, command: &[&str]) -> Result<JobClient, String> {
        let failed = |error: std::io::Error| format!("running a job: {error}");
        let itself = std::env::current_exe().map_err(failed)?;
        let mut client = Command::new(&itself);
        client.arg("--be-client").arg(&self.socket).arg(ranks.to_string()).arg(&itself);
        JobClient::start(client.args(command))
    }

    /// Saves a job to a folder, and ends it.
    pub fn save_and_end(&self, job: u32, folder: &Path) -> Result<(), String> {
        let saved = checkpoint(&self.socket, JobId(job), folder, true);
        runtime()?.block_on(saved).map_err(|error| error.to_string()).map(drop)
    }

    /// Resumes a job that was saved in a folder.
    pub fn restore(&self, folder: &Path) -> Result<JobClient, String> {
        let itself = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut client = Command::new(itself);
        JobClient::start(client.arg("--be-restored").arg(&self.socket).arg(folder))
    }

    /// Returns the last slices that began by stopping a job.
    ///
    /// # Errors
    /// One line, if the daemons do not answer.
    pub fn slices(&self) -> Result<Vec<Slice>, String> {
        match self.ask(&Request::Slices)? {
            Reply::Slices(slices) => {
                Ok(slices.into_iter().filter(|slice| !slice.stopped.is_empty()).collect())
            }
            _ => Err("the daemon has exited".into()),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// The client of a job, a process of its own; the job ends with it.
pub struct JobClient {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl JobClient {
    fn start(command: &mut Command) -> Result<Self, String> {
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = started.spawn().map_err(|error| format!("running a job: {error}"))?;
        let output = BufReader::new(process.stdout.take().expect("it is a pipe"));
        Ok(Self { process, output })
    }

    /// Waits until the client writes this line.
    ///
    /// # Errors
    /// One line, if the job ends without it.
    pub fn wait_for(&mut self, wanted: &str) -> Result<(), String> {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.output.read_line(&mut line);
            match read.map_err(|error| format!("running a job: {error}"))? {
                0 => return Err(format!("a job ended before it printed \"{wanted}\"")),
                _ if line.trim_end() == wanted => return Ok(()),
                _ => {}
            }
        }
    }

    /// Returns the lines that the client writes until it exits.
    ///
    /// # Errors
    /// One line, if the job failed.
    pub fn lines(mut self) -> Result<Vec<String>, String> {
        let failed = |error: std::io::Error| format!("running a job: {error}");
        let mut text = String::new();
        self.output.read_to_string(&mut text).map_err(failed)?;
        let mut complaint = String::new();
        let errors = self.process.stderr.as_mut().expect("it is a pipe");
        errors.read_to_string(&mut complaint).map_err(failed)?;
        match (self.process.wait().map_err(failed)?.success(), complaint.lines().last()) {
            (true, _) => Ok(text.lines().map(str::to_owned).collect()),
            (false, why) => Err(format!("a job failed: {}", why.unwrap_or("it printed no reason"))),
        }
    }
}

impl Drop for JobClient {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
