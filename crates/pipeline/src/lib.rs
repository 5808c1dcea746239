//! Fragmentation planners: messages cut so that they arrive soonest on any chain of stages.
//!
//! Nothing is here yet.
#![forbid(unsafe_code)]
