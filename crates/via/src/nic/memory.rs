//! Memory that a NIC may use, and the tags that protect it.

use midplane_simhw::region::ProtectionTag;

use super::{Nic, NicError};
use crate::memory::{Memory, MemoryOptions};

impl Nic {
    /// Returns a protection tag that no other call has returned.
    pub const fn create_tag(&mut self) -> ProtectionTag {
        let tag = ProtectionTag(self.next_tag);
        self.next_tag += 1;
        tag
    }

    /// Registers `bytes` of zeroed memory. If this process can bypass its NIC, memory that other nodes may write and
    /// read takes a file descriptor, so that processes of this host can map it. Up to 256 regions do.
    ///
    /// # Errors
    /// [`NicError::Register`], which names the limit that was reached.
    pub fn register(&mut self, bytes: usize, options: MemoryOptions) -> Result<Memory, NicError> {
        let memory = self.register_as(bytes, options, None)?;
        // Other nodes may name the memory before this process posts anything: rings the doorbell for its registration
        // now.
        if options.rdma_write || options.rdma_read {
            self.ring();
        }
        Ok(memory)
    }
}
