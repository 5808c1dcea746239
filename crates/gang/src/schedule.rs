//! Scheduling policies: which jobs run in the next slice, and on which nodes.

mod policy;
mod queue_tree;
mod round_robin;

pub use policy::{AdmitError, Policy, Request};
pub use queue_tree::{Placing, QueueTree};
pub use round_robin::RoundRobin;
