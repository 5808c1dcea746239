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
    /// True if frames waited at the last search for stuck peers, and the provider has accepted, completed or refused none
    /// since then.
    is_stuck: bool,
}

impl Peer {
    pub(super) const fn new(address: u64) -> Self {
        Self {
            address,
            waiting: VecDeque::new(),
            accepted: 0,
            incomplete: BTreeSet::new(),
            is_fresh: true,
            is_stuck: false,
        }
    }

    /// Records that the provider has accepted a frame that it will complete; returns the frame's number.
    pub(super) fn on_posted(&mut self) -> u64 {
        self.is_stuck = false;
        let number = self.accepted;
        self.incomplete.insert(number);
        self.accepted += 1;
        number
    }

    /// Records that the provider has accepted a frame that has no completion.
    pub(super) const fn on_injected(&mut self) {
        self.is_stuck = false;
        self.accepted += 1;
    }

    pub(super) fn on_completed(&mut self, number: u64) {
        self.is_stuck = false;
        self.incomplete.remove(&number);
    }

    /// Records that the provider has refused a frame for good.
    pub(super) const fn on_refused(&mut self) {
        self.is_stuck = false;
    }

    /// Returns whether no frame has made progress since the last call, at which frames waited. They wait now, too.
    #[cfg(feature = "streams")]
    pub(super) const fn find_stuck(&mut self) -> bool {
        std::mem::replace(&mut self.is_stuck, true)
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
    #[cfg(feature = "streams")]
    fn a_peer_is_stuck_if_no_frame_makes_progress_between_two_searches() {
        let mut peer = Peer::new(0);
        let number = peer.on_posted();
        assert!(!peer.find_stuck());
        assert!(peer.find_stuck());
        peer.on_completed(number);
        assert!(!peer.find_stuck());
        peer.on_refused();
        assert!(!peer.find_stuck());
    }

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
