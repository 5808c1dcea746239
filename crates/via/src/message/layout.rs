//! Strided types: blocks of bytes at equal distances, such as a column of a row-major matrix.

use bytes::Bytes;
use thiserror::Error;

/// A strided type: `blocks` blocks of `length` bytes, each starting `stride` bytes after the start of the previous one
/// (`MPI_Type_vector`, in bytes).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Strided {
    blocks: usize,
    length: usize,
    stride: usize,
}

/// Why a strided type does not fit.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum LayoutError {
    /// The blocks would overlap, or their extent overflows.
    #[error("{blocks} blocks of {length} bytes every {stride} bytes overlap or are too many")]
    Overlap {
        /// The number of blocks.
        blocks: usize,
        /// Bytes of each block.
        length: usize,
        /// Bytes from the start of one block to the next.
        stride: usize,
    },
    /// The memory ends before the last block does.
    #[error("the blocks reach to byte {extent}, the memory has {bytes}")]
    Outside {
        /// Bytes from the first block's start to the last one's end.
        extent: usize,
        /// Bytes of the memory.
        bytes: usize,
    },
    /// The message's size differs from that of all blocks together.
    #[error("the blocks have {blocks} bytes together, the message {message}")]
    Size {
        /// Bytes of all blocks.
        blocks: usize,
        /// Bytes of the message.
        message: usize,
    },
}

impl Strided {
    /// Makes the type of `blocks` blocks of `length` bytes, whose starts are `stride` bytes apart.
    ///
    /// # Errors
    /// [`LayoutError::Overlap`] if the stride is less than the length, or numbers overflow.
    pub fn new(blocks: usize, length: usize, stride: usize) -> Result<Self, LayoutError> {
        let extent = stride.checked_mul(blocks).and_then(|extent| extent.checked_add(length));
        if blocks > 1 && stride < length || extent.is_none() {
            return Err(LayoutError::Overlap { blocks, length, stride });
        }
        Ok(Self { blocks, length, stride })
    }

    /// Returns the bytes of all blocks together, which is the size of a message.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.blocks * self.length
    }

    /// Returns the bytes from the first block's start to the last block's end.
    #[must_use]
    pub const fn extent(&self) -> usize {
        match self.blocks {
            0 => 0,
            blocks => (blocks - 1) * self.stride + self.length,
        }
    }

    fn check(&self, bytes: usize) -> Result<(), LayoutError> {
        let extent = self.extent();
        if extent > bytes { Err(LayoutError::Outside { extent, bytes }) } else { Ok(()) }
    }

    /// Copies the blocks of `memory`, one after another, into a message.
    ///
    /// # Errors
    /// [`LayoutError::Outside`].
    pub fn pack(&self, memory: &[u8]) -> Result<Bytes, LayoutError> {
        self.check(memory.len())?;
        let mut message = Vec::with_capacity(self.size());
        for block in 0..self.blocks {
            let start = block * self.stride;
            message.extend_from_slice(&memory[start..start + self.length]);
        }
        Ok(message.into())
    }

    /// Copies a message's bytes into the blocks of `memory`; its other bytes are unchanged.
    ///
    /// # Errors
    /// [`LayoutError::Outside`], [`LayoutError::Size`]; nothing is written then.
    pub fn unpack(&self, message: &[u8], memory: &mut [u8]) -> Result<(), LayoutError> {
        self.check(memory.len())?;
        if message.len() != self.size() {
            return Err(LayoutError::Size { blocks: self.size(), message: message.len() });
        }
        for block in 0..self.blocks {
            let start = block * self.stride;
            let from = &message[block * self.length..(block + 1) * self.length];
            memory[start..start + self.length].copy_from_slice(from);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unpacking_restores_the_packed_blocks_and_changes_nothing_else(
            blocks in 0_usize..6, length in 0_usize..6, gap in 0_usize..5, after in 0_usize..3,
        ) {
            let layout = Strided::new(blocks, length, length + gap).unwrap();
            let memory: Vec<u8> = (0..layout.extent() + after).map(|i| i as u8).collect();
            let message = layout.pack(&memory).unwrap();
            prop_assert_eq!(message.len(), layout.size());
            let mut other = vec![0xFF; memory.len()];
            layout.unpack(&message, &mut other).unwrap();
            prop_assert_eq!(layout.pack(&other).unwrap(), message);
            let changed = other.iter().filter(|byte| **byte != 0xFF).count();
            prop_assert_eq!(changed, layout.size());
        }
    }

    #[test]
    fn overlapping_blocks_short_memory_and_wrong_sizes_are_refused() {
        assert!(matches!(Strided::new(2, 4, 3), Err(LayoutError::Overlap { .. })));
        assert!(matches!(Strided::new(usize::MAX, 1, 2), Err(LayoutError::Overlap { .. })));
        let layout = Strided::new(2, 4, 8).unwrap();
        assert_eq!(layout.pack(&[0; 11]), Err(LayoutError::Outside { extent: 12, bytes: 11 }));
        let refused = layout.unpack(&[0; 7], &mut [0; 12]);
        assert_eq!(refused, Err(LayoutError::Size { blocks: 8, message: 7 }));
    }
}
