//! Commands under way: what each of them holds until its completion.

use midplane_simhw::port::Completion;

use crate::command::Ended;
use crate::descriptor::Descriptor;

/// What is under way.
#[derive(Debug)]
pub(super) enum Operation {
    /// A descriptor; later, how it ended. Its interface's queue names it.
    Descriptor { descriptor: Descriptor, scratch: Option<u16>, ended: Option<Ended> },
    /// Anything else; later, its completion.
    Plain { scratch: Option<u16>, completion: Option<Completion>, wanted: bool },
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    operation: Option<Operation>,
}

/// The operations of one NIC, named by cookies.
#[derive(Debug, Default)]
pub(super) struct Operations {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Operations {
    /// Operations of before, at whose places these generations come next; they are yet to be
    /// [put](Self::put) there, and the rest [closed](Self::close).
    pub(super) fn restored(generations: Vec<u32>) -> Self {
        let slot = |generation| Slot { generation, operation: None };
        Self { slots: generations.into_iter().map(slot).collect(), free: Vec::new() }
    }

    /// Puts an operation where its cookie says; `false` if that is not free.
    pub(super) fn put(&mut self, cookie: u64, operation: Operation) -> bool {
        let at = (cookie & u64::from(u32::MAX)) as usize;
        let slot = self
            .slots
            .get_mut(at)
            .filter(|slot| slot.operation.is_none() && u64::from(slot.generation) == cookie >> 32);
        let Some(slot) = slot else { return false };
        slot.operation = Some(operation);
        true
    }

    /// Places without an operation are for the next.
    pub(super) fn close(&mut self) {
        let free = (0_u32..).zip(&self.slots).filter(|(_, slot)| slot.operation.is_none());
        self.free = free.map(|(at, _)| at).collect();
    }

    /// What tells the operation at each place from others there.
    pub(super) fn generations(&self) -> Vec<u32> {
        self.slots.iter().map(|slot| slot.generation).collect()
    }

    /// Whether anything but descriptors is under way.
    pub(super) fn has_plain(&self) -> bool {
        let plain = |slot: &Slot| matches!(slot.operation, Some(Operation::Plain { .. }));
        self.slots.iter().any(plain)
    }

    /// Takes an operation; returns its cookie.
    #[inline]
    pub(super) fn insert(&mut self, operation: Operation) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, operation: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[at as usize];
        slot.operation = Some(operation);
        u64::from(at) | u64::from(slot.generation) << 32
    }

    #[inline]
    pub(super) fn get(&mut self, cookie: u64) -> Option<&mut Operation> {
        let slot = self.slots.get_mut((cookie & u64::from(u32::MAX)) as usize)?;
        (u64::from(slot.generation) == cookie >> 32).then_some(slot.operation.as_mut()).flatten()
    }

    #[inline]
    pub(super) fn remove(&mut self, cookie: u64) -> Option<Operation> {
        self.get(cookie)?;
        let at = (cookie & u64::from(u32::MAX)) as u32;
        let slot = &mut self.slots[at as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(at);
        slot.operation.take()
    }

    /// Takes a descriptor that has ended.
    #[inline]
    pub(super) fn take_ended(&mut self, cookie: u64) -> Option<(Descriptor, Ended)> {
        let Some(Operation::Descriptor { ended: Some(ended), .. }) = self.get(cookie) else {
            return None;
        };
        let ended = *ended;
        match self.remove(cookie) {
            Some(Operation::Descriptor { descriptor, .. }) => Some((descriptor, ended)),
            _ => None,
        }
    }
}
