//! Virtual Interface queues, and MPI-grade messages over them.
//!
//! Nothing is here yet. The crate will hold the Virtual Interface Architecture's objects
//! (interfaces, descriptors, completion queues, registered memory) as a firmware extension of
//! `midplane-nicvm`, and above them messages with MPI's matching rules.
#![forbid(unsafe_code)]
