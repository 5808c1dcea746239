//! Calls: requests to a service by its name, and their answers.
//!
//! ```
//! # use std::future::{Ready, ready};
//! # use std::task::{Context, Poll};
//! # use midplane::Node;
//! #[derive(Clone)]
//! struct Double;
//!
//! impl tower_service::Service<u32> for Double {
//!     type Response = u32;
//!     type Error = String;
//!     type Future = Ready<Result<u32, String>>;
//!     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
//!         Poll::Ready(Ok(()))
//!     }
//!     fn call(&mut self, number: u32) -> Self::Future {
//!         ready(number.checked_mul(2).ok_or_else(|| "too large".into()))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let builder = Node::builder().cluster(format!("doc-{}", std::process::id()));
//! # let (node, other) = (builder.clone().start().await?, builder.start().await?);
//! let serving = node.serve("double", Double)?; // of one process
//! let client = other.client::<u32, u32, String>("double"); // of another
//! assert_eq!(client.call(21).await?, 42);
//! # Ok(())
//! # }
//! ```
//!
//! A call has a stream for itself, as a request of HTTP/1.1 has a connection: no call waits behind another. Idle
//! streams are kept for further calls. Dropping a call drops its stream; the peer then drops the service's future.

mod client;
mod context;
mod frame;
mod pool;
mod server;
#[cfg(test)]
mod tests;

use midplane_simhw::wire::VALUE_LIMIT;

use crate::error::Error;
pub use client::{Client, DEFAULT_TIMEOUT};
pub use context::Context;
pub use server::{MAX_STREAMS, Serving};

/// Default limit of concurrent calls: 256.
pub const DEFAULT_CONCURRENCY: usize = 256;
/// Default limit of a request, and of an answer, in bytes: 1 MiB.
pub const DEFAULT_MAX_MESSAGE: usize = 1 << 20;

/// Limits of a [`Client`] or of a [service](crate::Node::serve_with).
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Limits {
    concurrency: usize,
    max_message: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { concurrency: DEFAULT_CONCURRENCY, max_message: DEFAULT_MAX_MESSAGE }
    }
}

impl Limits {
    /// Limits the concurrent calls, at least 1: further ones wait. An answer of more than 64 KiB counts as a call until its
    /// caller has taken it. Default: [`DEFAULT_CONCURRENCY`].
    pub const fn concurrency(mut self, calls: usize) -> Self {
        self.concurrency = if calls == 0 { 1 } else { calls };
        self
    }

    /// Limits the bytes of a request, and of an answer: a longer one is an error. At least 1, at most 16 MiB. Default:
    /// [`DEFAULT_MAX_MESSAGE`].
    pub const fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = match bytes {
            0 => 1,
            1..=VALUE_LIMIT => bytes,
            _ => VALUE_LIMIT,
        };
        self
    }
}

/// The reason why a call has no response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError<E> {
    /// The service's own error.
    #[error("{0}")]
    Service(E),
    /// The deadline has passed. The service's future is dropped, at its own deadline or when the peer detects the end
    /// of the stream.
    #[error("the deadline of the call has passed")]
    Deadline,
    /// The node can't reach the service, or was shut down: see [`Error::kind`].
    #[error(transparent)]
    Node(Error),
    /// The peer was lost, and may have handled the request; or it has ended the stream, because this process took a long
    /// answer too slowly while others waited. Use [`Client::idempotent`] to have such calls retried.
    #[error("the peer was lost, or did not wait for this process to take the answer: {0}")]
    Reset(std::io::Error),
    /// Each node that offers the service has as many streams as it accepts, or did not wait for the rest of a long request
    /// that arrived too slowly.
    #[error("each node that offers the service is busy; try again, or start another one")]
    Busy,
    /// The request, or the response, is longer than a limit.
    #[error("a {what} of this call has at most {limit} bytes: see `Limits::max_message`")]
    TooLarge {
        /// `request` or `response`.
        what: &'static str,
        /// Most bytes of one.
        limit: usize,
    },
    /// Serde can't encode the value.
    #[error(
        "serde can't encode the {what}: its type has `flatten` or a sequence of unknown length, for which a map or a `Vec` \
         works, or its `Serialize` refuses this value, such as a path that is not UTF-8"
    )]
    Encode {
        /// `request`, or `response` for a service's response or error.
        what: &'static str,
    },
    /// The bytes do not decode as the type: both sides must use the same types.
    #[error(
        "the bytes of the {what} are none of its type: run one version of the types on both sides"
    )]
    Decode {
        /// `request`, `response` or `error`.
        what: &'static str,
    },
}

impl<E> CallError<E> {
    /// Returns whether the service was certainly not called.
    #[must_use]
    pub fn is_undelivered(&self) -> bool {
        // A node's error is returned only if no attempt before it may have reached a service.
        matches!(self, Self::Node(_) | Self::Busy | Self::Encode { what: "request" })
    }
}
