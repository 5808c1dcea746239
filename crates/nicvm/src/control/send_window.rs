//! The send window to one peer: numbering, loss detection, resends.

use std::collections::VecDeque;

use midplane_simhw::time::Instant;

use super::message::{Address, Body};
use super::receive_window::{Acknowledgement, MAX_WINDOW};
use crate::planted::{self, Bug};

/// Number of later-sent messages whose acknowledgement shows an earlier one to be lost (RFC 6675).
const PASSED_BY: u8 = 3;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fate {
    Waiting,
    UnderWay,
    Lost,
    Arrived,
}

#[derive(Clone, Copy, Debug)]
struct Outgoing {
    to: Address,
    body: Body,
    fate: Fate,
    /// Position of its last transmission among all transmissions of this window.
    order: u64,
    sent_at: Instant,
    transmissions: u32,
    /// Acknowledged messages that were sent after it.
    passed: u8,
    timed_out: bool,
}

/// One message to put on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outbound {
    pub(super) index: usize,
    pub(super) sequence: u32,
    pub(super) to: Address,
    pub(super) again: bool,
}

/// The result of one acknowledgement.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Acknowledged {
    /// Messages acknowledged for the first time.
    pub(super) arrived: u64,
    /// Round trip, in nanoseconds, of the highest-numbered message, if it was sent once and is acknowledged for the
    /// first time.
    pub(super) sample: Option<u64>,
    /// True if a message that was sent once is among those acknowledged.
    pub(super) sent_once: bool,
}

/// The sending end of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct SendWindow {
    /// The oldest is first; the messages of the window precede those behind it.
    queue: VecDeque<Outgoing>,
    /// Number of the oldest.
    first: u32,
    /// Number of messages at the front that have been on the wire.
    begun: usize,
    orders: u64,
}

impl SendWindow {
    /// Drops all messages and returns how many. The next is number 0.
    pub(super) fn reset(&mut self) -> usize {
        let dropped = self.queue.len();
        self.queue.clear();
        self.queue.shrink_to_fit();
        self.first = 0;
        self.begun = 0;
        dropped
    }

    /// Appends a message.
    pub(super) fn push(&mut self, to: Address, body: Body) {
        self.queue.push_back(Outgoing {
            to,
            body,
            fate: Fate::Waiting,
            order: 0,
            sent_at: Instant::ZERO,
            transmissions: 0,
            passed: 0,
            timed_out: false,
        });
    }

    /// Chooses the next message to transmit and notes its transmission: the oldest lost one, else the first of the
    /// window that has not been on the wire.
    pub(super) fn on_transmit(&mut self, now: Instant, window: usize) -> Option<Outbound> {
        let index = self.next(window)?;
        let message = &mut self.queue[index];
        self.orders += 1;
        message.order = self.orders;
        message.fate = Fate::UnderWay;
        message.sent_at = now;
        message.passed = 0;
        message.transmissions = message.transmissions.saturating_add(1);
        self.begun = self.begun.max(index + 1);
        Some(Outbound {
            index,
            sequence: self.first.wrapping_add(index as u32),
            to: message.to,
            again: message.transmissions > 1,
        })
    }

    /// Applies an acknowledgement. Returns `None` if it names messages that were never sent.
    pub(super) fn on_acknowledgement(
        &mut self,
        now: Instant,
        said: &Acknowledgement,
    ) -> Option<Acknowledged> {
        let before = said.expected.wrapping_sub(self.first);
        if (before as i32) < 0 {
            return Some(Acknowledged::default()); // overtaken by a later one
        }
        let before = before as usize;
        let beyond = (u32::BITS - said.beyond.leading_zeros()) as usize;
        if before > self.begun || (beyond > 0 && before + 1 + beyond > self.begun) {
            return None;
        }
        let mut orders = [0; 2 * MAX_WINDOW as usize];
        let mut acknowledged = Acknowledged::default();
        for index in (0..before).chain(said.beyond_indices(before)) {
            self.on_arrived(now, index, said.delay, &mut acknowledged, &mut orders);
        }
        self.note_lost(&orders[..acknowledged.arrived as usize]);
        while self.queue.front().is_some_and(|message| message.fate == Fate::Arrived) {
            self.queue.pop_front();
            self.first = self.first.wrapping_add(1);
            self.begun -= 1;
        }
        Some(acknowledged)
    }

    /// Marks the oldest message as lost, because no acknowledgement came in time.
    pub(super) fn on_timeout(&mut self) {
        if let Some(oldest) = self.queue.front_mut().filter(|oldest| oldest.transmissions > 0) {
            oldest.fate = Fate::Lost;
            oldest.timed_out = true;
        }
    }

    /// Returns whether a message may be transmitted now.
    pub(super) fn has_next(&self, window: usize) -> bool {
        self.next(window).is_some()
    }

    /// Returns the bytes of the message that [`SendWindow::on_transmit`] chose.
    pub(super) fn body(&self, index: usize) -> &[u8] {
        &self.queue[index].body
    }

    /// Returns how many messages are under way or wait.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether any message has been on the wire and is not acknowledged.
    pub(super) const fn is_under_way(&self) -> bool {
        self.begun > 0
    }

