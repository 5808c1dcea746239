//! All integration tests of the crate in one binary: it is linked once.

mod conveyor;
mod hostile;
mod hot_path;
mod invariants;
mod measurement;
