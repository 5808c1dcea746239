//! Measures the papers' published results on the simulated machines.

pub mod measure;
pub mod pm;
mod raw;

#[cfg(test)]
mod tests;
