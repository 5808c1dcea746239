//! The exchange of credit: published counters, requests, and replies.

use super::{CONTROL_BYTES, Held, Link};
use crate::descriptor::Transfer;
use crate::memory::Memory;
use crate::nic::Nic;
use crate::rdma::exchange::{Due, WORDS};

impl Link {
    /// Reads what the other side has published.
    pub(super) fn read_published(&mut self) {
        if let Some(words) = words(&self.control) {
            self.exchange.on_words(words);
        }
    }

    /// Publishes this side's words. If it `wakes` the other side, that takes a reserved descriptor. Returns `false` if
    /// the words were not sent; then nothing is spent.
    fn publish(&mut self, nic: &mut Nic, wakes: bool) -> bool {
        let Some(remote) = self.remote.filter(|_| self.has_greeted && !self.lost) else {
            return false;
        };
        let Some(words) = self.exchange.words(wakes) else { return false };
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
            self.exchange.on_published(wakes);
        }
        left
    }

    /// Requests credit, unless a request is unanswered.
    pub(super) fn request_credit(&mut self, nic: &mut Nic) {
        self.exchange.request(self.unposted.is_empty());
        self.send_unsent(nic);
    }

    /// Sends the requests and replies that are counted and not sent.
    fn send_unsent(&mut self, nic: &mut Nic) {
        while self.exchange.owes() && self.publish(nic, true) {
            self.exchange.on_sent();
        }
    }

    /// Requests the count of posted descriptors, by a write that takes none, once half or fewer are left (section 4.2).
    /// One request is enough for each count that becomes known.
    pub(super) fn request_when_low(&mut self, nic: &mut Nic) {
        let Some(remote) = self.remote else { return };
        if self.exchange.is_low(remote.descriptors) {
            self.read_published();
        }
        if self.exchange.is_low(remote.descriptors)
            && let Some(before) = self.exchange.request_count()
            && !self.publish(nic, false)
        {
            self.exchange.put_back_count(before);
        }
    }

    /// Publishes this side's words if they are due. If the other side has requested credit and this side `parks`,
    /// replies in any case.
    pub(super) fn publish_if_due(&mut self, nic: &mut Nic, parks: bool) {
        let all_posted = self.unposted.is_empty();
        match self.exchange.due(parks, all_posted, || words(&self.control)) {
            Due::Nothing => {}
            Due::Words => {
                self.publish(nic, false);
            }
            Due::Reply => self.send_unsent(nic),
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
        let mut credit = self.exchange.credit;
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

/// Returns the words that the other side has published into `control`.
fn words(control: &Memory) -> Option<[u64; WORDS]> {
    let mut bytes = [0; CONTROL_BYTES];
    control.read(0, &mut bytes).ok()?;
    let (words, _) = bytes.as_chunks::<8>();
    Some(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
}