    fn next(&self, window: usize) -> Option<usize> {
        let lost = self.queue.iter().take(self.begun).position(|m| m.fate == Fate::Lost);
        let lost = lost.filter(|_| !planted::is(Bug::LossForgotten));
        lost.or_else(|| (self.begun < window.min(self.queue.len())).then_some(self.begun))
    }

    fn on_arrived(
        &mut self,
        now: Instant,
        index: usize,
        delay: u32,
        acknowledged: &mut Acknowledged,
        orders: &mut [u64],
    ) {
        let message = &mut self.queue[index];
        acknowledged.sample = None; // only the highest number's arrival goes with the delay
        if message.fate == Fate::Arrived {
            return;
        }
        message.fate = Fate::Arrived;
        orders[acknowledged.arrived as usize] = message.order;
        acknowledged.arrived += 1;
        if message.transmissions == 1 {
            acknowledged.sent_once = true;
            let trip = now.nanos_since(message.sent_at);
            acknowledged.sample = (delay < u32::MAX).then(|| trip.saturating_sub(u64::from(delay)));
        }
    }

    /// Marks messages as lost that [`PASSED_BY`] later ones have passed. If a message that was retransmitted after a
    /// timeout is now acknowledged, also marks all messages sent before that resend.
    fn note_lost(&mut self, arrived: &[u64]) {
        let window = self.queue.iter().take(self.begun);
        let answered = window.filter(|m| m.timed_out && arrived.contains(&m.order));
        let retransmitted = answered.map(|m| m.order).max().unwrap_or(0);
        for message in self.queue.iter_mut().take(self.begun) {
            if message.fate != Fate::UnderWay {
                continue;
            }
            let later = arrived.iter().filter(|&&order| order > message.order).count() as u8;
            message.passed = message.passed.saturating_add(later);
            if message.passed >= PASSED_BY || message.order < retransmitted {
                message.fate = Fate::Lost;
                message.timed_out = false;
            }
        }
    }
}

impl Acknowledgement {
    /// Returns the indices in the queue of the messages that arrived out of order; `before` is the index of `expected`.
    fn beyond_indices(&self, before: usize) -> impl Iterator<Item = usize> + use<> {
        let beyond = self.beyond;
        (0..u32::BITS as usize)
            .filter(move |bit| beyond & (1 << bit) != 0)
            .map(move |bit| before + 1 + bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window_of(messages: u8) -> SendWindow {
        let mut window = SendWindow::default();
        for number in 0..messages {
            window.push(Address::default(), Body::new(&[number]).unwrap());
        }
        window
    }

    fn transmit_all(window: &mut SendWindow) -> Vec<u32> {
        std::iter::from_fn(|| window.on_transmit(Instant::ZERO, 32)).map(|m| m.sequence).collect()
    }

    fn said(expected: u32, beyond: u32) -> Acknowledgement {
        Acknowledgement { expected, beyond, delay: 0 }
    }

    #[test]
    fn three_later_arrivals_resend_the_one_that_is_missing() {
        let mut window = window_of(6);
        assert_eq!(transmit_all(&mut window), [0, 1, 2, 3, 4, 5]);
        window.on_acknowledgement(Instant::ZERO, &said(1, 0b1)).unwrap();
        window.on_acknowledgement(Instant::ZERO, &said(1, 0b11)).unwrap();
        assert_eq!(transmit_all(&mut window), []);
        window.on_acknowledgement(Instant::ZERO, &said(1, 0b111)).unwrap();
        assert_eq!(transmit_all(&mut window), [1]);
        window.on_acknowledgement(Instant::ZERO, &said(1, 0b1111)).unwrap();
        assert_eq!(transmit_all(&mut window), [], "nothing was sent after the resend");
    }

    #[test]
    fn a_timeout_resends_one_message_and_its_answer_marks_other_lost_ones() {
        let mut window = window_of(4);
        transmit_all(&mut window);
        window.on_timeout();
        assert_eq!(transmit_all(&mut window), [0]);
        let acknowledged = window.on_acknowledgement(Instant::ZERO, &said(1, 0)).unwrap();
        assert_eq!(acknowledged, Acknowledged { arrived: 1, sample: None, sent_once: false });
        assert_eq!(transmit_all(&mut window), [1, 2, 3]);
    }

    #[test]
    fn acknowledgements_of_unsent_messages_are_refused() {
        let mut window = window_of(3);
        assert_eq!(window.on_acknowledgement(Instant::ZERO, &said(1, 0)), None);
        transmit_all(&mut window);
        assert_eq!(window.on_acknowledgement(Instant::ZERO, &said(4, 0)), None);
        assert_eq!(window.on_acknowledgement(Instant::ZERO, &said(0, 0b100)), None);
        assert_eq!(window.on_acknowledgement(Instant::ZERO, &said(2, u32::MAX)), None);
        assert!(window.on_acknowledgement(Instant::ZERO, &said(3, 0)).is_some());
        let old = window.on_acknowledgement(Instant::ZERO, &said(1, 0)).unwrap();
        assert_eq!((old.arrived, window.len()), (0, 0));
    }
}
