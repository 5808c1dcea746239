//! An output-queued switch: a buffer and a line at each port, and rules for what a full buffer drops.
//!
//! The model takes the time and the arriving pieces, and returns the departing pieces with their times. `sim` drives it
//! in virtual time, and a soft switch in real time, with the same code.

pub mod discard;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::drops::{DropCause, Drops};
use crate::time::{Instant, LineRate, Serializer};

pub use discard::{Discard, DiscardPolicy};

/// A piece of a frame at a switch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Piece {
    /// The frame's number, chosen by the driver of the switch.
    pub frame: u32,
    /// The piece's index, from 0.
    pub index: u16,
    /// True if it is the frame's last piece.
    pub last: bool,
    /// Bytes on the wire.
    pub bytes: u32,
}

/// The order in which a switch port sends waiting pieces. The port itself counts and discards.
#[doc(hidden)]
pub trait Queueing: fmt::Debug + Send {
    /// Adds a piece to the queue.
    fn push(&mut self, piece: Piece);
    /// Takes the piece to send next.
    fn pop(&mut self) -> Option<Piece>;
}

/// A queue that sends pieces in the order of their arrival.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct Fifo(VecDeque<Piece>);

impl Queueing for Fifo {
    fn push(&mut self, piece: Piece) {
        self.0.push_back(piece);
    }

    fn pop(&mut self) -> Option<Piece> {
        self.0.pop_front()
    }
}

/// The capacity of a port's buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Buffer {
    /// Bytes of pieces, with their framing.
    Bytes(u32),
    /// Pieces of any size: the cells of an ATM switch.
    Cells(u32),
}

impl Buffer {
    pub(crate) const fn capacity(self) -> u32 {
        match self {
            Self::Bytes(capacity) | Self::Cells(capacity) => capacity,
        }
    }

    const fn cost(self, piece: &Piece) -> u32 {
        match self {
            Self::Bytes(_) => piece.bytes,
            Self::Cells(_) => 1,
        }
    }
}

/// The moment at which a switch begins to forward a piece.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Forwarding {
    /// After it has received the whole piece.
    StoreAndForward,
    /// After it has received this many bytes of it. If the outgoing line is faster, after it has received the whole piece:
    /// the line would otherwise run out of bytes.
    CutThrough {
        /// Bytes before the forwarding decision.
        header: u32,
    },
}

/// The parameters of a switch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SwitchProfile {
    /// Time from a piece's arrival until it enters an output queue.
    pub latency: Duration,
    /// When a piece is forwarded.
    pub forwarding: Forwarding,
    /// The buffer at each output.
    pub buffer: Buffer,
    /// The rule that selects the pieces to drop when the buffer fills.
    pub discard: DiscardPolicy,
}

impl SwitchProfile {
    /// Creates a profile with store and forward, tail drop, and no latency besides the queue's.
    #[must_use]
    pub const fn new(buffer: Buffer) -> Self {
        Self {
            latency: Duration::ZERO,
            forwarding: Forwarding::StoreAndForward,
            buffer,
            discard: DiscardPolicy::Tail,
        }
    }
}

/// A piece that a port has begun to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[doc(hidden)]
pub struct Departure {
    /// The piece being sent.
    pub piece: Piece,
    /// When its first bit leaves.
    pub begins: Instant,
    /// When its last bit has left; [`Output::next`] is then due.
    pub ends: Instant,
}

/// One output of a switch: a bounded queue before a line.
#[derive(Debug)]
pub struct Output {
    line: Serializer,
    queue: Box<dyn Queueing>,
    discard: Box<dyn Discard>,
    buffer: Buffer,
    /// Occupied space in the buffer's unit, including the piece that is being sent.
    used: u32,
    peak: u32,
    sending: Option<Piece>,
    /// True if the output sends nothing.
    stuck: bool,
    drops: Drops,
}

impl Output {
    /// Creates an output with the given queue and discard rule.
    #[must_use]
    #[doc(hidden)]
    pub fn new(
        rate: LineRate,
        buffer: Buffer,
        queue: Box<dyn Queueing>,
        discard: Box<dyn Discard>,
    ) -> Self {
        Self {
            line: Serializer::new(rate),
            queue,
            discard,
            buffer,
            used: 0,
            peak: 0,
            sending: None,
            stuck: false,
            drops: Drops::default(),
        }
    }

