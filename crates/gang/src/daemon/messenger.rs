//! A daemon's connections with its parent and children, over a channel that no user's job can stop.

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::host::Host;
use midplane_simhw::wire;
use serde::{Deserialize, Serialize};

use super::config::DaemonError;
use crate::channel::geometry::{FifoSize, Geometry};
use crate::channel::{Channel, Closed, SendError};
use crate::controller::{ContextOptions, Controller};
use crate::names::{ChannelAddress, ChannelId, Epoch, JobId, Rank};
use crate::node_core::message::{Down, Up};
use crate::steps::until;
use midplane_simhw::id::NodeId;

/// The number of the daemons' own job.
const DAEMONS: JobId = JobId(0);
/// The daemons' channel. Users' jobs have the channels after it.
const OWN_CHANNEL: ChannelId = ChannelId(0);
/// FIFO sizes of the daemons' channel, which carries few and short messages.
const OWN_FIFOS: Geometry = Geometry {
    send: FifoSize { messages: 80, bytes: 16 << 10 },
    receive: FifoSize { messages: 160, bytes: 16 << 10 },
    message: 1024,
};
/// Most time that an ending daemon waits until the others have received its last messages.
const LINGER: Duration = Duration::from_secs(1);

/// A message between two daemons.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// The sender is a child of the receiver.
    Hello,
    Up(Up),
    Down(Down),
    /// The sender has ended.
    Bye,
}

/// A daemon's connections.
pub(super) struct Messenger {
    channel: Channel,
    /// Keeps the channel open.
    _own: Controller,
    /// Messages that wait for room in the send FIFO.
    outbox: VecDeque<(Rank, Vec<u8>)>,
}

impl Messenger {
    pub(super) async fn open(host: &impl Host, nodes: u16) -> Result<Self, DaemonError> {
        let mut own = Controller::open(host, OWN_CHANNEL, OWN_FIFOS, false)?;
        let places =
            (0..nodes).map(|node| ChannelAddress { node: NodeId(node), channel: OWN_CHANNEL });
        let (rank, places) = (Rank(host.node().0), places.collect());
        let context = own.open_context(ContextOptions { job: DAEMONS, rank, places }).await?;
        own.start(context, Epoch(1)).await?;
        let channel = Channel::attach(host, own.descriptor(context)).await?;
        Ok(Self { channel, _own: own, outbox: VecDeque::new() })
    }

    /// Queues a message, which is sent once there is room.
    ///
    /// # Errors
    /// [`DaemonError::TooLong`].
    pub(super) fn post(&mut self, to: u16, message: &Message) -> Result<(), DaemonError> {
        let bytes = wire::encode(message).ok();
        let bytes = bytes.filter(|bytes| bytes.len() <= OWN_FIFOS.message as usize);
        self.outbox.push_back((Rank(to), bytes.ok_or(DaemonError::TooLong)?));
        self.send_some()
    }

    fn send_some(&mut self) -> Result<(), DaemonError> {
        while let Some((to, bytes)) = self.outbox.front() {
            match self.channel.try_send(*to, bytes) {
                Err(SendError::Full) => return Ok(()),
                Err(_) => return Err(Closed.into()),
                Ok(()) => drop(self.outbox.pop_front()),
            }
        }
        Ok(())
    }

    /// Returns the next message and its sender.
    ///
    /// # Cancel safety
    /// If the future is dropped, no message is lost.
    pub(super) async fn receive(&mut self) -> Result<(u16, Message), DaemonError> {
        loop {
            self.send_some()?;
            let next = match self.outbox.is_empty() {
                true => Some(self.channel.receive().await?),
                false => self.channel.try_receive(),
            };
            match next {
                None => self.channel.room().await?,
                Some((from, bytes)) => {
                    // Messages that can't be decoded do not come from a daemon, and are dropped.
                    if let Ok(message) = wire::decode(&bytes) {
                        return Ok((from.0, message));
                    }
                }
            }
        }
    }

    /// Waits until the receivers have accepted all messages, at most for [`LINGER`].
    pub(super) async fn finish(mut self, host: &impl Host) {
        let end = host.sleep_until(host.now() + LINGER);
        let flushed = async {
            while !self.outbox.is_empty() || !self.channel.is_flushed() {
                if self.send_some().is_err() || self.channel.room().await.is_err() {
                    return;
                }
                // Makes room for messages of other daemons, so that these can end too.
                while self.channel.try_receive().is_some() {}
            }
        };
        let _ = until(flushed, end).await;
    }
}
