//! The time of a NIC's turns.

use std::cell::Cell;

use crate::live::clock::Clock;
use crate::time::Instant;

/// The time of a turn: constant within it, and read from the clock at its first use.
#[derive(Debug)]
pub(crate) struct TurnTime {
    last: Cell<Instant>,
    is_read: Cell<bool>,
}

impl TurnTime {
    /// Reads the clock, and takes that as the time of the first turn.
    pub(super) fn new() -> Self {
        Self { last: Cell::new(Clock::now()), is_read: Cell::new(true) }
    }

    /// Begins a turn: the next [`TurnTime::get`] reads the clock.
    #[inline]
    pub(crate) fn renew(&self) {
        self.is_read.set(false);
    }

    /// Begins a turn, and reads the clock at once.
    pub(crate) fn read(&self) -> Instant {
        self.renew();
        self.get()
    }

    /// Returns the time of this turn.
    #[inline]
    pub(crate) fn get(&self) -> Instant {
        if !self.is_read.replace(true) {
            self.last.set(Clock::now());
        }
        self.last.get()
    }

    /// Returns the last reading, which is of this turn or an earlier one.
    #[inline]
    pub(crate) const fn last(&self) -> Instant {
        self.last.get()
    }
}
