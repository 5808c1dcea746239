//! Options of a daemon, and the errors of its start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use midplane_simhw::seal::{Identity, Key};
use thiserror::Error;

use crate::live::channels::ChannelOptions;
use crate::node_core::message::Cluster;

/// Configuration of a daemon.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// The number of this host.
    pub host: u16,
    /// The shape of the cluster.
    pub cluster: Cluster,
    /// `host:port` of every daemon, in the order of hosts. May be empty for a single daemon.
    pub peers: Vec<String>,
    /// The key that all daemons share. With several daemons, set this or `identity`. With this alone, each process
    /// that has the key can claim to be any host.
    pub key: Option<Key>,
    /// This host's secret key and the public keys of all hosts, in their order. Only listed hosts are admitted, each
    /// under its own identity. A host also forwards the reports of the hosts below it in the tree.
    pub identity: Option<Identity>,
    /// The socket that clients of this host connect to. In a cluster of three or more hosts, a daemon keeps its votes
    /// and the jobs in a file next to it, with the extension `record`.
    pub socket: PathBuf,
    /// Group whose members may use the socket; `None` if only the socket's owner may. Only a daemon of root, which
    /// runs each job as the user who submitted it, may have a group.
    pub socket_group: Option<String>,
    /// Silence after which a daemon counts as lost. If a cluster of three or more hosts loses its root, another host
    /// takes over within a further second.
    ///
    /// This is also the time that a daemon gets for an order, for each level of the tree below it. Jobs whose channels
    /// are not quiescent after half of this are given up.
    pub patience: Duration,
    /// NICs for the ranks' channels and Virtual Interfaces; `None` for ranks without them.
    pub fabric: Option<FabricOptions>,
    /// Method of suspending processes.
    pub freezer: Freezer,
    /// Bytes of memory that jobs may claim on this host ([`Program::memory`](crate::live::message::Program::memory)).
    /// `None` stands for nine tenths of the host's memory, or of the lowest limit of the daemon's control groups. More
    /// than the host's memory needs swap space.
    pub memory: Option<u64>,
    /// Most bytes of ranks' states and channels' contexts in the root's memory. The limit applies to all checkpoints
    /// that are waiting to be written together, and to each that is read. It also applies to the states on this host
    /// that restored ranks have not read yet. [`CHECKPOINT_BYTES`] suits most clusters.
    pub checkpoint_bytes: u64,
}

/// Default of [`DaemonOptions::checkpoint_bytes`]: 4 GiB.
pub const CHECKPOINT_BYTES: u64 = 4 << 30;

/// Ways to suspend a job's processes on a host.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Freezer {
    /// Control groups if this process can make some, signals otherwise.
    #[default]
    Auto,
    /// A control group (version 2) for each job, below the daemon's group. Processes that ranks have started are
    /// suspended and killed too. The daemon needs the right to create groups.
    Cgroup,
    /// SIGSTOP to the process group of each rank. Processes that ranks have put into other groups keep running.
    Signals,
}

/// The NICs of the daemons, and the channels on them.
#[derive(Clone, Debug)]
pub struct FabricOptions {
    /// The network between the NICs.
    pub fabric: Fabric,
    /// The name under which the daemons of one cluster, and their ranks, find each other on a host.
    pub name: String,
    /// Configuration of the ranks' channels.
    pub channels: ChannelOptions,
}

/// Networks between the daemons' NICs.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Fabric {
    /// Shared memory: all daemons are on this host.
    Shm,
    /// UDP, with the addresses of all hosts in their order. Frames are sealed if the daemons have keys.
    Udp(Vec<SocketAddr>),
}

/// Reasons why a daemon does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// Another daemon serves this socket.
    #[error("{}: another daemon serves it; stop that, or name another --socket", .0.display())]
    Taken(PathBuf),
    /// This daemon is not root's, and can't run jobs as members of this group.
    #[error(
        "--socket-group {0}: only a daemon of root runs jobs as other users: start it as root, or leave the option out"
    )]
    GroupWithoutRoot(String),
    /// This group does not exist, or the system refuses it for this reason.
    #[error("--socket-group {0}: {1}; `getent group` lists the groups of this host")]
    Group(String, String),
    /// This socket's folder does not exist.
    #[error("--socket {}: there is no folder {}: make it, or name another", .0.display(), .1.display())]
    NoFolder(PathBuf, PathBuf),
    /// The folder of the default socket belongs to another user, or others can access it.
    #[error(
        "{}: another user may have made this folder for the socket: set XDG_RUNTIME_DIR, name a --socket in a folder of your \
         own, or remove the folder", .0.display()
    )]
    ForeignFolder(PathBuf),
    /// This path of the socket is that of another file.
    #[error("--socket {}: it exists and is no socket: remove it, or name another path", .0.display())]
    NoSocket(PathBuf),
    /// This socket can't be opened.
    #[error("{}: {}", .0.display(), .1)]
    Socket(PathBuf, io::Error),
    /// This file next to the socket, which records the jobs, can't be read.
    #[error(
        "{}: {}; it remembers the jobs of this daemon's cluster: remove it if no other daemon of the cluster runs",
        .0.display(), .1
    )]
    Record(PathBuf, io::Error),
    /// This address of this host can't be bound.
    #[error("{0}: {1}; stop what has it, or give this host another address")]
    Address(String, io::Error),
    /// There are several daemons, but no key.
    #[error(
        "daemons of several hosts need keys: give each its own --secret-key, or all the same --key"
    )]
    NoKey,
    /// The identity does not belong to this host of this cluster.
    #[error(
        "the keys are those of host {own} of {listed}, and this is host {host} of {hosts}: list a key for each host"
    )]
    Identity {
        /// Host whose secret key this daemon has.
        own: u16,
        /// Number of hosts in the list of keys.
        listed: usize,
        /// Number of this host.
        host: u16,
        /// Number of hosts in the cluster.
        hosts: u16,
    },
    /// This process can't make control groups.
    #[error(
        "no control groups can be made below this process's own: they need cgroup v2, delegated (systemd-run \
         --user --scope -p Delegate=yes) or as root"
    )]
    NoCgroup,
    /// The NIC does not start.
    #[error("the NIC: {0}")]
    Nic(String),
    /// The system refuses to set up signals or processes.
    #[error(transparent)]
    System(#[from] io::Error),
}
