//! All integration tests of the family in one binary: it is linked once.

#[cfg(target_os = "linux")]
mod bad_input;
mod bounds;
#[cfg(target_os = "linux")]
mod calls;
mod conformance;
#[cfg(target_os = "linux")]
mod discovery;
mod dissector;
#[cfg(target_os = "linux")]
mod identity;
#[cfg(target_os = "linux")]
mod latest;
#[cfg(target_os = "linux")]
mod messages;
#[cfg(target_os = "linux")]
mod nicd;
#[cfg(target_os = "linux")]
mod node;
mod programs;
mod readme;
#[cfg(target_os = "linux")]
mod shutdown;
#[cfg(target_os = "linux")]
mod solver;
mod stopping;
#[cfg(target_os = "linux")]
mod tokens;
#[cfg(target_os = "linux")]
mod top;
#[cfg(target_os = "linux")]
mod transports;
#[cfg(target_os = "linux")]
mod upgrades;
#[cfg(target_os = "linux")]
mod world;
