//! The modified Ack/Nack protocol between one sender and one receiver (SCore-D paper, section 3.2).
//!
//! The receiver accepts a message if it is the next in order and there is room for it. Otherwise it refuses this
//! message and all that follow, until the sender starts a new *round*. Every frame carries the number of its round;
//! messages of earlier rounds are never accepted. An [`Answer`] is cumulative and idempotent: all messages below
//! `expected` are accepted, and all transmissions of its round below `seen` are answered.
//!
//! A sender is *steady*, or quiescent, when every transmission is answered: no message in the network will be
//! accepted. A stopped sender transmits no messages, so it is steady within a round trip, even if the receiver has no
//! room. The sender detects lost frames by timeout, and starts another round. If it is stopped, it starts that round
//! with a frame without payload, a *fence*.

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::time::Instant;

/// Shortest timeout of an answer, multiplied by [`UNKNOWN`] until a round trip has been measured.
const SHORTEST: Duration = Duration::from_micros(200);
/// Longest timeout of an answer; the timeout doubles each time that an answer is missed.
const LONGEST: Duration = Duration::from_millis(50);
/// Delay before refused messages are sent again; doubles with each refusal, up to `REFUSED_MAX`.
const REFUSED: Duration = Duration::from_micros(20);
const REFUSED_MAX: Duration = Duration::from_millis(1);
/// Factor of the shortest timeout until a round trip has been measured. Many senders may send to one receiver at once,
/// and a timeout that is too short causes needless retransmissions.
const UNKNOWN: u32 = 10;

/// Measured round-trip time, in nanoseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RoundTrip {
    mean: u64,
    /// Mean deviation, in nanoseconds.
    spread: u64,
}

/// Returns whether `a` comes before `b`, modulo 2^32.
pub(crate) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

const fn round_before(a: u16, b: u16) -> bool {
    (a.wrapping_sub(b) as i16) < 0
}

/// An answer of a receiver to a sender.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Answer {
    /// The sender's round to which this is the answer.
    pub(crate) round: u16,
    /// All messages before this one are accepted; `None` if the receiver's context is not running.
    pub(crate) expected: Option<u32>,
    /// All transmissions of the round before this sequence number are answered.
    pub(crate) seen: u32,
    /// True if the rest of the round is refused.
    pub(crate) refused: bool,
}

/// An answer carried by a message to the sender: all received messages of a round are accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PiggybackedAck {
    /// The sender's round.
    pub(crate) round: u16,
    /// All messages before this one are accepted.
    pub(crate) expected: u32,
}

impl PiggybackedAck {
    /// Returns the equivalent [`Answer`].
    pub(crate) const fn answer(self) -> Answer {
        let Self { round, expected } = self;
        Answer { round, expected: Some(expected), seen: expected, refused: false }
    }
}

/// A frame to be sent to a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Transmission {
    /// A message.
    Message {
        /// The round in which it is sent.
        round: u16,
        /// The message's number among those from this sender to this receiver.
        sequence: u32,
        /// The message's number in the sender's FIFO.
        slot: u64,
    },
    /// A frame without payload that announces a new round.
    Fence {
        /// The new round.
        round: u16,
        /// Sequence number of the first message that is not accepted.
        sequence: u32,
    },
}

/// The sender's side of the protocol.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbound {
    /// FIFO numbers of all messages that are not accepted yet, in order.
    waiting: VecDeque<u64>,
    /// Sequence number of the first message of `waiting`.
    acked: u32,
    /// Sequence number of the next message to be sent in this round.
    cursor: u32,
    /// All transmissions of this round before this number are answered.
    answered: u32,
    /// Sequence number of the first message that was never sent.
    high: u32,
    round: u16,
    /// True if messages of an earlier round are unanswered, and no answer of this round has arrived.
    fencing: bool,
    /// True if the fence of this round has been sent.
    fence_sent: bool,
    /// Refused messages are not sent again before this time.
    resend_at: Instant,
    /// When the outstanding answer counts as missed; `None` if none is outstanding.
    deadline: Option<Instant>,
    /// Number of answers missed in a row.
    missed: u32,
    /// Consecutive refusals of the first message.
    refusals: u32,
    /// The transmission whose round trip is being measured, and when it was sent.
    sample: Option<(u32, Instant)>,
    round_trip: Option<RoundTrip>,
}

impl Outbound {
    /// Restores a sender: `acked` is the sequence number of the first message of `waiting`.
    pub(crate) fn resumed(acked: u32, waiting: VecDeque<u64>) -> Self {
        Self { waiting, acked, cursor: acked, answered: acked, high: acked, ..Self::default() }
    }

    /// Resets the sender in place to the state of [`Outbound::resumed`].
    pub(crate) fn restart(&mut self) {
        let (waiting, acked) = (std::mem::take(&mut self.waiting), self.acked);
        *self = Self::resumed(acked, waiting);
    }

    /// Sets the round-trip time that was measured earlier for the same receiver.
    pub(crate) const fn recall(&mut self, round_trip: Option<RoundTrip>) {
        self.round_trip = round_trip;
    }

