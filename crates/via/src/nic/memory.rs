//! Memory that a NIC may use, and the tags that protect it.

use midplane_simhw::region::{ProtectionTag, RegionOptions};

use super::{Nic, NicError};
use crate::memory::{Memory, MemoryOptions};

impl Nic {
    /// A protection tag that no other call has returned.
    pub const fn create_tag(&mut self) -> ProtectionTag {
        let tag = ProtectionTag(self.next_tag);
        self.next_tag += 1;
        tag
    }

    /// Registers `bytes` of zeroed memory. What others may write and read, of a NIC with a lane, is a file of its own, and
    /// takes a descriptor; where none is to be had, or the NIC is in another process, the other ends of direct interfaces can't
    /// write it.
    ///
    /// # Errors
    /// [`NicError::Register`] says which limit was hit.
    pub fn register(&mut self, bytes: usize, options: MemoryOptions) -> Result<Memory, NicError> {
        if (options.rdma_write && options.rdma_read)
            && let Some(direct) = &mut self.direct
            && let region = RegionOptions::default().tag(options.tag).rights(options.rights())
            && let Ok(shared) = self.port.register_shared(bytes, region)
        {
            // Whoever has a lane is not restored elsewhere: its memory has no other name.
            let name = shared.whole().into();
            let memory = Memory::new(shared, name);
            direct.expose(&memory);
            self.ring();
            return Ok(memory);
        }
        let memory = self.register_as(bytes, options, None)?;
        // Others may name it before anything is posted here, and the NIC has to know it by then.
        if options.rdma_write || options.rdma_read {
            self.ring();
        }
        Ok(memory)
    }
}
