//! Generated code that the tests share: see `build.rs`.

pub mod grpc;
