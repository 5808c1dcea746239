//! The runs from which datagrams were received, with a window of numbers each: a datagram is accepted once.

use std::collections::BTreeMap;

use super::MAX_SKEW;
use super::piece::Stamp;

/// Most runs whose windows are kept. Further runs are refused until one has been silent for long enough.
pub(super) const MAX_SENDERS: usize = 4_096;

/// The window of a run.
#[derive(Debug)]
struct Window {
    highest: u64,
    /// Bit `i`: the number `highest - i` was received.
    received: u128,
    /// Milliseconds since 1970 after which every datagram that was sent so far is too old.
    until: u64,
}

/// The windows of all runs.
#[derive(Debug, Default)]
pub(super) struct Senders(BTreeMap<[u8; 16], Window>);

impl Window {
    const fn is_new(&self, number: u64) -> bool {
        match self.highest.checked_sub(number) {
            None => true,
            Some(age) => age < 128 && self.received & (1 << age) == 0,
        }
    }

    const fn add(&mut self, number: u64) {
        match number.checked_sub(self.highest) {
            Some(more) => {
                self.received = if more < 128 { self.received << more } else { 0 } | 1;
                self.highest = number;
            }
            None => self.received |= 1 << (self.highest - number),
        }
    }
}

impl Senders {
    /// Returns whether a datagram was not received before, as far as its run's window records.
    pub(super) fn is_new(&self, stamp: Stamp) -> bool {
        self.0.get(&stamp.run).is_none_or(|window| window.is_new(stamp.number))
    }

    /// Accepts a new datagram, sent at `sent` by its sender's clock; returns `false` if there are too many
    /// runs.
    pub(super) fn accept(&mut self, millis: u64, stamp: Stamp, sent: u64) -> bool {
        if self.0.len() >= MAX_SENDERS && !self.0.contains_key(&stamp.run) {
            self.0.retain(|_, window| window.until >= millis);
            if self.0.len() >= MAX_SENDERS {
                return false;
            }
        }
        let window = self.0.entry(stamp.run).or_insert(Window {
            highest: stamp.number,
            received: 0,
            until: 0,
        });
        window.add(stamp.number);
        window.until = window.until.max(sent.saturating_add(MAX_SKEW));
        true
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
