//! A peer of an endpoint, and the frames that are in flight to it.

use std::collections::{BTreeSet, VecDeque};

/// A peer, and its outgoing frames.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: u64,
    /// Frames that the provider has not accepted yet: the slot and the length of each.
    pub(super) waiting: VecDeque<(usize, usize)>,
    /// Number of frames that the provider has accepted.
    accepted: u64,
    /// The numbers of the accepted frames that the provider has not completed.
    incomplete: BTreeSet<u64>,
    /// True if a frame was sent to the peer since the last search for idle peers.
    pub(super) is_fresh: bool,
}

impl Peer {
    pub(super) const fn new(address: u64) -> Self {
        Self {
            address,
            waiting: VecDeque::new(),
            accepted: 0,
            incomplete: BTreeSet::new(),
            is_fresh: true,
        }
    }

    /// Records that the provider has accepted a frame that it will complete; returns the frame's number.
    pub(super) fn on_posted(&mut self) -> u64 {
        let number = self.accepted;
        self.incomplete.insert(number);
        self.accepted += 1;
        number
    }

    /// Records that the provider has accepted a frame that has no completion.
    pub(super) const fn on_injected(&mut self) {
        self.accepted += 1;
    }

    pub(super) fn on_completed(&mut self, number: u64) {
        self.incomplete.remove(&number);
    }

    /// Returns the number of frames that wait or are not completed.
    pub(super) fn outstanding(&self) -> usize {
        self.incomplete.len() + self.waiting.len()
    }

    /// Returns the number of frames since the oldest one that is not completed, including it.
    #[cfg(any(feature = "nic", feature = "streams"))]
    pub(super) fn span(&self) -> usize {
        let accepted = self.incomplete.first().map_or(0, |first| self.accepted - first);
        usize::try_from(accepted).unwrap_or(usize::MAX).saturating_add(self.waiting.len())
    }
}

#[cfg(all(test, any(feature = "nic", feature = "streams")))]
mod tests {
    use super::*;

    #[test]
    fn frames_count_from_the_oldest_incomplete_one_on() {
        let mut peer = Peer::new(0);
        peer.on_injected();
        assert_eq!((peer.outstanding(), peer.span()), (0, 0));
        let long = peer.on_posted();
        peer.on_injected();
        let later = peer.on_posted();
        peer.waiting.push_back((0, 1));
        assert_eq!((peer.outstanding(), peer.span()), (3, 4));
        peer.on_completed(later);
        assert_eq!((peer.outstanding(), peer.span()), (2, 4));
        peer.on_completed(long);
        assert_eq!((peer.outstanding(), peer.span()), (1, 1));
    }
}
