//! Modified Ack/Nack: one sender's messages to one receiver (SCore-D paper, section 3.2).
//!
//! The receiver takes a message if it is the next and there is room, and otherwise refuses it and all
//! that follow, until the sender begins again: each time in a new *round*, whose number every frame
//! shows. What comes of an earlier round is never taken any more. An [`Answer`] is cumulative and
//! idempotent: all below `expected` are taken; all below `seen` of its round are answered.
//!
//! A sender is *steady* when every transmission is answered: none is in the network that anyone would
//! take. A stopped sender transmits nothing, so it is steady within a round trip, whatever room
//! there is. Frames that are lost are found out by time: the sender begins another round, and if it is
//! stopped, tells the receiver so with a frame that carries nothing, a *fence*.

use std::collections::VecDeque;
use std::time::Duration;

use midplane_simhw::time::Instant;

/// What the protocol waits for, and how long.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Patience {
    /// Shortest time until an answer is missed; ten times that while no round trip is known.
    pub shortest: Duration,
    /// Longest time until an answer is missed, after it was missed again and again.
    pub longest: Duration,
    /// Until what was refused is sent again, at first; doubles with each refusal.
    pub refused: Duration,
    /// The same at most.
    pub refused_most: Duration,
}

impl Default for Patience {
    /// 200 us, 50 ms; 20 us, 1 ms.
    fn default() -> Self {
        Self {
            shortest: Duration::from_micros(200),
            longest: Duration::from_millis(50),
            refused: Duration::from_micros(20),
            refused_most: Duration::from_millis(1),
        }
    }
}

/// How many times as long as at least an answer is waited for while no round trip is known: many may send
/// to one receiver at once, and what is taken for lost too early is sent again for nothing.
const UNKNOWN: u32 = 10;

/// How long answers take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RoundTrip {
    mean: u64,
    /// Mean deviation.
    spread: u64,
}

/// Whether `a` comes before `b`, modulo 2^32.
pub(crate) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

const fn round_before(a: u16, b: u16) -> bool {
    (a.wrapping_sub(b) as i16) < 0
}

/// What a receiver tells a sender.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Answer {
    /// The sender's round that it answers.
    pub round: u16,
    /// All messages before this one are taken; `None` where the receiver's context is not there.
    pub expected: Option<u32>,
    /// All transmissions of the round before this message are answered.
    pub seen: u32,
    /// The rest of the round is refused.
    pub refused: bool,
}

/// What a message to a sender takes along for it: all that came of a round is taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Taken {
    /// The sender's round.
    pub round: u16,
    /// All messages before this one are taken.
    pub expected: u32,
}

impl Taken {
    /// The answer that it is.
    #[must_use]
    pub const fn answer(self) -> Answer {
        let Self { round, expected } = self;
        Answer { round, expected: Some(expected), seen: expected, refused: false }
    }
}

/// What is to be sent to a peer next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transmission {
    /// A message: its number in the sequence, and in the send buffer.
    Message {
        /// Which round it is sent in.
        round: u16,
        /// Its number among the messages from this sender to this receiver.
        sequence: u32,
        /// Its number in the sender's buffer.
        slot: u64,
    },
    /// Nothing but the news that a round has begun.
    Fence {
        /// Which one.
        round: u16,
        /// The first message that is yet to be taken.
        sequence: u32,
    },
}

/// The sender's side.
#[derive(Clone, Debug, Default)]
pub struct Outbound {
    /// Numbers in the send buffer of all messages that are not taken yet, in order.
    waiting: VecDeque<u64>,
    /// The sequence number of the first of them.
    acked: u32,
    /// The next to be transmitted in this round.
    cursor: u32,
    /// All transmissions of this round before it are answered.
    answered: u32,
    /// Never transmitted: this one and all after it.
    high: u32,
    round: u16,
    /// No answer shows that the receiver knows of this round, and some of an earlier one are open.
    fencing: bool,
    /// The fence of this round has been sent.
    fence_sent: bool,
    /// Nothing is sent again before.
    resend_at: Instant,
    /// An answer is missed then.
    deadline: Option<Instant>,
    /// Times in a row that one was missed.
    missed: u32,
    /// Times in a row that the first message was refused.
    refusals: u32,
    /// One transmission whose answer is timed.
    sample: Option<(u32, Instant)>,
    round_trip: Option<RoundTrip>,
}

