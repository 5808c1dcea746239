//! What the rate laws promise, over many draws: the rows W1 to W10 that the crate is held to.

mod loads;
mod packets;
mod pure;
mod scenario;
mod settled;
mod upset;
