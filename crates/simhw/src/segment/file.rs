//! Segments that processes share: an unnamed file, passed from one process to the other.
//!
//! When the last process that has it exits, in whatever way, the system frees the segment. Its length is sealed, so
//! that no process can truncate it while it is mapped. The first page is a header; a [`Segment`] begins after it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{
    FsWord, MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs,
    ftruncate, memfd_create,
};
use thiserror::Error;

use super::Segment;

/// "MIDPLANE" in ASCII, as a little-endian word.
const MAGIC: u64 = u64::from_le_bytes(*b"MIDPLANE");
/// Version of all layouts in segments.
const VERSION: u64 = 1;
/// Bytes of the header: one page, so that the content begins at a page.
const HEADER: usize = 4_096;
/// Index of the header word that is nonzero once the owner has revoked the segment.
const REVOKED: usize = 4;
/// Seals that fix the length.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Magic number of the file system of `memfd_create` without huge pages.
const TMPFS: FsWord = 0x0102_1994;

/// The content of a segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u64)]
pub(crate) enum Kind {
    /// The two directions between two NICs.
    Link = 1,
    /// The rings of a port whose application is in another process.
    Port = 2,
    /// Memory for the regions of such a port.
    Arena = 3,
    /// The two byte rings between two processes.
    Rings = 4,
}

/// The reason why a segment was refused.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub(crate) enum SegmentError {
    /// The file belongs to another user.
    #[error("the segment belongs to user {owner}, who is not admitted; run as one user")]
    Owner {
        /// The user that owns the file.
        owner: u32,
    },
    /// The segment has another length than expected.
    #[error("the segment has {found} bytes, not {expected}; give both sides one configuration")]
    Size {
        /// Its length in bytes, including the header.
        found: u64,
        /// The expected length in bytes.
        expected: u64,
    },
    /// The length of the segment is not sealed.
    #[error("the segment is not sealed: its length could be changed while it is in use")]
    Unsealed,
    /// The file is not a segment of this fabric, or is of another kind.
    #[error("not a segment of this fabric, or of another kind")]
    Magic,
    /// The segment has another version of the layouts.
    #[error("segment version {found}, not {VERSION}; run one version on both sides")]
    Version {
        /// The version in its header.
        found: u64,
    },
    /// A system call failed.
    #[error("the system refused shared memory: {0}")]
    System(std::io::ErrorKind),
}

impl From<rustix::io::Errno> for SegmentError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.kind())
    }
}

impl Segment {
    /// Creates zeroed memory in a new file that only its owner may open; returns it with the file.
    pub(crate) fn shared(kind: Kind, bytes: usize) -> Result<(Self, OwnedFd), SegmentError> {
        let length = file_length(bytes);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("midplane", flags)?;
        fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        ftruncate(&file, length as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        let header = Self::map(file.as_fd(), length, 0)?;
        let [magic, version, what, size, ..] = header.line(0);
        version.store(VERSION, Ordering::Relaxed);
        what.store(kind as u64, Ordering::Relaxed);
        size.store(length as u64, Ordering::Relaxed);
        magic.store(MAGIC, Ordering::Release);
        Ok((Self::map(file.as_fd(), length, HEADER)?, file))
    }

    /// Maps a segment that another process made. It must have `kind` and `bytes`, and its owner must be a user
    /// that `admits` admits.
    pub(crate) fn open(
        file: &OwnedFd,
        kind: Kind,
        bytes: usize,
        admits: impl Fn(u32) -> bool,
    ) -> Result<Self, SegmentError> {
        let length = file_length(bytes);
        // For a file without seals, this call fails at once. The calls below might block on any other file,
        // until its file system answers.
        if !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(SegmentError::Unsealed);
        }
        // The system may run out of huge pages when one is first touched, which kills the process.
        if fstatfs(file)?.f_type != TMPFS {
            return Err(SegmentError::Magic);
        }
        let found = fstat(file)?;
        if !admits(found.st_uid) {
            return Err(SegmentError::Owner { owner: found.st_uid });
        }
        let size = u64::try_from(found.st_size).unwrap_or(0);
        if size != length as u64 {
            return Err(SegmentError::Size { found: size, expected: length as u64 });
        }
        let header = Self::map(file.as_fd(), length, 0)?;
        let word = |at: usize| header.line(0)[at].load(Ordering::Acquire);
        if word(0) != MAGIC {
            return Err(SegmentError::Magic);
        }
        if word(1) != VERSION {
            return Err(SegmentError::Version { found: word(1) });
        }
        if word(2) != kind as u64 {
            return Err(SegmentError::Magic);
        }
        if word(3) != length as u64 {
            return Err(SegmentError::Size { found: word(3), expected: length as u64 });
        }
        Ok(Self::map(file.as_fd(), length, HEADER)?)
    }

