//! The socket that front ends of a host connect to.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use super::options::StartError;

/// Where the socket of a user's daemon is, unless it is said: in a folder of the user's alone.
#[must_use]
pub fn default_socket() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let user = rustix::process::geteuid().as_raw();
    let folder = own.unwrap_or_else(|| std::env::temp_dir().join(format!("midplane-{user}")));
    folder.join("gangd.socket")
}

/// Opens the socket for front ends, for this user alone.
pub(super) async fn open_socket(path: &Path) -> Result<UnixListener, StartError> {
    let wrong = |error| StartError::Socket { path: path.to_owned(), error };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        // Nobody else has named this one: it is made, for this user alone.
        if path == default_socket() {
            let made = std::fs::DirBuilder::new().mode(0o700).recursive(true).create(folder);
            made.map_err(wrong)?;
        } else if !folder.is_dir() {
            let (path, folder) = (path.to_owned(), folder.to_owned());
            return Err(StartError::NoFolder { path, folder });
        }
    }
    if UnixStream::connect(path).await.is_ok() {
        return Err(StartError::Taken { path: path.to_owned() });
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(wrong(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(wrong)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(wrong)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_reported_and_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let (nowhere, runtime) = (
            folder.path().join("nowhere"),
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        );
        let refused = runtime.block_on(open_socket(&nowhere.join("socket"))).unwrap_err();
        assert!(refused.to_string().contains("there is no folder"), "{refused}");
        assert!(!nowhere.exists());
        runtime.block_on(open_socket(&folder.path().join("socket"))).unwrap();
    }
}
