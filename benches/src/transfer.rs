//! A file's transfer from disk over the network to disk, in fragments: its stages, and their observed costs.

use std::fmt::Display;
use std::io;

pub mod observe;
pub mod pace;
pub mod wire;

/// Reason for an incomplete run.
#[derive(Debug)]
pub enum Fault {
    /// An argument is wrong.
    Input(String),
    /// The peer or a file was lost, or the user stopped the run.
    Lost(String),
}

impl Fault {
    pub fn lost(what: impl Display) -> impl FnOnce(io::Error) -> Self {
        move |problem| Self::Lost(format!("{what}: {problem}"))
    }
}

/// Returns contents for a file that do not compress.
pub fn contents(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(bytes / 8).flatten().collect()
}
