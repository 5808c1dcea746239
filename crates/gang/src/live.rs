//! Gang scheduling of real processes, on Linux: a daemon a host, and the front end of its jobs.
//!
//! - [`daemon`]: start here: a host's daemon
//! - [`client`]: asks the daemon of this host to run, list, end, watch jobs
//! - [`process`]: a rank's process: started stopped, suspended, resumed, killed
//! - [`exec_shim`]: what such a process is before it becomes the job's program; the reaper that kills all of them when
//!   the daemon is gone
//! - [`rank`]: a rank's own side: its channel on the daemon's NIC, and its Virtual Interfaces there;
//!   [`channels`]: the daemon's side
//! - [`snapshot`]: a rank's part in checkpoints
//! - `reclaimer`: takes memory from suspended jobs while the host is short of it; `host_memory`: what the host has
//! - `adopted`: control groups of jobs that something else has started
//! - `rights`: users, and the rights of their jobs
//! - `pmi`: the server by which MPI programs of MPICH start as ranks
//! - [`link`], [`message`]: connections between daemons and front ends, and their messages
//!
//! # Trust
//!
//! Front ends are this user's, by the socket; those of a daemon of root are of all users whom the socket admits, and each may do
//! only what its user may (`rights`). A daemon believes the others which user a front end of theirs has. Daemons of other hosts prove who they are ([`link::Credentials`]). With keys of
//! the hosts' own, only listed hosts join, each as itself; a daemon hands on what those below it in the tree report, so a host
//! trusts those between it and the root. With the shared key alone, whoever has it can be any host that is not connected, and
//! receives the commands and environments of later jobs.
//!
//! Of three hosts or more, each can become the root: it then orders programs on all of them.
//!
//! A daemon's decisions are those of its node core, which runs in virtual time as well. The modules here wait for real
//! processes and sockets.

mod adopted;
pub mod channels;
mod checkpoints;
pub mod client;
pub mod clock;
mod collections;
mod criu;
pub mod daemon;
mod event;
mod event_loop;
pub mod exec_shim;
mod host_memory;
mod image_link;
mod job_cgroup;
pub mod link;
mod pmi;
mod priority;
pub mod process;
mod processes;
pub mod rank;
mod reclaimer;
mod record;
mod refusals;
mod rights;
mod routes;
pub mod snapshot;
mod streams;

pub use crate::node_core::message;
