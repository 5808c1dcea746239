//! All integration tests of the crate in one binary: it is linked once.

mod arrivals;
mod back_pressure;
mod cancelling;
mod checkpoints;
mod coscheduling;
mod deadlocks;
mod detection;
mod dropping;
mod elsewhere;
mod freezing;
mod independence;
mod interfaces;
mod job;
mod nas;
mod polling;
mod preemption;
mod scheduling;
mod vi_contexts;
mod vi_elsewhere;
mod vi_preemption;
mod vi_refusals;
mod vis;
mod waking;
