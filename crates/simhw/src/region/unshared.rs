//! Memory of another process, where none can be mapped.

use std::convert::Infallible;

use super::{Payload, RegionError};

/// Memory that another process has registered, mapped here: on Linux alone, so there is none.
#[derive(Debug)]
pub struct SharedMemory(Infallible);

impl SharedMemory {
    /// Bytes of the memory.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody registers memory without bytes")]
    pub const fn len(&self) -> usize {
        match self.0 {}
    }

    /// Whether the other process has deregistered it: what is written now nobody reads.
    #[must_use]
    pub const fn is_revoked(&self) -> bool {
        match self.0 {}
    }

    /// Copies `from`, which may be in shared memory itself, to `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if they would pass its end; nothing is written then.
    pub const fn store(&self, _offset: usize, _from: Payload<'_>) -> Result<(), RegionError> {
        match self.0 {}
    }
}
