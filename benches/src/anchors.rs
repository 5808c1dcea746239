//! Measures what was published of the papers' machines, on their profiles.

pub mod measure;
pub mod pm;
mod raw;

#[cfg(test)]
mod tests;
