//! Links all integration tests of the crate into one binary.

mod adaptation;
mod dice;
mod executor;
mod hostile;
mod hot_path;
mod invariants;
mod measurement;
mod uncertainty;
