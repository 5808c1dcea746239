//! The driver's part over UDP: the socket, and connections that begin, move and end.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::{Driver, Handler, Polls};
use crate::session::byte_pipe::Pipes;
use crate::session::{CLOSE, Session};
use crate::wire::endpoint::{Event, PipeId};
use crate::wire::socket::Socket;

impl Driver {
    /// Sends what is due over UDP, and handles received datagrams. Returns whether there may be more to do.
    pub(super) fn poll_socket(
        &mut self,
        context: &mut Context<'_>,
        handler: &mut impl Handler,
    ) -> bool {
        let (Some(socket), Some(pipes)) = (&mut self.socket, self.shared.pipes.clone()) else {
            return false;
        };
        close_pipes(socket, &pipes);
        // What tasks have written is sent first, since the peer may wait for it; but not in every turn.
        self.has_skipped = self.has_written && !self.has_skipped;
        let asks = self.polls == Polls::Now && !self.has_skipped;
        let has_received = asks && socket.receive_now(&pipes.endpoint);
        // An error of the socket means that the runtime has ended: nothing more arrives.
        let is_busy = matches!(socket.poll(context, &pipes.endpoint), Poll::Ready(Ok(())));
        let mut endpoint = pipes.endpoint();
        let events: Vec<_> = std::iter::from_fn(|| endpoint.poll_event()).collect();
        let has_gossip = endpoint.gossip().is_some_and(|gossip| gossip.has_message());
        drop(endpoint);
        if has_gossip {
            pipes.gossip.wake();
        }
        let any = !events.is_empty();
        for event in events {
            self.on_pipe(event, handler);
        }
        is_busy || has_received || any
    }

    fn on_pipe(&mut self, event: Event, handler: &mut impl Handler) {
        self.take_dirty();
        match event {
            Event::Accepted(id, peer) => {
                let session = self.shared.over_pipe(id, peer, false);
                handler.on_accepted(&session);
                self.activate(session);
            }
            Event::Established(id) | Event::Progress(id) => {
                // Later progress is reported anew.
                let _ = self
                    .shared
                    .pipes
                    .as_ref()
                    .is_some_and(|pipes| pipes.endpoint().pipe(id).is_some());
                if let Some(session) = self.session_over(id) {
                    session.on_pipe_established(id);
                    self.activate(session);
                }
            }
            Event::Ended(id, why) => {
                if let Some(session) = self.session_over(id) {
                    session.on_pipe_ended(id, why);
                    self.activate(session);
                }
                self.by_pipe.remove(&id);
                if let Some(pipes) = &self.shared.pipes {
                    pipes.endpoint().release(id);
                }
            }
        }
    }

    /// Returns the session that uses a connection over UDP, or has dialed it.
    fn session_over(&self, id: PipeId) -> Option<Arc<Session>> {
        self.all.get(self.by_pipe.get(&id)?).cloned()
    }

    /// Notifies the peers over UDP that this process ends; waits up to [`CLOSE`] for their acknowledgements.
    pub(super) async fn close_socket(&mut self) {
        let (Some(socket), Some(pipes)) = (&mut self.socket, self.shared.pipes.clone()) else {
            return;
        };
        let closed = poll_fn(|context| {
            close_pipes(socket, &pipes);
            let is_busy = socket.poll(context, &pipes.endpoint).is_ready();
            let mut endpoint = pipes.endpoint();
            while let Some(event) = endpoint.poll_event() {
                if let Event::Ended(id, _) = event {
                    endpoint.release(id);
                }
            }
            if endpoint.pipes() == 0 {
                return Poll::Ready(());
            }
            if is_busy {
                // Lets other tasks and the timeout run, however much arrives.
                context.waker().wake_by_ref();
            }
            Poll::Pending
        });
        let _ = tokio::time::timeout(CLOSE, closed).await;
    }
}

/// Closes the connections whose sessions have ended.
fn close_pipes(socket: &Socket, pipes: &Pipes) {
    let closing = std::mem::take(&mut *pipes.closing());
    for id in closing {
        let now = socket.now();
        if let Some(pipe) = pipes.endpoint().pipe(id) {
            pipe.close(now);
        }
    }
}

/// Waits for two futures at once.
pub(super) async fn both(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let is_first = poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending => second.as_mut().poll(context).map(|()| false),
    });
    if is_first.await {
        second.await;
    } else {
        first.await;
    }
}
