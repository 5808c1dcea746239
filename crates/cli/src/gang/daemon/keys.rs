//! Makes and reads the key files of daemons.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use midplane::simhw::seal::{Key, PublicKey, SecretKey};

/// Permissions that a key file must not grant: all of other users', and writing by the group.
const TOO_OPEN: u32 = 0o027;

/// Makes a secret key in a new file, and returns its public key.
pub(super) fn make_key(path: &Path) -> Result<PublicKey, String> {
    let wrong = |what: &dyn std::fmt::Display| format!("--make-key {}: {what}", path.display());
    let secret = SecretKey::generate().map_err(|error| wrong(&error))?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| writeln!(file, "{}", secret.to_text()));
    written.map_err(|error| wrong(&error)).map(|()| secret.public())
}

/// Reads the key that all daemons share from a file that other users can't read.
pub(super) fn read_key(path: &Path) -> Result<Key, String> {
    let wrong = |what: &dyn std::fmt::Display| format!("--key {}: {what}", path.display());
    let mut text = String::new();
    let mut file = open("--key", path)?;
    file.read_to_string(&mut text).map_err(|error| wrong(&error))?;
    text.trim().parse().map_err(|error| wrong(&error))
}

/// Opens the key file of an option, unless other users can read or change it.
pub(super) fn open(option: &str, path: &Path) -> Result<File, String> {
    let wrong = |what: &dyn std::fmt::Display| format!("{option} {}: {what}", path.display());
    let file = File::open(path).map_err(|error| wrong(&error))?;
    let of = file.metadata().map_err(|error| wrong(&error))?;
    match refusal(of.mode()).filter(|_| of.is_file()) {
        Some(why) => Err(wrong(&why)),
        None => Ok(file),
    }
}

/// Returns why a key file of this mode is not used, if it is not.
fn refusal(mode: u32) -> Option<String> {
    (mode & TOO_OPEN != 0).then(|| {
        let mode = mode & 0o777;
        format!(
            "other users can read or change it (its mode is {mode:o}): `chmod 600` it, and make a new key if they may have \
             read it"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_that_others_can_read_or_change_is_refused_with_the_cure() {
        for mode in [0o600, 0o400, 0o440, 0o640] {
            assert_eq!(refusal(mode), None);
        }
        for mode in [0o644, 0o604, 0o660, 0o602] {
            let why = refusal(0o100_000 | mode).unwrap();
            assert!(why.contains(&format!("{mode:o}")) && why.contains("chmod 600"), "{why}");
        }
    }
}
