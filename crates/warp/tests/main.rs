//! All integration tests of the crate in one binary: it is linked once.

mod allocations;
mod bottleneck;
mod controller;
mod firmware;
mod live;
mod mermera;
mod quinn;
