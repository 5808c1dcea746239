//! Compares two contexts, for tests and people.

use std::fmt;

use super::{ChannelContext, NetworkContext};

/// One difference between two contexts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Difference {
    /// The field that differs.
    pub place: String,
    /// Its value in the first context.
    pub left: String,
    /// Its value in the second context.
    pub right: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} | {}", self.place, self.left, self.right)
    }
}

/// Bytes of a message that are shown.
const SHOWN: usize = 16;

impl NetworkContext {
    /// Returns the differences between this context and another; empty if they are equal.
    #[must_use]
    pub fn diff(&self, other: &Self) -> Vec<Difference> {
        let mut found = Differences(Vec::new());
        found.compare("job", &self.job, &other.job);
        found.compare("epoch", &self.epoch, &other.epoch);
        found.compare("number of ranks", &self.ranks.len(), &other.ranks.len());
        for (left, right) in self.ranks.iter().zip(&other.ranks) {
            found.channel(left, right);
        }
        found.0
    }
}

struct Differences(Vec<Difference>);

impl Differences {
    fn compare<T: PartialEq + fmt::Debug>(&mut self, place: &str, left: &T, right: &T) {
        if left != right {
            let (left, right) = (format!("{left:?}"), format!("{right:?}"));
            self.0.push(Difference { place: place.to_owned(), left, right });
        }
    }

    fn channel(&mut self, left: &ChannelContext, right: &ChannelContext) {
        let name = |what: &str| format!("rank {}: {what}", left.rank);
        self.compare(&name("rank"), &left.rank, &right.rank);
        self.compare(&name("geometry"), &left.geometry, &right.geometry);
        self.compare(&name("messages freed"), &left.freed, &right.freed);
        self.compare(&name("messages consumed"), &left.consumed, &right.consumed);
        self.compare(&name("receive tail"), &left.receive_tail, &right.receive_tail);
        self.compare(&name("waits for"), &left.wait, &right.wait);
        self.compare(&name("peers"), &left.peers, &right.peers);
        let sent = |at: usize, context: &ChannelContext| {
            context.send.get(at).map(|m| (m.to, m.position, m.length, m.taken, shown(&m.bytes)))
        };
        for at in 0..left.send.len().max(right.send.len()) {
            let place = name(&format!("send FIFO, message {at}"));
            self.compare(&place, &sent(at, left), &sent(at, right));
        }
        let received = |at: usize, context: &ChannelContext| {
            context.receive.get(at).map(|m| (m.from, m.position, shown(&m.bytes)))
        };
        for at in 0..left.receive.len().max(right.receive.len()) {
            let place = name(&format!("receive FIFO, message {at}"));
            self.compare(&place, &received(at, left), &received(at, right));
        }
    }
}

/// Returns a message's first bytes, its length, and the CRC-32 of all its bytes.
fn shown(bytes: &[u8]) -> (Vec<u8>, usize, u32) {
    (bytes.iter().take(SHOWN).copied().collect(), bytes.len(), crc32fast::hash(bytes))
}
