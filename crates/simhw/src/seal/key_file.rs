//! Reads keys from files that other users can't read.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::str::FromStr;

use thiserror::Error;

/// Most bytes of a key file: a number of 10 digits, a colon, 64 digits and some spaces.
const MOST: u64 = 256;
/// Permissions that a key file must not grant: all of other users', and writing by the group.
const TOO_OPEN: u32 = 0o027;

/// The reason why a file gives no key. No text has a part of the key.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The file can't be read; the text is the system's.
    #[error("{1}; name a file with a key that this user can read")]
    Unreadable(io::ErrorKind, String),
    /// It is a folder, a pipe or a device.
    #[error("it is no regular file; name one with a key")]
    NotAFile,
    /// Other users can read or change it; this is its mode.
    #[error(
        "other users can read or change it (its mode is {0:o}): `chmod 600` it, and make a new key if they may have read it"
    )]
    TooOpen(u32),
    /// Its text is no key of the kind.
    #[error("{0}")]
    Malformed(String),
}

/// Reads a [`Key`](super::Key) or a [`SecretKey`](super::SecretKey) from a regular file that other users can't read or
/// change. Blocks while the file is read; at most 256 bytes are.
///
/// # Errors
/// See [`KeyFileError`].
pub fn read_key<K: FromStr<Err: Display>>(path: &Path) -> Result<K, KeyFileError> {
    let failed = |error: io::Error| KeyFileError::Unreadable(error.kind(), error.to_string());
    // Opening a pipe would block until a writer opens it.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(KeyFileError::NotAFile);
    }
    let file = File::open(path).map_err(failed)?;
    // Checks the opened file, because the path may name another one by now.
    let mode = file.metadata().map_err(failed)?.mode();
    if mode & TOO_OPEN != 0 {
        return Err(KeyFileError::TooOpen(mode & 0o777));
    }
    let mut text = String::new();
    file.take(MOST)
        .read_to_string(&mut text)
        .map_err(|error| KeyFileError::Malformed(error.to_string()))?;
    text.trim().parse().map_err(|error: K::Err| KeyFileError::Malformed(error.to_string()))
}
