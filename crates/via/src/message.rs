//! Messages with MPI's matching rules, over whatever carries packets.
//!
//! Two layers, as in LAM/MPI: an upper one that knows modes, communicators and collectives, and a
//! lower one, behind the trait of LAM's eight functions, that moves requests forward.
//!
//! - [`communicator`]: start here: messages as futures; [`process`]: the same, polled;
//!   [`group`]: ranks and contexts
//! - [`collective`]: what all processes do together; [`typed`], [`layout`]: values, plain data, strides
//! - [`progression`], [`request`]: the seam between the layers
//! - [`engine`]: a lower layer over any [`carrier`]; [`memory`]: a carrier within one process
//! - [`envelope`], [`matching`]: what travels before a message, and which receive it meets
//! - [`explain`]: why nothing happens

pub mod carrier;
pub mod collective;
pub mod communicator;
pub mod engine;
pub mod envelope;
pub mod explain;
pub mod group;
pub mod layout;
pub mod matching;
pub mod memory;
pub mod process;
pub mod progression;
pub mod request;
pub mod typed;
