//! The socket that clients of a host connect to.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::Group;
use rustix::fs::Mode;
use rustix::process::{Gid, geteuid, umask};
use tokio::net::{UnixListener, UnixStream};

use super::options::StartError;

/// Returns the default socket of a user's daemon, in a folder of the user's own.
#[must_use]
pub fn default_socket() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let user = geteuid().as_raw();
    let folder = own.unwrap_or_else(|| std::env::temp_dir().join(format!("midplane-{user}")));
    folder.join("gangd.socket")
}

/// Default socket of a daemon of root that serves a group. Only root may write to its folder.
pub const SYSTEM_SOCKET: &str = "/run/midplane/gangd.socket";

/// Returns the default socket of this user's clients: that of the user's own daemon, or root's if only that exists.
#[must_use]
pub fn find_socket() -> PathBuf {
    let own = default_socket();
    match !own.exists() && Path::new(SYSTEM_SOCKET).exists() {
        true => SYSTEM_SOCKET.into(),
        false => own,
    }
}

/// Returns the ID of the group that may use the socket.
fn find_group(name: &str) -> Result<Gid, StartError> {
    let group = name.to_owned();
    if !geteuid().is_root() {
        return Err(StartError::GroupWithoutRoot(group));
    }
    match Group::from_name(name) {
        Ok(Some(found)) => Ok(Gid::from_raw(found.gid.as_raw())),
        Ok(None) => Err(StartError::Group(group, "there is no such group".into())),
        Err(error) => Err(StartError::Group(group, error.to_string())),
    }
}

/// Opens the socket for clients: for this user alone, or also for the members of a group.
pub(super) async fn open_socket(
    path: &Path,
    group: Option<&str>,
) -> Result<UnixListener, StartError> {
    let wrong = |error| StartError::Socket(path.to_owned(), error);
    let group = group.map(find_group).transpose()?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let is_system = path == Path::new(SYSTEM_SOCKET);
        // This folder is a default, not named by the user, so it is created.
        if is_system || path == default_socket() {
            let mode = if is_system { 0o755 } else { 0o700 };
            let made = std::fs::DirBuilder::new().mode(mode).recursive(true).create(folder);
            made.map_err(wrong)?;
        } else if !folder.is_dir() {
            return Err(StartError::NoFolder(path.to_owned(), folder.to_owned()));
        }
    }
    if UnixStream::connect(path).await.is_ok() {
        return Err(StartError::Taken(path.to_owned()));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(wrong(error)),
        _ => {}
    }
    // Prevents other users from connecting before the permissions are set.
    let usual = umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    umask(usual);
    let listener = listener.map_err(wrong)?;
    let mode = match group {
        None => 0o600,
        Some(_) => 0o660,
    };
    rustix::fs::chown(path, None, group).map_err(|error| wrong(error.into()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(wrong)?;
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
        let refused = runtime.block_on(open_socket(&nowhere.join("socket"), None)).unwrap_err();
        assert!(refused.to_string().contains("there is no folder"), "{refused}");
        assert!(!nowhere.exists());
        runtime.block_on(open_socket(&folder.path().join("socket"), None)).unwrap();
        let group = Some("no-such-group");
        let refused = runtime.block_on(open_socket(&folder.path().join("other"), group));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("--socket-group no-such-group"), "{refused}");
    }
}
