//! Rings of messages between the ranks of one job on one host. The processes write and read them without the NIC or
//! the daemon. A process may be stopped or killed at any instruction.
//!
//! All rings of a job on a host are in one memory, which each of its processes maps. There is a ring for each ordered
//! pair of ranks. Each rank may have one more ring, its *past*: the messages, with their senders, that the rank had
//! not received when the job was saved.
//!
//! A ring begins with three cache lines of one word each. The sender writes the position after the last message. The
//! receiver writes the position of the first message that is not consumed. The third word is nonzero while the sender
//! waits for room. Positions count bytes and only grow. A message begins at a multiple of 8, with a word that contains
//! its length and its sender; its bytes follow contiguously. The sender publishes a message once it is complete.

mod bells;
mod layout;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::atomic::{Ordering, fence};
use std::task::Context;

use bytes::Bytes;
use midplane_simhw::region::Payload;

use super::memory::Memory;
use crate::names::Rank;
use crate::wait::News;
pub(crate) use bells::Bells;
use bells::OwnBell;
pub(crate) use layout::{Layout, message_bytes};
use layout::{Place, WORD};

/// The length that marks the rest of a ring's memory as skipped.
const SKIPPED: u32 = u32::MAX;
/// Offsets in a ring's head: the sender's position, the receiver's position, and whether the sender waits for room.
const TAIL: usize = 0;
const CONSUMED: usize = 64;
const WANTS_ROOM: usize = 128;
/// Inverse of the part of a ring after whose consumption the receiver must check whether the sender waits for room.
const OFFER_EACH: u64 = 4;

/// The rings of one job on one host, in memory that all its processes map.
#[derive(Clone, Debug)]
pub(crate) struct LocalRings {
    pub(crate) layout: Layout,
    pub(crate) memory: Memory,
    pub(crate) bells: Bells,
}

/// A message that was published and not consumed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Found {
    from: Rank,
    length: usize,
    /// Offset of the message's bytes in the memory.
    at: usize,
    /// Position after the message.
    next: u64,
}

/// Error: a ring has contents that no correct process writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Damaged;

fn word(memory: &Memory, offset: usize) -> u64 {
    memory.word(offset).expect("the layout fits the memory")
}

fn set_word(memory: &Memory, offset: usize, value: u64) {
    memory.write(offset, &value.to_le_bytes()).expect("the layout fits the memory");
}

/// The sender's end of one ring.
#[derive(Debug)]
struct Sender {
    place: Place,
    tail: u64,
    consumed: u64,
    /// The receiver's parked word when this sender last rang its bell.
    rung: u64,
}

impl Sender {
    /// Opens the sender's end, at the position where an earlier process of this rank has stopped.
    fn open(place: Place, memory: &Memory) -> Self {
        let (tail, consumed) =
            (word(memory, place.head + TAIL), word(memory, place.head + CONSUMED));
        Self { place, tail, consumed: consumed.min(tail), rung: 0 }
    }

    /// Returns the position where a message of `length` bytes begins; `None` if there is no room. A ring whose count
    /// would exceed 64 bits has none: a faulty process has written the count.
    fn position(&mut self, memory: &Memory, length: usize) -> Option<u64> {
        let bytes = message_bytes(length) as u64;
        let to_end = self.place.to_end(self.tail);
        let begin = self.tail.checked_add(if bytes > to_end { to_end } else { 0 })?;
        let end = begin.checked_add(bytes)?;
        let fits = |consumed: u64| end - consumed <= self.place.bytes;
        if !fits(self.consumed) {
            let consumed = word(memory, self.place.head + CONSUMED);
            fence(Ordering::Acquire);
            // A faulty receiver may write any count. Counts that it can't have reached are ignored.
            if consumed > self.consumed && consumed <= self.tail {
                self.consumed = consumed;
            }
        }
        fits(self.consumed).then_some(begin)
    }

    fn push(&mut self, memory: &Memory, from: Rank, parts: [&[u8]; 2]) -> bool {
        let length = parts[0].len() + parts[1].len();
        let Some(begin) = self.position(memory, length) else { return false };
        if begin != self.tail {
            set_word(memory, self.place.byte(self.tail), header(SKIPPED, from));
        }
        let at = self.place.byte(begin);
        set_word(memory, at, header(length as u32, from));
        for (at, part) in [(at + WORD, parts[0]), (at + WORD + parts[0].len(), parts[1])] {
            memory.write(at, part).expect("a message has room in its ring");
        }
        self.tail = begin + message_bytes(length) as u64;
        fence(Ordering::Release);
        set_word(memory, self.place.head + TAIL, self.tail);
        true
    }
}

