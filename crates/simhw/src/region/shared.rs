//! Memory of another process.

use std::io::{Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{MAX_REGION, Memory, Payload, RegionError};
use crate::segment::{Kind, Segment};

/// Memory that another process has registered, mapped here.
///
/// What it holds may change at any moment: the other process and its NIC write to it. It stays mapped until this is
/// dropped, but is nobody's once the other has dropped its region: see [`SharedMemory::is_revoked`].
#[derive(Debug)]
pub struct SharedMemory(Memory);

impl SharedMemory {
    /// Maps the file that [`Region::file`](super::Region::file) gave, which must be of so many bytes, and this user's.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if it is another file, or of another length.
    pub fn map(file: &OwnedFd, bytes: usize) -> Result<Self, Error> {
        let own = rustix::process::geteuid().as_raw();
        Self::open(file, bytes, |user| user == own)
    }

    /// The same of any user that `admits` admits.
    pub(crate) fn open(
        file: &OwnedFd,
        bytes: usize,
        admits: impl Fn(u32) -> bool,
    ) -> Result<Self, Error> {
        if bytes > MAX_REGION {
            return Err(ErrorKind::InvalidData.into());
        }
        let segment = Segment::open(file, Kind::Arena, bytes, admits);
        let segment = segment.map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
        let memory = Memory::within(Arc::new(segment), 0, bytes);
        memory.map(Self).ok_or_else(|| ErrorKind::InvalidData.into())
    }

    /// Bytes of the memory.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody registers memory without bytes")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the other process has deregistered it: what is written now nobody reads.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.0.is_revoked()
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if they would pass its end; nothing is written then.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.store(offset, Payload::from(bytes))
    }

    /// Copies `from`, which may be in shared memory itself, to `offset`.
    ///
    /// # Errors
    /// As [`SharedMemory::write`].
    #[inline]
    pub fn store(&self, offset: usize, from: Payload<'_>) -> Result<(), RegionError> {
        let out_of_range = RegionError::OutOfRange { bytes: self.0.len() };
        self.0.store(offset, from).ok_or(out_of_range)
    }

    /// Copies bytes from `offset` on, filling `out`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if there are not that many; `out` is untouched then.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), RegionError> {
        let out_of_range = RegionError::OutOfRange { bytes: self.0.len() };
        self.0.view(offset, out.len()).ok_or(out_of_range)?.copy_to(out);
        Ok(())
    }

    /// The bytes of a range where they lie, to be copied out; `None` where it passes the end.
    #[must_use]
    pub fn view(&self, offset: usize, length: usize) -> Option<Payload<'_>> {
        self.0.view(offset, length)
    }
}
