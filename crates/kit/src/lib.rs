//! Code shared by the tools, measurements and examples of this workspace; not published.
//!
//! - [`command_line`]: parses arguments; one line for bad ones
//! - [`ranks`], [`processes`]: the addresses of a run's processes; processes that a program starts on this host
//! - [`claims`]: judges timing claims, with the exit code
//! - [`clock`]: the clocks of this machine
//! - [`hash`]: hashes that are the same in every build
//! - [`report`]: JSON documents, tables, errors, exit codes
#![forbid(unsafe_code)]

pub mod claims;
pub mod clock;
pub mod command_line;
pub mod hash;
pub mod processes;
pub mod ranks;
pub mod report;
mod tables;
