//! Capabilities: rights to memory, checked by its owner and revocable at once.
//!
//! A capability names a node, an entry of its table, a range of that entry, rights and a generation; it is 24 bytes
//! that travel as ordinary data. The owner makes every check. Each entry has a key that only its holders know, so a
//! capability can't be forged, and a generation, so a revoked one is refused. A holder may narrow the range for itself.
//! A capability with fewer rights for another holder is a new entry below the old one, and is revoked with it.

use std::collections::BTreeSet;

use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::region::RegionRef;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use thiserror::Error;

/// Longest chain of delegations that starts at a granted capability.
pub const MAX_DEPTH: u8 = 8;
/// Most entries of one node's table.
pub(crate) const MAX_ENTRIES: usize = 65_536;

/// The rights of a capability: a set of five bits.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct CapabilityRights(pub u8);

impl CapabilityRights {
    /// The bytes may be read.
    pub const READ: Self = Self(1);
    /// The bytes may be written.
    pub const WRITE: Self = Self(2);
    /// The words may be compared and swapped, and added to.
    pub(crate) const ATOMIC: Self = Self(4);
    /// The capability may be delegated with fewer rights.
    pub const DELEGATE: Self = Self(8);
    /// The program that the capability names may be run.
    pub(crate) const RUN: Self = Self(16);
    /// All rights.
    pub const ALL: Self = Self(31);

    /// Returns the union of the two sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether this set contains all rights of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A right to some memory of some node.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Capability {
    /// The node that owns the memory.
    pub node: NodeId,
    /// The entry of that node's table.
    pub entry: u16,
    /// The generation of the entry; an entry gets a new one with each use.
    pub generation: u32,
    /// 56 bits that only holders know; they can't be computed from other keys.
    pub key: u64,
    /// The rights, as far as the holder knows; the owner's table decides.
    pub rights: CapabilityRights,
    /// First byte of the range, from the entry's start.
    pub offset: u32,
    /// Bytes of the range.
    pub length: u32,
}

impl Capability {
    /// Encodes it as three words, for a command's arguments, a completion or a message.
    #[must_use]
    #[doc(hidden)]
    pub const fn to_words(self) -> [u64; 3] {
        [
            self.node.0 as u64 | (self.entry as u64) << 16 | (self.generation as u64) << 32,
            self.rights.0 as u64 | self.key << 8,
            self.offset as u64 | (self.length as u64) << 32,
        ]
    }

    /// Decodes the words of [`Capability::to_words`]. Any words decode to a capability; its owner checks it.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "takes words apart")]
    #[doc(hidden)]
    pub const fn from_words([first, second, third]: [u64; 3]) -> Self {
        Self {
            node: NodeId(first as u16),
            entry: (first >> 16) as u16,
            generation: (first >> 32) as u32,
            key: second >> 8,
            rights: CapabilityRights(second as u8),
            offset: third as u32,
            length: (third >> 32) as u32,
        }
    }

    /// Returns the capability for a part of its range; `None` if that passes the end.
    #[must_use]
    pub fn part(self, offset: u32, length: u32) -> Option<Self> {
        (offset.checked_add(length)? <= self.length).then(|| Self {
            offset: self.offset.saturating_add(offset),
            length,
            ..self
        })
    }
}

/// Reason for which a capability is refused.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub(crate) enum Denied {
    /// The capability was revoked, or never granted.
    #[error("no such capability: revoked, or never granted; ask its owner for another")]
    Stale,
    /// Its key is wrong.
    #[error("the capability's key is wrong")]
    Forged,
    /// It does not grant the right.
    #[error("the capability allows {0:?} only")]
    Rights(CapabilityRights),
    /// The access passes the end of its range.
    #[error("the capability ends after {length} bytes")]
    Range {
        /// Bytes of the capability's entry.
        length: u32,
    },
    /// The capability has been delegated [`MAX_DEPTH`] times already.
    #[error("a capability is delegated {MAX_DEPTH} times in succession at most")]
    Depth,
    /// The table is full.
    #[error("a node grants {MAX_ENTRIES} capabilities at most: revoke some first")]
    Full,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    region: RegionRef,
    rights: CapabilityRights,
    key: u64,
    generation: u32,
    is_live: bool,
    depth: u8,
    /// Parent entry that this one was delegated from. The parent is live while this entry is.
    above: Option<u16>,
}

/// Table of the capabilities that a node has granted.
pub(crate) struct Capabilities {
    node: NodeId,
    /// ChaCha with 20 rounds, keyed by the node's secret: a holder of keys can compute neither the secret nor another
    /// key. `None` until the NIC starts.
    keys: Option<ChaCha20Rng>,
    entries: Vec<Entry>,
    free: Vec<u16>,
    /// The live entries that were delegated, each after the entry that it was delegated from.
    below: BTreeSet<(u16, u16)>,
}

impl Capabilities {
    /// Creates an empty table. The keys derive from `secret`, which must be drawn at random and stay with this node:
    /// see [`Context::secret`](crate::context::Context::secret).
    #[must_use]
    pub(crate) fn new(node: NodeId, secret: [u8; 32]) -> Self {
        Self { node, keys: Some(ChaCha20Rng::from_seed(secret)), ..Self::unkeyed() }
    }

