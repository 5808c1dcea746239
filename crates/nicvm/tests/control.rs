//! Control messages over a network with faults, in virtual time.

mod hostile;
mod network;
mod pair;
mod scenario;
