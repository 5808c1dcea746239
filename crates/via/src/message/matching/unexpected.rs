//! Messages that arrived before their receive.

use std::iter;

use super::key::{Common, Key, Pattern, Shape};
use super::queues::{Entries, Queues};
use super::slots::Slots;

/// Identifies a held message; never reused for another one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct UnexpectedId {
    slot: u32,
    stamp: u64,
}

/// A message's place in the order of arrival.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
#[doc(hidden)]
pub struct Arrival(pub(super) u64);

/// A message that is or was held.
#[derive(Debug)]
#[doc(hidden)]
pub struct UnexpectedMessage<M> {
    /// The message's source, tag and context.
    pub key: Key,
    /// The message's place in the order of arrival.
    pub arrival: Arrival,
    /// The message, as the caller stores it.
    pub message: M,
}

/// The held messages. Each is in one queue for every shape that any receive or probe has used so far: programs
/// without wildcards pay only for exact matches.
#[derive(Debug)]
pub(super) struct Unexpected<M> {
    slots: Slots<M>,
    exact: Queues,
    /// The queues of the shapes with a wildcard that were used.
    wild: Vec<(Shape, Queues)>,
    seed: u64,
}

/// Gives the queues of one shape access to the held messages.
struct Seen<'a, M> {
    slots: &'a Slots<M>,
    shape: Shape,
}

impl<M> Entries for Seen<'_, M> {
    #[inline]
    fn name(&self, entry: u32) -> Common {
        self.shape.common(self.slots.key(entry))
    }

    #[inline]
    fn stamp(&self, entry: u32) -> u64 {
        self.slots.stamp(entry)
    }
}

impl<M> Unexpected<M> {
    pub(super) fn new(seed: u64) -> Self {
        Self { slots: Slots::new(), exact: Queues::new(seed), wild: Vec::new(), seed }
    }

    #[inline]
    pub(super) fn push(&mut self, held: UnexpectedMessage<M>) -> UnexpectedId {
        let (key, stamp) = (held.key, held.arrival.0);
        let slot = self.slots.insert(held);
        for (shape, queues, seen) in self.parts() {
            queues.push(shape.common(key), slot, &seen);
        }
        UnexpectedId { slot, stamp }
    }

    pub(super) fn put_back(&mut self, held: UnexpectedMessage<M>) -> UnexpectedId {
        let (key, stamp) = (held.key, held.arrival.0);
        let slot = self.slots.insert(held);
        for (shape, queues, seen) in self.parts() {
            queues.insert(shape.common(key), slot, &seen);
        }
        UnexpectedId { slot, stamp }
    }

    #[inline]
    pub(super) fn take(&mut self, pattern: &Pattern) -> Option<UnexpectedMessage<M>> {
        let shape = pattern.shape();
        let (queues, seen) = self.queues_of(shape)?;
        let slot = queues.pop(pattern.common(), &seen)?;
        Some(self.unlink(slot, Some(shape)))
    }

    pub(super) fn remove(&mut self, id: UnexpectedId) -> Option<UnexpectedMessage<M>> {
        self.slots.message(id.slot)?;
        (self.slots.stamp(id.slot) == id.stamp).then(|| self.unlink(id.slot, None))
    }

    pub(super) fn peek(&mut self, pattern: &Pattern) -> Option<(UnexpectedId, Key, &M)> {
        let (queues, seen) = self.queues_of(pattern.shape())?;
        let slot = queues.first(pattern.common(), &seen)?;
        Some((self.id(slot), self.slots.key(slot), self.slots.message(slot)?))
    }

    pub(super) const fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (UnexpectedId, Key, &M)> {
        self.slots.iter().map(|(slot, message)| (self.id(slot), self.slots.key(slot), message))
    }

    fn id(&self, slot: u32) -> UnexpectedId {
        UnexpectedId { slot, stamp: self.slots.stamp(slot) }
    }

    /// Iterates over the queues of each shape, with access to their entries.
    #[inline]
    fn parts(&mut self) -> impl Iterator<Item = (Shape, &mut Queues, Seen<'_, M>)> {
        let slots = &self.slots;
        let wild = self.wild.iter_mut().map(|(shape, queues)| (*shape, queues));
        let all = iter::once((Shape::EXACT, &mut self.exact)).chain(wild);
        all.map(move |(shape, queues)| (shape, queues, Seen { slots, shape }))
    }

    /// Returns the queues of a shape, which are made on first use; `None` if no message is held.
    #[inline]
    fn queues_of(&mut self, shape: Shape) -> Option<(&mut Queues, Seen<'_, M>)> {
        if self.slots.is_empty() {
            return None;
        }
        if shape == Shape::EXACT {
            return Some((&mut self.exact, Seen { slots: &self.slots, shape }));
        }
        let open = self.wild.iter().position(|(open, _)| *open == shape);
        let at = open.unwrap_or_else(|| self.open(shape));
        Some((&mut self.wild[at].1, Seen { slots: &self.slots, shape }))
    }

    /// Makes the queues of a shape on its first use.
    #[cold]
    fn open(&mut self, shape: Shape) -> usize {
        let held = self.slots.iter().map(|(slot, _)| (self.slots.stamp(slot), slot));
        let mut order: Vec<_> = held.collect();
        order.sort_unstable();
        let (mut queues, seen) = (Queues::new(self.seed), Seen { slots: &self.slots, shape });
        for (_, slot) in order {
            queues.push(seen.name(slot), slot, &seen);
        }
        self.wild.push((shape, queues));
        self.wild.len() - 1
    }

    /// Removes a message from all queues except those of shape `popped`, which have removed it already.
    #[inline]
    fn unlink(&mut self, slot: u32, popped: Option<Shape>) -> UnexpectedMessage<M> {
        for (shape, queues, seen) in self.parts() {
            if Some(shape) != popped {
                queues.remove(seen.name(slot), slot, &seen);
            }
        }
        self.slots.remove(slot)
    }
}
