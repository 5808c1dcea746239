//! Registered memory: the memory that a NIC may access, and the rights to it.
//!
//! A region has an owner (the port that registered it), [`Rights`], a [`ProtectionTag`] and a generation.
//! Firmware checks a handle from a command's arguments or from the network with
//! [`Hardware::check`](crate::hardware::Hardware::check) before it uses it.

mod memory;
mod payload;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(not(target_os = "linux"))]
#[path = "region/unshared.rs"]
mod shared;
mod table;

use std::fmt;
use std::ops::BitOr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::id::PortId;

pub use payload::Payload;
pub use shared::SharedMemory;

pub(crate) use memory::Memory;
pub(crate) use table::RegionTable;

/// Most bytes of one region.
pub const MAX_REGION: usize = 1 << 30;

/// The rights that a region grants: a set of four bits.
///
/// Local rights are for the owner's own commands. Remote rights are for frames, as in remote direct memory
/// access.
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Rights(u8);

impl Rights {
    /// The empty set of rights.
    pub const NONE: Self = Self(0);
    /// The owner's commands may read the region.
    pub const LOCAL_READ: Self = Self(1);
    /// The owner's commands may write to the region.
    pub const LOCAL_WRITE: Self = Self(2);
    /// Frames may read the region.
    pub const REMOTE_READ: Self = Self(4);
    /// Frames may write to the region.
    pub const REMOTE_WRITE: Self = Self(8);
    /// Both local rights: the default of a region.
    pub const LOCAL: Self = Self(3);
    /// The set of all four rights.
    pub const ALL: Self = Self(15);

    /// Decodes rights from shared memory; `None` if other bits are set.
    #[cfg(target_os = "linux")]
    pub(crate) const fn from_bits(bits: u8) -> Option<Self> {
        if bits <= Self::ALL.0 { Some(Self(bits)) } else { None }
    }

    #[cfg(target_os = "linux")]
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all rights in `other` are in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any right in `other` is in this set.
    #[must_use]
    #[doc(hidden)]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Rights {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Rights, &str); 4] = [
            (Rights::LOCAL_READ, "LOCAL_READ"),
            (Rights::LOCAL_WRITE, "LOCAL_WRITE"),
            (Rights::REMOTE_READ, "REMOTE_READ"),
            (Rights::REMOTE_WRITE, "REMOTE_WRITE"),
        ];
        let held = NAMES.iter().filter(|(right, _)| self.contains(*right)).map(|(_, name)| name);
        f.debug_set().entries(held).finish()
    }
}

/// A number, chosen by the owner, that a region and its authorized users share.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct ProtectionTag(pub u32);

/// Options for registering a region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RegionOptions {
    pub(crate) rights: Rights,
    pub(crate) tag: ProtectionTag,
}

impl Default for RegionOptions {
    fn default() -> Self {
        Self { rights: Rights::LOCAL, tag: ProtectionTag::default() }
    }
}

impl RegionOptions {
    /// Sets the rights that the region grants. Default: [`Rights::LOCAL`].
    #[must_use]
    pub const fn rights(mut self, rights: Rights) -> Self {
        self.rights = rights;
        self
    }

    /// Sets the region's protection tag. Default: 0.
    #[must_use]
    pub const fn tag(mut self, tag: ProtectionTag) -> Self {
        self.tag = tag;
        self
    }
}

/// A requested access to a region. The default requests no rights and accepts any owner and tag: the handle must only
/// be live and within its region.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Access {
    /// The port that must own the region; any, if `None`.
    pub owner: Option<PortId>,
    /// The tag that the region must have; any, if `None`.
    pub tag: Option<ProtectionTag>,
    /// The rights that the region must grant, all of them.
    pub rights: Rights,
}

impl Access {
    /// Describes an access by a command of `owner`.
    #[must_use]
    pub const fn local(owner: PortId, rights: Rights) -> Self {
        Self { owner: Some(owner), tag: None, rights }
    }

    /// Describes an access by a frame that carries `tag`.
    #[must_use]
    pub const fn remote(tag: ProtectionTag, rights: Rights) -> Self {
        Self { owner: None, tag: Some(tag), rights }
    }
}

/// Names a range of a registered region to the NIC: 16 bytes, checked at every use.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct RegionRef {
    /// The port that registered the region.
    pub port: PortId,
    /// The region's slot among those of the port.
    pub slot: u16,
    /// The generation of the slot: handles of earlier ones are refused.
    pub generation: u32,
    /// First byte of the range, from the region's start.
    pub offset: u32,
    /// Bytes of the range.
    pub length: u32,
}

impl RegionRef {
    /// Encodes the handle as two words, for a command's arguments or a frame.
    #[must_use]
    #[doc(hidden)]
    pub const fn to_words(self) -> [u64; 2] {
        let handle = self.port.0 as u64 | (self.slot as u64) << 16 | (self.generation as u64) << 32;
        [handle, self.offset as u64 | (self.length as u64) << 32]
    }

