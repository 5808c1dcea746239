//! Termination detection that never stops the job: Safra's token and Mattern's four counters.
//!
//! Each rank counts the messages that it has sent and received, and says when it is idle; both
//! algorithms look at that, one rank at a time or all at once but at different times. They announce
//! only what is so, though later than a snapshot would.

/// What a monitor knows of one rank: the rank itself keeps it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Activity {
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Whether it waits for a message, whatever it is, and has nothing else to do.
    pub is_idle: bool,
    /// Whether it has received something since the token left it: Safra's black.
    pub is_black: bool,
}

impl Activity {
    /// It has sent a message.
    pub const fn on_send(&mut self) {
        self.sent += 1;
    }

    /// It has received a message, and is at work.
    pub const fn on_receive(&mut self) {
        self.received += 1;
        self.is_idle = false;
        self.is_black = true;
    }
}

/// Safra's token (Dijkstra, EWD 998, 1987): it goes round the ranks from the last to the first, and
/// leaves one only while that is idle.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Token {
    /// Sent less received, of all ranks that it has left in this round.
    count: i64,
    is_black: bool,
    /// The rank where it is.
    at: usize,
    /// Rounds that were begun.
    rounds: u64,
}

/// What became of a token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TokenMove {
    /// The rank where it is is at work: it waits.
    Waits,
    /// It has gone on to this rank.
    To(usize),
    /// All ranks are idle, and no message is under way.
    Terminated,
}

impl Token {
    /// A token that is about to begin its first round, at rank 0.
    #[must_use]
    pub const fn new() -> Self {
        Self { count: 0, is_black: true, at: 0, rounds: 0 }
    }

    /// The rank that it wants to leave.
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Rounds that were begun: each is as many control messages as there are ranks.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Leaves the rank where it is, whose activity is `rank`'s, if that is idle; there are `ranks`.
    pub const fn leave(&mut self, rank: &mut Activity, ranks: usize) -> TokenMove {
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

/// Mattern's four counters (Distributed Computing 2, 1987): two sweeps over all ranks, the second after
/// the first; terminated if both have found all idle and counted as many sent as received, and the same.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FourCounters {
    last: Option<(u64, u64)>,
    now: (u64, u64),
    all_idle: bool,
    visited: usize,
}

impl FourCounters {
    /// Before the first sweep.
    #[must_use]
    pub const fn new() -> Self {
        Self { last: None, now: (0, 0), all_idle: true, visited: 0 }
    }

    /// Visits a rank, in any order but each once a sweep; there are `ranks`. `true` if this ends a
    /// sweep after which termination is certain.
    pub fn visit(&mut self, rank: &Activity, ranks: usize) -> bool {
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
