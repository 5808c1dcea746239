//! Channels that can be preempted, gang scheduling, checkpoints.
//!
//! Nothing is here yet. The crate will hold PM's channels as a firmware extension of
//! `midplane-nicvm`, and the scheduler that stops, saves, moves and resumes parallel jobs
//! without losing a message.
#![forbid(unsafe_code)]
