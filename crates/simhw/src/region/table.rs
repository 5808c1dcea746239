//! The regions of one port, in its NIC.

use super::{Access, Memory, Payload, RegionError, RegionOptions, RegionRef, Rights};

/// A region: the generation of its slot, its memory, its rights and tag.
#[derive(Debug)]
struct Entry {
    generation: u32,
    memory: Memory,
    options: RegionOptions,
}

/// The regions of one port, in its NIC.
#[derive(Debug, Default)]
pub(crate) struct RegionTable {
    slots: Vec<Option<Entry>>,
}

/// A region must grant one of these rights before it is read.
const READ: Rights = Rights::LOCAL_READ.and(Rights::REMOTE_READ);
/// A region must grant one of these rights before it is written.
const WRITE: Rights = Rights::LOCAL_WRITE.and(Rights::REMOTE_WRITE);

impl RegionTable {
    pub(crate) fn insert(
        &mut self,
        slot: u16,
        generation: u32,
        memory: Memory,
        options: RegionOptions,
    ) {
        let slot = usize::from(slot);
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(Entry { generation, memory, options });
    }

    pub(crate) fn remove(&mut self, slot: u16, generation: u32) {
        if let Some(entry) = self.slots.get_mut(usize::from(slot))
            && entry.as_ref().is_some_and(|live| live.generation == generation)
        {
            *entry = None;
        }
    }

    fn entry(&self, at: RegionRef) -> Result<&Entry, RegionError> {
        match self.slots.get(usize::from(at.slot)) {
            Some(Some(entry)) if entry.generation == at.generation => Ok(entry),
            _ => Err(RegionError::Stale),
        }
    }

    /// Checks that all of `access` is granted, except the owner, which the caller compares.
    pub(crate) fn check(&self, at: RegionRef, access: Access) -> Result<(), RegionError> {
        let entry = self.entry(at)?;
        if access.tag.is_some_and(|tag| tag != entry.options.tag) {
            return Err(RegionError::Tag);
        }
        if !entry.options.rights.contains(access.rights) {
            return Err(RegionError::Rights { granted: entry.options.rights });
        }
        entry.view(at).map(drop)
    }

    pub(crate) fn read(&self, at: RegionRef) -> Result<Payload<'_>, RegionError> {
        let entry = self.entry(at)?;
        if !entry.options.rights.intersects(READ) {
            return Err(RegionError::Rights { granted: entry.options.rights });
        }
        entry.view(at)
    }

    /// Checks that `bytes` may be written at the start of the range.
    pub(crate) fn check_write(&self, at: RegionRef, bytes: usize) -> Result<(), RegionError> {
        self.writable(at, bytes).map(drop)
    }

    pub(crate) fn write(&self, at: RegionRef, from: Payload<'_>) -> Result<(), RegionError> {
        let memory = self.writable(at, from.len())?;
        memory
            .store(at.offset as usize, from)
            .ok_or(RegionError::OutOfRange { bytes: memory.len() })
    }

    fn writable(&self, at: RegionRef, bytes: usize) -> Result<&Memory, RegionError> {
        let entry = self.entry(at)?;
        if !entry.options.rights.intersects(WRITE) {
            return Err(RegionError::Rights { granted: entry.options.rights });
        }
        let range = entry.view(at)?;
        if bytes > range.len() {
            return Err(RegionError::OutOfRange { bytes: range.len() });
        }
        Ok(&entry.memory)
    }
}

impl Entry {
    fn view(&self, at: RegionRef) -> Result<Payload<'_>, RegionError> {
        self.memory
            .view(at.offset as usize, at.length as usize)
            .ok_or(RegionError::OutOfRange { bytes: self.memory.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::PortId;
    use crate::region::ProtectionTag;
    use proptest::prelude::*;

    fn table(bytes: usize) -> (RegionTable, RegionRef) {
        let mut table = RegionTable::default();
        table.insert(3, 7, Memory::new(bytes), RegionOptions::default());
        let whole =
            RegionRef { port: PortId(0), slot: 3, generation: 7, offset: 0, length: bytes as u32 };
        (table, whole)
    }

    #[test]
    fn a_stale_handle_is_refused() {
        let (mut table, whole) = table(64);
        assert!(table.read(whole).is_ok());
        let other = RegionRef { generation: 6, ..whole };
        assert_eq!(table.read(other).unwrap_err(), RegionError::Stale);
        table.remove(3, 6);
        assert!(table.read(whole).is_ok());
        table.remove(3, 7);
        assert_eq!(table.read(whole).unwrap_err(), RegionError::Stale);
    }

    #[test]
    fn only_granted_accesses_are_allowed() {
        let tag = ProtectionTag(9);
        let whole = RegionRef { slot: 1, generation: 1, length: 8, ..RegionRef::default() };
        let mut table = RegionTable::default();
        let mut register = |rights| {
            let options = RegionOptions::default().rights(rights).tag(tag);
            table.insert(1, 1, Memory::new(8), options);
            let wants = |rights| Access { tag: Some(tag), rights, ..Access::default() };
            [
                table.read(whole).is_ok(),
                table.write(whole, Payload::from(&[1][..])).is_ok(),
                table.check(whole, wants(Rights::REMOTE_READ)).is_ok(),
                table.check(whole, wants(Rights::REMOTE_WRITE)).is_ok(),
            ]
        };
        assert_eq!(register(Rights::NONE), [false; 4]);
        assert_eq!(register(Rights::LOCAL_READ), [true, false, false, false]);
        assert_eq!(register(Rights::LOCAL_WRITE), [false, true, false, false]);
        assert_eq!(register(Rights::REMOTE_READ), [true, false, true, false]);
        assert_eq!(register(Rights::REMOTE_WRITE), [false, true, false, true]);
        assert_eq!(register(Rights::ALL), [true; 4]);
        let other = Access { tag: Some(ProtectionTag(8)), ..Access::default() };
        assert_eq!(table.check(whole, other), Err(RegionError::Tag));
        let far = RegionRef { offset: 1, ..whole };
        assert_eq!(table.check(far, Access::default()), Err(RegionError::OutOfRange { bytes: 8 }));
    }

    proptest! {
        #[test]
        fn writes_change_their_range_only(
            size in 1_usize..200,
            writes in proptest::collection::vec(
                (0_u32..220, proptest::collection::vec(any::<u8>(), 0..40), any::<bool>()), 1..20),
        ) {
            let (table, whole) = table(size);
            let mut shadow = vec![0; size];
            for (offset, bytes, through_words) in writes {
                let at = RegionRef { offset, length: bytes.len() as u32, ..whole };
                let scratch = Memory::new(64);
                scratch.store(5, Payload::from(&bytes[..])).unwrap();
                let from = if through_words {
                    scratch.view(5, bytes.len()).unwrap()
                } else {
                    Payload::from(&bytes[..])
                };
                let fits = offset as usize + bytes.len() <= size;
                prop_assert_eq!(table.write(at, from).is_ok(), fits);
                if fits {
                    shadow[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                prop_assert_eq!(&table.read(whole).unwrap().to_vec(), &shadow);
            }
        }
    }
}
