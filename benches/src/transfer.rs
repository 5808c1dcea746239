//! A file's transfer from disk over the network to disk, in fragments: its stages, and their observed costs.

use std::fs::File;
use std::io::Write as _;

use midplane::simhw::rng::Rng;

pub mod observe;
pub mod pace;
pub mod wire;

/// Creates a file without a name, whose contents do not compress; it vanishes when its process exits.
///
/// # Errors
/// The system's error.
pub fn file(bytes: usize) -> std::io::Result<File> {
    let mut contents = vec![0; bytes];
    Rng::new(1, "file").fill(&mut contents);
    let mut file = tempfile::tempfile()?;
    file.write_all(&contents)?;
    Ok(file)
}
