//! NICs over real sockets of this host: delivery, pacing, strangers, the way from port to port.

mod delivery;
mod firmware;
mod switched;
