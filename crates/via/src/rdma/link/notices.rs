//! The exchange of credit: published counters, requests, and replies.

use super::{CONTROL_BYTES, Held, LOW_WATER, Link};
use crate::descriptor::Transfer;
use crate::nic::Nic;
use crate::rdma::credit::Credit;

impl Link {
    /// Reads what the other side has published.
    pub(super) fn read_published(&mut self) {
        let mut bytes = [0; CONTROL_BYTES];
        if self.control.read(0, &mut bytes).is_err() {
            return;
        }
        let (words, _) = bytes.as_chunks::<8>();
        let [freed, posted, answered, requested] =
            [words[0], words[1], words[2], words[3]].map(u64::from_le_bytes);
        self.credit.on_published(freed, posted);
        self.answered = answered.clamp(self.answered, self.requested);
        self.peer_requested = self.peer_requested.max(requested);
    }

    /// Publishes this side's words. If it `wakes` the other side, that takes a reserved descriptor. Returns `false` if
    /// the words were not sent; then nothing is spent.
    fn publish(&mut self, nic: &mut Nic, wakes: bool) -> bool {
        let Some(remote) = self.remote.filter(|_| self.has_greeted && !self.lost) else {
            return false;
        };
        if wakes && !self.credit.has_reserved() {
            return false;
        }
        let words =
            [self.reader.freed, self.reader.posted, self.peer_answered, self.requested, self.low];
        for (at, word) in words.iter().enumerate() {
            let written = self.published.write(at * 8, &word.to_le_bytes());
            written.expect("its first half");
        }
        let Ok(segment) = self.published.segment(0, CONTROL_BYTES) else { return false };
        self.reap(nic);
        let mut descriptor = self.spare.pop().unwrap_or_default();
        descriptor.segments.clear();
        descriptor.segments.push(segment);
        descriptor.transfer = Transfer::RdmaWrite(remote.control);
        descriptor.immediate = wakes.then_some(0);
        let left = self.send(nic, descriptor, Held::Nothing).is_ok();
        if left {
            self.reader.on_published();
            if wakes {
                self.credit.take_reserved();
            }
        }
        left
    }

    /// Requests credit, unless a request is unanswered.
    pub(super) fn request_credit(&mut self, nic: &mut Nic) {
        if self.requested == self.answered && self.has_taken_all() {
            self.requested += 1;
            self.unsent += 1;
        }
        self.send_unsent(nic);
    }

    /// Returns whether the descriptors of all known requests and replies of the other side were posted again.
    ///
    /// Only then may this side send a request or a reply, whose words report these descriptors. So the other side knows
    /// of a reserved descriptor whenever it has to send one: at most one of its two is unreported, that of its
    /// unanswered request or that of its last reply.
    const fn has_taken_all(&self) -> bool {
        self.unposted.is_empty() && self.taken >= self.answered.saturating_add(self.peer_requested)
    }

    /// Sends the requests and replies that are counted and not sent.
    fn send_unsent(&mut self, nic: &mut Nic) {
        while self.unsent > 0 && self.publish(nic, true) {
            self.unsent -= 1;
        }
    }

    /// Requests the count of posted descriptors, by a write that takes none, once half or fewer are left (section 4.2).
    /// One request is enough for each count that becomes known.
    pub(super) fn request_when_low(&mut self, nic: &mut Nic) {
        let Some(remote) = self.remote else { return };
        let is_low =
            |credit: &Credit| credit.descriptors_left() <= u64::from(remote.descriptors) / 2;
        if is_low(&self.credit) {
            self.read_published();
        }
        if is_low(&self.credit) && self.low != self.credit.posted() {
            let before = std::mem::replace(&mut self.low, self.credit.posted());
            if !self.publish(nic, false) {
                self.low = before;
            }
        }
    }

    /// Returns whether the other side has requested the count of descriptors and not got it since.
    fn is_requested(&self) -> bool {
        let mut request = [0; 8];
        self.reader.may_be_low(self.config.descriptors)
            && self.control.read(LOW_WATER, &mut request).is_ok()
            && self.reader.is_unanswered(u64::from_le_bytes(request))
    }

    /// Publishes this side's words if they are due. If the other side has requested credit and this side `parks`,
    /// replies in any case.
    pub(super) fn publish_if_due(&mut self, nic: &mut Nic, parks: bool) {
        let due = self.reader.is_due() || self.is_requested();
        let is_asked = self.peer_requested > self.peer_answered && self.has_taken_all();
        if is_asked && (due || parks) {
            self.peer_answered = self.peer_requested;
            self.unsent += 1;
            self.send_unsent(nic);
        } else if due {
            self.publish(nic, false);
        }
    }

    /// Replies to the other side's credit request before this side parks, and requests credit if a refused packet waits
    /// for it. If the other side runs out later, its request wakes this side.
    pub(in crate::rdma) fn answer_request(&mut self, nic: &mut Nic) {
        self.reap(nic);
        self.read_published();
        self.publish_if_due(nic, true);
        self.send_unsent(nic);
        if self.refused && self.is_up() && !self.port_full && !self.has_room() {
            self.request_credit(nic);
        }
    }

    /// Returns whether both sides know each other's memory.
    const fn is_up(&self) -> bool {
        self.has_greeted && self.remote.is_some()
    }

    /// Returns whether the longest packet could be sent, as far as is known.
    fn has_room(&self) -> bool {
        let mut credit = self.credit;
        credit.take(self.config.area / 4).is_some()
    }

    /// Returns whether a refused packet may be posted again.
    pub(in crate::rdma) fn has_room_again(&mut self) -> bool {
        if !self.refused {
            return false;
        }
        self.read_published();
        let starves = self.starved.is_some_and(|then| self.sending.len() >= then);
        let again = self.lost || (self.is_up() && !self.port_full && !starves && self.has_room());
        if again {
            self.refused = false;
            self.starved = None;
        }
        again
    }
}
