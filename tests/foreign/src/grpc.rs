//! A gRPC service with each kind of method: the code that `tonic-build` generates from `build.rs`.
#![allow(missing_docs, clippy::all)]

/// The only message type.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Number {
    #[prost(uint64, tag = "1")]
    pub value: u64,
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

include!(concat!(env!("OUT_DIR"), "/numbers.Numbers.rs"));
