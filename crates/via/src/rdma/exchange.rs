//! The exchange of credit between the two sides of a link: published words, requests, and replies.

#[cfg(test)]
mod tests;

use super::credit::{Credit, Reader};

/// Words that one side publishes and the other reads: bytes freed, descriptors posted, the last credit request
/// answered, the last credit request sent, and the low-water request.
pub(super) const WORDS: usize = 5;
/// Index of the low-water request among them.
const LOW_WATER: usize = 4;

/// Next thing that a side has to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Due {
    Nothing,
    /// Its words, by a write that takes no descriptor.
    Words,
    /// A reply, which was counted as owed.
    Reply,
}

/// One side's part of the exchange. Performs no I/O: the link writes and reads the words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    pub(super) credit: Credit,
    pub(super) reader: Reader,
    /// Receive descriptors that this side has posted from the start.
    descriptors: u16,
    /// Credit requests that this side has sent, and how many were answered; then those of the other side.
    requested: u64,
    answered: u64,
    peer_requested: u64,
    peer_answered: u64,
    /// Requests and replies that this side has counted and not yet sent.
    unsent: u64,
    /// Requests and replies of the other side whose descriptors were posted again.
    taken: u64,
    /// This side's last low-water request: how many posted descriptors of the other side it knew of then.
    low: u64,
}

impl Exchange {
    pub(super) const fn new(area: usize, descriptors: u16) -> Self {
        Self {
            credit: Credit::new(area, descriptors),
            reader: Reader::new(area, descriptors),
            descriptors,
            requested: 0,
            answered: 0,
            peer_requested: 0,
            peer_answered: 0,
            unsent: 0,
            taken: 0,
            low: 0,
        }
    }

    /// Handles the words that the other side has published.
    pub(super) fn on_words(&mut self, [freed, posted, answered, requested, _]: [u64; WORDS]) {
        self.credit.on_published(freed, posted);
        self.answered = answered.clamp(self.answered, self.requested);
        self.peer_requested = self.peer_requested.max(requested);
    }

    /// Counts a request or a reply of the other side whose descriptor was posted again.
    pub(super) const fn on_taken(&mut self) {
        self.taken += 1;
    }

    /// Returns the words to publish now. A write that `wakes` the other side takes a reserved descriptor: returns
    /// `None` while none is known.
    pub(super) const fn words(&self, wakes: bool) -> Option<[u64; WORDS]> {
        if wakes && !self.credit.has_reserved() {
            return None;
        }
        Some([self.reader.freed, self.reader.posted, self.peer_answered, self.requested, self.low])
    }

    /// Counts words as sent.
    pub(super) const fn on_published(&mut self, wakes: bool) {
        self.reader.on_published();
        if wakes {
            self.credit.take_reserved();
        }
    }

    /// Counts a credit request as owed, unless one is unanswered. `all_posted` is false while a received descriptor
    /// waits to be posted again.
    pub(super) const fn request(&mut self, all_posted: bool) {
        if self.requested == self.answered && all_posted && self.has_taken_all() {
            self.requested += 1;
            self.unsent += 1;
        }
    }

    /// Returns whether the descriptors of all known requests and replies of the other side were taken.
    ///
    /// Only then may this side send a request or a reply, whose words report these descriptors. So the other side knows
    /// of a reserved descriptor whenever it has to send one: at most one of its two is unreported, that of its
    /// unanswered request or that of its last reply.
    const fn has_taken_all(&self) -> bool {
        self.taken >= self.answered.saturating_add(self.peer_requested)
    }

    /// Returns whether a request or a reply is counted and not sent.
    pub(super) const fn owes(&self) -> bool {
        self.unsent > 0
    }

    /// Counts one owed request or reply as sent.
    pub(super) const fn on_sent(&mut self) {
        self.unsent -= 1;
    }

    /// Returns whether half or fewer of the other side's `descriptors` are left, as far as is known.
    pub(super) fn is_low(&self, descriptors: u16) -> bool {
        self.credit.descriptors_left() <= u64::from(descriptors) / 2
    }

    /// Counts a low-water request (section 4.2), which is sent with the words. Returns the former one, or `None` if
    /// the count of descriptors that is known was requested before.
    pub(super) const fn request_count(&mut self) -> Option<u64> {
        let known = self.credit.posted();
        if self.low == known { None } else { Some(std::mem::replace(&mut self.low, known)) }
    }

    /// Takes back a low-water request that was not sent.
    pub(super) const fn put_back_count(&mut self, before: u64) {
        self.low = before;
    }

    /// Returns what is due, and counts a reply as owed. A side that `parks` replies to a request in any case. Reads the
    /// other side's words with `read` only if its low-water request matters.
    pub(super) fn due(
        &mut self,
        parks: bool,
        all_posted: bool,
        read: impl FnOnce() -> Option<[u64; WORDS]>,
    ) -> Due {
        let is_due = self.reader.is_due()
            || (self.reader.may_be_low(self.descriptors)
                && read().is_some_and(|words| self.reader.is_unanswered(words[LOW_WATER])));
        let is_asked =
            self.peer_requested > self.peer_answered && all_posted && self.has_taken_all();
        if is_asked && (is_due || parks) {
            self.peer_answered = self.peer_requested;
            self.unsent += 1;
            return Due::Reply;
        }
        if is_due { Due::Words } else { Due::Nothing }
    }
}