    /// Marks the segment as revoked, for all processes that have mapped it.
    pub(crate) fn revoke(&self) {
        if let Some(header) = self.header() {
            header[REVOKED].store(1, Ordering::Release);
        }
    }

    /// Returns whether the owner has revoked the segment.
    pub(crate) fn is_revoked(&self) -> bool {
        self.header().is_some_and(|header| header[REVOKED].load(Ordering::Acquire) != 0)
    }
}

/// Returns the length of the file for `bytes` of content.
const fn file_length(bytes: usize) -> usize {
    HEADER + bytes.next_multiple_of(HEADER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::View;

    const BYTES: usize = 10_000;

    fn own(_: u32) -> bool {
        true
    }

    #[test]
    fn two_mappings_share_their_bytes() {
        let (here, file) = Segment::shared(Kind::Link, BYTES).unwrap();
        let there = Segment::open(&file, Kind::Link, BYTES, own).unwrap();
        here.store(9_000, View::from(&b"shared"[..])).unwrap();
        let mut bytes = [0; 6];
        there.view(9_000, 6).unwrap().copy_to(&mut bytes);
        assert_eq!(&bytes, b"shared");
        let mode = fstat(&file).unwrap().st_mode;
        assert_eq!(mode & 0o777, 0o600);
        assert!(ftruncate(&file, 0).is_err(), "its length is sealed");
    }

    #[test]
    fn a_revoked_segment_is_revoked_in_every_mapping() {
        let (here, file) = Segment::shared(Kind::Arena, BYTES).unwrap();
        let there = Segment::open(&file, Kind::Arena, BYTES, own).unwrap();
        here.store(0, View::from(&[255; 64][..])).unwrap();
        assert!(!there.is_revoked(), "its content does not matter");
        here.revoke();
        assert!(there.is_revoked());
        let private = Segment::private(BYTES);
        private.revoke();
        assert!(!private.is_revoked(), "no other process has mapped it");
    }

    #[test]
    fn segments_of_others_are_refused() {
        let (segment, file) = Segment::shared(Kind::Link, BYTES).unwrap();
        let open = |file: &OwnedFd, bytes, admits: fn(u32) -> bool| {
            Segment::open(file, Kind::Link, bytes, admits).map(drop)
        };
        let owner = rustix::process::geteuid().as_raw();
        assert_eq!(open(&file, BYTES, |_| false), Err(SegmentError::Owner { owner }));
        let (found, expected) = (16_384, 24_576);
        assert_eq!(open(&file, 20_000, own), Err(SegmentError::Size { found, expected }));
        drop(segment);
        let write = |at: u64, value: u64| {
            rustix::io::pwrite(&file, &value.to_le_bytes(), at * 8).unwrap();
        };
        write(3, 5);
        assert!(matches!(open(&file, BYTES, own), Err(SegmentError::Size { found: 5, .. })));
        write(2, 99);
        assert_eq!(open(&file, BYTES, own), Err(SegmentError::Magic));
        write(1, 2);
        assert_eq!(open(&file, BYTES, own), Err(SegmentError::Version { found: 2 }));
        write(0, 0);
        assert_eq!(open(&file, BYTES, own), Err(SegmentError::Magic));
        let plain = memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&plain, found).unwrap();
        assert_eq!(open(&plain, BYTES, own), Err(SegmentError::Unsealed));
    }
}
