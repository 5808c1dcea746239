//! The receive window of one peer: order, duplicates, acknowledgements.

use midplane_simhw::time::Instant;

use super::message::{Address, Body};
use crate::planted::{self, Bug};

/// Messages that one acknowledgement tells apart, and so the most that may be under way.
pub(super) const MAX_WINDOW: u16 = 32;

/// Unacknowledged messages at which an acknowledgement leaves without delay.
const ACKNOWLEDGE_EVERY: u32 = 2;

/// A receiver's report of which messages have arrived.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Acknowledgement {
    /// Number of the first message that has not arrived.
    pub(super) expected: u32,
    /// Bit i: message `expected + 1 + i` has arrived.
    pub(super) beyond: u32,
    /// Nanoseconds between the arrival of the highest number and this acknowledgement;
    /// `u32::MAX` for longer.
    pub(super) delay: u32,
}

/// The classification of a message on its arrival.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Arrival {
    /// The next one: deliver it, then what [`ReceiveWindow::next_kept`] returns.
    InOrder,
    /// Too early, and kept.
    Kept,
    /// It had arrived before.
    Duplicate,
    /// Beyond the window of any correct sender.
    Beyond,
}

/// The receiving end of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceiveWindow {
    expected: u32,
    beyond: u32,
    /// Early messages, by number modulo the length; empty until a first message arrives early.
    kept: Vec<Option<(Address, Body)>>,
    highest: Option<(u32, Instant)>,
    /// Messages that arrived since the last acknowledgement left.
    unacknowledged: u32,
    due: bool,
}

impl ReceiveWindow {
    /// Restarts from message 0; the capacity stays.
    pub(super) fn reset(&mut self) {
        self.kept.fill(None);
        let kept = std::mem::take(&mut self.kept);
        let beyond = if planted::is(Bug::EarlySurvives) { self.beyond } else { 0 };
        *self = Self { kept, beyond, ..Self::default() };
    }

    /// Classifies message `sequence`, which has arrived, and keeps it if it is early.
    pub(super) fn on_arrival(
        &mut self,
        now: Instant,
        sequence: u32,
        to: Address,
        body: &Body,
    ) -> Arrival {
        let ahead = sequence.wrapping_sub(self.expected);
        if ahead as i32 >= i32::from(MAX_WINDOW) {
            return Arrival::Beyond;
        }
        if (ahead as i32) < 0 || (ahead > 0 && self.beyond & (1 << (ahead - 1)) != 0) {
            // The sender has missed our acknowledgement.
            self.due = true;
            return Arrival::Duplicate;
        }
        self.note_highest(now, sequence);
        // A message that opens or fills a gap is acknowledged at once.
        self.unacknowledged += 1;
        self.due |= self.beyond != 0 || ahead > 0 || self.unacknowledged >= ACKNOWLEDGE_EVERY;
        if ahead == 0 {
            self.expected = self.expected.wrapping_add(1);
            return Arrival::InOrder;
        }
        self.beyond |= 1 << (ahead - 1);
        self.keep(sequence, to, body);
        Arrival::Kept
    }

    /// Returns the next message that had arrived early. Call it after [`Arrival::InOrder`] until it returns `None`.
    pub(super) fn next_kept(&mut self) -> Option<(Address, Body)> {
        let here = self.beyond & 1 != 0;
        self.beyond >>= 1;
        if !here {
            return None;
        }
        let place = place(self.expected);
        self.expected = self.expected.wrapping_add(1);
        self.kept[place].take()
    }

    /// Ends the delay in which an acknowledgement waits for a message to ride on.
    pub(super) const fn on_delay_over(&mut self) {
        self.due = self.due || self.unacknowledged > 0;
    }