/// Returns whether this value of a rank's parked word means that the rank's process is parked.
const fn is_parked(word: u64) -> bool {
    word % 2 == 1
}

const fn header(length: u32, from: Rank) -> u64 {
    length as u64 | (from.0 as u64) << 32
}

/// The receiver's end of one ring.
#[derive(Debug)]
struct Receiver {
    place: Place,
    /// The sending rank; `None` in the past, whose messages name their senders.
    from: Option<Rank>,
    tail: u64,
    consumed: u64,
    /// The value of `consumed` at the last check of whether the sender waits for room.
    offered: u64,
}

impl Receiver {
    fn open(place: Place, from: Option<Rank>, memory: &Memory) -> Self {
        let consumed = word(memory, place.head + CONSUMED);
        Self { place, from, tail: consumed, consumed, offered: consumed }
    }

    /// Returns the next message, if one was published.
    fn next(&mut self, memory: &Memory, longest: u32) -> Result<Option<Found>, Damaged> {
        if self.consumed == self.tail && !self.see_sent(memory)? {
            return Ok(None);
        }
        let found = self.found(memory, longest, self.consumed)?;
        Ok(Some(found))
    }

    fn see_sent(&mut self, memory: &Memory) -> Result<bool, Damaged> {
        let tail = word(memory, self.place.head + TAIL);
        fence(Ordering::Acquire);
        let unread = tail.checked_sub(self.consumed).ok_or(Damaged)?;
        let is_aligned = (tail | self.consumed).is_multiple_of(WORD as u64);
        if unread > self.place.bytes || !is_aligned {
            return Err(Damaged);
        }
        self.tail = tail;
        Ok(unread > 0)
    }

    /// Returns the message at a position, or after the skipped bytes there.
    fn found(&self, memory: &Memory, longest: u32, position: u64) -> Result<Found, Damaged> {
        let head = word(memory, self.place.byte(position));
        let (length, from) = (head as u32, Rank((head >> 32) as u16));
        let to_end = self.place.to_end(position);
        if length == SKIPPED {
            let begin = position.checked_add(to_end).ok_or(Damaged)?;
            if begin >= self.tail || to_end == self.place.bytes {
                return Err(Damaged);
            }
            return self.found(memory, longest, begin);
        }
        let next = position.checked_add(message_bytes(length as usize) as u64).ok_or(Damaged)?;
        if length > longest || next > self.tail || next - position > to_end {
            return Err(Damaged);
        }
        let (length, at) = (length as usize, self.place.byte(position) + WORD);
        Ok(Found { from: self.from.unwrap_or(from), length, at, next })
    }

    /// Consumes all messages before a position. Returns whether the sender waits for this room and must be woken.
    fn consume(&mut self, memory: &Memory, next: u64) -> bool {
        self.consumed = next;
        // Publishes the room only after the messages were read.
        fence(Ordering::Release);
        set_word(memory, self.place.head + CONSUMED, next);
        let is_due = (next - self.offered) * OFFER_EACH >= self.place.bytes;
        is_due && self.offer(memory)
    }

    /// Returns whether the sender waits for the room that was freed since the last call, and must be woken.
    fn offer(&mut self, memory: &Memory) -> bool {
        if self.offered == self.consumed {
            return false;
        }
        self.offered = self.consumed;
        fence(Ordering::SeqCst);
        let is_waiting = word(memory, self.place.head + WANTS_ROOM) != 0;
        if is_waiting {
            set_word(memory, self.place.head + WANTS_ROOM, 0);
        }
        is_waiting
    }
}

/// The next message of a process, and the index of its ring.
#[derive(Clone, Copy, Debug)]
struct Current {
    receiver: usize,
    found: Found,
}

/// One rank's ends of its job's rings.
#[derive(Debug)]
pub(crate) struct RingEnds {
    rings: LocalRings,
    rank: Rank,
    bell: OwnBell,
    /// Offset of this process's parked word, which is odd while the process is parked. No other process writes it.
    parked: usize,
    /// The value of the parked word. It differs each time that a process of this rank parks.
    parking: u64,
    senders: Vec<Sender>,
    /// Receivers of the pairs, in the order of the layout's ranks, then that of the past, if there is one.
    receivers: Vec<Receiver>,
    /// True while the past may contain messages, which are received before all others.
    has_past: bool,
    /// Index of the receiver that is polled first.
    turn: usize,
    current: Option<Current>,
    /// Ranks whose rings had no room for a message of this rank.
    full: BTreeSet<Rank>,
}

