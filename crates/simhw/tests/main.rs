//! All integration tests of the crate in one binary: it is linked once.

mod allocations;
mod descriptors;
mod medium;
mod shm;
mod shm_bad_input;
mod shm_lanes;
mod sim;
mod switch;
mod udp;
mod wakers;
