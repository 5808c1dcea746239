//! Registered memory: what a NIC may read and write, and who may ask it to.
//!
//! A region has an owner (the port that registered it), [`Rights`], a [`ProtectionTag`] and a
//! generation. Firmware checks a handle that came in a command's arguments or from the network
//! with [`Hardware::check`](crate::hardware::Hardware::check) before it follows it.

mod memory;
mod payload;
#[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
mod shared;
#[cfg(not(all(target_os = "linux", not(all(test, midplane_loom)))))]
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

/// What may be done with a region: any of four bits.
///
/// Local is what the owner's own commands ask for; remote is what a frame asks for, as in remote
/// direct memory access.
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Rights(u8);

impl Rights {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The owner's commands may read it.
    pub const LOCAL_READ: Self = Self(1);
    /// The owner's commands may write it.
    pub const LOCAL_WRITE: Self = Self(2);
    /// Frames may read it.
    pub const REMOTE_READ: Self = Self(4);
    /// Frames may write it.
    pub const REMOTE_WRITE: Self = Self(8);
    /// Both local rights: the default of a region.
    pub const LOCAL: Self = Self(3);
    /// All four.
    pub const ALL: Self = Self(15);

    /// The rights of these four bits, as they lie in shared memory.
    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    pub(crate) const fn from_bits(bits: u8) -> Option<Self> {
        if bits <= Self::ALL.0 { Some(Self(bits)) } else { None }
    }

    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// These and `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is among these.
    #[must_use]
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

/// What a region and whoever may use it have in common: a number that the owner chooses.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct ProtectionTag(pub u32);

/// What a region is registered with.
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
    /// What may be done with it. Default: [`Rights::LOCAL`].
    #[must_use]
    pub const fn rights(mut self, rights: Rights) -> Self {
        self.rights = rights;
        self
    }

    /// Its protection tag. Default: 0.
    #[must_use]
    pub const fn tag(mut self, tag: ProtectionTag) -> Self {
        self.tag = tag;
        self
    }
}

/// What somebody wants to do with a region, and as whom. The default wants nothing: the handle
/// must only be live and within its region.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Access {
    /// The port that must own the region; any, if `None`.
    pub owner: Option<PortId>,
    /// The tag that the region must have; any, if `None`.
    pub tag: Option<ProtectionTag>,
    /// The rights that the region must give, all of them.
    pub rights: Rights,
}

impl Access {
    /// What a command of `owner` may ask for.
    #[must_use]
    pub const fn local(owner: PortId, rights: Rights) -> Self {
        Self { owner: Some(owner), tag: None, rights }
    }

    /// What a frame may ask for that shows `tag`.
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
    /// Which of the port's regions.
    pub slot: u16,
    /// Which use of the slot: a handle of an earlier one is refused.
    pub generation: u32,
    /// First byte of the range, from the region's start.
    pub offset: u32,
    /// Bytes of the range.
    pub length: u32,
}

impl RegionRef {
    /// As two words: what goes into a command's arguments or a frame.
    #[must_use]
    pub const fn to_words(self) -> [u64; 2] {
        let handle = self.port.0 as u64 | (self.slot as u64) << 16 | (self.generation as u64) << 32;
        [handle, self.offset as u64 | (self.length as u64) << 32]
    }

    /// What [`RegionRef::to_words`] made. Any words are some handle: check it before it is used.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    pub const fn from_words([handle, range]: [u64; 2]) -> Self {
        Self {
            port: PortId(handle as u16),
            slot: (handle >> 16) as u16,
            generation: (handle >> 32) as u32,
            offset: range as u32,
            length: (range >> 32) as u32,
        }
    }

    /// A part of this range; `None` where it passes the end.
    #[must_use]
    pub fn part(&self, offset: u32, length: u32) -> Option<Self> {
        (offset.checked_add(length)? <= self.length).then(|| Self {
            offset: self.offset.saturating_add(offset),
            length,
            ..*self
        })
    }
}