    /// Appends a message, which has the number `slot` in the FIFO.
    pub(crate) fn push(&mut self, slot: u64) {
        self.waiting.push_back(slot);
    }

    /// Returns the next frame, if one may be sent now.
    ///
    /// At most `window` messages are unanswered at a time. If `stopped`, returns only the fence that the sender needs
    /// to become steady.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        window: u32,
        stopped: bool,
    ) -> Option<Transmission> {
        if stopped {
            let due = self.fencing && !self.fence_sent && self.cursor == self.answered;
            return due.then(|| {
                self.fence_sent = true;
                self.deadline = Some(now + self.timeout_now());
                Transmission::Fence { round: self.round, sequence: self.acked }
            });
        }
        let slot = self.due(now, window)?;
        self.resend_at = Instant::ZERO;
        let sequence = self.cursor;
        self.cursor = sequence.wrapping_add(1);
        if before(self.high, self.cursor) {
            self.high = self.cursor;
        }
        self.sample.get_or_insert((sequence, now));
        if self.deadline.is_none() {
            self.deadline = Some(now + self.timeout_now());
        }
        Some(Transmission::Message { round: self.round, sequence, slot })
    }

    /// Returns the FIFO number of the next message, if it may be sent now.
    pub(crate) fn due(&self, now: Instant, window: u32) -> Option<u64> {
        let ahead = self.cursor.wrapping_sub(self.acked);
        let slot = *self.waiting.get(ahead as usize)?;
        let is_open = self.cursor.wrapping_sub(self.answered) < window;
        (now >= self.resend_at && is_open).then_some(slot)
    }

    /// Handles an answer. Appends the FIFO numbers of newly accepted messages to `freed`. Returns `false` if no
    /// correct receiver would send this answer.
    pub(crate) fn on_answer(&mut self, now: Instant, answer: Answer, freed: &mut Vec<u64>) -> bool {
        let mut progress = false;
        if let Some(expected) = answer.expected {
            if before(self.high, expected) {
                return false;
            }
            if before(self.acked, expected) {
                let taken = expected.wrapping_sub(self.acked);
                freed.extend(self.waiting.drain(..taken as usize));
                self.acked = expected;
                self.refusals = 0;
                progress = true;
            }
            if before(self.cursor, self.acked) {
                self.cursor = self.acked;
            }
            if before(self.answered, self.acked) {
                self.answered = self.acked;
            }
        }
        if answer.round != self.round {
            return round_before(answer.round, self.round);
        }
        if before(self.cursor, answer.seen) {
            return false;
        }
        self.fencing = false;
        self.measure(now, answer.seen);
        if before(self.answered, answer.seen) {
            self.answered = answer.seen;
            progress = true;
        }
        if answer.refused && before(self.acked, self.cursor) {
            self.begin_round();
            let wait = REFUSED.saturating_mul(1 << self.refusals.min(10));
            self.resend_at = now + wait.min(REFUSED_MAX);
            self.refusals += 1;
            self.deadline = None;
            self.missed = 0;
        } else if self.is_steady() {
            self.deadline = None;
            self.missed = 0;
        } else if progress {
            self.missed = 0;
            self.deadline = Some(now + self.timeout_now());
        }
        true
    }

    /// Allows refused messages to be sent at once, because the receiver has room.
    pub(crate) fn on_room(&mut self) {
        self.resend_at = Instant::ZERO;
    }

    /// Handles a timeout of [`Outbound::next_timeout`]: if the answer is late, it counts as missed, and a new round
    /// begins.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|at| at <= now) {
            self.begin_round();
            self.fencing = true;
            self.missed += 1;
            self.deadline = None;
        }
    }

    /// Returns when to call [`Outbound::on_timeout`], or to send again, which is possible from `pump_at` on, unless another
    /// event comes first.
    pub(crate) fn next_timeout(&self, stopped: bool, pump_at: Instant) -> Option<Instant> {
        let unsent = (self.cursor.wrapping_sub(self.acked) as usize) < self.waiting.len();
        let resend = (!stopped && unsent && self.resend_at > Instant::ZERO)
            .then(|| self.resend_at.max(pump_at));
        match (self.deadline, resend) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Returns whether no message in the network would be accepted any more.
    #[must_use]
    pub(crate) fn is_steady(&self) -> bool {
        !self.fencing && self.cursor == self.answered
    }

    /// Returns the sequence number of the first message that is not accepted yet.
    pub(crate) const fn acked(&self) -> u32 {
        self.acked
    }

    /// Returns the FIFO numbers of the messages that are not accepted yet, in order.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u64> + '_ {
        self.waiting.iter().copied()
    }

    /// Returns the number of consecutive refusals of the first message that is not accepted.
    pub(crate) const fn refusals(&self) -> u32 {
        self.refusals
    }

    /// Returns the measured round-trip time.
    pub(crate) const fn round_trip(&self) -> Option<RoundTrip> {
        self.round_trip
    }

    /// Starts a new round: answers of earlier rounds no longer count.
    fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.cursor = self.acked;
        self.answered = self.acked;
        self.fence_sent = false;
        self.sample = None;
    }

    fn measure(&mut self, now: Instant, seen: u32) {
        let Some((_, sent)) = self.sample.filter(|(sequence, _)| before(*sequence, seen)) else {
            return;
        };
        self.sample = None;
        let took = now.nanos_since(sent);
        self.round_trip = Some(match self.round_trip {
            None => RoundTrip { mean: took, spread: took / 2 },
            Some(RoundTrip { mean, spread }) => RoundTrip {
                mean: (mean * 7 + took) / 8,
                spread: (spread * 3 + took.abs_diff(mean)) / 4,
            },
        });
    }

    fn timeout_now(&self) -> Duration {
        let usual = match self.round_trip {
            None => SHORTEST * UNKNOWN,
            Some(RoundTrip { mean, spread }) => {
                Duration::from_nanos(mean + 4 * spread).max(SHORTEST)
            }
        };
        usual.saturating_mul(1 << self.missed.min(10)).min(LONGEST)
    }
}

