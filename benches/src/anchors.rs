//! Measures the papers' published results on the simulated machines.

pub mod adaptation;
pub mod bounce;
pub mod constants;
pub mod gam;
pub mod measure;
pub mod pm;

#[cfg(test)]
mod tests;
