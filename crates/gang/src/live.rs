//! Gang scheduling of real processes, on Linux: what a rank uses of its job.
//!
//! - [`rank`]: start here: the rank's channel and its Virtual Interfaces on the daemon's NIC
//! - [`snapshot`]: a rank's part in checkpoints
//!
//! The command `midplane gang` uses the rest, which this documentation does not show:
//!
//! - `daemon`: a host's daemon; `channels`: its side of the ranks' channels
//! - `client`: asks this host's daemon to run, list, end and watch jobs
//! - `process`: a rank's process: started stopped, then suspended, resumed, killed
//! - `exec_shim`: runs first in a rank's process and then executes the job's program; also the reaper, which kills
//!   all ranks when the daemon has exited
//! - `reclaimer`: takes memory from suspended jobs while the host is short of it; `host_memory`: measures the host's
//!   memory
//! - `adopted`: control groups of jobs that another system has started
//! - `rights`: users, and the rights of their jobs
//! - `pmi`: the server through which MPICH programs start as ranks
//! - `link`, `message`: connections between daemons and clients, and their messages
//!
//! # Trust
//!
//! The socket's permissions decide which users may be clients of a daemon. A daemon of root serves several users, and
//! each client may do only what its user may (`rights`). A daemon trusts the other daemons' reports of their clients'
//! users.
//!
//! Daemons of other hosts prove their identity (`link::Credentials`). If each host has its own key, only listed
//! hosts join, each under its own identity. A daemon forwards the reports of the hosts below it in the tree, so a host
//! trusts the hosts between it and the root. With the shared key alone, every process that has the key can join as any
//! host that is not connected. It then receives the commands and environments of later jobs.
//!
//! In a cluster of three or more hosts, each host can become the root, which orders programs on all hosts.
//!
//! A node core makes a daemon's decisions; it runs in virtual time as well. The modules here connect it with real
//! processes and sockets.

mod adopted;
#[doc(hidden)]
pub mod channels;
mod checkpoints;
#[doc(hidden)]
pub mod client;
#[doc(hidden)]
pub mod clock;
mod collections;
mod criu;
#[doc(hidden)]
pub mod daemon;
mod event;
mod event_loop;
#[doc(hidden)]
pub mod exec_shim;
mod host_memory;
mod image_link;
mod job_cgroup;
#[doc(hidden)]
pub mod link;
mod pmi;
mod priority;
#[doc(hidden)]
pub mod process;
mod processes;
pub mod rank;
mod reclaimer;
mod record;
mod refusals;
mod rights;
mod root_folder;
mod routes;
pub mod snapshot;
mod streams;
mod undelivered;

#[doc(hidden)]
pub use crate::node_core::message;
