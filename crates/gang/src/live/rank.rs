//! A rank's own side: its channel, and its Virtual Interfaces, on the daemon's NIC.
//!
//! A rank that wants a channel [`join`]s; one that wants interfaces [`enter`]s, opens a
//! [`Nic`] on the host that it gets, and [connects](Member::connect) them to those of other ranks.

use std::os::fd::OwnedFd;

use midplane_simhw::id::NodeId;
use midplane_simhw::nic::LiveHost;
use midplane_simhw::nicd::{Client, ClientConfig, ConnectError};
use midplane_via::attributes::{Address, Discriminator};
use midplane_via::nic::{Nic, NicError, Ticket as ConnectTicket, ViId};
use thiserror::Error;

use crate::channel::{AttachError, Channel, Ticket, TicketError};
use crate::names::{JobId, Rank};

/// The variable that names the daemon's NIC.
pub const NIC: &str = "GANG_NIC";
/// The variable with the channel: the numbers of the ticket's files, with commas, and the ticket.
pub(crate) const CHANNEL: &str = "GANG_CHANNEL";
/// The variable with the hosts of all ranks, in order: numbers with commas, `n*host` for n in a row.
pub(crate) const HOSTS: &str = "GANG_HOSTS";

/// The number of the user who is root.
const ROOT: u32 = 0;

/// Why a rank has no channel.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Not started by a daemon that has a NIC.
    #[error(
        "{NIC} and the variables with it are not set: start this by `midplane gang run` under a `midplane gang daemon` \
         with a --fabric"
    )]
    NoJob,
    /// A variable does not say what it should.
    #[error("{0} is damaged: start this by `midplane gang run`, which sets it")]
    Damaged(&'static str),
    /// The ticket does not fit the file.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// The file is not open in this process.
    #[error("the channel's memory: {0}")]
    File(std::io::Error),
    /// The daemon is gone.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The channel is another process's.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// A process's place in its job, on the daemon's NIC.
#[derive(Clone, Debug)]
pub struct Member {
    host: LiveHost,
    job: JobId,
    rank: Rank,
    hosts: Vec<NodeId>,
}

impl Member {
    /// The application's side of the daemon's NIC: ports that are opened on it, by this process or one that
    /// stays in its process group, stand still with this rank.
    #[must_use]
    pub fn host(&self) -> LiveHost {
        self.host.clone()
    }

    /// The job; another one after it was restored.
    #[must_use]
    pub const fn job(&self) -> JobId {
        self.job
    }

    /// This process's rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn ranks(&self) -> u16 {
        self.hosts.len() as u16
    }

    /// The node of a rank; `None` if there is no such rank.
    #[must_use]
    pub fn node_of(&self, rank: Rank) -> Option<NodeId> {
        self.hosts.get(rank.index()).copied()
    }

    /// Begins to connect an interface to one of another rank's, which asks for this one with the same
    /// `number`: both ask, in any order. [`Nic::connected`] polls, [`Nic::finish`] waits. While a connection is
    /// being made, a preempted job's interfaces stay on the NIC, also where contexts are copied.
    ///
    /// # Errors
    /// [`NicError`] if nothing was asked.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn connect(
        &self,
        nic: &mut Nic,
        vi: ViId,
        (peer, number): (Rank, u16),
    ) -> Result<ConnectTicket, NicError> {
        let node = self.node_of(peer).expect("the job has so many ranks");
        let discriminator = self.discriminator(peer, self.rank, number);
        let to = Address { node, discriminator };
        nic.connect_peer(vi, to, self.discriminator(self.rank, peer, number), None)
    }

    /// What an interface of `of` that waits for one of `with` is found by.
    fn discriminator(&self, of: Rank, with: Rank, number: u16) -> Discriminator {
        let mut bytes = *b"gang0123456789";
        bytes[4..8].copy_from_slice(&self.job.0.to_le_bytes());
        for (place, word) in bytes[8..].as_chunks_mut().0.iter_mut().zip([of.0, with.0, number]) {
            *place = word.to_le_bytes();
        }
        Discriminator::new(&bytes).expect("it is shorter than the longest")
    }
}

