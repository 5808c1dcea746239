//! Tests the simulated fabric, one behaviour a file.

mod abort;
mod back_pressure;
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
mod mistakes;
mod observe;
mod ports;
mod shared;
mod tasks;
mod timers;
