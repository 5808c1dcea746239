//! Discovery: returns the places where other nodes may be.
//!
//! [`NodeBuilder::discover`](crate::NodeBuilder::discover) takes the places themselves.
//! [`NodeBuilder::discover_with`](crate::NodeBuilder::discover_with) takes a source of them:
//!
//! | source of the places | discovery |
//! |---|---|
//! | in the program, or one name of DNS for many addresses | [`List`] |
//! | in a file that changes | [`File`] |
//! | in the environment of a job of Slurm, PMI, Open MPI or Kubernetes | [`Job`] |
//! | elsewhere | a [`Discovery`] of your own |
//!
//! With the feature `discovery-gossip`, `NodeBuilder::gossip` finds all nodes from the place of one.
//!
//! ```
//! use std::sync::Mutex;
//!
//! use midplane::discovery::{Discovery, DiscoveryError, Place};
//!
//! /// Places that the program learns of while it runs.
//! #[derive(Debug, Default)]
//! struct Learned(Mutex<Vec<Place>>);
//!
//! impl Discovery for Learned {
//!     async fn places(&self) -> Result<Vec<Place>, DiscoveryError> {
//!         Ok(self.0.lock().unwrap().clone())
//!     }
//! }
//!
//! let builder = midplane::Node::builder().discover_with(Learned::default());
//! # drop(builder);
//! ```
//!
//! A node calls its discoveries several times a second while it searches for a service that none of its peers offers.
//! It dials the places whose node it does not know. Places that are no longer returned are not dialed again; existing
//! connections stay.

mod file;
mod job;
mod list;
mod place;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

pub use file::File;
pub use job::Job;
pub use list::List;
pub use place::{NoPlace, Place};

/// The reason why a discovery can't return the places: one line that says what to do.
pub type DiscoveryError = Box<dyn std::error::Error + Send + Sync>;

/// A source of places where other nodes may be.
pub trait Discovery: fmt::Debug + Send + Sync + 'static {
    /// Returns the places where nodes may be now, in any order. This node's own place may be among them. The node
    /// resolves their names anew with each search.
    ///
    /// The node waits at most 1 s, and then uses the places of the last answer. It calls this once before it starts,
    /// waits at most 5 s then, and does not start after an error. It reports later errors in
    /// [`Node::explain`](crate::Node::explain), and in the error of a search that finds no node.
    ///
    /// # Errors
    /// Any error; its text is shown to users.
    ///
    /// # Cancel safety
    /// The node may drop the future at any time, and call again.
    fn places(&self) -> impl Future<Output = Result<Vec<Place>, DiscoveryError>> + Send;

    /// Returns the port at which the other nodes expect this one, if the discovery knows it: the node binds it unless
    /// [`NodeBuilder::bind`](crate::NodeBuilder::bind) sets another address.
    fn own_port(&self) -> Option<u16> {
        None
    }
}

/// The places of a discovery, once they are known.
pub(crate) type Finding<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Place>, DiscoveryError>> + Send + 'a>>;

/// A discovery of any type.
pub(crate) trait AnyDiscovery: fmt::Debug + Send + Sync {
    fn places(&self) -> Finding<'_>;
    fn own_port(&self) -> Option<u16>;
}

impl<D: Discovery> AnyDiscovery for D {
    fn places(&self) -> Finding<'_> {
        Box::pin(Discovery::places(self))
    }

    fn own_port(&self) -> Option<u16> {
        Discovery::own_port(self)
    }
}
