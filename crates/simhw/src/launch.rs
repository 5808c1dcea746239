//! Finds rank, size and peers: from flags, from the launcher that started this process, or from a file.
//!
//! | started by | rank and size | hosts |
//! |---|---|---|
//! | hand | [`Launch::rank`], [`Launch::size`] | [`Launch::peers`] or [`Launch::hostfile`] |
//! | `srun` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` | `SLURM_STEP_NODELIST`, `SLURM_STEP_TASKS_PER_NODE` |
//! | `mpirun` of Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | this one, or a hostfile |
//! | PMI (MPICH's `mpiexec`) | `PMI_RANK`, `PMI_SIZE` | this one, Slurm's, or a hostfile |
//! | an indexed Kubernetes job | `JOB_COMPLETION_INDEX`, [`Launch::size`] | `JOB-INDEX.SERVICE` |
//!
//! Flags override the environment, and a list of peers overrides every other source of hosts. Where hosts are
//! named without ports, the ranks of one host take ports from [`DEFAULT_PORT`] on. If the launcher reports another
//! host for this process than the order of the hosts gives it, [`Launch::place`] fails.

mod environment;
mod hosts;

use std::io::{BufRead, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::id::NodeId;
use crate::seal::{Identity, IdentityError, KeyFileError, PublicKey, SecretKey, read_key};
use crate::udp::{ResolveError, resolve_within};
use environment::Started;

/// The port of a host's first rank. It is below the ports that systems assign by themselves (from 32768 on).
pub const DEFAULT_PORT: u16 = 24_700;
/// Most ranks: node numbers have 16 bits.
pub(crate) const MAX_RANKS: usize = u16::MAX as usize;

/// Flags that name files, as error messages print them.
const PEERS: &str = "--peers";
const HOSTFILE: &str = "--hostfile";

/// The flags that select the processes; each is optional.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Launch {
    rank: Option<u16>,
    size: Option<usize>,
    peers: Option<PathBuf>,
    hostfile: Option<PathBuf>,
    port: Option<u16>,
    service: Option<String>,
}

/// The processes that work together, and this one's rank; all of them have the same list of peers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProcessGroup {
    /// This process's rank, from 0.
    pub rank: u16,
    /// The `host:port` of every rank, including this one.
    pub peers: Vec<String>,
    /// The key of every rank if the list of peers has keys; otherwise empty.
    pub keys: Vec<PublicKey>,
}

impl ProcessGroup {
    /// Returns the number of processes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.peers.len()
    }

    /// Reads this rank's secret key and returns its identity among the peers. [`SecretKey::generate`] makes a
    /// key, and the file contains [`SecretKey::to_text`]. The list of peers has [`SecretKey::public`] after
    /// each `host:port`.
    ///
    /// # Errors
    /// [`LaunchError::SecretKey`], [`LaunchError::NoKeys`], or [`LaunchError::Identity`].
    pub fn identity(&self, file: &Path) -> Result<Identity, LaunchError> {
        if self.keys.is_empty() {
            return Err(LaunchError::NoKeys);
        }
        let wrong = |why| LaunchError::SecretKey { path: file.into(), why };
        let secret = read_key::<SecretKey>(file).map_err(wrong)?;
        Ok(Identity::new(NodeId(self.rank), secret, self.keys.clone())?)
    }

    /// Resolves the addresses of all ranks. Blocks while names resolve. Names that are unknown, such as those of pods
    /// that have not started, are tried again until `wait` is over. After that, each host may take 4 s more.
    ///
    /// # Errors
    /// [`ResolveError`] names the entry that failed.
    pub fn addresses(&self, wait: Duration) -> Result<Vec<SocketAddr>, ResolveError> {
        resolve_within(&self.peers, wait)
    }
}

