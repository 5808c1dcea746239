//! Messages with MPI's matching rules, over any carrier of packets.
//!
//! Two layers, as in LAM/MPI: the upper one implements modes, communicators and collectives. The lower one, the
//! engine, advances requests, behind the eight functions of LAM's request progression interface.
//!
//! - [`communicator`]: start here: messages as futures; [`process`]: messages for programs that poll; [`group`]: ranks
//!   and contexts
//! - [`collective`]: operations of all processes together; [`typed`], [`layout`]: values, plain data, strides
//! - [`window`]: values that other processes read, write and combine (one-sided accesses)
//! - [`engine`]: the engine, over any [`carrier`]; [`request`], [`transport`]: what its functions take and return
//! - [`envelope`], [`matching`]: the header that precedes a message, and which receive the message matches
//! - [`explain`]: why no request makes progress
//!
//! ```
//! use midplane_via::message::communicator::Communicator;
//! use midplane_via::message::engine::{Config, Engine};
//! use midplane_via::message::envelope::Tag;
//! use midplane_via::message::group::Rank;
//! use midplane_via::message::memory::{MemoryConfig, network};
//! use midplane_via::message::process::MessageError;
//!
//! /// Passes a number round all ranks; each adds its own.
//! async fn round(world: Communicator) -> Result<u32, MessageError> {
//!     let (own, last) = (world.rank(), Rank(world.size() - 1));
//!     let mut sum = own.0;
//!     if own != Rank(0) {
//!         sum += world.receive_value::<u32>(Rank(own.0 - 1), Tag(1)).await?.0;
//!     }
//!     if own != last {
//!         world.send_value(Rank(own.0 + 1), Tag(1), &sum).await?;
//!     }
//!     world.broadcast_value(last, &sum).await
//! }
//!
//! let ranks = network(3, MemoryConfig::default()).into_iter().map(|carrier| {
//!     std::thread::spawn(move || {
//!         let engine = Engine::new(carrier, Config::default());
//!         let world = Communicator::world(engine, 3).expect("there are three");
//!         world.block_on(round(world.clone()))
//!     })
//! });
//! for rank in ranks.collect::<Vec<_>>() {
//!     assert_eq!(rank.join().expect("it does not panic"), Ok(3));
//! }
//! ```

mod bell;
pub mod carrier;
pub mod collective;
pub mod communicator;
pub mod engine;
pub mod envelope;
pub mod explain;
pub mod group;
pub mod layout;
pub mod matching;
#[doc(hidden)]
pub mod memory;
pub mod process;
pub mod request;
#[cfg(feature = "session")]
#[doc(hidden)]
pub mod streams;
pub mod transport;
pub mod typed;
pub mod window;
#[doc(hidden)]
pub mod wires;
