//! Saves contexts early: copies the stopped contexts of this node while other nodes still stop theirs.
//!
//! A steady context does not change until it is started: the NIC refuses messages that arrive for it, and keeps its
//! state until all nodes are frozen. One processor both copies and handles messages: handling a message delays the
//! copying by that time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use midplane_simhw::host::Host;

use super::core::Core;
use super::node_agent::LocalRank;
use super::order::Message;
use super::{DaemonError, Mode};
use crate::names::Rank;

/// Returns the result of `first`, or `None` if `end` completes before.
pub(super) async fn until<T>(
    first: impl Future<Output = T>,
    end: impl Future<Output = ()>,
) -> Option<T> {
    let (mut first, mut end) = (pin!(first), pin!(end));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}

impl<H: Host> Core<H> {
    /// Returns the next message. Until one arrives, spends the time to copy the contexts that are to be saved.
    ///
    /// # Cancel safety
    /// None: the controllers' next commands would receive the earlier completions.
    pub(super) async fn next_message(&mut self) -> Result<(Rank, Message), DaemonError> {
        self.begin_copying().await?;
        let is_copying = |local: &LocalRank| local.copying.is_some_and(|left| !left.is_zero());
        let host = self.agent.host.clone();
        while let Some(at) = self.agent.ranks.iter().position(is_copying) {
            let left = self.agent.ranks[at].copying.unwrap_or_default();
            let copied_at = host.now() + left;
            let message = until(self.messenger.receive(), host.sleep_until(copied_at)).await;
            let left = copied_at.nanos_since(host.now());
            self.agent.ranks[at].copying = Some(Duration::from_nanos(left));
            if let Some(message) = message {
                return message;
            }
        }
        self.messenger.receive().await
    }

    async fn begin_copying(&mut self) -> Result<(), DaemonError> {
        let leaving = std::mem::take(&mut self.agent.leaving);
        if self.agent.config.mode == Mode::Resident {
            return Ok(());
        }
        for at in self.agent.of_jobs(&leaving) {
            let LocalRank { user, context, .. } = self.agent.ranks[at];
            let saved = self.agent.users[user].save(context, false).await?;
            self.agent.ranks[at].copying = Some(self.agent.config.costs.of_save(saved.bytes()));
            self.agent.ranks[at].saved = Some(saved);
        }
        Ok(())
    }
}
