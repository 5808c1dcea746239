//! Latest values by key: a write replaces an unsent value, and the last write always arrives.
//!
//! If a conditional send is skipped, the last value of a rarely written key must not be lost. So
//! each key has one slot. A write marks the slot as due. The sender sends due values when the gate
//! allows it. A value becomes due again until the receiver acknowledges it. The measured loss
//! determines how soon. A value is missing after 2.3 feedback delays with a probability of 10^-9,
//! and without loss only one copy is sent.
//!
//! A receiver that is lost gets one copy every 64 feedback delays: its acknowledgement shows that it
//! has returned.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_simhw::time::{Instant, nanos};
use serde::{Deserialize, Serialize};

/// The natural logarithm of the probability that a value is missing after [`WITHIN`]: ln 10^-9.
const MISSING_LN: f64 = -20.7;
/// Feedback delays within which a value should arrive.
const WITHIN: f64 = 2.3;
/// Feedback delays after which an unacknowledged copy counts as lost and is sent again.
const ACK_TIMEOUT: f64 = 1.25;
/// The weight of one copy in the measured loss.
const LOSS_GAIN: f64 = 1.0 / 16.0;
/// The most loss that the sender compensates with more copies.
const MAX_LOSS: f64 = 0.9;
/// The most copies that may be under way; the oldest is dropped beyond that, neither acknowledged nor
/// lost.
const MAX_FLYING: usize = 65_536;
/// The most copies counted as lost whose acknowledgement is still recognised.
const MAX_LATE: usize = 256;
/// Feedback delays between two copies to a receiver that is lost.
const LOST_DELAYS: f64 = 64.0;

/// A copy of a value, to be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Copy<'a, K, V> {
    /// Key of the value.
    pub(crate) key: &'a K,
    /// Version of the value.
    pub(crate) version: u64,
    /// Number of the copy among all copies, from 0; its [`Ack`] repeats it.
    pub(crate) number: u64,
    /// The value.
    pub(crate) value: &'a V,
}

/// The receiver's acknowledgement of one copy.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Ack<K> {
    /// Key of the copy.
    pub(crate) key: K,
    /// The newest version of the key that the receiver has seen.
    pub(crate) version: u64,
    /// Number of the copy.
    pub(crate) number: u64,
}

#[derive(Clone, Debug)]
struct Slot<V> {
    value: V,
    version: u64,
    acknowledged: u64,
    /// When to send the value, or to send it again.
    due: Instant,
}

/// The sender's slots for one destination.
///
/// Call [`LatestSender::poll_send`] after [`LatestSender::write`] and [`LatestSender::handle_ack`], and at
/// [`LatestSender::poll_timeout`], as often as the gate allows.
#[derive(Clone, Debug)]
pub(crate) struct LatestSender<K, V> {
    slots: BTreeMap<K, Slot<V>>,
    /// Unacknowledged keys by due time. An entry is stale if its slot is due at another time.
    queue: BTreeMap<(Instant, u64), K>,
    order: u64,
    sent: u64,
    next_number: u64,
    /// Copies that are neither acknowledged nor counted as lost, oldest first.
    flying: VecDeque<(u64, Instant)>,
    /// The last copies counted as lost, oldest first. If an acknowledgement arrives after all, the path
    /// is slower than measured.
    late: VecDeque<(u64, Instant)>,
    loss: f64,
    delay_ns: f64,
    is_lost: bool,
    /// True if an acknowledgement has arrived since [`LatestSender::is_silent`] was called.
    is_heard: bool,
}

impl<K: Ord + Clone, V> LatestSender<K, V> {
    /// Creates an empty set of slots, for a destination with a feedback delay of `delay`.
    #[must_use]
    pub(crate) fn new(delay: Duration) -> Self {
        Self {
            slots: BTreeMap::new(),
            queue: BTreeMap::new(),
            order: 0,
            sent: 0,
            next_number: 0,
            flying: VecDeque::new(),
            late: VecDeque::new(),
            loss: 0.0,
            delay_ns: nanos(delay).max(1) as f64,
            is_lost: false,
            is_heard: false,
        }
    }

