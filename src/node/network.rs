//! The interface between membership and its environment: a node finds and reaches other nodes through it.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use midplane_via::session::Session;

use crate::member::Target;

/// The future of a place's addresses.
pub(super) type Resolving<'a> =
    Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

/// Finds and dials nodes.
pub(super) trait Network: fmt::Debug + Send + Sync {
    /// Lists the nodes of the cluster that run on this host now.
    fn local(&self) -> BTreeSet<u64>;

    /// Begins a session with the node at a place. Over UDP the session ends by itself if no node answers.
    fn dial(&self, target: Target) -> io::Result<Arc<Session>>;

    /// Resolves `HOST:PORT`.
    fn resolve<'a>(&'a self, place: &'a str) -> Resolving<'a>;
}
