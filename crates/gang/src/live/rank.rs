//! A rank's own API: its channel and its Virtual Interfaces on the daemon's NIC.
//!
//! To use a channel, a rank calls [`join`]. To use interfaces, it calls [`enter`], opens a [`Nic`] on the returned
//! host, and [connects](Member::connect) its interfaces to those of other ranks.

use std::os::fd::OwnedFd;

use midplane_simhw::id::NodeId;
use midplane_simhw::nic::LiveHost;
use midplane_simhw::nicd::{Client, ClientConfig, ConnectError};
use midplane_via::attributes::{Address, Discriminator};
use midplane_via::nic::{Nic, NicError, Ticket as ConnectTicket, ViId};
use thiserror::Error;

use crate::channel::{AttachError, Channel, Ticket, TicketError};
use crate::names::{JobId, Rank};

/// Environment variable with the name of the daemon's NIC.
pub const NIC: &str = "GANG_NIC";
/// Environment variable with the channel: the descriptors of the ticket's files, separated by commas, and the ticket.
pub(crate) const CHANNEL: &str = "GANG_CHANNEL";
/// Environment variable with the hosts of all ranks, in order, separated by commas; `n*host` stands for `n` ranks in a
/// row.
pub(crate) const HOSTS: &str = "GANG_HOSTS";

/// The user ID of root.
const ROOT: u32 = 0;

/// Reason why a rank has no channel or no place in a job.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The process was not started by a daemon that has a NIC.
    #[error(
        "{NIC} and the variables with it are not set: start this by `midplane gang run` under a `midplane gang daemon` \
         with a --fabric"
    )]
    NoJob,
    /// A variable is malformed.
    #[error("{0} is damaged: start this by `midplane gang run`, which sets it")]
    Damaged(&'static str),
    /// The ticket does not match the files.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// A file of the channel is not open in this process.
    #[error("the channel's memory: {0}")]
    File(std::io::Error),
    /// The daemon can't be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Another process is attached to the channel.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// A process's place in its job, and its access to the daemon's NIC.
#[derive(Clone, Debug)]
pub struct Member {
    host: LiveHost,
    job: JobId,
    rank: Rank,
    hosts: Vec<NodeId>,
}

impl Member {
    /// Returns the application's side of the daemon's NIC. Ports that this process opens on it are suspended with this
    /// rank; so are those of other processes in its process group.
    #[must_use]
    pub fn host(&self) -> LiveHost {
        self.host.clone()
    }

    /// Returns the job's number, which changes when the job is restored.
    #[must_use]
    pub const fn job(&self) -> JobId {
        self.job
    }

    /// Returns this process's rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of ranks of the job.
    #[must_use]
    pub fn ranks(&self) -> u16 {
        self.hosts.len() as u16
    }

    /// Returns the node of a rank; `None` if there is no such rank.
    #[must_use]
    pub fn node_of(&self, rank: Rank) -> Option<NodeId> {
        self.hosts.get(rank.index()).copied()
    }

    /// Begins to connect an interface to one of another rank's. The other rank must call this for this rank with the
    /// same `number`, before or after. [`Nic::connected`] polls for the result, [`Nic::finish`] waits for it.
    ///
    /// # Errors
    /// [`NicError`] if the NIC refuses the request.
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

    /// Returns the discriminator by which an interface of `of` for a connection with `with` is found.
    fn discriminator(&self, of: Rank, with: Rank, number: u16) -> Discriminator {
        let mut bytes = *b"gang0123456789";
        bytes[4..8].copy_from_slice(&self.job.0.to_le_bytes());
        for (place, word) in bytes[8..].as_chunks_mut().0.iter_mut().zip([of.0, with.0, number]) {
            *place = word.to_le_bytes();
        }
        Discriminator::new(&bytes).expect("it is shorter than the longest")
    }
}

/// Writes the hosts of all ranks in the format of [`HOSTS`].
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

/// Parses the result of [`hosts_text`]; `None` if the text is malformed or has more than 65,536 ranks.
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

/// Returns a duplicate of a descriptor that this process has inherited from the daemon.
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
    // Trusts root, because a daemon of root also runs ranks of other users.
    Ok(Client::connect(config.trust(ROOT))?.host())
}

/// Returns this process's place in its job, for interfaces of its own on the daemon's NIC. A channel is not needed.
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

/// Attaches to this process's channel to the other ranks of its job. Also returns the host that the channel is on.
///
/// # Errors
/// [`JoinError`].
///
/// # Cancel safety
/// If this is dropped, this process is not attached.
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