/// The hosts of all ranks, as [`HOSTS`] has them.
pub(super) fn hosts_text(hosts: impl IntoIterator<Item = u16>) -> String {
    let mut runs: Vec<(u16, u32)> = Vec::new();
    for host in hosts {
        match runs.last_mut() {
            Some((last, count)) if *last == host => *count += 1,
            _ => runs.push((host, 1)),
        }
    }
    let words = runs.into_iter().map(|(host, count)| match count {
        1 => host.to_string(),
        _ => format!("{count}*{host}"),
    });
    words.collect::<Vec<_>>().join(",")
}

/// Reads [`hosts_text`]; `None` if it is none, or has more than 65,536 ranks.
fn hosts_of(text: &str) -> Option<Vec<NodeId>> {
    let mut hosts = Vec::new();
    for word in text.split(',') {
        let (count, host) = word.split_once('*').unwrap_or(("1", word));
        let (count, host): (usize, u16) = (count.parse().ok()?, host.parse().ok()?);
        if count > 1 << 16 || hosts.len() + count > 1 << 16 {
            return None;
        }
        hosts.resize(hosts.len() + count, NodeId(host));
    }
    Some(hosts)
}

fn variable(name: &str) -> Result<String, JoinError> {
    std::env::var(name).map_err(|_| JoinError::NoJob)
}

/// Returns a file that the daemon has left open under a number.
pub(super) fn inherited(number: i32) -> std::io::Result<OwnedFd> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(own, number, PidfdGetfdFlags::empty())?)
}

fn number<T: std::str::FromStr>(name: &'static str) -> Result<T, JoinError> {
    variable(name)?.parse().map_err(|_| JoinError::Damaged(name))
}

fn client() -> Result<LiveHost, JoinError> {
    let config = ClientConfig::new(variable(NIC)?, NodeId(number("GANG_HOST")?));
    // A daemon of root runs ranks of other users.
    Ok(Client::connect(config.trust(ROOT))?.host())
}

/// This process's place in its job, for interfaces of its own on the daemon's NIC; with a channel or without.
///
/// # Errors
/// [`JoinError`].
///
/// # Panics
/// As [`Client::connect`].
pub fn enter() -> Result<Member, JoinError> {
    let (job, rank) = (JobId(number("GANG_JOB")?), Rank(number("GANG_RANK")?));
    let hosts = hosts_of(&variable(HOSTS)?).filter(|hosts| hosts.len() > rank.index());
    let hosts = hosts.ok_or(JoinError::Damaged(HOSTS))?;
    Ok(Member { host: client()?, job, rank, hosts })
}

/// This process's channel to the other ranks of its job, and the host that it is on.
///
/// # Errors
/// [`JoinError`].
///
/// # Cancel safety
/// Dropped, this process is attached to nothing.
pub async fn join() -> Result<(LiveHost, Channel), JoinError> {
    let (_, channel) = (variable(NIC)?, variable(CHANNEL)?);
    let damaged = || JoinError::Damaged(CHANNEL);
    let (files, ticket) = channel.split_once(' ').ok_or_else(damaged)?;
    let files = files.split(',').map(|number| {
        let number = number.parse().map_err(|_| damaged())?;
        inherited(number).map_err(JoinError::File)
    });
    let files = files.collect::<Result<_, JoinError>>()?;
    let ticket: Ticket = ticket.parse()?;
    let descriptor = ticket.open(files)?;
    let host = client()?;
    let channel = Channel::attach(&host, descriptor).await?;
    Ok((host, channel))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hosts_are_read_as_they_were_written(hosts in proptest::collection::vec(0_u16..4, 1..40)) {
            let text = hosts_text(hosts.iter().copied());
            let nodes: Vec<NodeId> = hosts.into_iter().map(NodeId).collect();
            prop_assert_eq!(hosts_of(&text), Some(nodes));
        }

        #[test]
        fn any_text_is_hosts_or_none(text in "[0-9*,x]{0,20}") {
            prop_assert!(hosts_of(&text).is_none_or(|hosts| hosts.len() <= 1 << 16));
        }
    }
}