    /// Creates the table of a NIC that has not started: it can give no capability.
    pub(crate) const fn unkeyed() -> Self {
        Self {
            node: NodeId(0),
            keys: None,
            entries: Vec::new(),
            free: Vec::new(),
            below: BTreeSet::new(),
        }
    }

    /// Gives a capability to a region.
    ///
    /// # Errors
    /// [`Denied::Full`] if the table is full.
    pub(crate) fn grant(
        &mut self,
        region: RegionRef,
        rights: CapabilityRights,
    ) -> Result<Capability, Denied> {
        self.enter(region, rights, 0, None)
    }

    /// Makes a capability with fewer rights, for a part of the range, from one with [`CapabilityRights::DELEGATE`].
    ///
    /// # Errors
    /// [`Denied`] gives the reason.
    pub(crate) fn delegate(
        &mut self,
        from: &Capability,
        rights: CapabilityRights,
    ) -> Result<Capability, Denied> {
        let region = self.check(from, CapabilityRights::DELEGATE)?;
        let above = self.entries[usize::from(from.entry)];
        if !above.rights.contains(rights) {
            return Err(Denied::Rights(above.rights));
        }
        if above.depth >= MAX_DEPTH {
            return Err(Denied::Depth);
        }
        let made = self.enter(region, rights, above.depth + 1, Some(from.entry))?;
        self.below.insert((from.entry, made.entry));
        Ok(made)
    }

    /// Returns the region of a capability, if it grants `wanted`. Costs a comparison or two.
    ///
    /// # Errors
    /// [`Denied`] says what is not granted.
    #[inline]
    pub(crate) fn check(
        &self,
        capability: &Capability,
        wanted: CapabilityRights,
    ) -> Result<RegionRef, Denied> {
        let entry = self.live(capability.entry, capability.generation).ok_or(Denied::Stale)?;
        if entry.key != capability.key {
            return Err(Denied::Forged);
        }
        if !entry.rights.contains(wanted) {
            return Err(Denied::Rights(entry.rights));
        }
        let length = entry.region.length;
        entry.region.part(capability.offset, capability.length).ok_or(Denied::Range { length })
    }

    /// Revokes a capability with all that were delegated from it, however many holders there are.
    ///
    /// # Errors
    /// [`Denied`] if the capability is not valid.
    pub(crate) fn revoke(&mut self, capability: &Capability) -> Result<(), Denied> {
        let entry = self.live(capability.entry, capability.generation).ok_or(Denied::Stale)?;
        if entry.key != capability.key {
            return Err(Denied::Forged);
        }
        self.remove(capability.entry);
        Ok(())
    }

    /// Revokes all capabilities to a port's regions.
    pub(crate) fn forget(&mut self, port: PortId) {
        for number in 0..self.entries.len() {
            let entry = &self.entries[number];
            if entry.is_live && entry.region.port == port {
                self.remove(number as u16);
            }
        }
    }

    /// Returns the port that owns the region of an entry, if the entry is live.
    #[must_use]
    pub(crate) fn owner(&self, capability: &Capability) -> Option<PortId> {
        self.region(capability).map(|region| region.port)
    }

    /// Returns the whole region of an entry, if the entry is live.
    pub(crate) fn region(&self, capability: &Capability) -> Option<RegionRef> {
        self.live(capability.entry, capability.generation).map(|entry| entry.region)
    }

    fn live(&self, number: u16, generation: u32) -> Option<&Entry> {
        let entry = self.entries.get(usize::from(number))?;
        (entry.is_live && entry.generation == generation).then_some(entry)
    }

    fn enter(
        &mut self,
        region: RegionRef,
        rights: CapabilityRights,
        depth: u8,
        above: Option<u16>,
    ) -> Result<Capability, Denied> {
        let key = self.keys.as_mut().ok_or(Denied::Full)?.next_u64() >> 8;
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.entries.len() < MAX_ENTRIES => {
                self.entries.push(Entry {
                    region,
                    rights,
                    key: 0,
                    generation: 0,
                    is_live: false,
                    depth,
                    above,
                });
                (self.entries.len() - 1) as u16
            }
            None => return Err(Denied::Full),
        };
        let entry = &mut self.entries[usize::from(number)];
        let generation = entry.generation.wrapping_add(1);
        *entry = Entry { region, rights, key, generation, is_live: true, depth, above };
        Ok(Capability {
            node: self.node,
            entry: number,
            generation,
            key,
            rights,
            offset: 0,
            length: region.length,
        })
    }

    /// Removes an entry, with those that were delegated from it.
    fn remove(&mut self, number: u16) {
        let entry = &mut self.entries[usize::from(number)];
        entry.is_live = false;
        self.free.push(number);
        if let Some(above) = entry.above {
            self.below.remove(&(above, number));
        }
        while let Some(&(_, child)) = self.below.range((number, 0)..=(number, u16::MAX)).next() {
            self.remove(child);
        }
    }
}

/// Prints neither keys nor the secret.
impl std::fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let given = self.entries.iter().filter(|entry| entry.is_live).count();
        f.debug_struct("Capabilities")
            .field("node", &self.node)
            .field("given", &given)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
