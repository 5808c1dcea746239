//! A daemon's connection with its parent and children, over a channel that no user's job can stop.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::wire;

use super::DaemonError;
use super::early_save::until;
use super::order::Message;
use crate::channel::geometry::{FifoSize, Geometry};
use crate::channel::{Channel, Closed, SendError};
use crate::controller::{ContextOptions, Controller};
use crate::names::{ChannelAddress, ChannelId, Epoch, JobId, Rank};

/// The daemons' own job.
const DAEMONS: JobId = JobId(0);
/// The daemons' channel; users' jobs have the channels after it.
const OWN_CHANNEL: ChannelId = ChannelId(0);
/// FIFOs of the daemons' channel: orders are short and few.
const OWN_FIFOS: Geometry = Geometry {
    send: FifoSize { messages: 80, bytes: 16 << 10 },
    receive: FifoSize { messages: 160, bytes: 16 << 10 },
    message: 1024,
};
/// If this daemon's part of an order takes longer, it may be waiting for a daemon that is gone.
const GRACE: Duration = Duration::from_secs(1);

/// Notifies a daemon's work that the daemon was dropped.
#[derive(Debug, Default)]
pub(super) struct Halt(Mutex<(bool, Option<Waker>)>);

impl Halt {
    fn state(&self) -> MutexGuard<'_, (bool, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn raise(&self) {
        let mut state = self.state();
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    async fn raised(&self) {
        poll_fn(|context| {
            let mut state = self.state();
            if state.0 {
                return Poll::Ready(());
            }
            let before = state.1.replace(context.waker().clone());
            drop(state);
            drop(before);
            Poll::Pending
        })
        .await;
    }
}

/// A daemon's connection with its parent and children.
pub(super) struct Messenger {
    node: NodeId,
    channel: Channel,
    /// Keeps the channel open.
    _own: Controller,
    /// Messages received while the daemon waited for something else.
    inbox: VecDeque<(Rank, Message)>,
    halt: Arc<Halt>,
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
        let (inbox, halt) = (VecDeque::new(), Arc::default());
        Ok(Self { node: host.node(), channel, _own: own, inbox, halt })
    }

    pub(super) fn halt(&self) -> Arc<Halt> {
        Arc::clone(&self.halt)
    }

    /// Returns the result of `wait`, unless this daemon is dropped.
    async fn unless_halted<T>(
        wait: impl Future<Output = Result<T, Closed>>,
        (node, halt): (NodeId, &Halt),
    ) -> Result<T, DaemonError> {
        let value = until(wait, halt.raised()).await.ok_or(DaemonError::Gone { node })?;
        Ok(value?)
    }

    /// Returns the next message.
    ///
    /// # Errors
    /// [`DaemonError::Gone`] if the message reports that a daemon is gone.
    pub(super) async fn receive(&mut self) -> Result<(Rank, Message), DaemonError> {
        match self.inbox.pop_front() {
            Some(first) => Ok(first),
            None => self.receive_next().await,
        }
    }

    async fn receive_next(&mut self) -> Result<(Rank, Message), DaemonError> {
        loop {
            let wait = self.channel.receive();
            let (from, bytes) = Self::unless_halted(wait, (self.node, &self.halt)).await?;
            match wire::decode(&bytes) {
                Ok(Message::Gone(node)) => return Err(DaemonError::Gone { node }),
                Ok(message) => return Ok((from, message)),
                Err(_) => {}
            }
        }
    }

    pub(super) async fn send(&mut self, to: Rank, message: &Message) -> Result<(), DaemonError> {
        let too_long = SendError::TooLong { length: wire::LIMIT, most: OWN_FIFOS.message };
        let bytes = wire::encode(message).map_err(|_| DaemonError::Order(too_long))?;
        loop {
            match self.channel.try_send(to, &bytes) {
                Err(SendError::Full) => {}
                sent => return sent.map_err(DaemonError::Order),
            }
            // The receiver may be gone; then a message reports that.
            let wait = self.channel.room();
            Self::unless_halted(wait, (self.node, &self.halt)).await?;
            while self.channel.waiting() > 0 {
                let next = self.receive_next().await?;
                self.inbox.push_back(next);
            }
        }
    }

    /// Returns the error for which this daemon's part of an order is to be given up.
    ///
    /// Messages are not polled within the first [`GRACE`], so an order that is carried out in that time is not
    /// disturbed.
    pub(super) async fn wait_for_failure(&mut self, host: &impl Host) -> DaemonError {
        let grace = async {
            host.sleep_until(host.now() + GRACE).await;
            Ok(())
        };
        if let Err(error) = Self::unless_halted(grace, (self.node, &self.halt)).await {
            return error;
        }
        loop {
            match self.receive_next().await {
                Ok(next) => self.inbox.push_back(next),
                Err(error) => return error,
            }
        }
    }

    /// Waits until all messages sent have been accepted.
    pub(super) async fn flush(&mut self) -> Result<(), Closed> {
        while !self.channel.is_flushed() {
            self.channel.room().await?;
        }
        Ok(())
    }

    /// Sends the notice that the daemon of `node` is gone.
    pub(super) async fn send_gone(&mut self, node: NodeId, to: impl Iterator<Item = u16>) {
        let bytes = wire::encode(&Message::Gone(node)).expect("the notice is short");
        for relative in to {
            if self.channel.send(Rank(relative), &bytes).await.is_err() {
                return;
            }
        }
        // If the channel is closed, there is no peer to wait for.
        let _ = self.flush().await;
    }
}
