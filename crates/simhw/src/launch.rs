//! Who am I: rank, size and peers, from flags, from what started this process, or from a file.
//!
//! | started by | rank and size | hosts |
//! |---|---|---|
//! | hand | [`Launch::rank`], [`Launch::size`] | [`Launch::peers`] or [`Launch::hostfile`] |
//! | `srun` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` | `SLURM_STEP_NODELIST`, `SLURM_STEP_TASKS_PER_NODE` |
//! | `mpirun` of Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | this one, or a hostfile |
//! | PMI (MPICH's `mpiexec`) | `PMI_RANK`, `PMI_SIZE` | this one, Slurm's, or a hostfile |
//! | an indexed Kubernetes job | `JOB_COMPLETION_INDEX`, [`Launch::size`] | `JOB-INDEX.SERVICE` |
//!
//! Flags go before the environment, and a list of peers before everything that names hosts. Where
//! hosts are named without ports, the ranks of one host take ports from [`DEFAULT_PORT`] on. What
//! started the process says on which host it is as well; if that contradicts the order of the
//! hosts, it is an error, not a guess.

mod environment;
mod hosts;

use std::io::{BufRead, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::id::NodeId;
use crate::seal::{Identity, IdentityError, PublicKey, SecretKey};
use crate::udp::{ResolveError, resolve_peers};
use environment::Started;

/// The port of a host's first rank; below those that systems take by themselves (from 32768 on).
pub const DEFAULT_PORT: u16 = 24_700;
/// Most ranks: nodes have 16-bit numbers.
pub const MAX_RANKS: usize = u16::MAX as usize;

/// The flags that name files, as messages call them.
const PEERS: &str = "--peers";
const HOSTFILE: &str = "--hostfile";
const SECRET_KEY: &str = "--secret-key";
/// How long to wait before an unknown name is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// What the command line says about who takes part; all of it may be left out.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Launch {
    rank: Option<u16>,
    size: Option<usize>,
    peers: Option<PathBuf>,
    hostfile: Option<PathBuf>,
    port: Option<u16>,
    service: Option<String>,
}

/// One of several processes that work together: all of them know the same list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Place {
    /// This process, from 0.
    pub rank: u16,
    /// Every rank's `host:port`, this one's own among them.
    pub peers: Vec<String>,
    /// Every rank's key, if the list of peers has keys; otherwise empty.
    pub keys: Vec<PublicKey>,
}

impl Place {
    /// How many processes there are.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.peers.len()
    }

    /// Reads this rank's secret key and returns who it is among the peers. [`SecretKey::generate`] makes one, and
    /// [`SecretKey::to_text`] is what the file has; the list has [`SecretKey::public`] behind `host:port`.
    ///
    /// # Errors
    /// [`LaunchError::SecretKey`], [`LaunchError::NoKeys`] or [`LaunchError::Identity`] say what to do.
    pub fn identity(&self, file: &Path) -> Result<Identity, LaunchError> {
        if self.keys.is_empty() {
            return Err(LaunchError::NoKeys);
        }
        let unreadable = |error: std::io::Error| LaunchError::Unreadable {
            flag: SECRET_KEY,
            path: file.into(),
            kind: error.kind(),
        };
        let text = std::fs::read_to_string(file).map_err(unreadable)?;
        let malformed = |_| LaunchError::SecretKey { path: file.into() };
        let secret = text.parse::<SecretKey>().map_err(malformed)?;
        Ok(Identity::new(NodeId(self.rank), secret, self.keys.clone())?)
    }

    /// The addresses of all ranks. Blocks for as long as names take to resolve, up to 4 s; names
    /// that are unknown are asked for again for `wait`, as those of pods that are not there yet.
    ///
    /// # Errors
    /// [`ResolveError`] names the entry that is wrong.
    pub fn addresses(&self, wait: Duration) -> Result<Vec<SocketAddr>, ResolveError> {
        for _ in 0..wait.as_millis() / ASK_AGAIN.as_millis() {
            match resolve_peers(&self.peers) {
                Err(ResolveError::Unknown { .. }) => std::thread::park_timeout(ASK_AGAIN),
                found => return found,
            }
        }
        resolve_peers(&self.peers)
    }
}

