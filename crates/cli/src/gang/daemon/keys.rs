//! Makes and reads the key files of daemons.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use midplane::simhw::seal::{self, Key, PublicKey, SecretKey};

/// Makes a secret key in a new file, and returns its public key.
pub(super) fn make_key(path: &Path) -> Result<PublicKey, String> {
    let wrong = |what: &dyn std::fmt::Display| format!("--make-key {}: {what}", path.display());
    let secret = SecretKey::generate().map_err(|error| wrong(&error))?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(|error| wrong(&error))?;
    writeln!(file, "{}", secret.to_text()).map_err(|error| {
        // An empty file would refuse the next try.
        let _ = std::fs::remove_file(path);
        wrong(&error)
    })?;
    Ok(secret.public())
}

/// Reads the key that all daemons share from a file that other users can't read.
pub(super) fn read_key(path: &Path) -> Result<Key, String> {
    seal::read_key(path).map_err(|error| format!("--key {}: {error}", path.display()))
}
