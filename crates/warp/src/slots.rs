//! Latest values by key: a write replaces what was not sent yet, and the last write always arrives.
//!
//! A conditional send that is skipped must not lose the last value of a key that is written rarely.
//! So each key has one slot. A write marks it; what is marked is sent when the gate lets it; what
//! was sent is marked again until the receiver has said that it has it. How soon depends on the
//! measured loss: so that a value is missing after two and a half feedback delays with a
//! probability of 10^-9, and that without loss one copy is all that is sent.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_simhw::time::{Instant, nanos};
use serde::{Deserialize, Serialize};

/// The logarithm of the chance that a value is missing after [`WITHIN`]: of one in 10^9.
const MISSING_LN: f64 = -20.7;
/// Feedback delays in which a value should have arrived.
const WITHIN: f64 = 2.3;
/// Feedback delays until a copy that was not acknowledged counts as lost, and is sent again.
const PATIENCE: f64 = 1.25;
/// The weight of one copy in the measured loss.
const LOSS_GAIN: f64 = 1.0 / 16.0;
/// More loss than this is not sent against.
const MOST_LOSS: f64 = 0.9;

/// A value on its way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Copy<'a, K, V> {
    /// Its key.
    pub key: &'a K,
    /// Its place among the values of its key, from 1.
    pub version: u64,
    /// Its place among all copies; an [`Ack`] repeats it.
    pub number: u64,
    /// The value.
    pub value: &'a V,
}

/// What a receiver says of each copy.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Ack<K> {
    /// The copy's.
    pub key: K,
    /// The newest version that the receiver has.
    pub version: u64,
    /// The copy's.
    pub number: u64,
}

#[derive(Clone, Debug)]
struct Slot<V> {
    value: V,
    version: u64,
    acknowledged: u64,
    /// When it is to be sent, or sent again.
    due: Instant,
}

/// The sender's slots, for one destination.
///
/// After [`Slots::write`] and [`Slots::handle_ack`], and at [`Slots::poll_timeout`], ask
/// [`Slots::poll_send`] for as much as the gate lets through.
#[derive(Clone, Debug)]
pub struct Slots<K, V> {
    slots: BTreeMap<K, Slot<V>>,
    /// Keys that wait for an acknowledgement, by when they are due; may name one that is later.
    queue: BTreeMap<(Instant, u64), K>,
    order: u64,
    sent: u64,
    next_number: u64,
    /// Copies whose fate is not known, the oldest first.
    flying: VecDeque<(u64, Instant)>,
    loss: f64,
    delay_ns: f64,
}

impl<K: Ord + Clone, V> Slots<K, V> {
    /// No slots, for a destination whose feedback takes `delay`.
    #[must_use]
    pub fn new(delay: Duration) -> Self {
        Self {
            slots: BTreeMap::new(),
            queue: BTreeMap::new(),
            order: 0,
            sent: 0,
            next_number: 0,
            flying: VecDeque::new(),
            loss: 0.0,
            delay_ns: nanos(delay).max(1) as f64,
        }
    }

    /// Writes `value`: it replaces the key's last, whether that was sent or not. Its version.
    pub fn write(&mut self, now: Instant, key: K, value: V) -> u64 {
        let version = match self.slots.get_mut(&key) {
            Some(slot) => {
                let waits = slot.acknowledged < slot.version && slot.due <= now;
                slot.version += 1;
                slot.value = value;
                if waits {
                    // It keeps its place: a key that is written all the time would never be next.
                    return slot.version;
                }
                slot.due = now;
                slot.version
            }
            None => {
                let slot = Slot { value, version: 1, acknowledged: 0, due: now };
                self.slots.insert(key.clone(), slot);
                1
            }
        };
        self.enqueue(now, key);
        version
    }