impl Outbound {
    /// The sender's side as it was saved: `acked` is the number of the first of `waiting`.
    #[must_use]
    pub fn resumed(acked: u32, waiting: VecDeque<u64>) -> Self {
        Self { waiting, acked, cursor: acked, answered: acked, high: acked, ..Self::default() }
    }

    /// Begins anew, as [resumed](Self::resumed), in place.
    pub(crate) fn restart(&mut self) {
        let (waiting, acked) = (std::mem::take(&mut self.waiting), self.acked);
        *self = Self::resumed(acked, waiting);
    }

    /// Takes up what was known of round trips to the same receiver before.
    pub(crate) const fn recall(&mut self, round_trip: Option<RoundTrip>) {
        self.round_trip = round_trip;
    }

    /// A message is put into the buffer.
    pub fn push(&mut self, slot: u64) {
        self.waiting.push_back(slot);
    }

    /// What may be sent now, at most `window` messages ahead of the answers. If `stopped`, only what
    /// makes it steady.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        patience: &Patience,
        window: u32,
        stopped: bool,
    ) -> Option<Transmission> {
        if stopped {
            let due = self.fencing && !self.fence_sent && self.cursor == self.answered;
            return due.then(|| {
                self.fence_sent = true;
                self.deadline = Some(now + self.patience_now(patience));
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
            self.deadline = Some(now + self.patience_now(patience));
        }
        Some(Transmission::Message { round: self.round, sequence, slot })
    }

    /// The message that may be sent now, by its number in the send buffer.
    #[must_use]
    pub fn due(&self, now: Instant, window: u32) -> Option<u64> {
        let ahead = self.cursor.wrapping_sub(self.acked);
        let slot = *self.waiting.get(ahead as usize)?;
        let is_open = self.cursor.wrapping_sub(self.answered) < window;
        (now >= self.resend_at && is_open).then_some(slot)
    }

    /// The receiver has answered. Puts the numbers of messages that are taken, and whose room in the
    /// buffer is free, into `freed`. Returns `false` for what no receiver would say.
    pub fn on_answer(
        &mut self,
        now: Instant,
        patience: &Patience,
        answer: Answer,
        freed: &mut Vec<u64>,
    ) -> bool {
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
            let wait = patience.refused.saturating_mul(1 << self.refusals.min(10));
            self.resend_at = now + wait.min(patience.refused_most);
            self.refusals += 1;
            self.deadline = None;
            self.missed = 0;
        } else if self.is_steady() {
            self.deadline = None;
            self.missed = 0;
        } else if progress {
            self.missed = 0;
            self.deadline = Some(now + self.patience_now(patience));
        }
        true
    }

    /// There is room again where messages were refused.
    pub fn on_room(&mut self) {
        self.resend_at = Instant::ZERO;
    }

    /// The time has come that [`Outbound::next_timeout`] said: an answer is missed, or refused
    /// messages may be sent again.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|at| at <= now) {
            self.begin_round();
            self.fencing = true;
            self.missed += 1;
            self.deadline = None;
        }
    }

    /// When to call [`Outbound::on_timeout`], if nothing happens before.
    #[must_use]
    pub fn next_timeout(&self, stopped: bool) -> Option<Instant> {
        let unsent = (self.cursor.wrapping_sub(self.acked) as usize) < self.waiting.len();
        let resend =
            (!stopped && unsent && self.resend_at > Instant::ZERO).then_some(self.resend_at);
        match (self.deadline, resend) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether no transmission is in the network that anyone would take.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        !self.fencing && self.cursor == self.answered
    }

    /// The sequence number of the first message that is not taken yet.
    #[must_use]
    pub const fn acked(&self) -> u32 {
        self.acked
    }

    /// Messages that are not taken yet: their numbers in the send buffer, in order.
    pub fn waiting(&self) -> impl Iterator<Item = u64> + '_ {
        self.waiting.iter().copied()
    }

    /// Times in a row that the first of them was refused.
    #[must_use]
    pub const fn refusals(&self) -> u32 {
        self.refusals
    }

    /// What is known of round trips.
    pub(crate) const fn round_trip(&self) -> Option<RoundTrip> {
        self.round_trip
    }

    /// Nothing of this round counts any more.
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

    fn patience_now(&self, patience: &Patience) -> Duration {
        let usual = match self.round_trip {
            None => patience.shortest * UNKNOWN,
            Some(RoundTrip { mean, spread }) => {
                Duration::from_nanos(mean + 4 * spread).max(patience.shortest)
            }
        };
        usual.saturating_mul(1 << self.missed.min(10)).min(patience.longest)
    }
}

