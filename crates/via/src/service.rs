//! Services over messages: byte streams, message streams, and requests with answers.
//!
//! Offers the interfaces of tokio, futures and tower over a
//! [`Communicator`](crate::message::communicator::Communicator). The service must be its only user: duplicate
//! one.
//!
//! - [`Streams`]: start here: makes and accepts connections, each a [`ByteStream`]: tokio's `AsyncRead` and
//!   `AsyncWrite`
//! - [`Sender`], [`Receiver`]: a `Sink` and a `Stream` of messages; [`Sender::reserve`] waits for room
//! - [`Client`], [`Server`]: requests and answers; both sides use `tower::Service`
//!
//! Every queue is bounded: by the depth of a sender, a client or a server, and below them by the receiver's
//! window for unexpected messages. A sender that exceeds it waits. `max_message` bounds the length of a message
//! where it is received. When a process dies, whatever waits for it ends with
//! [`Failure::PeerLost`](crate::message::request::Failure::PeerLost), as soon as the layers below report the
//! death.
//!
//! ```
//! use bytes::Bytes;
//! use midplane_via::message::communicator::Communicator;
//! use midplane_via::message::engine::{Config, Engine};
//! use midplane_via::message::envelope::Tag;
//! use midplane_via::message::group::Rank;
//! use midplane_via::message::memory::{MemoryConfig, network};
//! use midplane_via::message::process::Process;
//! use midplane_via::service::{Client, Server};
//! # use std::convert::Infallible;
//! # use std::future::{Ready, ready};
//! # use std::task::{Context, Poll};
//! use tower_service::Service;
//!
//! #[derive(Clone)]
//! struct Shout;
//!
//! impl Service<Bytes> for Shout {
//!     type Response = Bytes;
//!     type Error = Infallible;
//!     type Future = Ready<Result<Bytes, Infallible>>;
//!     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
//!         Poll::Ready(Ok(()))
//!     }
//!     fn call(&mut self, request: Bytes) -> Self::Future {
//!         ready(Ok(request.to_ascii_uppercase().into()))
//!     }
//! }
//!
//! let mut worlds = network(2, MemoryConfig::default()).into_iter().map(|carrier| {
//!     let engine = Engine::new(carrier, Config::default());
//!     let (process, scope) = Process::new(engine, 2).expect("there are two");
//!     Communicator::world(process, scope)
//! });
//! let (server, client) = (worlds.next().unwrap(), worlds.next().unwrap());
//! let serving = std::thread::spawn(move || {
//!     // Serves until the client has no more requests.
//!     let stop = async { drop(server.receive(Rank(1), Tag(1)).await) };
//!     server.block_on(Server::new(server.clone()).serve_until(Shout, stop))
//! });
//! let answer = client.block_on(async {
//!     let mut asking = Client::new(client.clone(), Rank(0));
//!     asking.reserve().await;
//!     let answer = asking.call(Bytes::from_static(b"hello")).await;
//!     client.send(Rank(0), Tag(1), vec![]).await.expect("the server is there");
//!     answer
//! });
//! assert_eq!(answer, Ok(Bytes::from_static(b"HELLO")));
//! assert_eq!(serving.join().unwrap().unwrap().requests, 1);
//! ```

mod client;
mod connection;
mod frame;
mod messages;
mod server;
mod stream;

pub use client::{Call, CallError, Client};
pub use connection::Streams;
pub use messages::{DEFAULT_DEPTH, DEFAULT_MAX_MESSAGE, DeliveryError, Permit, Receiver, Sender};
pub use server::{Counters, DEFAULT_HANDLED, Server};
pub use stream::{ByteStream, DEFAULT_DROPPED};
