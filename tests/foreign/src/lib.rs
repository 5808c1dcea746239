//! What the tests need that is generated: see `build.rs`.

pub mod grpc;
