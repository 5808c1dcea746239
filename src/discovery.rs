//! Discovery: tells a node which places may have other nodes.
//!
//! [`NodeBuilder::discover`](crate::NodeBuilder::discover) takes the places themselves;
//! [`NodeBuilder::discover_with`](crate::NodeBuilder::discover_with) takes what knows them:
//!
//! | where the places stand | discovery |
//! |---|---|
//! | in the program, or one name of DNS for many addresses | [`List`] |
//! | in a file that changes | [`File`] |
//! | in the environment of a job of Slurm, PMI, Open MPI or Kubernetes | [`Job`] |
//! | elsewhere | a [`Discovery`] of your own |
//!
//! With the feature `discovery-gossip`, `NodeBuilder::gossip` has nodes that know one place learn of all others.
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
//! A node asks whenever it searches for a service that none of its peers offers, several times a second as long as it
//! waits; it dials the places whose node it does not know. Places that are named no longer are not dialed again; the
//! connections that stand stay.

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

/// Says why a discovery can't tell the places: one line, with the cure.
pub type DiscoveryError = Box<dyn std::error::Error + Send + Sync>;

/// Tells a node which places may have other nodes.
pub trait Discovery: fmt::Debug + Send + Sync + 'static {
    /// Returns the places that may have nodes now, in any order, this node's own among them or not. The node resolves
    /// their names anew with each search.
    ///
    /// The node waits 1 s at most, and uses the places of the last answer if there is none. It asks once before it
    /// starts, and does not start after an error; it reports later ones in [`Node::explain`](crate::Node::explain), and
    /// in the error of a search in vain.
    ///
    /// # Errors
    /// Any; it is shown to people.
    ///
    /// # Cancel safety
    /// The node may drop the future at any time, and ask again.
    fn places(&self) -> impl Future<Output = Result<Vec<Place>, DiscoveryError>> + Send;

    /// Returns the port at which the other nodes expect this one, if the discovery knows it: the node binds it unless
    /// [`NodeBuilder::bind`](crate::NodeBuilder::bind) says another address.
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
