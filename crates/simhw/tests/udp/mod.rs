//! Tests NICs over real sockets of this host: delivery, pacing, strangers, seals, and transfers from port to port.

mod bad_input;
mod delivery;
mod faults;
mod firmware;
mod identified;
mod pacing;
mod paths;
mod ports;
mod sealed;
mod switched;
