//! Control messages over a network with faults, in virtual time.

#[path = "control/hostile.rs"]
mod hostile;
#[path = "control/network.rs"]
mod network;
#[path = "control/pair.rs"]
mod pair;
#[path = "control/scenario.rs"]
mod scenario;
