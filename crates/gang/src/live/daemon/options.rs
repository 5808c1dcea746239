//! Options of a daemon, and the reasons why it does not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use midplane_simhw::seal::{Identity, Key};
use thiserror::Error;

use crate::live::channels::ChannelOptions;
use crate::node_core::message::Cluster;

/// What a daemon is.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// Which host of the cluster this one is.
    pub host: u16,
    /// The cluster.
    pub cluster: Cluster,
    /// `host:port` of every daemon, in the order of hosts; may be empty for a single one.
    pub peers: Vec<String>,
    /// The key that all daemons share. Where there are several, they need this or an identity each. Alone, it keeps out
    /// who does not have it, and who has it can claim to be any host.
    pub key: Option<Key>,
    /// This host's own key, and those of all hosts in their order: no host is admitted that is not listed, or as another.
    /// A host speaks for those below it in the tree as well, whose reports it hands on.
    pub identity: Option<Identity>,
    /// The socket that front ends of this host connect to.
    pub socket: PathBuf,
    /// How long a daemon may take for an order before it is given up, for each step below it.
    pub patience: Duration,
    /// What ranks talk over, if the daemons have it.
    pub fabric: Option<FabricOptions>,
    /// How processes are stopped.
    pub freezer: Freezer,
    /// Most bytes of the states of jobs' ranks, and of their channels, that host 0 holds in memory at once: of those that
    /// are yet to be written, and of each checkpoint that is read. [`CHECKPOINT_BYTES`] suits most.
    pub checkpoint_bytes: u64,
}

/// Four gigabytes: what a host of a cluster has to spare.
pub const CHECKPOINT_BYTES: u64 = 4 << 30;

/// How a job's processes on a host are stopped.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Freezer {
    /// By control groups where they are to be had, by signals elsewhere.
    #[default]
    Auto,
    /// By a control group (version 2) for each job, below that of the daemon: whatever ranks have started
    /// stands still with them, and ends with them. The daemon must be allowed to make some.
    Cgroup,
    /// By SIGSTOP to the process group of each rank. What ranks have started and put into another goes on.
    Signals,
}

/// The NICs of the daemons, and the channels on them.
#[derive(Clone, Debug)]
pub struct FabricOptions {
    /// What joins them.
    pub fabric: Fabric,
    /// The name under which the daemons of one cluster, and their ranks, find each other on a host.
    pub name: String,
    /// The ranks' channels.
    pub channels: ChannelOptions,
}

/// What joins NICs.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Fabric {
    /// Shared memory: all daemons are on this host.
    Shm,
    /// UDP, by the address of each, in the order of hosts; frames are sealed with the daemons' key, if they have
    /// one.
    Udp(Vec<SocketAddr>),
}

/// Why there is no daemon.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// Somebody answers on the socket.
    #[error("{}: another daemon serves it; stop that, or name another --socket", path.display())]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// There is no folder for the socket.
    #[error("--socket {}: there is no folder {}: make it, or name another", path.display(), folder.display())]
    NoFolder {
        /// The socket.
        path: PathBuf,
        /// Where it was to be.
        folder: PathBuf,
    },
    /// The socket is not to be had.
    #[error("{}: {error}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The address is not to be had.
    #[error("{address}: {error}; stop what has it, or give this host another address")]
    Address {
        /// This host's.
        address: String,
        /// What the system says.
        error: io::Error,
    },
    /// Several daemons, and no key.
    #[error(
        "daemons of several hosts need keys: give each its own --secret-key, or all the same --key"
    )]
    NoKey,
    /// The identity is not that of this host among these.
    #[error(
        "the keys are those of host {own} of {listed}, and this is host {host} of {hosts}: list a key for each host"
    )]
    Identity {
        /// The owner of the secret.
        own: u16,
        /// Hosts in the list of keys.
        listed: usize,
        /// This host.
        host: u16,
        /// Hosts in the cluster.
        hosts: u16,
    },
    /// No control groups can be made.
    #[error(
        "no control groups can be made below this process's own: they need cgroup v2, delegated (systemd-run \
         --user --scope -p Delegate=yes) or as root"
    )]
    NoCgroup,
    /// The NIC can't be had.
    #[error("the NIC: {0}")]
    Nic(String),
    /// The system refuses signals or processes.
    #[error(transparent)]
    System(#[from] io::Error),
}
