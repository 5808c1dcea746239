//! Reads the cluster's key from a file.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use midplane_simhw::seal::Key;

use crate::error::{Error, ErrorKind};

/// Bytes of a file with a key: a number of 10 digits, a colon, 64 digits and some space around.
const MOST: u64 = 256;
/// Permissions that a file with a key must not have: those of other users, and the group's to write.
const TOO_OPEN: u32 = 0o027;

/// Reads a key from a file that other users can't read.
pub(super) fn read(path: &Path) -> Result<Key, Error> {
    let shown = path.display();
    let wrong =
        |text: String| Error::new(ErrorKind::Config, format!("the key file {shown}: {text}"));
    let failed = |error| wrong(format!("{error}; name a file with a key that this user can read"));
    // A pipe would have the open wait for a writer.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(wrong("it is no regular file; name one with a key".into()));
    }
    let file = File::open(path).map_err(failed)?;
    // Of the file that is open: the path may name another one by now.
    let mode = file.metadata().map_err(failed)?.mode();
    if mode & TOO_OPEN != 0 {
        let mode = mode & 0o777;
        return Err(wrong(format!(
            "other users can read or change it (its mode is {mode:o}): `chmod 600` it, and make a new key if they may have read it"
        )));
    }
    let mut text = String::new();
    let read = file.take(MOST).read_to_string(&mut text);
    let cure = "write one with `echo \"1:$(openssl rand -hex 32)\"`";
    let malformed = |error: &dyn std::fmt::Display| wrong(format!("{error}; {cure}"));
    read.map_err(|error| malformed(&error))?;
    text.parse().map_err(|error| malformed(&error))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_read_from_a_file_of_the_user_alone() {
        let digits = "0a".repeat(32);
        let read_of = |text: &str, mode| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
            read(file.path()).map_err(|error| {
                assert_eq!(error.kind(), ErrorKind::Config);
                let text = error.to_string();
                assert!(text.contains(&file.path().display().to_string()), "{text}");
                assert!(!text.contains(&digits), "the secret is never shown");
                text
            })
        };
        let key = format!("7:{digits}\n");
        for mode in [0o600, 0o400, 0o440] {
            assert_eq!(read_of(&key, mode), Ok(Key::new(7, [0x0a; 32])));
        }
        for mode in [0o644, 0o604, 0o660, 0o602] {
            assert!(read_of(&key, mode).unwrap_err().contains("chmod 600"));
        }
        for wrong in ["", "7", &digits, &format!("x:{digits}"), &format!("{key}{key}"), "\u{0}"] {
            assert!(read_of(wrong, 0o600).unwrap_err().contains("openssl"), "{wrong}");
        }
        assert!(read(Path::new("/nowhere")).unwrap_err().to_string().contains("/nowhere"));
        assert!(read(Path::new("/dev/null")).unwrap_err().to_string().contains("regular file"));
    }
}
