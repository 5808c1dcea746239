//! All integration tests of the crate in one binary: it is linked once.

mod address_space;
mod ahead;
mod buffers;
mod closed_port;
mod cluster;
mod collectives;
mod control;
mod control_messages;
mod desk;
mod early_release;
#[cfg(feature = "wasm")]
mod engines;
#[cfg(feature = "wasm")]
mod generator;
mod heaps;
mod held_groups;
mod hostile;
mod hostile_memory;
#[cfg(feature = "wasm")]
mod hostile_modules;
mod incast;
mod install;
mod messages;
mod one_at_a_time;
mod programs;
mod quarantine;
mod reassembly;
#[cfg(feature = "wasm")]
mod sandbox;
mod small;
mod stops;
mod threads;
mod token_cost;
mod transmit;
mod trunk;
mod versions;
mod withdrawn;