    /// Creates a first-come-first-served output according to `profile`.
    #[must_use]
    #[doc(hidden)]
    pub fn from_profile(rate: LineRate, profile: &SwitchProfile) -> Self {
        let discard = profile.discard.build();
        Self::new(rate, profile.buffer, Box::<Fifo>::default(), discard)
    }

    /// Accepts a piece for this output. `Ok(Some)`: it leaves at once. `Ok(None)`: it waits.
    ///
    /// # Errors
    /// The cause for which the piece is dropped.
    #[doc(hidden)]
    pub fn accept(&mut self, now: Instant, piece: Piece) -> Result<Option<Departure>, DropCause> {
        let cost = self.buffer.cost(&piece);
        let occupancy = discard::Occupancy { used: self.used, capacity: self.buffer.capacity() };
        if let Err(cause) = self.discard.admit(&piece, cost, occupancy) {
            self.drops.add(cause);
            return Err(cause);
        }
        if cost > self.buffer.capacity().saturating_sub(self.used) {
            debug_assert!(false, "a discard rule must refuse a piece that does not fit");
            self.drops.add(DropCause::BufferFull);
            return Err(DropCause::BufferFull);
        }
        self.used += cost;
        self.peak = self.peak.max(self.used);
        if self.sending.is_some() || self.stuck {
            self.queue.push(piece);
            return Ok(None);
        }
        Ok(Some(self.send(now, piece)))
    }

    /// Returns whether the buffer has space for a piece of `bytes` on the wire.
    #[must_use]
    #[doc(hidden)]
    pub const fn has_room(&self, bytes: u32) -> bool {
        let cost = self.buffer.cost(&Piece { frame: 0, index: 0, last: false, bytes });
        cost <= self.buffer.capacity().saturating_sub(self.used)
    }

    /// Handles the end of a departure: returns the next one, if a piece waits.
    #[doc(hidden)]
    pub fn next(&mut self, now: Instant) -> Option<Departure> {
        self.used -= self.sending.take().map_or(0, |piece| self.buffer.cost(&piece));
        if self.stuck {
            return None;
        }
        let piece = self.queue.pop()?;
        Some(self.send(now, piece))
    }

    /// Notifies the discard rule that no more pieces of `frame` follow.
    #[doc(hidden)]
    pub fn forget(&mut self, frame: u32) {
        self.discard.forget(frame);
    }

    /// Stops the output or restarts it (a fault); returns a departure that begins now.
    pub(crate) fn set_stuck(&mut self, now: Instant, stuck: bool) -> Option<Departure> {
        self.stuck = stuck;
        if self.sending.is_some() { None } else { self.next(now) }
    }

    /// Removes all waiting pieces (a fault); the piece that is being sent continues.
    #[doc(hidden)]
    pub fn flush(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while let Some(piece) = self.queue.pop() {
            self.used -= self.buffer.cost(&piece);
            pieces.push(piece);
        }
        pieces
    }

    /// Changes the capacity of the buffer; pieces in it stay.
    pub(crate) fn set_buffer(&mut self, capacity: u32) {
        self.buffer = match self.buffer {
            Buffer::Bytes(_) => Buffer::Bytes(capacity),
            Buffer::Cells(_) => Buffer::Cells(capacity),
        };
    }

    /// Changes the rate of the line; the piece that is being sent keeps its time.
    pub(crate) const fn set_rate(&mut self, rate: LineRate) {
        self.line.set_rate(rate);
    }

    fn send(&mut self, now: Instant, piece: Piece) -> Departure {
        self.sending = Some(piece);
        let ends = self.line.send(now, piece.bytes);
        Departure { piece, begins: now, ends }
    }

    /// Returns the piece that is being sent.
    pub(crate) const fn sending(&self) -> Option<Piece> {
        self.sending
    }

    /// Returns the occupied space in the buffer's unit, including the piece that is being sent.
    #[must_use]
    pub const fn used(&self) -> u32 {
        self.used
    }

    /// Returns the highest occupancy so far.
    #[must_use]
    pub const fn peak(&self) -> u32 {
        self.peak
    }

    /// Returns the numbers of dropped pieces, by cause.
    #[must_use]
    pub const fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Returns the line's rate.
    #[must_use]
    #[doc(hidden)]
    pub const fn rate(&self) -> LineRate {
        self.line.rate()
    }
}