    /// Writes `value`, which replaces the key's last value, sent or not. `version` is above those of
    /// the key's earlier values, and above 0.
    pub(crate) fn write(&mut self, now: Instant, key: K, version: u64, value: V) {
        if let Some(slot) = self.slots.get_mut(&key) {
            let waits = slot.acknowledged < slot.version && slot.due <= now;
            slot.version = version;
            slot.value = value;
            if waits {
                // Keeps its place in the queue. Otherwise a key that is written all the time would
                // never be sent.
                return;
            }
            if !self.is_lost {
                slot.due = now;
            }
        } else {
            let slot = Slot { value, version, acknowledged: 0, due: now };
            self.slots.insert(key.clone(), slot);
        }
        if !self.is_lost || self.queue.is_empty() {
            self.enqueue(now, key);
        }
    }

    /// Sends all values again, because the receiver has returned or may have lost them. If it is lost,
    /// sends one copy every 64 feedback delays.
    pub(crate) fn begin_anew(&mut self, now: Instant, is_lost: bool) {
        self.is_lost = is_lost;
        self.queue.clear();
        self.flying.clear();
        self.late.clear();
        for (key, slot) in &mut self.slots {
            slot.acknowledged = 0;
            slot.due = now;
            if !is_lost || self.queue.is_empty() {
                self.order += 1;
                self.queue.insert((now, self.order), key.clone());
            }
        }
    }

    /// Returns true if the receiver is lost.
    #[must_use]
    pub(crate) const fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Returns true if values wait for an acknowledgement and none has arrived since the last call.
    #[must_use]
    pub(crate) fn is_silent(&mut self) -> bool {
        !std::mem::take(&mut self.is_heard) && self.unacknowledged().next().is_some()
    }

