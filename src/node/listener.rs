//! Accepts the streams that peers open to a service.

#[cfg(feature = "tonic")]
mod incoming;

use std::fmt;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use midplane_via::session::Stream;
use tokio::sync::mpsc;

use super::state::{Accepted, Shared};
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
#[cfg(feature = "tonic")]
pub use incoming::{Incoming, NamedStream};

/// Most streams of one listener that may wait to be accepted; further ones are refused.
pub(super) const BACKLOG: usize = 1_024;

/// The node at the other end of a stream.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub struct PeerName {
    /// The node's name.
    pub name: String,
    /// The random number of this incarnation of the node.
    pub id: u64,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Accepts the streams that peers open to a service of this node; made by [`Node::listen`](crate::Node::listen).
///
/// Dropping it withdraws the service: streams that wait to be accepted are reset.
#[derive(Debug)]
pub struct Listener {
    offer: Arc<Offer>,
    inbox: mpsc::Receiver<Accepted>,
}

/// A service that a node offers until its owner withdraws it.
#[derive(Debug)]
pub(crate) struct Offer {
    shared: Weak<Shared>,
    service: String,
    /// Distinguishes it from a later offer of the same name.
    number: u64,
}

impl Offer {
    pub(super) const fn new(shared: Weak<Shared>, service: String, number: u64) -> Self {
        Self { shared, service, number }
    }

    /// Withdraws the service at once; the node may then offer the name again.
    pub(crate) fn withdraw(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.withdraw(&self.service, self.number);
        }
    }
}

impl Listener {
    pub(super) fn new(offer: Offer, inbox: mpsc::Receiver<Accepted>) -> Self {
        Self { offer: Arc::new(offer), inbox }
    }

    /// Returns the service, for an owner of the task that accepts its streams.
    pub(crate) fn offer(&self) -> Arc<Offer> {
        Arc::clone(&self.offer)
    }

    /// Waits for the next stream.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] once the node was shut down.
    ///
    /// # Cancel safety
    /// If the future is dropped, no stream was taken.
    pub async fn accept(&mut self) -> Result<(Stream, PeerName), Error> {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }

    /// Polls for the next stream, like [`Listener::accept`].
    pub fn poll_accept(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(Stream, PeerName), Error>> {
        self.inbox.poll_recv(context).map(|accepted| match accepted {
            Some(Accepted { stream, id, name }) => Ok((stream, PeerName { name, id })),
            None => Err(super::closed()),
        })
    }

    /// Returns the accepted streams for tonic's `Server::serve_with_incoming`; they end when the node was shut down.
    ///
    /// The extensions of a request contain the [`PeerName`] of its sender.
    #[cfg(feature = "tonic")]
    #[must_use]
    pub const fn incoming(self) -> Incoming {
        Incoming::new(self)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.offer.withdraw();
        self.inbox.close();
        while let Ok(Accepted { stream, .. }) = self.inbox.try_recv() {
            stream.reset();
        }
    }
}

#[cfg(feature = "axum")]
impl axum::serve::Listener for Listener {
    type Io = Stream;
    type Addr = PeerName;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match Self::accept(self).await {
            Ok(accepted) => accepted,
            // No more streams arrive; the server ends with the process, or by its own signal.
            Err(_) => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(PeerName { name: self.offer.service.clone(), id: 0 })
    }
}

/// Handlers extract `ConnectInfo<PeerName>` from an app whose service was made by
/// `into_make_service_with_connect_info`.
#[cfg(feature = "axum")]
impl axum::extract::connect_info::Connected<axum::serve::IncomingStream<'_, Listener>>
    for PeerName
{
    fn connect_info(stream: axum::serve::IncomingStream<'_, Listener>) -> Self {
        stream.remote_addr().clone()
    }
}
