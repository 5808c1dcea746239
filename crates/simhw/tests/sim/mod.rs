//! The simulated fabric, one behaviour a file.

mod abort;
mod conservation;
mod coprocessor;
mod crash;
mod determinism;
mod discard;
mod faults;
mod harness;
mod hops;
mod host_faults;
mod hosts;
mod line;
mod observe;
mod ports;
mod shared;
mod standstill;
mod tasks;
mod timers;