/// Why nobody knows who takes part.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum LaunchError {
    /// A file of peers or hosts cannot be read.
    #[error("{flag} {}: {}; name a file that can be read", path.display(), why(*kind))]
    Unreadable {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        kind: ErrorKind,
    },
    /// A line of a list of peers is no peer.
    #[error("--peers {}: line {line} is not \"HOST:PORT\" or \"HOST:PORT KEY\"", path.display())]
    Peer {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A key in a list of peers is none.
    #[error("--peers {}: the key in line {line} is not 64 hexadecimal digits", path.display())]
    PeerKey {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// Some lines of a list of peers have keys, and this one has none, or the other way round.
    #[error("--peers {}: line {line} differs from those before it; give every peer its key, or none", path.display())]
    SomeKeys {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// There is a secret key, and the list of peers has no public ones.
    #[error("--secret-key: the list of peers has no keys; put each peer's behind its HOST:PORT")]
    NoKeys,
    /// A file has no secret key.
    #[error("--secret-key {}: it is not 64 hexadecimal digits; make a new key", path.display())]
    SecretKey {
        /// The file.
        path: PathBuf,
    },
    /// The keys do not fit together.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A line of a hostfile says something that is no host with slots.
    #[error("--hostfile {}: line {line} is not \"HOST\", \"HOST slots=N\" or \"HOST:N\"", path.display())]
    Hostfile {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A list of peers or hosts has no entry.
    #[error("{flag} {}: it names nobody; give one a line", path.display())]
    Empty {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// A variable of the environment does not say what it should.
    #[error("{variable}={value:?} is no {what}; mend it, or give --rank and --peers")]
    Variable {
        /// Its name.
        variable: &'static str,
        /// What it says.
        value: String,
        /// What it should say.
        what: &'static str,
    },
    /// There is a list of peers, and nobody says which of them this process is.
    #[error("--rank: say which of the {0} peers this process is")]
    NoRank(usize),
    /// The rank is outside of the list.
    #[error("--rank {rank}: outside the list of {size} peers; ranks count from 0")]
    Rank {
        /// The rank.
        rank: u16,
        /// How many ranks there are.
        size: usize,
    },
    /// There are not as many peers as ranks.
    #[error("{ranks} ranks, and peers for {peers}; name one for each rank")]
    Size {
        /// Ranks that there are to be.
        ranks: usize,
        /// Peers that are named.
        peers: usize,
    },
    /// There is a rank, and nobody says where the others are.
    #[error(
        "rank {rank} of {launcher}: nobody says where its peers are; give --hostfile or --peers"
    )]
    NoPeers {
        /// The rank.
        rank: u16,
        /// What said so.
        launcher: &'static str,
    },
    /// An indexed job does not tell how many pods it has, or under which name they are found.
    #[error("an indexed job does not tell its {what}; give {flag}")]
    Job {
        /// What is missing.
        what: &'static str,
        /// The flag that says it.
        flag: &'static str,
    },
    /// The order of the hosts is not that of the ranks.
    #[error("rank {rank} is not where the list of hosts puts it; give --peers, one line a rank")]
    Placement {
        /// The rank.
        rank: u16,
    },
    /// So many ranks of one host have no ports from there on.
    #[error("--port {first}: {ranks} ranks of one host go past port 65535; choose a lower one")]
    Ports {
        /// The first rank's port.
        first: u16,
        /// Ranks of that host.
        ranks: usize,
    },
}

impl Launch {
    /// Nothing said: the environment decides.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// This process's rank, from 0.
    #[must_use]
    pub const fn rank(mut self, rank: Option<u16>) -> Self {
        self.rank = rank;
        self
    }

    /// How many ranks there are; otherwise as many as peers are named.
    #[must_use]
    pub const fn size(mut self, size: Option<usize>) -> Self {
        self.size = size;
        self
    }

    /// A file with one `host:port` a line, in the order of ranks, each with the rank's public key behind it or
    /// none with one; `-` is standard input, up to an empty line. Lines that begin with `#` say nothing.
    #[must_use]
    pub fn peers(mut self, file: Option<PathBuf>) -> Self {
        self.peers = file;
        self
    }

    /// A file with one host a line, each for as many ranks as it has slots: `HOST`, `HOST slots=N`
    /// (Open MPI) or `HOST:N` (MPICH). Ranks fill one host after another.
    #[must_use]
    pub fn hostfile(mut self, file: Option<PathBuf>) -> Self {
        self.hostfile = file;
        self
    }

    /// The port of a host's first rank, where only hosts are named. Default: [`DEFAULT_PORT`].
    #[must_use]
    pub const fn port(mut self, port: Option<u16>) -> Self {
        self.port = port;
        self
    }

    /// The headless service under which the pods of an indexed job find each other.
    #[must_use]
    pub fn service(mut self, service: Option<String>) -> Self {
        self.service = service;
        self
    }

    /// This process's place, by the flags and the environment; `None` where it is alone.
    ///
    /// # Errors
    /// [`LaunchError`] says what is missing or contradictory, and what to do.
    pub fn place(&self) -> Result<Option<Place>, LaunchError> {
        self.place_in(|variable| std::env::var(variable).ok())
    }

    /// The same, in another environment than this process's.
    ///
    /// # Errors
    /// As for [`Launch::place`].
    pub fn place_in(
        &self,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Place>, LaunchError> {
        // Both said by hand: whatever else started this process has nothing to add.
        let by_hand = self.rank.is_some() && (self.peers.is_some() || self.hostfile.is_some());
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
        Ok(Some(Place { rank, peers, keys }))
    }

    /// The peers alone, by the flags only, for a process that is none of them; empty where no flag
    /// names any.
    ///
    /// # Errors
    /// As for [`Launch::place`].
    pub fn read_peers(&self) -> Result<Vec<String>, LaunchError> {
        Ok(self.read_keyed_peers()?.0)
    }

    /// The same, with their keys: one a peer, or none at all.
    ///
    /// # Errors
    /// As for [`Launch::place`].
    pub fn read_keyed_peers(&self) -> Result<KeyedPeers, LaunchError> {
        Ok(self.find_peers(None)?.unwrap_or_default())
    }

    /// One `host:port` a rank, by what goes first; `None` where nothing says that there are others.
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

/// Every peer's `host:port`, and the keys of all or of none.
pub type KeyedPeers = (Vec<String>, Vec<PublicKey>);

/// The entries of a list of peers.
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

/// Why a file can't be read, as people say it.
fn why(kind: ErrorKind) -> String {
    match kind {
        ErrorKind::NotFound => "there is no such file".into(),
        ErrorKind::PermissionDenied => "this user may not read it".into(),
        ErrorKind::InvalidData => "it is not text".into(),
        other => other.to_string(),
    }
}

/// The lines of a file, or of standard input up to an empty one.
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
