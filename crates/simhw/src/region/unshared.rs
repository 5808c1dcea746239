//! A stand-in for the memory of other processes, on systems where it cannot be mapped.

use std::convert::Infallible;

use super::{Payload, RegionError};

/// Memory that another process has registered, mapped into this one. No value exists: mapping needs Linux.
#[derive(Debug)]
pub struct SharedMemory(Infallible);

impl SharedMemory {
    /// Returns the bytes of the memory.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region has at least one byte")]
    pub const fn len(&self) -> usize {
        match self.0 {}
    }

    /// Returns whether the other process has deregistered the memory: bytes written from now on are not read.
    #[must_use]
    pub const fn is_revoked(&self) -> bool {
        match self.0 {}
    }

    /// Copies `from`, which may be in shared memory itself, to `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if they exceed the memory; nothing is then written.
    pub const fn store(&self, _offset: usize, _from: Payload<'_>) -> Result<(), RegionError> {
        match self.0 {}
    }
}
