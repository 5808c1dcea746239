//! Tests of the rate laws' guarantees W1 to W10, over many random scenarios.

mod loads;
mod packets;
mod pure;
mod scenario;
mod settled;
mod upset;
