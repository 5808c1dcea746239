//! Virtual Interface queues, and MPI-grade messages over them.
//!
//! No clock and no I/O: the layers below carry packets, on the NIC or in memory.
//!
//! - [`message`]: start here: messages with MPI's matching rules, over whatever carries packets
#![forbid(unsafe_code)]

pub mod message;
