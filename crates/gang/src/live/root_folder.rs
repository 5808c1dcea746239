//! Opens checkpoints that root restores, whose programs run as root.

use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::checkpoint::{CheckpointError, CheckpointProblem};

/// An open folder with files that only root can write or replace. Its name may meanwhile be given to another folder.
#[derive(Debug)]
pub(super) struct RootFolder {
    name: PathBuf,
    /// Path by which this process reaches the open folder.
    path: PathBuf,
    _folder: File,
}

impl RootFolder {
    /// Opens a folder, and checks that the folder and its files are root's.
    ///
    /// # Errors
    /// The reason, which names the folder or the file.
    pub(super) fn open(name: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => {
                let problem = CheckpointProblem::Unfinished;
                CheckpointError { path: name.to_owned(), problem }.to_string()
            }
            _ => format!("{}: {error}", name.display()),
        };
        let flags = (OFlags::DIRECTORY | OFlags::NONBLOCK).bits() as i32;
        let folder = File::options().read(true).custom_flags(flags).open(name).map_err(failed)?;
        check(name, &folder.metadata().map_err(failed)?)?;
        // The dot lets metadata be that of the folder, not of the link.
        let path = PathBuf::from(format!("/proc/self/fd/{}/.", folder.as_raw_fd()));
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            check(&name.join(entry.file_name()), &entry.metadata().map_err(failed)?)?;
        }
        Ok(Self { name: name.to_owned(), path, _folder: folder })
    }

    /// Returns the path of the open folder, which is the same folder until this is dropped.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns an error message with the name of the folder instead of its path.
    pub(super) fn explain(&self, why: &str) -> String {
        why.replace(&*self.path.to_string_lossy(), &self.name.to_string_lossy())
    }
}

/// Refuses a file or folder that another user could have written.
fn check(path: &Path, metadata: &Metadata) -> Result<(), String> {
    let (path, uid, mode) = (path.display(), metadata.uid(), metadata.mode());
    if uid != 0 {
        return Err(format!(
            "{path}: it belongs to user {uid}, and its program would run as root: restore it as that user, or make it \
             root's (chown -R root) if you trust it"
        ));
    }
    if metadata.is_symlink() {
        return Err(format!(
            "{path}: it is a link, and its program would run as root: copy the file"
        ));
    }
    let others = if metadata.gid() == 0 { 0o002 } else { 0o022 };
    if mode & others != 0 {
        return Err(format!(
            "{path}: others may write it, and its program would run as root: forbid that (chmod -R go-w) if you trust it"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn a_folder_is_opened_only_if_all_of_it_is_root_s_and_stays_the_same() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: it takes root");
        }
        let base = tempfile::tempdir().unwrap();
        let [folder, file] = ["saved", "saved/file"].map(|name| base.path().join(name));
        let refusal = || RootFolder::open(&folder).unwrap_err();
        assert!(refusal().contains("no checkpoint here"));
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "own").unwrap();
        let allow =
            |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let opened = RootFolder::open(&folder).unwrap();
        for path in [&folder, &file] {
            allow(path, 0o757);
            assert!(refusal().contains("others may write it"));
            allow(path, 0o755);
            chown(path, Some(1), None).unwrap();
            assert!(refusal().contains("it belongs to user 1"));
            chown(path, Some(0), None).unwrap();
        }
        symlink(&file, folder.join("link")).unwrap();
        assert!(refusal().contains("link: it is a link"));
        // Another folder takes the name.
        fs::rename(&folder, base.path().join("moved")).unwrap();
        fs::create_dir(&folder).unwrap();
        assert_eq!(fs::read(opened.path().join("file")).unwrap(), b"own");
        let path = opened.path().join("file").display().to_string();
        assert_eq!(opened.explain(&path), file.display().to_string());
    }
}
