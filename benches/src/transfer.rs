//! A file's transfer from disk over the network to disk, in fragments: its stages, and their observed costs.

use std::fs::File;
use std::io::Write as _;

pub mod observe;
pub mod pace;
pub mod wire;

/// Creates a file without a name, whose contents do not compress; it vanishes when its process exits.
///
/// # Errors
/// The system's error.
pub fn file(bytes: usize) -> std::io::Result<File> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let contents: Vec<u8> = words.take(bytes / 8).flatten().collect();
    let mut file = tempfile::tempfile()?;
    file.write_all(&contents)?;
    Ok(file)
}