/// The reason why the peers could not be found.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum LaunchError {
    /// A file of peers or hosts cannot be read.
    #[error("{flag} {}: {}; name a file that can be read", path.display(), why(*kind))]
    Unreadable {
        /// The flag that names the file.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        kind: ErrorKind,
    },
    /// A line of a list of peers is malformed.
    #[error("--peers {}: line {line} is not \"HOST:PORT\" or \"HOST:PORT KEY\"", path.display())]
    Peer {
        /// Path of the file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A key in a list of peers is malformed.
    #[error("--peers {}: the key in line {line} is not 64 hexadecimal digits", path.display())]
    PeerKey {
        /// Path of the file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// Some lines of a list of peers have keys and others do not; this is the first that differs.
    #[error("--peers {}: line {line} differs from those before it; give every peer its key, or none", path.display())]
    SomeKeys {
        /// Path of the file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A secret key is given, but the list of peers has no public keys.
    #[error("--secret-key: the list of peers has no keys; put each peer's behind its HOST:PORT")]
    NoKeys,
    /// A file gives no secret key.
    #[error("--secret-key {}: {why}", path.display())]
    SecretKey {
        /// Path of the file.
        path: PathBuf,
        /// The reason why the file gives no key.
        why: KeyFileError,
    },
    /// The keys do not match.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A line of a hostfile is malformed.
    #[error("--hostfile {}: line {line} is not \"HOST\", \"HOST slots=N\" or \"HOST:N\"", path.display())]
    Hostfile {
        /// Path of the file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A list of peers or hosts has no entry.
    #[error("{flag} {}: it has no entry; give one a line", path.display())]
    Empty {
        /// The flag that names the file.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
    },
    /// A variable of the environment has an unusable value.
    #[error("{variable}={value:?} is no {what}; fix it, or give --rank and --peers")]
    Variable {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable.
        value: String,
        /// The value that it should have.
        what: &'static str,
    },
    /// A list of peers is given, but not this process's rank.
    #[error("--rank: say which of the {0} peers this process is")]
    NoRank(usize),
    /// The rank is not below the number of peers.
    #[error("--rank {rank}: outside the list of {size} peers; ranks count from 0")]
    Rank {
        /// Rank of this process.
        rank: u16,
        /// The number of ranks.
        size: usize,
    },
    /// The number of peers differs from the number of ranks.
    #[error("{ranks} ranks, and peers for {peers}; name one for each rank")]
    Size {
        /// The number of ranks.
        ranks: usize,
        /// The number of named peers.
        peers: usize,
    },
    /// A rank is given, but the addresses of its peers are not.
    #[error(
        "rank {rank} of {launcher}: the addresses of its peers are missing; give --hostfile or --peers"
    )]
    NoPeers {
        /// Rank of this process.
        rank: u16,
        /// The launcher or flag that gave the rank.
        launcher: &'static str,
    },
    /// The number of pods of an indexed Kubernetes job, or their service, is not given.
    #[error("an indexed job does not tell its {what}; give {flag}")]
    Job {
        /// Name of the missing value.
        what: &'static str,
        /// The flag that gives it.
        flag: &'static str,
    },
    /// The order of the hosts contradicts that of the ranks.
    #[error("rank {rank} is not where the list of hosts puts it; give --peers, one line a rank")]
    Placement {
        /// Rank of this process.
        rank: u16,
    },
    /// The ranks of one host need ports above 65535.
    #[error("--port {first}: {ranks} ranks of one host go past port 65535; choose a lower one")]
    Ports {
        /// The first rank's port.
        first: u16,
        /// Number of ranks of the host.
        ranks: usize,
    },
}

impl Launch {
    /// Creates a launch without flags: the environment decides.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets this process's rank, from 0.
    #[must_use]
    pub const fn rank(mut self, rank: Option<u16>) -> Self {
        self.rank = rank;
        self
    }

    /// Sets the number of ranks. Default: the number of named peers.
    #[must_use]
    pub const fn size(mut self, size: Option<usize>) -> Self {
        self.size = size;
        self
    }

    /// Sets a file with one `host:port` a line, in the order of ranks. Each line may have the rank's public key after
    /// it: either every line has one, or none has. `-` is standard input, up to an empty line. Lines that begin with
    /// `#` are ignored.
    #[must_use]
    pub fn peers(mut self, file: Option<PathBuf>) -> Self {
        self.peers = file;
        self
    }

    /// Sets a file with one host a line, each for as many ranks as it has slots: `HOST`, `HOST slots=N` (Open
    /// MPI) or `HOST:N` (MPICH). Ranks fill one host after another.
    #[must_use]
    pub fn hostfile(mut self, file: Option<PathBuf>) -> Self {
        self.hostfile = file;
        self
    }

    /// Sets the port of a host's first rank, for lists that name hosts only. Default: [`DEFAULT_PORT`].
    #[must_use]
    pub const fn port(mut self, port: Option<u16>) -> Self {
        self.port = port;
        self
    }

    /// Sets the headless service under which the pods of an indexed job find each other.
    #[must_use]
    pub fn service(mut self, service: Option<String>) -> Self {
        self.service = service;
        self
    }

    /// Finds this process's place from the flags and the environment; `None` if the process is alone.
    ///
    /// # Errors
    /// [`LaunchError`] says what is missing or contradictory, and how to fix it.
    pub fn place(&self) -> Result<Option<ProcessGroup>, LaunchError> {
        self.place_in(|variable| std::env::var(variable).ok())
    }

    /// Does what [`Launch::place`] does, with another environment than this process's.
    ///
    /// # Errors
    /// As for [`Launch::place`].
    #[doc(hidden)]
    pub fn place_in(
        &self,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<ProcessGroup>, LaunchError> {
        // Flags give rank and hosts: the launcher is ignored.
        let by_hand = self.rank.is_some() && self.names_hosts();
        let started = if by_hand { None } else { Started::find(self, environment)? };
        let Some((mut peers, mut keys)) = self.find_peers(started.as_ref())? else {
            return Ok(None);
        };
        let said = self.rank.or_else(|| started.as_ref().map(|started| started.rank));
        let rank = said.ok_or(LaunchError::NoRank(peers.len()))?;
        if let Some(size) = self.size.or_else(|| started.and_then(|started| started.size)) {
            if peers.len() < size || (self.peers.is_some() && peers.len() != size) {
                return Err(LaunchError::Size { ranks: size, peers: peers.len() });
            }
            // Hosts may have more slots than there are ranks.
            peers.truncate(size);
            keys.truncate(size);
        }
        if usize::from(rank) >= peers.len() {
            return Err(LaunchError::Rank { rank, size: peers.len() });
        }
        Ok(Some(ProcessGroup { rank, peers, keys }))
    }

    /// Reads the peers that the flags name, for a process that is not one of them. Empty if no flag names any.
    ///
    /// # Errors
    /// As for [`Launch::place`].
    #[doc(hidden)]
    pub fn read_peers(&self) -> Result<Vec<String>, LaunchError> {
        Ok(self.read_keyed_peers()?.0)
    }

    /// Does what [`Launch::read_peers`] does, and returns the peers' keys as well: one per peer, or none at
    /// all.
    ///
    /// # Errors
    /// As for [`Launch::place`].
    #[doc(hidden)]
    pub fn read_keyed_peers(&self) -> Result<KeyedPeers, LaunchError> {
        Ok(self.find_peers(None)?.unwrap_or_default())
    }

    /// Returns whether a flag names the hosts of all ranks.
    const fn names_hosts(&self) -> bool {
        self.peers.is_some() || self.hostfile.is_some()
    }

    /// Finds one `host:port` per rank, from the source of the highest precedence. `None` if no source names
    /// other ranks.
    fn find_peers(&self, started: Option<&Started>) -> Result<Option<KeyedPeers>, LaunchError> {
        if let Some(path) = &self.peers {
            return read_list(path).map(Some);
        }
        let hosts = match (&self.hostfile, started) {
            (Some(path), _) => hosts::read(path, &read_lines(HOSTFILE, path)?)?,
            (None, Some(started)) if started.size == Some(1) => return Ok(None),
            (None, Some(started)) => {
                let unknown =
                    LaunchError::NoPeers { rank: started.rank, launcher: started.launcher };
                started.hosts.clone().ok_or(unknown)?
            }
            (None, None) => match self.rank {
                Some(rank) => return Err(LaunchError::NoPeers { rank, launcher: "--rank" }),
                None => return Ok(None),
            },
        };
        if let Some(started) = started {
            started.check(&hosts)?;
        }
        let peers = hosts::with_ports(&hosts, self.port.unwrap_or(DEFAULT_PORT))?;
        Ok(Some((peers, Vec::new())))
    }
}

/// The `host:port` of every peer, and the keys of all of them or of none.
pub(crate) type KeyedPeers = (Vec<String>, Vec<PublicKey>);

/// Reads the entries of a list of peers.
fn read_list(path: &Path) -> Result<KeyedPeers, LaunchError> {
    let lines = read_lines(PEERS, path)?;
    let (mut entries, mut keys) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(&lines) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (line, key) = match line.split_once(char::is_whitespace) {
            Some((peer, key)) => (peer, Some(key)),
            None => (line, None),
        };
        let port = line.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none() {
            return Err(LaunchError::Peer { path: path.into(), line: number });
        }
        if (keys.len() == entries.len()) != key.is_some() && !entries.is_empty() {
            return Err(LaunchError::SomeKeys { path: path.into(), line: number });
        }
        if let Some(key) = key {
            let malformed = |_| LaunchError::PeerKey { path: path.into(), line: number };
            keys.push(key.parse().map_err(malformed)?);
        }
        entries.push(line.into());
    }
    if entries.is_empty() {
        return Err(LaunchError::Empty { flag: PEERS, path: path.into() });
    }
    Ok((entries, keys))
}

/// Describes why a file cannot be read.
fn why(kind: ErrorKind) -> String {
    match kind {
        ErrorKind::NotFound => "there is no such file".into(),
        ErrorKind::PermissionDenied => "this user may not read it".into(),
        ErrorKind::InvalidData => "it is not text".into(),
        other => other.to_string(),
    }
}

/// Reads the lines of a file, or of standard input up to an empty one.
fn read_lines(flag: &'static str, path: &Path) -> Result<Vec<String>, LaunchError> {
    let unreadable = |error: std::io::Error| LaunchError::Unreadable {
        flag,
        path: path.into(),
        kind: error.kind(),
    };
    if path == Path::new("-") {
        let full = |line: &std::io::Result<String>| {
            line.as_ref().map_or(true, |line| !line.trim().is_empty())
        };
        let lines: std::io::Result<Vec<String>> =
            std::io::stdin().lock().lines().take_while(full).collect();
        return lines.map_err(unreadable);
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    Ok(text.lines().map(Into::into).collect())
}

#[cfg(test)]
mod tests;
