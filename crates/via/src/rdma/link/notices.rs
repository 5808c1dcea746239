//! What the two sides publish to each other: what is free, questions after it, and their answers.

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
        let [freed, posted, answered, asked] =
            [words[0], words[1], words[2], words[3]].map(u64::from_le_bytes);
        self.credit.on_published(freed, posted);
        self.answered = answered.clamp(self.answered, self.asked);
        self.heard = self.heard.max(asked);
    }

    /// Publishes our own words; wakes the other side with a descriptor of the reserve, or silently.
    /// `false` if they did not leave: nothing is spent then.
    fn publish(&mut self, nic: &mut Nic, wakes: bool) -> bool {
        let Some(remote) = self.remote.filter(|_| self.greeted && !self.lost) else { return false };
        if wakes && !self.credit.has_reserved() {
            return false;
        }
        let words = [self.reader.freed, self.reader.posted, self.replied, self.asked, self.low];
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
            self.reader.on_told();
            if wakes {
                self.credit.take_reserved();
            }
        }
        left
    }

    /// Asks for credit, if no question is open.
    pub(super) fn ask(&mut self, nic: &mut Nic) {
        if self.asked == self.answered {
            self.asked += 1;
            if !self.publish(nic, true) {
                self.asked -= 1;
            }
        }
    }

    /// Requests news of posted descriptors, by a write that takes none, once half or fewer are left (section 4.2).
    /// One request is enough for each number of posted descriptors that becomes known.
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

    /// Returns whether the other side has requested news of descriptors and has had none since.
    fn is_requested(&self) -> bool {
        let mut request = [0; 8];
        self.reader.may_be_low(self.config.descriptors)
            && self.control.read(LOW_WATER, &mut request).is_ok()
            && self.reader.is_unanswered(u64::from_le_bytes(request))
    }

    /// Tells the other side what it should know by now; if it has asked and this side `parks`, that
    /// nothing more is free.
    pub(super) fn tell(&mut self, nic: &mut Nic, parks: bool) {
        let due = self.reader.is_due() || self.is_requested();
        if self.heard > self.replied && (due || parks) {
            let before = std::mem::replace(&mut self.replied, self.heard);
            if !self.publish(nic, true) {
                self.replied = before;
            }
        } else if due {
            self.publish(nic, false);
        }
    }

    /// Before this side parks: whoever has asked is answered. Who has not, and runs out, asks then,
    /// and that wakes this side.
    pub(in crate::rdma) fn answer(&mut self, nic: &mut Nic) {
        self.reap(nic);
        self.read_published();
        self.tell(nic, true);
    }

    /// Whether what was refused may be posted again.
    pub(in crate::rdma) fn has_room_again(&mut self) -> bool {
        if !self.refused {
            return false;
        }
        self.read_published();
        let room = self.config.area / 4;
        let mut credit = self.credit;
        let up = self.greeted && self.remote.is_some();
        let starves = self.starved.is_some_and(|then| self.sending.len() >= then);
        let again = self.lost || (up && !self.crowded && !starves && credit.take(room).is_some());
        if again {
            self.refused = false;
            self.starved = None;
        }
        again
    }
}