    /// Decodes [`RegionRef::to_words`]. Any words decode to some handle: check it before use.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    #[doc(hidden)]
    pub const fn from_words([handle, range]: [u64; 2]) -> Self {
        Self {
            port: PortId(handle as u16),
            slot: (handle >> 16) as u16,
            generation: (handle >> 32) as u32,
            offset: range as u32,
            length: (range >> 32) as u32,
        }
    }

    /// Returns a part of this range; `None` if it exceeds the range.
    #[must_use]
    pub fn part(&self, offset: u32, length: u32) -> Option<Self> {
        (offset.checked_add(length)? <= self.length).then(|| Self {
            offset: self.offset.saturating_add(offset),
            length,
            ..*self
        })
    }
}

/// The reason why a [`RegionRef`] may not be accessed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum RegionError {
    /// The region was never registered, or has been deregistered.
    #[error(
        "no such region: never registered, or dropped; keep a region for as long as handles to it are used"
    )]
    Stale,
    /// The range exceeds the region.
    #[error("the range passes the end of its region of {bytes} bytes")]
    OutOfRange {
        /// Bytes of the region.
        bytes: usize,
    },
    /// Another port owns the region.
    #[error("the region is another port's")]
    Owner,
    /// The region has another protection tag.
    #[error("the region has another protection tag")]
    Tag,
    /// The region does not grant the required rights.
    #[error("the region gives the rights {granted:?} only; register it with more")]
    Rights {
        /// The rights that it grants.
        granted: Rights,
    },
    /// The NIC cannot access the memory now: its pages were unpinned (a fault).
    #[error("the memory is not resident")]
    NotResident,
    /// The transfer failed (a fault).
    #[error("the bus reported an error")]
    Bus,
}

/// An application's own registered memory. Dropping it deregisters it; the memory is freed once the NIC can no longer
/// write to it.
#[derive(Debug)]
pub struct Region {
    pub(crate) memory: Memory,
    pub(crate) whole: RegionRef,
    pub(crate) options: RegionOptions,
    pub(crate) shared: Arc<crate::port::PortShared>,
    /// The file by which other processes map the region.
    #[cfg(target_os = "linux")]
    pub(crate) file: Option<Arc<std::os::fd::OwnedFd>>,
}

impl Region {
    /// Returns the bytes of the region.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns a handle to the whole region.
    #[must_use]
    pub const fn whole(&self) -> RegionRef {
        self.whole
    }

    /// Returns the rights that the region grants.
    #[must_use]
    pub const fn rights(&self) -> Rights {
        self.options.rights
    }

    /// Returns the region's protection tag.
    #[must_use]
    pub const fn tag(&self) -> ProtectionTag {
        self.options.tag
    }

    /// Returns the file by which other processes map the region, as `SharedMemory`. `None` unless the region
    /// was registered with `Port::register_shared`.
    #[cfg(target_os = "linux")]
    #[must_use]
    #[doc(hidden)]
    pub const fn file(&self) -> Option<&Arc<std::os::fd::OwnedFd>> {
        self.file.as_ref()
    }

    /// Returns a handle to a range of the region; `None` if it exceeds the region.
    #[must_use]
    pub fn range(&self, offset: usize, length: usize) -> Option<RegionRef> {
        self.whole.part(u32::try_from(offset).ok()?, u32::try_from(length).ok()?)
    }

    /// Copies `bytes` to `offset` of the region.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if they exceed the region; nothing is then written.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.store(offset, Payload::from(bytes))
    }

    /// Copies `from`, which may be in shared memory, to `offset` of the region.
    ///
    /// # Errors
    /// Those of [`Region::write`].
    #[inline]
    pub fn store(&self, offset: usize, from: Payload<'_>) -> Result<(), RegionError> {
        let out_of_range = RegionError::OutOfRange { bytes: self.len() };
        self.memory.store(offset, from).ok_or(out_of_range)
    }

    /// Fills `out` with the region's bytes from `offset` on.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if the region has fewer; `out` is then unchanged.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), RegionError> {
        let view = self
            .memory
            .view(offset, out.len())
            .ok_or(RegionError::OutOfRange { bytes: self.len() })?;
        view.copy_to(out);
        Ok(())
    }

    /// Returns a view of a range, to copy the bytes out; `None` if it exceeds the region.
    #[must_use]
    pub fn view(&self, offset: usize, length: usize) -> Option<Payload<'_>> {
        self.memory.view(offset, length)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if self.file.is_some() {
            self.memory.revoke();
        }
        self.shared.deregister(self.whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_words_are_the_handle_that_gives_them_back(words: [u64; 2]) {
            prop_assert_eq!(RegionRef::from_words(words).to_words(), words);
        }
    }
}