    /// Returns the acknowledgement that leaves now.
    pub(super) fn on_transmit(&mut self, now: Instant) -> Acknowledgement {
        self.due = false;
        self.unacknowledged = 0;
        let delay = self.highest.map_or(0, |(_, at)| now.nanos_since(at));
        let skipped = u32::from(self.beyond != 0 && planted::is(Bug::AckMissing));
        Acknowledgement {
            expected: self.expected.wrapping_add(skipped),
            beyond: self.beyond >> skipped,
            delay: u32::try_from(delay).unwrap_or(u32::MAX),
        }
    }

    /// Returns whether an acknowledgement must leave now.
    pub(super) const fn is_due(&self) -> bool {
        self.due
    }

    /// Returns whether a received message has not been acknowledged.
    pub(super) const fn is_owed(&self) -> bool {
        self.due || self.unacknowledged > 0
    }

    fn note_highest(&mut self, now: Instant, sequence: u32) {
        if self.highest.is_none_or(|(highest, _)| (sequence.wrapping_sub(highest) as i32) > 0) {
            self.highest = Some((sequence, now));
        }
    }

    fn keep(&mut self, sequence: u32, to: Address, body: &Body) {
        if self.kept.is_empty() {
            self.kept = vec![None; usize::from(MAX_WINDOW)];
        }
        self.kept[place(sequence)] = Some((to, *body));
    }
}

const fn place(sequence: u32) -> usize {
    (sequence % MAX_WINDOW as u32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arrive(window: &mut ReceiveWindow, sequence: u32, delivered: &mut Vec<u32>) -> Arrival {
        let body = Body::new(&sequence.to_le_bytes()).unwrap();
        let arrival = window.on_arrival(Instant::ZERO, sequence, Address::default(), &body);
        if arrival == Arrival::InOrder {
            delivered.push(sequence);
            while let Some((_, body)) = window.next_kept() {
                delivered.push(u32::from_le_bytes(body[..].try_into().unwrap()));
            }
        }
        arrival
    }

    proptest! {
        #[test]
        fn any_arrivals_deliver_each_number_once_and_in_order(
            start: u32,
            offsets in proptest::collection::vec(0_u32..40, 0..200),
        ) {
            let mut window = ReceiveWindow { expected: start, ..ReceiveWindow::default() };
            let (mut delivered, mut arrived) = (Vec::new(), std::collections::BTreeSet::new());
            for offset in offsets {
                let before = delivered.len() as u32;
                let arrival = arrive(&mut window, start.wrapping_add(offset), &mut delivered);
                let beyond = offset >= before + u32::from(MAX_WINDOW);
                prop_assert_eq!(arrival == Arrival::Beyond, beyond);
                if !beyond {
                    prop_assert_eq!(arrival == Arrival::Duplicate, !arrived.insert(offset));
                }
                let next = (0..).find(|offset| !arrived.contains(offset)).unwrap();
                let expected: Vec<u32> = (0..next).map(|offset| start.wrapping_add(offset)).collect();
                prop_assert_eq!(&delivered, &expected);
                let said = window.on_transmit(Instant::ZERO);
                prop_assert_eq!(said.expected, start.wrapping_add(next));
                for bit in 0..32 {
                    prop_assert_eq!(said.beyond & (1 << bit) != 0, arrived.contains(&(next + 1 + bit)));
                }
            }
        }
    }

    #[test]
    fn every_second_message_and_every_gap_is_acknowledged_at_once() {
        let (mut window, mut delivered) = (ReceiveWindow::default(), Vec::new());
        arrive(&mut window, 0, &mut delivered);
        assert!(!window.is_due() && window.is_owed());
        arrive(&mut window, 1, &mut delivered);
        assert!(window.is_due());
        let _ = window.on_transmit(Instant::ZERO);
        arrive(&mut window, 3, &mut delivered);
        assert!(window.is_due(), "a gap");
        let _ = window.on_transmit(Instant::ZERO);
        arrive(&mut window, 2, &mut delivered);
        assert!(window.is_due(), "the gap is filled");
        let _ = window.on_transmit(Instant::ZERO);
        arrive(&mut window, 2, &mut delivered);
        assert!(window.is_due(), "a duplicate");
    }
}
