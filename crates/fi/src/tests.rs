//! Drives the provider through its tables, as libfabric does, without libfabric.
#![allow(unsafe_code, reason = "calls the functions of the tables as C code does")]

mod atomics;
mod auto;
mod connections;
mod messages;
mod processes;
mod refusals;
mod remote_memory;
mod side;
mod waits;