/// Why a [`RegionRef`] names nothing that may be touched.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum RegionError {
    /// Never registered, or deregistered since.
    #[error(
        "no such region: never registered, or dropped; keep a region for as long as it is named"
    )]
    Stale,
    /// Past the region's end.
    #[error("the range passes the end of its region of {bytes} bytes")]
    OutOfRange {
        /// Bytes of the region.
        bytes: usize,
    },
    /// The region is another port's.
    #[error("the region is another port's")]
    Owner,
    /// The region has another protection tag.
    #[error("the region has another protection tag")]
    Tag,
    /// The region was registered without the rights for it.
    #[error("the region gives the rights {granted:?} only; register it with more")]
    Rights {
        /// What it gives.
        granted: Rights,
    },
    /// The memory is not there for the NIC now: its pages were unpinned (a fault).
    #[error("the memory is not resident")]
    NotResident,
    /// The transfer failed (a fault).
    #[error("the bus reported an error")]
    Bus,
}

/// An application's own registered memory. Dropping it deregisters it; the NIC keeps the memory
/// itself alive for as long as it may still write to it.
#[derive(Debug)]
pub struct Region {
    pub(crate) memory: Memory,
    pub(crate) whole: RegionRef,
    pub(crate) options: RegionOptions,
    pub(crate) registrar: Arc<crate::port::Registrar>,
    /// What other processes map it by.
    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    pub(crate) file: Option<Arc<std::os::fd::OwnedFd>>,
}

impl Region {
    /// Bytes of the region.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// The whole region, as a NIC knows it.
    #[must_use]
    pub const fn whole(&self) -> RegionRef {
        self.whole
    }

    /// What may be done with the region.
    #[must_use]
    pub const fn rights(&self) -> Rights {
        self.options.rights
    }

    /// The region's protection tag.
    #[must_use]
    pub const fn tag(&self) -> ProtectionTag {
        self.options.tag
    }

    /// The file that other processes map it by, as [`SharedMemory`]; of memory that was registered with
    /// [`Port::register_shared`](crate::port::Port::register_shared).
    #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
    #[must_use]
    pub const fn file(&self) -> Option<&Arc<std::os::fd::OwnedFd>> {
        self.file.as_ref()
    }

    /// A range of the region, as a NIC knows it; `None` where it passes the end.
    #[must_use]
    pub fn range(&self, offset: usize, length: usize) -> Option<RegionRef> {
        self.whole.part(u32::try_from(offset).ok()?, u32::try_from(length).ok()?)
    }

    /// Copies `bytes` into the region at `offset`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if they would pass its end; nothing is written then.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionError> {
        self.store(offset, Payload::from(bytes))
    }

    /// Copies `from`, which may be in shared memory, into the region at `offset`.
    ///
    /// # Errors
    /// As [`Region::write`].
    #[inline]
    pub fn store(&self, offset: usize, from: Payload<'_>) -> Result<(), RegionError> {
        let out_of_range = RegionError::OutOfRange { bytes: self.len() };
        self.memory.store(offset, from).ok_or(out_of_range)
    }

    /// Copies bytes from `offset` on out of the region, filling `out`.
    ///
    /// # Errors
    /// [`RegionError::OutOfRange`] if there are not that many; `out` is untouched then.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), RegionError> {
        let view = self
            .memory
            .view(offset, out.len())
            .ok_or(RegionError::OutOfRange { bytes: self.len() })?;
        view.copy_to(out);
        Ok(())
    }

    /// The bytes of a range where they lie, to be copied out; `None` where it passes the end.
    #[must_use]
    pub fn view(&self, offset: usize, length: usize) -> Option<Payload<'_>> {
        self.memory.view(offset, length)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(all(target_os = "linux", not(all(test, midplane_loom))))]
        if self.file.is_some() {
            self.memory.revoke();
        }
        self.registrar.deregister(self.whole);
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