/// What a receiver does with a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reception {
    /// Takes it: it is the next, and there is room.
    Take,
    /// Has it already, or will have it again: answers.
    Answer,
    /// Drops it: it is of a round that is over.
    Drop,
}

/// The receiver's side.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Inbound {
    /// The next message to take.
    expected: u32,
    /// The sender's round, once something of it has come.
    round: Option<u16>,
    /// All of the round before this message are answered, or are about to be.
    seen: u32,
    /// The rest of the round is refused.
    refused: bool,
    /// Transmissions since the last answer.
    unanswered: u32,
    /// A refused sender waits to hear that there is room.
    wants_room: bool,
}

impl Inbound {
    /// The receiver's side as it was saved.
    #[must_use]
    pub fn resumed(expected: u32) -> Self {
        Self { expected, seen: expected, ..Self::default() }
    }

    /// Message `sequence` has come; `room` says whether it could be taken.
    pub fn on_message(&mut self, round: u16, sequence: u32, room: bool) -> Reception {
        if !self.enter(round, sequence) {
            return Reception::Drop;
        }
        self.unanswered += 1;
        let after = sequence.wrapping_add(1);
        if before(self.seen, after) {
            self.seen = after;
        }
        if before(sequence, self.expected) {
            return Reception::Answer;
        }
        if sequence == self.expected && room && !self.refused {
            self.expected = after;
            return Reception::Take;
        }
        self.wants_room |= sequence == self.expected && !room;
        self.refused = true;
        Reception::Answer
    }

    /// A fence has come: whether it is to be answered.
    pub fn on_fence(&mut self, round: u16, sequence: u32) -> bool {
        let known = self.enter(round, sequence);
        self.unanswered += u32::from(known);
        known
    }

    /// The answer that is due, which counts as given.
    pub fn answer(&mut self) -> Option<Answer> {
        self.unanswered = 0;
        let Self { expected, seen, refused, .. } = *self;
        Some(Answer { round: self.round?, expected: Some(expected), seen, refused })
    }

    /// The answer that is due, if it is no more than that all is taken; it counts as given.
    pub fn take_along(&mut self) -> Option<Taken> {
        let Self { expected, seen, refused, unanswered, .. } = *self;
        let round = self.round.filter(|_| unanswered > 0 && !refused && seen == expected)?;
        self.unanswered = 0;
        Some(Taken { round, expected })
    }

    /// A sender was turned away in a round, before this side had begun: it may begin again.
    pub fn on_greeting(&mut self, round: u16) {
        self.enter(round, self.expected);
    }

    /// Transmissions since the last answer.
    #[must_use]
    pub const fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// Whether the sender is refused, and is not told in the next answer to anything else.
    #[must_use]
    pub const fn is_refusing(&self) -> bool {
        self.refused
    }

    /// Whether the sender was refused for lack of room, and has not been told that there is some.
    pub fn take_room_wanted(&mut self) -> bool {
        std::mem::take(&mut self.wants_room)
    }

    /// The next message to take.
    #[must_use]
    pub const fn expected(&self) -> u32 {
        self.expected
    }

    /// Goes on with `round`; `false` if it is over.
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
