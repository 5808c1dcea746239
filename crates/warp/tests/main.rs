//! Links all integration tests of the crate into one binary.

mod allocations;
mod bottleneck;
mod controller;
mod firmware;
mod live;
mod mermera;
mod quinn;
mod traps;
