//! Checks every interleaving of rings, doorbells and parking within the memory model: the code of midplane-simhw, with the
//! model checker's atomics. Memory has lines only, as the models copy no bytes.
#![allow(missing_docs, reason = "the name of a model says what it checks")]
#![allow(dead_code, reason = "the models use only a part of the code")]
#![allow(
    unreachable_pub,
    clippy::needless_pass_by_ref_mut,
    reason = "some of it is public in midplane-simhw"
)]

#[path = "../../src/shm/byte_ring.rs"]
mod byte_ring;
#[path = "../../src/shm/lane.rs"]
mod lane;
pub mod models;
mod port;
mod region;
#[path = "../../src/ring.rs"]
mod ring;
mod segment;
mod sync;

use midplane_simhw::{frame, id};
