//! Registered memory, and names for it that other nodes can use.

use std::ops::Range;
use std::sync::Arc;

use midplane_simhw::id::PortId;
use midplane_simhw::region::{Payload, ProtectionTag, Region, RegionError, RegionRef, Rights};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::context::MemoryName;

/// Access rights to registered memory, in addition to its owner's.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MemoryOptions {
    /// The tag of the interfaces that may use the memory.
    pub tag: ProtectionTag,
    /// True if the other ends of those interfaces may write the memory. If they may also read it, peers on this host
    /// map it and write it directly; a mapping for writing can also be read.
    pub rdma_write: bool,
    /// True if the other ends of those interfaces may read it.
    pub rdma_read: bool,
}

impl MemoryOptions {
    pub(crate) fn rights(self) -> Rights {
        let write = if self.rdma_write { Rights::REMOTE_WRITE } else { Rights::NONE };
        let read = if self.rdma_read { Rights::REMOTE_READ } else { Rights::NONE };
        Rights::LOCAL | write | read
    }
}

/// Memory that a NIC may use. Clones share it. It is deregistered once the last clone and the last descriptor
/// with a part of it are dropped.
#[derive(Clone, Debug)]
pub struct Memory {
    region: Arc<Region>,
    /// The name that other nodes use.
    name: MemoryName,
}

/// The range exceeds its memory.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("bytes {offset} to {offset} + {length} pass the end of {bytes} bytes of memory")]
pub struct OutOfRange {
    /// First byte of the range.
    pub offset: usize,
    /// Length of the range in bytes.
    pub length: usize,
    /// Length of the memory in bytes.
    pub bytes: usize,
}

impl Memory {
    pub(crate) fn new(region: Region, name: MemoryName) -> Self {
        Self { region: Arc::new(region), name }
    }

    pub(crate) const fn name(&self) -> MemoryName {
        self.name
    }

    /// Returns its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Returns a part of it, for a descriptor.
    ///
    /// # Errors
    /// [`OutOfRange`] if the range exceeds the memory.
    pub fn segment(&self, offset: usize, length: usize) -> Result<Segment, OutOfRange> {
        let bytes = self.len();
        match self.region.range(offset, length) {
            Some(region) => Ok(Segment { memory: self.clone(), region }),
            None => Err(OutOfRange { offset, length, bytes }),
        }
    }

    /// Returns all of it, for a descriptor.
    #[must_use]
    pub fn whole(&self) -> Segment {
        Segment { memory: self.clone(), region: self.region.whole() }
    }

    /// Returns its name for other nodes.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        let MemoryName { slot, generation } = self.name;
        let region = RegionRef { slot, generation, ..self.region.whole() };
        RemoteMemory { words: region.to_words() }
    }

    /// Copies `bytes` into it, from `offset` on.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if they would exceed it; nothing is written then.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.region.write(offset, bytes)
    }

    /// Copies `from`, which may be in shared memory, into it.
    pub(crate) fn store(&self, offset: usize, from: Payload<'_>) -> Result<(), RegionError> {
        self.region.store(offset, from)
    }

    pub(crate) const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns whether `owner` has registered this memory with this tag and at least these rights.
    pub(crate) fn is_of(&self, owner: PortId, tag: ProtectionTag, rights: Rights) -> bool {
        let region = &self.region;
        region.whole().port == owner && region.tag() == tag && region.rights().contains(rights)
    }

    /// Returns a view of a part of it, to be copied out; `None` if the part exceeds the memory.
    #[must_use]
    pub fn view(&self, offset: usize, length: usize) -> Option<Payload<'_>> {
        self.region.view(offset, length)
    }

    /// Fills `out` with its bytes from `offset` on. If a NIC is writing them at the moment, old and new ones
    /// may be mixed.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if there are not that many bytes; `out` is unchanged then.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), RegionError> {
        self.region.read(offset, out)
    }
}

/// A part of registered memory; keeps the memory registered.
#[derive(Clone, Debug)]
pub struct Segment {
    memory: Memory,
    region: RegionRef,
}

impl Segment {
    /// Returns the memory that it is a part of.
    #[must_use]
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the offset of its first byte in the memory.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.region.offset as usize
    }

    /// Returns its length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.region.length as usize
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.region.length == 0
    }

    pub(crate) const fn region(&self) -> RegionRef {
        self.region
    }

    /// Returns a part of it; `None` if the range exceeds it.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Option<Self> {
        let length = range.end.checked_sub(range.start).filter(|_| range.end <= self.len())?;
        self.memory.segment(self.offset() + range.start, length).ok()
    }

    /// Returns a copy of its bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.memory.read(self.offset(), &mut bytes).expect("a segment is within its memory");
        bytes
    }

    /// Copies `from`, which may be in shared memory, into it, from `offset` on.
    pub(crate) fn store(&self, offset: usize, from: Payload<'_>) -> Result<(), RegionError> {
        let part = self.part(offset..offset + from.len());
        let part = part.ok_or_else(|| RegionError::OutOfRange { bytes: self.len() })?;
        self.memory.store(part.offset(), from)
    }

    /// Returns its name for other nodes.
    pub(crate) fn remote(&self) -> Option<RemoteMemory> {
        self.memory.remote().at(self.region.offset)
    }
}

/// Names memory of another node: 16 bytes that may be sent anywhere, encoded by serde, for example by
/// [`wire::encode`](midplane_simhw::wire::encode). The NIC that owns the memory checks each use.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct RemoteMemory {
    words: [u64; 2],
}

impl RemoteMemory {
    /// Returns the length of the memory in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub const fn len(&self) -> u32 {
        RegionRef::from_words(self.words).length
    }

    /// Returns the part from `offset` on; `None` if that is past the end.
    #[must_use]
    pub fn at(&self, offset: u32) -> Option<Self> {
        let region = RegionRef::from_words(self.words);
        let rest = region.length.checked_sub(offset)?;
        Some(Self { words: region.part(offset, rest)?.to_words() })
    }

    pub(crate) const fn words(&self) -> [u64; 2] {
        self.words
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.words[0].to_le_bytes());
        bytes[8..].copy_from_slice(&self.words[1].to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        Self { words: [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])] }
    }
}
