//! Streams of nodes under the names and signatures of TCP's types, so that tests written for TCP compile against them.

pub mod blocking;
pub mod grpc;
pub mod net;
mod nodes;
