//! Numbered storage of held messages. Keys are stored apart from the rest of a message, which is touched only once.

use super::key::Key;
use super::unexpected::{Arrival, UnexpectedMessage};

#[derive(Debug)]
struct Slot<M> {
    stamp: u64,
    /// `None` if the slot is free.
    message: Option<M>,
}

/// Slots for messages. The slot freed last is reused first, since it is still in the cache. Once all slots are free,
/// they are used in order again, so that consecutive messages lie next to each other.
#[derive(Debug)]
pub(super) struct Slots<M> {
    /// The key of the message that is, or last was, in each slot.
    keys: Vec<Key>,
    slots: Vec<Slot<M>>,
    /// The slots from here on are free.
    used: u32,
    /// Free slots below `used`.
    left: Vec<u32>,
}

impl<M> Slots<M> {
    pub(super) const fn new() -> Self {
        Self { keys: Vec::new(), slots: Vec::new(), used: 0, left: Vec::new() }
    }

    #[inline]
    pub(super) fn insert(&mut self, held: UnexpectedMessage<M>) -> u32 {
        let UnexpectedMessage { key, arrival: Arrival(stamp), message } = held;
        let slot = Slot { stamp, message: Some(message) };
        let number = self.left.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        });
        if let Some(place) = self.slots.get_mut(number as usize) {
            *place = slot;
            self.keys[number as usize] = key;
        } else {
            assert!(number < u32::MAX, "fewer than 2^32 - 1 messages");
            self.slots.push(slot);
            self.keys.push(key);
        }
        number
    }

    /// Takes the message out of a slot that is not free.
    #[inline]
    pub(super) fn remove(&mut self, number: u32) -> UnexpectedMessage<M> {
        let slot = &mut self.slots[number as usize];
        let message = slot.message.take().expect("a message lies there");
        let held = UnexpectedMessage {
            key: self.keys[number as usize],
            arrival: Arrival(slot.stamp),
            message,
        };
        self.left.push(number);
        if self.is_empty() {
            self.left.clear();
            self.used = 0;
        }
        held
    }

    /// Returns the message in a slot; `None` if the slot is free.
    #[inline]
    pub(super) fn message(&self, number: u32) -> Option<&M> {
        self.slots.get(number as usize)?.message.as_ref()
    }

    /// Returns the key of the message that is, or last was, in a slot.
    #[inline]
    pub(super) fn key(&self, number: u32) -> Key {
        self.keys[number as usize]
    }

    /// Returns the place in the order of arrival of the message that is, or last was, in a slot.
    #[inline]
    pub(super) fn stamp(&self, number: u32) -> u64 {
        self.slots[number as usize].stamp
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.used as usize - self.left.len()
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the slots that are not free.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &M)> {
        let used = self.slots[..self.used as usize].iter().zip(0..);
        used.filter_map(|(slot, number)| Some((number, slot.message.as_ref()?)))
    }
}
