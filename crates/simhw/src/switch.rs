//! An output-queued switch: a buffer and a line at each port, and rules for what is kept.
//!
//! The model is told the time and what arrives, and answers what leaves when. `sim` drives it in
//! virtual time, a soft switch in real time: the same code.

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
    /// Which frame, to whoever drives the switch.
    pub frame: u32,
    /// Which piece, from 0.
    pub index: u16,
    /// Whether it is the frame's last.
    pub last: bool,
    /// Bytes on the wire.
    pub bytes: u32,
}

/// How a switch port orders what waits. The port counts and discards; this orders.
pub trait Queueing: fmt::Debug + Send {
    /// Takes one more piece.
    fn push(&mut self, piece: Piece);
    /// The piece to send next.
    fn pop(&mut self) -> Option<Piece>;
}

/// First come, first served.
#[derive(Debug, Default)]
pub struct Fifo(VecDeque<Piece>);

impl Queueing for Fifo {
    fn push(&mut self, piece: Piece) {
        self.0.push_back(piece);
    }

    fn pop(&mut self) -> Option<Piece> {
        self.0.pop_front()
    }
}

/// How much a port's buffer holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Buffer {
    /// Bytes of pieces, with their framing.
    Bytes(u32),
    /// Pieces, whatever their size: the cells of an ATM switch.
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

/// When a switch starts to send a piece on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Forwarding {
    /// Once it has it whole.
    StoreAndForward,
    /// Once it has this many bytes of it.
    CutThrough {
        /// Bytes to decide by.
        header: u32,
    },
}

/// What a switch is like.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SwitchProfile {
    /// From a piece's arrival to its place in an output queue.
    pub latency: Duration,
    /// When a piece is sent on.
    pub forwarding: Forwarding,
    /// The buffer at each output.
    pub buffer: Buffer,
    /// What is dropped when it fills.
    pub discard: DiscardPolicy,
}

impl SwitchProfile {
    /// Store and forward, tail drop, no latency beside the queue's.
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
pub struct Departure {
    /// What is sent.
    pub piece: Piece,
    /// Its first bit leaves.
    pub begins: Instant,
    /// Its last bit has left; [`Output::next`] is due then.
    pub ends: Instant,
}

/// One output of a switch: a bounded queue before a line.
#[derive(Debug)]
pub struct Output {
    line: Serializer,
    queue: Box<dyn Queueing>,
    discard: Box<dyn Discard>,
    buffer: Buffer,
    /// In the buffer's unit, with what is being sent.
    used: u32,
    peak: u32,
    /// The buffer's cost of what is being sent.
    sending: Option<u32>,
    /// Nothing is sent.
    stuck: bool,
    drops: Drops,
}

impl Output {
    /// An output with a queue and a discard rule of its own.
    #[must_use]
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

    /// An output as the profile says, first come first served.
    #[must_use]
    pub fn from_profile(rate: LineRate, profile: &SwitchProfile) -> Self {
        let discard = profile.discard.build();
        Self::new(rate, profile.buffer, Box::<Fifo>::default(), discard)
    }

    /// A piece for this output. `Ok(Some)`: it leaves at once; `Ok(None)`: it waits.
    ///
    /// # Errors
    /// The cause for which it was dropped.
    pub fn accept(&mut self, now: Instant, piece: Piece) -> Result<Option<Departure>, DropCause> {
        let cost = self.buffer.cost(&piece);
        let occupancy = discard::Occupancy { used: self.used, capacity: self.buffer.capacity() };
        if let Err(cause) = self.discard.admit(&piece, cost, occupancy) {
            self.drops.add(cause);
            return Err(cause);
        }
        if cost > self.buffer.capacity().saturating_sub(self.used) {
            debug_assert!(false, "a rule refuses what does not fit");
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

    /// Whether the buffer has room for a piece of so many bytes on the wire.
    #[must_use]
    pub const fn has_room(&self, bytes: u32) -> bool {
        let cost = self.buffer.cost(&Piece { frame: 0, index: 0, last: false, bytes });
        cost <= self.buffer.capacity().saturating_sub(self.used)
    }

    /// The line is free: what leaves next, if anything waits.
    pub fn next(&mut self, now: Instant) -> Option<Departure> {
        self.used -= self.sending.take().unwrap_or(0);
        if self.stuck {
            return None;
        }
        let piece = self.queue.pop()?;
        Some(self.send(now, piece))
    }

    /// No more pieces of `frame` come: whatever is remembered of it can go.
    pub fn forget(&mut self, frame: u32) {
        self.discard.forget(frame);
    }

    /// Sends nothing more, or again (a fault); what leaves at once then.
    pub fn set_stuck(&mut self, now: Instant, stuck: bool) -> Option<Departure> {
        self.stuck = stuck;
        if self.sending.is_some() { None } else { self.next(now) }
    }

    /// Takes out all that waits (a fault): what is being sent goes on.
    pub fn flush(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while let Some(piece) = self.queue.pop() {
            self.used -= self.buffer.cost(&piece);
            pieces.push(piece);
        }
        pieces
    }

    /// Holds so much from now on; what is in the buffer stays.
    pub fn set_buffer(&mut self, capacity: u32) {
        self.buffer = match self.buffer {
            Buffer::Bytes(_) => Buffer::Bytes(capacity),
            Buffer::Cells(_) => Buffer::Cells(capacity),
        };
    }

    /// The line has another rate from now on; what is being sent keeps its time.
    pub const fn set_rate(&mut self, rate: LineRate) {
        self.line.set_rate(rate);
    }

    fn send(&mut self, now: Instant, piece: Piece) -> Departure {
        self.sending = Some(self.buffer.cost(&piece));
        let ends = self.line.send(now, piece.bytes);
        Departure { piece, begins: now, ends }
    }

    /// What is in the buffer, in its unit, with what is being sent.
    #[must_use]
    pub const fn used(&self) -> u32 {
        self.used
    }

    /// The most that was ever in the buffer.
    #[must_use]
    pub const fn peak(&self) -> u32 {
        self.peak
    }

    /// Pieces dropped, by cause.
    #[must_use]
    pub const fn drops(&self) -> &Drops {
        &self.drops
    }

    /// The line's rate.
    #[must_use]
    pub const fn rate(&self) -> LineRate {
        self.line.rate()
    }
}
