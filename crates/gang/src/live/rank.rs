//! A rank's own side: its channel, on the daemon's NIC.

use std::fs::File;
use std::os::fd::OwnedFd;

use midplane_simhw::id::NodeId;
use midplane_simhw::nicd::{Client, ClientConfig, ClientHost, ConnectError};
use thiserror::Error;

use crate::channel::{AttachError, Channel, Ticket, TicketError};

/// The variable that names the daemon's NIC.
pub const NIC: &str = "GANG_NIC";
/// The variable with the channel: the number of the FIFOs' file, and the ticket.
pub const CHANNEL: &str = "GANG_CHANNEL";

/// Why a rank has no channel.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Not started by a daemon that has a NIC.
    #[error(
        "{NIC} and {CHANNEL} are not set: start this by `gang run` under a gangd with a --fabric"
    )]
    NoJob,
    /// The variables do not say what they should.
    #[error("{CHANNEL} is damaged: start this by `gang run`, which sets it")]
    Variable,
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

/// This process's channel to the other ranks of its job, and the host that it is on.
///
/// # Errors
/// [`JoinError`].
///
/// # Cancel safety
/// Dropped, this process is attached to nothing.
pub async fn join() -> Result<(ClientHost, Channel), JoinError> {
    let variable = |name| std::env::var(name).map_err(|_| JoinError::NoJob);
    let (nic, channel) = (variable(NIC)?, variable(CHANNEL)?);
    let host: u16 = variable("GANG_HOST")?.parse().map_err(|_| JoinError::Variable)?;
    let (file, ticket) = channel.split_once(' ').ok_or(JoinError::Variable)?;
    let file: u32 = file.parse().map_err(|_| JoinError::Variable)?;
    let ticket: Ticket = ticket.parse()?;
    let options = &mut File::options();
    let file = options.read(true).write(true).open(format!("/proc/self/fd/{file}"));
    let descriptor = ticket.open(&OwnedFd::from(file.map_err(JoinError::File)?))?;
    let client = Client::connect(ClientConfig::new(nic, NodeId(host)))?;
    let channel = Channel::attach(&client.host(), descriptor).await?;
    Ok((client.host(), channel))
}