/// A receiver's decision about a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReceiveDecision {
    /// Accept the message: it is the next in order, and there is room.
    Accept,
    /// Answer without accepting the message: it is a duplicate, or it is refused and will be sent again.
    Answer,
    /// Drop the message: its round is over.
    Drop,
}

/// The receiver's side of the protocol.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Inbound {
    /// Sequence number of the next message to accept.
    expected: u32,
    /// The sender's round, once a frame of it has arrived.
    round: Option<u16>,
    /// All transmissions of the round before this sequence number are answered, or will be by the next answer.
    seen: u32,
    /// True if the rest of the round is refused.
    refused: bool,
    /// Number of transmissions since the last answer.
    unanswered: u32,
    /// True if the sender was refused for lack of room, and must be notified once there is room.
    wants_room: bool,
}

impl Inbound {
    /// Restores a receiver whose next message is `expected`.
    pub(crate) fn resumed(expected: u32) -> Self {
        Self { expected, seen: expected, ..Self::default() }
    }

    /// Handles a message with number `sequence`. `room` is true if there is space for it.
    pub(crate) fn on_message(&mut self, round: u16, sequence: u32, room: bool) -> ReceiveDecision {
        if !self.enter(round, sequence) {
            return ReceiveDecision::Drop;
        }
        self.unanswered += 1;
        let after = sequence.wrapping_add(1);
        if before(self.seen, after) {
            self.seen = after;
        }
        if before(sequence, self.expected) {
            return ReceiveDecision::Answer;
        }
        if sequence == self.expected && room && !self.refused {
            self.expected = after;
            return ReceiveDecision::Accept;
        }
        self.wants_room |= sequence == self.expected && !room;
        self.refused = true;
        ReceiveDecision::Answer
    }

    /// Handles a fence. Returns whether it must be answered.
    pub(crate) fn on_fence(&mut self, round: u16, sequence: u32) -> bool {
        let known = self.enter(round, sequence);
        self.unanswered += u32::from(known);
        known
    }

    /// Returns the answer to send, and counts it as sent; `None` if no frame has arrived.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        self.unanswered = 0;
        let Self { expected, seen, refused, .. } = *self;
        Some(Answer { round: self.round?, expected: Some(expected), seen, refused })
    }

    /// Returns the answer that a message to the sender can carry, and counts it as sent.
    ///
    /// `None` if no answer is due, or messages of the round were refused.
    pub(crate) fn piggyback(&mut self) -> Option<PiggybackedAck> {
        let Self { expected, seen, refused, unanswered, .. } = *self;
        let round = self.round.filter(|_| unanswered > 0 && !refused && seen == expected)?;
        self.unanswered = 0;
        Some(PiggybackedAck { round, expected })
    }

    /// Enters the round of a sender that was refused before this side started, so that the answer lets it send again.
    pub(crate) fn on_greeting(&mut self, round: u16) {
        self.enter(round, self.expected);
    }

    /// Returns the number of transmissions since the last answer.
    pub(crate) const fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// Returns whether the sender must be notified of room, and clears the flag.
    pub(crate) fn take_room_wanted(&mut self) -> bool {
        std::mem::take(&mut self.wants_room)
    }

    /// Returns the sequence number of the next message to accept.
    pub(crate) const fn expected(&self) -> u32 {
        self.expected
    }

    /// Enters `round` if it is new. Returns `false` if it is over.
    fn enter(&mut self, round: u16, sequence: u32) -> bool {
        match self.round {
            Some(current) if current == round => true,
            Some(current) if round_before(round, current) => false,
            _ => {
                self.round = Some(round);
                self.seen = if before(sequence, self.expected) { sequence } else { self.expected };
                self.refused = false;
                self.wants_room = false;
                true
            }
        }
    }
}

#[cfg(test)]
mod tests;
