//! Saving ahead: what stands still on this node is copied while others still report that they do too.
//!
//! A context that is steady holds the same until it is started again: what others send it meanwhile is refused, and
//! the NIC keeps it for that until all are frozen. Copying and messages share one processor: whatever time a
//! message takes, copying ends that much later.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use midplane_simhw::host::Host;

use super::{Daemon, DaemonError, Local, Mode};
use crate::names::Rank;

/// What comes of `first`, unless `end` comes before.
async fn until<T>(first: impl Future<Output = T>, end: impl Future<Output = ()>) -> Option<T> {
    let (mut first, mut end) = (pin!(first), pin!(end));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}

impl<H: Host> Daemon<H> {
    /// The next message; until it comes, contexts that are leaving are copied.
    ///
    /// # Cancel safety
    /// None: the controllers expect their answers.
    pub(super) async fn next_message(&mut self) -> Result<(Rank, Vec<u8>), DaemonError> {
        self.begin_copying().await?;
        let is_copying = |local: &Local| local.copying.is_some_and(|left| !left.is_zero());
        while let Some(at) = self.locals.iter().position(is_copying) {
            let left = self.locals[at].copying.unwrap_or_default();
            let through = self.host.now() + left;
            let end = self.host.sleep_until(through);
            let message = until(self.channel.receive(), end).await;
            let left = through.nanos_since(self.host.now());
            self.locals[at].copying = Some(Duration::from_nanos(left));
            if let Some(message) = message {
                return Ok(message?);
            }
        }
        Ok(self.channel.receive().await?)
    }

    async fn begin_copying(&mut self) -> Result<(), DaemonError> {
        let leaving = std::mem::take(&mut self.leaving);
        if self.config.mode == Mode::Resident {
            return Ok(());
        }
        for at in self.of_jobs(&leaving) {
            let Local { slot, context, .. } = self.locals[at];
            let saved = self.users[slot].save(context, false).await?;
            self.locals[at].copying = Some(self.config.costs.of_save(saved.bytes()));
            self.locals[at].saved = Some(saved);
        }
        Ok(())
    }
}
