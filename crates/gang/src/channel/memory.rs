//! The memory of a channel's FIFOs, as its process maps it.

use std::sync::Arc;

#[cfg(all(target_os = "linux", feature = "live"))]
use midplane_simhw::region::SharedMemory;
use midplane_simhw::region::{Payload, Region, RegionError};

use super::geometry::{RECORD_BYTES, Record};

/// The memory of a channel's FIFOs, which the channel's controller has registered.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// The controller is in this process.
    Own(Arc<Region>),
    /// The controller is in another process; its memory is mapped here.
    #[cfg(all(target_os = "linux", feature = "live"))]
    Mapped(Arc<SharedMemory>),
}

impl Memory {
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        match self {
            Self::Own(region) => region.write(offset, bytes),
            #[cfg(all(target_os = "linux", feature = "live"))]
            Self::Mapped(memory) => memory.write(offset, bytes),
        }
    }

    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), RegionError> {
        match self {
            Self::Own(region) => region.read(offset, out),
            #[cfg(all(target_os = "linux", feature = "live"))]
            Self::Mapped(memory) => memory.read(offset, out),
        }
    }

    /// Reads a word of 8 bytes, little-endian.
    pub(crate) fn word(&self, offset: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Reads the record of a message.
    pub(crate) fn record(&self, offset: usize) -> Option<Record> {
        let mut bytes = [0; RECORD_BYTES];
        self.read(offset, &mut bytes).ok()?;
        Some(Record::parse(bytes))
    }

    /// Returns the memory's file, if the controller is in this process and other processes map the memory.
    #[cfg(all(target_os = "linux", feature = "live"))]
    pub(crate) fn file(&self) -> Option<Arc<std::os::fd::OwnedFd>> {
        match self {
            Self::Own(region) => region.file().cloned(),
            Self::Mapped(_) => None,
        }
    }

    pub(crate) fn view(&self, offset: usize, length: usize) -> Option<Payload<'_>> {
        match self {
            Self::Own(region) => region.view(offset, length),
            #[cfg(all(target_os = "linux", feature = "live"))]
            Self::Mapped(memory) => memory.view(offset, length),
        }
    }
}