    /// The value that has waited longest, if one is due: it is to be sent now. Ask only when the
    /// gate is open.
    pub fn poll_send(&mut self, now: Instant) -> Option<Copy<'_, K, V>> {
        let key = self.poll_key(now)?.clone();
        self.send(now, &key)
    }

    /// The key of the value that [`Slots::poll_send`] would send.
    pub fn poll_key(&mut self, now: Instant) -> Option<&K> {
        self.expire(now);
        loop {
            let entry = self.queue.first_entry()?;
            if entry.key().0 > now {
                return None;
            }
            let due = entry.key().0;
            let slot = self.slots.get(entry.get());
            // One that was written or sent again since has a later entry.
            if slot.is_some_and(|slot| slot.acknowledged < slot.version && slot.due == due) {
                break;
            }
            entry.remove();
        }
        self.queue.first_key_value().map(|(_, key)| key)
    }

    /// Whether the last value of `key` is due.
    #[must_use]
    pub fn is_due(&self, now: Instant, key: &K) -> bool {
        let slot = self.slots.get(key);
        slot.is_some_and(|slot| slot.acknowledged < slot.version && slot.due <= now)
    }

    /// Sends the last value of `key`, whether it is due or not; `None` if it was never written.
    pub fn send(&mut self, now: Instant, key: &K) -> Option<Copy<'_, K, V>> {
        let due = now.plus_nanos(self.patience_ns());
        let slot = self.slots.get_mut(key)?;
        slot.due = due;
        let version = slot.version;
        let number = self.next_number;
        self.next_number += 1;
        self.sent += 1;
        self.flying.push_back((number, now));
        self.enqueue(due, key.clone());
        let (key, slot) = self.slots.get_key_value(key)?;
        Some(Copy { key, version, number, value: &slot.value })
    }

    /// The number that the next copy will have.
    #[must_use]
    pub const fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Numbers the next copy `number`, where that is more than it would have: so that one copy may
    /// go to several destinations, each of which has slots of its own.
    pub fn number_from(&mut self, number: u64) {
        self.next_number = self.next_number.max(number);
    }

    /// The receiver has a value.
    pub fn handle_ack(&mut self, now: Instant, ack: &Ack<K>) {
        if let Some(slot) = self.slots.get_mut(&ack.key) {
            slot.acknowledged = slot.acknowledged.max(ack.version.min(slot.version));
        }
        if let Ok(at) = self.flying.binary_search_by_key(&ack.number, |(number, _)| *number)
            && let Some((_, sent)) = self.flying.remove(at)
        {
            self.loss -= LOSS_GAIN * self.loss;
            self.delay_ns += (now.nanos_since(sent) as f64 - self.delay_ns) / 8.0;
        }
    }

    /// When a value will be due, if no earlier write or acknowledgement changes it.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// The key's last value and its version.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<(&V, u64)> {
        self.slots.get(key).map(|slot| (&slot.value, slot.version))
    }

    /// Keys whose last value the receiver is not known to have.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.slots.values().filter(|slot| slot.acknowledged < slot.version).count()
    }

    /// Copies sent.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    fn enqueue(&mut self, at: Instant, key: K) {
        self.order += 1;
        self.queue.insert((at, self.order), key);
    }

    /// Copies that were waited for long enough were lost, they or their acknowledgements.
    fn expire(&mut self, now: Instant) {
        let patience = (PATIENCE * self.delay_ns) as u64;
        while self.flying.front().is_some_and(|(_, sent)| now.nanos_since(*sent) > patience) {
            self.flying.pop_front();
            self.loss += LOSS_GAIN * (1.0 - self.loss);
        }
    }

    /// How long to wait for an acknowledgement before the next copy.
    fn patience_ns(&self) -> u64 {
        // Both ways lose alike, as far as is known.
        let one_way = (1.0 - (1.0 - self.loss).sqrt()).min(MOST_LOSS);
        let copies = if one_way > 1e-3 { MISSING_LN / one_way.ln() } else { 1.0 };
        let patience = (WITHIN / copies).min(PATIENCE);
        (patience * self.delay_ns).max(1.0) as u64
    }
}

/// The receiver's latest values of one sender.
#[derive(Clone, Debug)]
pub struct Latest<K, V> {
    values: BTreeMap<K, (u64, V)>,
}

impl<K: Ord, V> Default for Latest<K, V> {
    fn default() -> Self {
        Self { values: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, V> Latest<K, V> {
    /// A copy has arrived. An older value than what is there changes nothing; the sender is to be
    /// told what is there in either case.
    pub fn handle_copy(&mut self, key: K, version: u64, number: u64, value: V) -> Ack<K> {
        let known = self.values.get(&key).map_or(0, |(version, _)| *version);
        if version > known {
            self.values.insert(key.clone(), (version, value));
        }
        Ack { key, version: version.max(known), number }
    }

    /// The newest value of `key` and its version.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<(&V, u64)> {
        self.values.get(key).map(|(version, value)| (value, *version))
    }
}

#[cfg(test)]
mod tests;
