//! Work that several benches time or count.

pub mod descriptors;
#[cfg(target_os = "linux")]
pub mod interfaces;
pub mod load;
pub mod matching;
pub mod messages;