    /// Returns a copy of the value that has waited longest, if one is due; the caller is to send it
    /// now. Call this only while the gate is open.
    pub(crate) fn poll_send(&mut self, now: Instant) -> Option<Copy<'_, K, V>> {
        let key = self.poll_key(now)?.clone();
        self.send(now, &key)
    }

    /// Returns the key of the value that [`LatestSender::poll_send`] would return.
    pub(crate) fn poll_key(&mut self, now: Instant) -> Option<&K> {
        self.expire(now);
        loop {
            let entry = self.queue.first_entry()?;
            if entry.key().0 > now {
                return None;
            }
            let due = entry.key().0;
            let slot = self.slots.get(entry.get());
            // If the value was written or sent since, the slot has a later entry.
            if slot.is_some_and(|slot| slot.acknowledged < slot.version && slot.due == due) {
                break;
            }
            entry.remove();
        }
        self.queue.first_key_value().map(|(_, key)| key)
    }

    /// Returns true if the last value of `key` is due.
    #[must_use]
    pub(crate) fn is_due(&self, now: Instant, key: &K) -> bool {
        let slot = self.slots.get(key);
        let is_due = |slot: &Slot<V>| slot.acknowledged < slot.version && slot.due <= now;
        !self.is_lost && slot.is_some_and(is_due)
    }

    /// Returns a copy of the last value of `key` to send, due or not. Returns `None` if the key was
    /// never written.
    pub(crate) fn send(&mut self, now: Instant, key: &K) -> Option<Copy<'_, K, V>> {
        let due = now.plus_nanos(self.resend_ns());
        let slot = self.slots.get_mut(key)?;
        slot.due = due;
        let version = slot.version;
        let number = self.next_number;
        self.next_number += 1;
        self.sent += 1;
        if !self.is_lost {
            self.flying.push_back((number, now));
            if self.flying.len() > MAX_FLYING {
                self.flying.pop_front();
            }
        }
        self.enqueue(due, key.clone());
        let (key, slot) = self.slots.get_key_value(key)?;
        Some(Copy { key, version, number, value: &slot.value })
    }

    /// Returns the number of the next copy.
    #[must_use]
    pub(crate) const fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Raises the number of the next copy to `number`, if that is higher. One copy can then go to
    /// several destinations that each have their own slots.
    pub(crate) fn number_from(&mut self, number: u64) {
        self.next_number = self.next_number.max(number);
    }

    /// Records that the receiver has a value. Returns true if that was not known.
    pub(crate) fn handle_ack(&mut self, now: Instant, ack: &Ack<K>) -> bool {
        self.is_heard = true;
        let mut is_new = false;
        if let Some(slot) = self.slots.get_mut(&ack.key) {
            let version = ack.version.min(slot.version);
            is_new = version > slot.acknowledged;
            slot.acknowledged = slot.acknowledged.max(version);
        }
        if let Some(sent) = take(&mut self.flying, ack.number) {
            self.loss -= LOSS_GAIN * self.loss;
            self.learn_delay(now, sent);
        } else if let Some(sent) = take(&mut self.late, ack.number)
            && self.loss > MAX_LOSS
        {
            // So few copies in time: the path is slower than measured. This one was counted as lost.
            self.loss = (self.loss - LOSS_GAIN).max(0.0);
            self.learn_delay(now, sent);
        }
        is_new
    }

    /// Returns when to call [`LatestSender::poll_send`] next, unless a write or an acknowledgement comes
    /// first.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Returns the version of the last value of `key`.
    #[cfg(test)]
    pub(crate) fn version(&self, key: &K) -> Option<u64> {
        self.slots.get(key).map(|slot| slot.version)
    }

    /// Returns true if a version of `key` or a later one is acknowledged, or the receiver is lost.
    #[must_use]
    pub(crate) fn has_acknowledged(&self, key: &K, version: u64) -> bool {
        self.is_lost || self.slots.get(key).is_none_or(|slot| slot.acknowledged >= version)
    }

    /// Returns the keys whose last value is not acknowledged, with its version and the value; none if
    /// the receiver is lost.
    pub(crate) fn unacknowledged(&self) -> impl Iterator<Item = (&K, u64, &V)> {
        let slots = self.slots.iter().filter(|_| !self.is_lost);
        let waiting = slots.filter(|(_, slot)| slot.acknowledged < slot.version);
        waiting.map(|(key, slot)| (key, slot.version, &slot.value))
    }

    /// Returns the version and the last value of `key`, if it is not acknowledged and the receiver is
    /// not lost.
    pub(crate) fn unacknowledged_of(&self, key: &K) -> Option<(u64, &V)> {
        let slot = self.slots.get(key).filter(|slot| slot.acknowledged < slot.version)?;
        (!self.is_lost).then_some((slot.version, &slot.value))
    }

    /// Returns the number of copies sent.
    #[cfg(test)]
    pub(crate) const fn sent(&self) -> u64 {
        self.sent
    }

    fn enqueue(&mut self, at: Instant, key: K) {
        self.order += 1;
        self.queue.insert((at, self.order), key);
    }

    /// Adds the round trip of a copy to the measured feedback delay.
    fn learn_delay(&mut self, now: Instant, sent: Instant) {
        self.delay_ns += (now.nanos_since(sent) as f64 - self.delay_ns) / 8.0;
    }

    /// Counts copies as lost that were not acknowledged in time.
    fn expire(&mut self, now: Instant) {
        let timeout = (ACK_TIMEOUT * self.delay_ns) as u64;
        while let Some(copy) = self.flying.front().copied() {
            if now.nanos_since(copy.1) <= timeout {
                break;
            }
            self.flying.pop_front();
            self.loss += LOSS_GAIN * (1.0 - self.loss);
            self.late.push_back(copy);
            if self.late.len() > MAX_LATE {
                self.late.pop_front();
            }
        }
    }

    /// Returns how long to wait for an acknowledgement before the next copy, in nanoseconds.
    fn resend_ns(&self) -> u64 {
        if self.is_lost {
            return (LOST_DELAYS * self.delay_ns) as u64;
        }
        // Assumes the same loss in both directions.
        let one_way = (1.0 - (1.0 - self.loss).sqrt()).min(MAX_LOSS);
        let copies = if one_way > 1e-3 { MISSING_LN / one_way.ln() } else { 1.0 };
        let wait = (WITHIN / copies).min(ACK_TIMEOUT);
        (wait * self.delay_ns).max(1.0) as u64
    }
}

/// Removes a copy by its number. Returns when it was sent.
fn take(copies: &mut VecDeque<(u64, Instant)>, number: u64) -> Option<Instant> {
    let at = copies.binary_search_by_key(&number, |(number, _)| *number).ok()?;
    copies.remove(at).map(|(_, sent)| sent)
}

#[cfg(test)]
mod tests;