impl RingEnds {
    /// Opens a rank's ends, at the positions of an earlier process of the rank; `None` if the rank has no rings. Wakes
    /// the other ranks that are parked.
    ///
    /// # Panics
    /// If the ranks are processes, and the current runtime's I/O is not enabled.
    pub(crate) fn open(rings: LocalRings, rank: Rank) -> std::io::Result<Option<Self>> {
        let LocalRings { layout, memory, bells } = &rings;
        let Some((parked, own)) = layout.parked(rank).zip(layout.index(rank)) else {
            return Ok(None);
        };
        let bell = OwnBell::open(bells, own)?;
        let parking = word(memory, parked);
        let ends = || layout.ranks().iter().copied().filter(|_| layout.has_pairs());
        let senders = ends().map(|to| Sender::open(layout.pair(rank, to), memory)).collect();
        let receivers =
            ends().map(|from| Receiver::open(layout.pair(from, rank), Some(from), memory));
        let past = layout.past(rank).map(|place| Receiver::open(place, None, memory));
        let has_past = past.is_some();
        let receivers = receivers.chain(past).collect();
        let (turn, current, full) = (0, None, BTreeSet::new());
        let mut ends = Self {
            rings,
            rank,
            bell,
            parked,
            parking,
            senders,
            receivers,
            has_past,
            turn,
            current,
            full,
        };
        ends.unpark();
        // An earlier process may have been killed after it published a message or room, and before it rang.
        fence(Ordering::SeqCst);
        let LocalRings { layout, memory, bells } = &ends.rings;
        for (at, other) in layout.ranks().iter().enumerate().filter(|_| layout.has_pairs()) {
            if layout.parked(*other).is_some_and(|parked| is_parked(word(memory, parked))) {
                bells.ring(at);
            }
        }
        Ok(Some(ends))
    }

    /// Returns whether messages to `to` go into a ring.
    pub(crate) fn leads_to(&self, to: Rank) -> bool {
        self.rings.layout.has_pairs() && self.rings.layout.index(to).is_some()
    }

    /// Puts a message into the ring to `to`. Returns whether there was room.
    ///
    /// # Panics
    /// If no ring [leads](Self::leads_to) there.
    pub(crate) fn push(&mut self, to: Rank, parts: [&[u8]; 2]) -> bool {
        let at = self.rings.layout.index(to).expect("a ring leads there");
        if !self.senders[at].push(&self.rings.memory, self.rank, parts) {
            self.full.insert(to);
            return false;
        }
        self.full.remove(&to);
        fence(Ordering::SeqCst);
        let parked = self.rings.layout.parked(to).map_or(0, |at| word(&self.rings.memory, at));
        // Each sender rings once for each time that the receiver parks: another one may be killed before it rings.
        if is_parked(parked) && std::mem::replace(&mut self.senders[at].rung, parked) != parked {
            self.rings.bells.ring(at);
        }
        true
    }

    /// Finds the next message, which stays the current one until it is consumed. Returns whether there is one.
    pub(crate) fn find(&mut self) -> Result<bool, Damaged> {
        if self.current.is_some() {
            return Ok(true);
        }
        self.unpark();
        let (longest, memory) = (self.rings.layout.longest(), &self.rings.memory);
        let count = self.receivers.len();
        if self.has_past {
            let receiver = count - 1;
            if let Some(found) = self.receivers[receiver].next(memory, longest)? {
                self.current = Some(Current { receiver, found });
                return Ok(true);
            }
            self.has_past = false;
        }
        for step in 0..count {
            let receiver = (self.turn + step) % count;
            if let Some(found) = self.receivers[receiver].next(memory, longest)? {
                self.current = Some(Current { receiver, found });
                return Ok(true);
            }
        }
        self.offer();
        Ok(false)
    }

    /// Wakes ranks that wait for room in their rings to this rank.
    fn offer(&mut self) {
        let LocalRings { layout, memory, bells } = &self.rings;
        for receiver in &mut self.receivers {
            if receiver.offer(memory) {
                let from = receiver.from.and_then(|from| layout.index(from));
                from.into_iter().for_each(|at| bells.ring(at));
            }
        }
    }

    /// Returns whether the past may contain messages, which are received before all others.
    pub(crate) const fn has_past(&self) -> bool {
        self.has_past
    }

    /// Returns whether [`RingEnds::find`] has found a message that is not consumed.
    pub(crate) const fn has_current(&self) -> bool {
        self.current.is_some()
    }

    /// Returns the current message, which [`RingEnds::find`] has found.
    pub(crate) fn current(&self) -> Option<(Rank, Payload<'_>)> {
        let Found { from, length, at, .. } = self.current?.found;
        Some((from, self.rings.memory.view(at, length)?))
    }

