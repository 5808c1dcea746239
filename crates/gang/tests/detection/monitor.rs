//! Detects termination without suspending the job: Safra's token and Mattern's four counters.
//!
//! Each rank counts the messages it sends and receives, and records when it is idle. Safra's token reads one rank at a
//! time; Mattern's counters read all ranks, at different times. Both report termination only when it is true, but later
//! than a snapshot would.

/// A rank's counters, which the rank updates and a monitor reads.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Activity {
    /// Messages sent.
    pub(super) sent: u64,
    /// Messages received.
    pub(super) received: u64,
    /// True if the rank waits for any message and has nothing else to do.
    pub(super) is_idle: bool,
    /// True if the rank has received a message since the token left it (black, in Safra's terms).
    pub(super) is_black: bool,
}

impl Activity {
    /// Counts a message that the rank has sent.
    pub(super) const fn on_send(&mut self) {
        self.sent += 1;
    }

    /// Counts a message that the rank has received; the rank is active again.
    pub(super) const fn on_receive(&mut self) {
        self.received += 1;
        self.is_idle = false;
        self.is_black = true;
    }
}

/// Safra's token (Dijkstra, EWD 998, 1987). It visits the ranks from the last to the first, and leaves a rank only
/// while the rank is idle.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Token {
    /// Messages sent less messages received, over all ranks that the token has left in this round.
    count: i64,
    is_black: bool,
    /// The rank that holds the token.
    at: usize,
    /// Number of rounds begun.
    rounds: u64,
}

/// Result of [`Token::leave`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TokenMove {
    /// The rank that holds the token is active, so the token stays.
    Waits,
    /// The token has moved to this rank.
    To(usize),
    /// All ranks are idle, and no message is in transit.
    Terminated,
}

impl Token {
    /// Creates a token at rank 0, before its first round.
    #[must_use]
    pub(super) const fn new() -> Self {
        Self { count: 0, is_black: true, at: 0, rounds: 0 }
    }

    /// Returns the rank that holds the token.
    #[must_use]
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// Moves the token to the next rank if the rank that holds it is idle. `rank` is that rank's activity, and `ranks`
    /// the number of ranks.
    pub(super) const fn leave(&mut self, rank: &mut Activity, ranks: usize) -> TokenMove {
        if !rank.is_idle {
            return TokenMove::Waits;
        }
        let balance = rank.sent as i64 - rank.received as i64;
        if self.at == 0 {
            let clean = self.rounds > 0 && !self.is_black && !rank.is_black;
            if clean && self.count + balance == 0 {
                return TokenMove::Terminated;
            }
            *self = Self { count: 0, is_black: false, at: ranks - 1, rounds: self.rounds + 1 };
            rank.is_black = false;
            return TokenMove::To(self.at);
        }
        self.count += balance;
        self.is_black |= rank.is_black;
        rank.is_black = false;
        self.at -= 1;
        TokenMove::To(self.at)
    }
}

/// Mattern's four counters (Distributed Computing 2, 1987): two consecutive sweeps over all ranks.
///
/// The job has terminated if both sweeps find all ranks idle and the same counts, with as many messages sent as
/// received.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct FourCounters {
    last: Option<(u64, u64)>,
    now: (u64, u64),
    all_idle: bool,
    visited: usize,
}

impl FourCounters {
    /// Creates the counters, before the first sweep.
    #[must_use]
    pub(super) const fn new() -> Self {
        Self { last: None, now: (0, 0), all_idle: true, visited: 0 }
    }

    /// Visits a rank. Each sweep visits all ranks once, in any order; `ranks` is their number. Returns `true` if this
    /// visit ends a sweep that proves termination.
    pub(super) fn visit(&mut self, rank: &Activity, ranks: usize) -> bool {
        self.now = (self.now.0 + rank.sent, self.now.1 + rank.received);
        self.all_idle &= rank.is_idle;
        self.visited += 1;
        if self.visited < ranks {
            return false;
        }
        let (sent, received) = self.now;
        let terminated = self.all_idle && sent == received && self.last == Some((sent, received));
        let last = self.all_idle.then_some(self.now);
        *self = Self { last, ..Self::new() };
        terminated
    }
}
