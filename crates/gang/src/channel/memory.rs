//! The memory of a channel's FIFOs, as its process maps it.

use std::sync::Arc;

#[cfg(all(target_os = "linux", feature = "live"))]
use midplane_simhw::region::SharedMemory;
use midplane_simhw::region::{Payload, Region, RegionError};

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

    pub(crate) fn view(&self, offset: usize, length: usize) -> Option<Payload<'_>> {
        match self {
            Self::Own(region) => region.view(offset, length),
            #[cfg(all(target_os = "linux", feature = "live"))]
            Self::Mapped(memory) => memory.view(offset, length),
        }
    }
}
