//! Registered memory of another process.

use std::io::{Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{MAX_REGION, Memory, Payload, RegionError};
use crate::segment::{Kind, Segment};

/// Memory that another process has registered, mapped into this one.
///
/// The bytes may change at any moment: the other process and its NIC write to them. The memory stays mapped
/// until this value is dropped. Once the other process has dropped its region, the memory has no further use:
/// see [`SharedMemory::is_revoked`].
#[derive(Debug)]
#[doc(hidden)]
pub struct SharedMemory(Memory);

impl SharedMemory {
    /// Maps the file of [`Region::file`](super::Region::file), which must have exactly `bytes` and belong to
    /// this user.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if it is another file, or has another length or owner.
    pub fn map(file: &OwnedFd, bytes: usize) -> Result<Self, Error> {
        let own = rustix::process::geteuid().as_raw();
        Self::open(file, bytes, |user| user == own)
    }

    /// Does what [`SharedMemory::map`] does, for files of any user that `admits` admits.
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

    /// Returns the bytes of the memory.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region has at least one byte")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the other process has deregistered the memory: bytes written from now on are not read.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.0.is_revoked()
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if they exceed the memory; nothing is then written.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.store(offset, Payload::from(bytes))
    }

    /// Copies `from`, which may be in shared memory itself, to `offset`.
    ///
    /// # Errors
    /// Those of [`SharedMemory::write`].
    #[inline]
    pub fn store(&self, offset: usize, from: Payload<'_>) -> Result<(), RegionError> {
        let out_of_range = RegionError::OutOfRange { bytes: self.0.len() };
        self.0.store(offset, from).ok_or(out_of_range)
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if the memory has fewer; `out` is then unchanged.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), RegionError> {
        let out_of_range = RegionError::OutOfRange { bytes: self.0.len() };
        self.0.view(offset, out.len()).ok_or(out_of_range)?.copy_to(out);
        Ok(())
    }

    /// Returns a view of a range, to copy the bytes out; `None` if it exceeds the memory.
    #[must_use]
    pub fn view(&self, offset: usize, length: usize) -> Option<Payload<'_>> {
        self.0.view(offset, length)
    }
}
