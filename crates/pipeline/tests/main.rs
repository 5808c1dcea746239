//! Links all integration tests of the crate into one binary.

mod conveyor;
mod hostile;
mod hot_path;
mod invariants;
mod measurement;
