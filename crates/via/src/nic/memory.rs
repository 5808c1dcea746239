//! Memory that a NIC may use, and the tags that protect it.

use midplane_simhw::region::{ProtectionTag, RegionOptions};

use super::{Nic, NicError};
use crate::memory::{Memory, MemoryOptions};

impl Nic {
    /// Returns a protection tag that no other call has returned.
    pub const fn create_tag(&mut self) -> ProtectionTag {
        let tag = ProtectionTag(self.next_tag);
        self.next_tag += 1;
        tag
    }

    /// Registers `bytes` of zeroed memory. If the NIC has a lane, memory that other nodes may write and read is
    /// a file of its own and takes a file descriptor. If there is none left, or the NIC is in another process,
    /// the other ends of direct interfaces can't write it.
    ///
    /// # Errors
    /// [`NicError::Register`], which names the limit that was reached.
    pub fn register(&mut self, bytes: usize, options: MemoryOptions) -> Result<Memory, NicError> {
        if (options.rdma_write && options.rdma_read)
            && let Some(direct) = &mut self.direct
            && let region = RegionOptions::default().tag(options.tag).rights(options.rights())
            && let Ok(shared) = self.port.register_shared(bytes, region)
        {
            // A process with a lane is not restored elsewhere: its memory needs no other name.
            let name = shared.whole().into();
            let memory = Memory::new(shared, name);
            direct.expose(&memory);
            self.ring();
            return Ok(memory);
        }
        let memory = self.register_as(bytes, options, None)?;
        // Other nodes may name it before anything is posted here: tell the NIC of it now.
        if options.rdma_write || options.rdma_read {
            self.ring();
        }
        Ok(memory)
    }
}
