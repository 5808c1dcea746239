//! Reads keys from files: the cluster's, and the node's own, which is created if its file is missing.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use midplane_simhw::seal::{Key, KeyFileError, SecretKey, read_key};

use crate::error::{Error, ErrorKind};

/// Reads the cluster's key from a file that other users can't read.
pub(super) fn read(path: &Path) -> Result<Key, Error> {
    read_as("key file", path, "write one with `echo \"1:$(openssl rand -hex 32)\"`")
}

/// Reads a node's own key from a file that other users can't read; creates key and file if there is none.
pub(super) fn read_or_make(path: &Path) -> Result<SecretKey, Error> {
    let what = "identity file";
    if std::fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        make(path).map_err(|error| {
            let text = "name a file in a folder that this user can write";
            let text = format!("the {what} {}: it can't be made: {error}; {text}", path.display());
            Error::new(ErrorKind::Config, text)
        })?;
    }
    read_as(what, path, "remove it, and have the node make a new one")
}

/// Creates a file with a new key. Two nodes may start at once, so the file appears completely or not at all, and never
/// replaces another.
fn make(path: &Path) -> io::Result<()> {
    let secret = SecretKey::generate().map_err(io::Error::other)?;
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{:016x}", super::host::random()?));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let text = format!("{}\n", secret.to_text());
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let made = written.and_then(|()| std::fs::hard_link(&draft, path));
    let _ = std::fs::remove_file(&draft);
    // Peers remember the key: it must not be lost with the power.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if made.is_ok() {
        // Not every file system can do so.
        let _ = File::open(folder.unwrap_or_else(|| Path::new("."))).and_then(|it| it.sync_all());
    }
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Reads a key of any kind from a file that other users can't read.
fn read_as<K>(what: &str, path: &Path, cure: &str) -> Result<K, Error>
where
    K: std::str::FromStr<Err: std::fmt::Display>,
{
    read_key(path).map_err(|error| {
        let cure = match error {
            KeyFileError::Malformed(_) => format!("; {cure}"),
            _ => String::new(),
        };
        let text = format!("the {what} {}: {error}{cure}", path.display());
        Error::new(ErrorKind::Config, text)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

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

    #[test]
    fn an_identity_is_made_once_for_the_user_alone_and_read_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.key");
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || read_or_make(&path).unwrap().public())
            })
            .collect();
        let mut keys = threads.into_iter().map(|thread| thread.join().unwrap());
        let first = keys.next().unwrap();
        assert!(keys.all(|key| key == first), "nodes that start at once have one file");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
        let error = |path: &Path| {
            let error = read_or_make(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            error.to_string()
        };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(error(&path).contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "0a").unwrap();
        assert!(error(&path).contains("64 hexadecimal digits; remove it"));
        assert!(error(&folder.path().join("no/folder")).contains("this user can write"));
        assert!(error(folder.path()).contains("regular file"));
    }
}
