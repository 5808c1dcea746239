//! Commands under way that are no descriptors, and the resources of each until its completion.

use midplane_simhw::port::Completion;

/// A command under way; later, its completion.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) scratch: Option<u16>,
    pub(super) completion: Option<Completion>,
    pub(super) wanted: bool,
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
    /// Returns whether no command is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Adds an operation; returns its cookie.
    pub(super) fn insert(&mut self, operation: Operation) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, operation: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[at as usize];
        slot.operation = Some(operation);
        u64::from(at) | u64::from(slot.generation) << 32
    }

    pub(super) fn get(&mut self, cookie: u64) -> Option<&mut Operation> {
        let slot = self.slots.get_mut((cookie & u64::from(u32::MAX)) as usize)?;
        (u64::from(slot.generation) == cookie >> 32).then_some(slot.operation.as_mut()).flatten()
    }

    pub(super) fn remove(&mut self, cookie: u64) {
        if self.get(cookie).is_some() {
            let at = (cookie & u64::from(u32::MAX)) as u32;
            let slot = &mut self.slots[at as usize];
            slot.generation = slot.generation.wrapping_add(1);
            slot.operation = None;
            self.free.push(at);
        }
    }
}
