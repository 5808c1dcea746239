//! The socket that clients of a host connect to.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
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
    own.unwrap_or_else(temporary_folder).join("gangd.socket")
}

/// Returns this user's folder among those for temporary files, where other users can create it first.
fn temporary_folder() -> PathBuf {
    std::env::temp_dir().join(format!("midplane-{}", geteuid().as_raw()))
}

/// Returns whether a socket's folder is this user's among those for temporary files, where other users can create it first.
pub(in crate::live) fn is_temporary(socket: &Path) -> bool {
    socket.parent() == Some(&temporary_folder())
}

/// Returns whether another user may have created a socket: its folder is among those for temporary files, and is of another
/// user, or others can access it.
pub(in crate::live) fn is_foreign(socket: &Path) -> bool {
    is_temporary(socket) && socket.parent().is_some_and(|folder| !is_own(folder))
}

/// Returns whether a path is a folder that only this user can access, or does not exist.
fn is_own(folder: &Path) -> bool {
    match std::fs::symlink_metadata(folder) {
        Ok(it) => it.is_dir() && it.uid() == geteuid().as_raw() && it.mode() & 0o077 == 0,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Default socket of a daemon of root that serves a group. Only root may write to its folder.
pub const SYSTEM_SOCKET: &str = "/run/midplane/gangd.socket";

/// Returns the default socket of this user's clients: that of the user's own daemon, or root's if only that exists.
#[must_use]
pub fn find_socket() -> PathBuf {
    let own = default_socket();
    let has_own = own.exists() && !is_foreign(&own);
    match !has_own && Path::new(SYSTEM_SOCKET).exists() {
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
            if is_foreign(path) {
                return Err(StartError::ForeignFolder(folder.to_owned()));
            }
        } else if !folder.is_dir() {
            return Err(StartError::NoFolder(path.to_owned(), folder.to_owned()));
        }
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let its = std::fs::symlink_metadata(path).map_err(wrong)?;
            if !its.file_type().is_socket() {
                return Err(StartError::NoSocket(path.to_owned()));
            }
            std::fs::remove_file(path).map_err(wrong)?;
        }
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(wrong(error)),
        // A daemon that accepts no connection at the moment serves it, too.
        _ => return Err(StartError::Taken(path.to_owned())),
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
    /// Regression: the file was deleted.
    #[test]
    fn a_file_that_is_no_socket_is_not_replaced_and_a_socket_without_a_daemon_is() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let open = |path: &Path| runtime.block_on(open_socket(path, None));
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "precious").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            let refused = open(path).unwrap_err().to_string();
            assert!(refused.contains("no socket"), "{refused}");
        }
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "precious");
        let socket = folder.path().join("socket");
        let first = open(&socket).unwrap();
        assert!(matches!(open(&socket), Err(StartError::Taken(_))));
        drop(first);
        open(&socket).unwrap();
    }

    #[test]
    fn only_a_folder_that_others_can_t_have_made_is_this_user_s() {
        let base = tempfile::tempdir().unwrap();
        let (folder, link) = (base.path().join("folder"), base.path().join("link"));
        assert!(is_own(&folder), "no other user has made it");
        let set = |mode| {
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        std::fs::create_dir(&folder).unwrap();
        set(0o700);
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(is_own(&folder) && !is_own(&link));
        set(0o770);
        assert!(!is_own(&folder));
    }
}
