//! The file in which a daemon keeps its votes and the jobs across restarts.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use midplane_simhw::wire;
use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::refusals::report;
use crate::checkpoint::write_anew;
use crate::node_core::message::Cluster;
use crate::node_core::replica::Durable;

/// The daemon that a record belongs to: its host, the cluster, and the addresses of all daemons.
type Owner = (u16, Cluster, Vec<String>);

/// A daemon's record. Only this user may read it, because it has the jobs' environments.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    owner: Owner,
    has_failed: bool,
}

impl Record {
    /// Opens the record in the folder of a socket. Returns its contents; the default if there is none, or it is
    /// another daemon's.
    ///
    /// # Errors
    /// The system's, or `InvalidData` if the file is damaged.
    pub(super) fn open(socket: &Path, owner: Owner) -> io::Result<(Self, Durable)> {
        let path = socket.with_extension("record");
        let durable = match read_own(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Durable::default(),
            Err(error) => return Err(error),
            Ok(bytes) => {
                let (of, durable): (Owner, Durable) = wire::decode_long(&bytes)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                if of == owner { durable } else { Durable::default() }
            }
        };
        Ok((Self { path, owner, has_failed: false }, durable))
    }

    /// Replaces the record's contents. If that fails, reports it once. The daemon continues, but must not be restarted
    /// before the other daemons.
    pub(super) fn write(&mut self, durable: &Durable) {
        if let Err(error) = self.replace(durable)
            && !std::mem::replace(&mut self.has_failed, true)
        {
            report(format_args!(
                "{}: {error}; if this daemon is started again before the others, jobs may be lost",
                self.path.display()
            ));
        }
    }

    fn replace(&self, durable: &Durable) -> io::Result<()> {
        let bytes = wire::encode_long(&(&self.owner, durable)).map_err(io::Error::other)?;
        let next = self.path.with_extension("record.new");
        write_anew(&next, &bytes)?;
        std::fs::rename(&next, &self.path)?;
        // Only then does the new name survive a loss of power.
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
    }
}

/// Reads a file that only this user may have written, because the jobs in it are run.
fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(nofollow).open(path)?;
    let about = file.metadata()?;
    if about.uid() != geteuid().as_raw() || about.mode() & 0o022 != 0 {
        let why = "other users could have written it";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_by_the_daemon_that_wrote_it_and_a_damaged_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let owner = |host| (host, Cluster { hosts: 3, slots: 1, arity: 2 }, vec!["a:1".to_owned()]);
        let (mut record, nothing) = Record::open(&socket, owner(1)).unwrap();
        assert_eq!(nothing, Durable::default());
        let durable = Durable { term: 7, vote: Some(2), ..Durable::default() };
        record.write(&durable);
        assert_eq!(Record::open(&socket, owner(1)).unwrap().1, durable);
        assert_eq!(Record::open(&socket, owner(2)).unwrap().1, Durable::default());
        let bytes = std::fs::read(&record.path).unwrap();
        std::fs::write(&record.path, &bytes[..bytes.len() / 2]).unwrap();
        let refused = Record::open(&socket, owner(1)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(&record.path, mode).unwrap();
        let refused = Record::open(&socket, owner(1)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
}