    /// Consumes the current message, which [`RingEnds::find`] has found.
    pub(crate) fn consume(&mut self) {
        let Some(Current { receiver, found }) = self.current.take() else { return };
        self.turn = receiver + 1;
        let LocalRings { layout, memory, bells } = &self.rings;
        let end = &mut self.receivers[receiver];
        let is_waited_for = end.consume(memory, found.next);
        if let Some(from) = end.from.filter(|_| is_waited_for).and_then(|from| layout.index(from)) {
            bells.ring(from);
        }
    }

    /// Returns whether one of these events has happened: a message is unread, or a ring that was full may have room.
    pub(crate) fn has_news(&mut self, of: News) -> bool {
        of != News::Room && self.has_unread() || of != News::Message && self.has_room()
    }

    fn has_unread(&self) -> bool {
        let memory = &self.rings.memory;
        let unread = |receiver: &Receiver| {
            receiver.consumed != receiver.tail
                || word(memory, receiver.place.head + TAIL) != receiver.consumed
        };
        self.current.is_some() || self.receivers.iter().any(unread)
    }

    fn has_room(&mut self) -> bool {
        let (LocalRings { layout, memory, .. }, before) = (&self.rings, self.full.len());
        self.full.retain(|to| {
            let sender = layout.index(*to).and_then(|at| self.senders.get_mut(at));
            sender.is_some_and(|it| it.position(memory, layout.longest() as usize).is_none())
        });
        self.full.len() < before
    }

    /// Has the other ranks wake the task of `context` at one of these events. Returns `false` if one may have happened
    /// already.
    pub(crate) fn park(&mut self, context: &mut Context<'_>, until: News) -> bool {
        self.offer();
        let has_rung = self.bell.hears(context);
        self.unpark();
        self.parking = self.parking.wrapping_add(1);
        let LocalRings { layout, memory, .. } = &self.rings;
        set_word(memory, self.parked, self.parking);
        for to in self.full.iter().filter(|_| until != News::Message) {
            set_word(memory, layout.pair(self.rank, *to).head + WANTS_ROOM, 1);
        }
        fence(Ordering::SeqCst);
        let has_news = has_rung || self.has_news(until);
        if has_news {
            self.unpark();
        }
        !has_news
    }

    /// Cancels the wake-up that [`RingEnds::park`] has requested.
    fn unpark(&mut self) {
        if is_parked(self.parking) {
            self.parking = self.parking.wrapping_add(1);
            set_word(&self.rings.memory, self.parked, self.parking);
        }
    }
}

/// The messages in a rank's rings that the rank has not consumed.
#[derive(Debug, Default)]
pub(crate) struct Unreceived {
    /// Senders and bytes. Messages of one sender are in order.
    pub(crate) messages: Vec<(Rank, Bytes)>,
    /// Ranks whose ring to this rank has no room for the longest message.
    pub(crate) full: Vec<Rank>,
}

impl LocalRings {
    /// Reads the messages that a rank has not consumed. No process may use the rank's rings meanwhile.
    pub(crate) fn unreceived(&self, rank: Rank) -> Result<Unreceived, Damaged> {
        let Self { layout, memory, .. } = self;
        let mut all = Unreceived::default();
        let pairs = layout.ranks().iter().map(|from| (layout.pair(*from, rank), Some(*from)));
        let past = layout.past(rank).map(|place| (place, None));
        for (place, from) in past.into_iter().chain(pairs.filter(|_| layout.has_pairs())) {
            let mut receiver = Receiver::open(place, from, memory);
            // The sender's position is read once: a process that runs nevertheless could send without an end.
            receiver.see_sent(memory)?;
            while receiver.consumed != receiver.tail {
                let found = receiver.found(memory, layout.longest(), receiver.consumed)?;
                let view = memory.view(found.at, found.length).ok_or(Damaged)?;
                all.messages.push((found.from, Bytes::from(view.to_vec())));
                receiver.consumed = found.next;
            }
            let longest = layout.longest() as usize;
            let is_full = |from: &Rank| {
                Sender::open(layout.pair(*from, rank), memory).position(memory, longest).is_none()
            };
            all.full.extend(from.filter(is_full));
        }
        Ok(all)
    }

    /// Fills a rank's past, for which the layout has reserved space for these messages.
    ///
    /// # Errors
    /// [`Damaged`] if the messages don't fit.
    pub(crate) fn fill_past<'a>(
        &self,
        rank: Rank,
        messages: impl IntoIterator<Item = (Rank, &'a [u8])>,
    ) -> Result<(), Damaged> {
        let mut sender = self.layout.past(rank).map(|place| Sender::open(place, &self.memory));
        let mut push = |(from, bytes)| {
            sender.as_mut().is_some_and(|it| it.push(&self.memory, from, [bytes, &[]]))
        };
        if messages.into_iter().all(&mut push) { Ok(()) } else { Err(Damaged) }
    }
}
