//! Finds the nodes of one host by files, on systems without shared memory between nodes: they are reached over UDP or
//! TCP.
//!
//! Each node holds the lock of a file `TMPDIR/midplane-USER/CLUSTER/ID`, which has its address. When a process ends, in any
//! way, the system releases the lock; the next node that finds the file removes it.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use midplane_via::session::{Session, Sessions};
use rustix::fs::{FlockOperation, flock};

use crate::node::state::Shared;

/// The nodes of a cluster on this host.
#[derive(Debug)]
pub(in crate::node) struct Local {
    folder: PathBuf,
    id: u64,
}

/// The file of a node, removed when this is dropped.
#[derive(Debug)]
pub(in crate::node) struct Listening {
    path: PathBuf,
    /// Keeps the file locked.
    _file: File,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Local {
    pub(in crate::node) fn new(cluster: &str, id: u64) -> Self {
        let user = rustix::process::geteuid().as_raw();
        Self::within(&std::env::temp_dir().join(format!("midplane-{user}")), cluster, id)
    }

    fn within(base: &Path, cluster: &str, id: u64) -> Self {
        // A cluster's name may have any characters.
        let cluster: String = cluster.bytes().map(|byte| format!("{byte:02x}")).collect();
        Self { folder: base.join(cluster), id }
    }

    /// Writes the file by which other nodes of this host find this one.
    pub(in crate::node) fn bind(&self, address: Option<SocketAddr>) -> io::Result<Listening> {
        let mut address = address.ok_or_else(|| {
            let text = "shared memory between nodes needs Linux: allow UDP or TCP as well";
            io::Error::new(io::ErrorKind::Unsupported, text)
        })?;
        if address.ip().is_unspecified() {
            let is_v4 = address.is_ipv4();
            let ip = if is_v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            address.set_ip(ip);
        }
        for folder in [self.folder.parent(), Some(&*self.folder)].into_iter().flatten() {
            own_folder(folder)?;
        }
        let path = self.folder.join(format!("{:016x}", self.id));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(address.to_string().as_bytes())?;
        Ok(Listening { path, _file: file })
    }

    /// Returns the nodes of the cluster that run on this host now.
    pub(in crate::node) fn list(&self) -> BTreeSet<u64> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return BTreeSet::new() };
        let ids = entries.filter_map(|entry| {
            let entry = entry.ok()?;
            let id = u64::from_str_radix(entry.file_name().to_str()?, 16).ok()?;
            let path = entry.path();
            let file = File::open(&path).ok()?;
            // The lock is free for an instant between the creation of a file and its lock: an empty file is a new one.
            let is_new = file.metadata().is_ok_and(|data| data.len() == 0);
            if !is_new && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let _ = fs::remove_file(&path);
                return None;
            }
            (!is_new).then_some(id)
        });
        ids.collect()
    }

    /// Returns the address of a node.
    fn address(&self, id: u64) -> io::Result<SocketAddr> {
        let text = fs::read_to_string(self.folder.join(format!("{id:016x}")))?;
        text.parse().map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Connects to a node.
    pub(in crate::node) fn dial(&self, sessions: &Sessions, id: u64) -> io::Result<Arc<Session>> {
        sessions.dial(self.address(id)?).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }
}

/// Keeps the file of a node until the task is aborted. Other nodes connect to the node's sockets.
pub(in crate::node) async fn accept(_listening: Listening, _: Weak<Shared>) {
    std::future::pending().await
}

/// Creates a folder that only this user can access, or checks that an existing one is.
fn own_folder(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(folder)?;
            let is_ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
            if is_ours && found.mode() & 0o022 == 0 {
                return Ok(());
            }
            let text = format!("{}: another user could change it; remove it", folder.display());
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        }
        created => created,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn address(port: u16) -> Option<SocketAddr> {
        Some(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    #[test]
    fn nodes_of_a_cluster_are_found_until_they_end_in_any_way() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().join("midplane-7");
        let [one, two, other] = [("a", 1), ("a", 2), ("a/../b", 3)]
            .map(|(cluster, id)| Local::within(&base, cluster, id));
        assert!(one.list().is_empty());
        let listening = [&one, &two, &other].map(|it| it.bind(address(it.id as u16)).unwrap());
        assert_eq!(one.list(), BTreeSet::from([1, 2]));
        assert_eq!(two.address(1).unwrap(), address(1).unwrap());
        assert_eq!(other.list(), BTreeSet::from([3]));
        let [first, second, _third] = listening;
        drop(first);
        assert_eq!(one.list(), BTreeSet::from([2]));
        // A killed process leaves its file, without the lock.
        let path = second.path.clone();
        let bytes = fs::read(&path).unwrap();
        drop(second);
        fs::write(&path, bytes).unwrap();
        assert!(one.list().is_empty() && !path.exists());
    }

    #[test]
    fn folders_that_others_can_change_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let local = Local::within(base.path(), "a", 1);
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = local.bind(address(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(local.bind(None).unwrap_err().to_string().contains("needs Linux"));
    }
}
