//! The parties of a link: its senders, and its witness.

use serde::{Deserialize, Serialize};

/// A party of a link: a sender by its place in the link's list, or the witness.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
pub(crate) struct Party(pub(crate) u8);

/// Most senders of one link: a control message has room for one bit each.
pub const MAX_SENDERS: usize = 127;

impl Party {
    /// The link's destination. It takes part only when a party is lost.
    pub(crate) const WITNESS: Self = Self(MAX_SENDERS as u8);
}

/// A set of parties.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parties([u64; 2]);

impl Parties {
    /// Returns the set of the first `senders` senders.
    pub(crate) fn first(senders: usize) -> Self {
        (0..senders.min(MAX_SENDERS)).fold(Self::default(), |set, at| set.with(Party(at as u8)))
    }

    pub(crate) const fn contains(self, party: Party) -> bool {
        party.0 < 128 && self.0[(party.0 / 64) as usize] >> (party.0 % 64) & 1 == 1
    }

    #[must_use]
    pub(crate) const fn with(mut self, party: Party) -> Self {
        if party.0 < 128 {
            self.0[(party.0 / 64) as usize] |= 1 << (party.0 % 64);
        }
        self
    }

    #[must_use]
    pub(crate) const fn without(mut self, party: Party) -> Self {
        if party.0 < 128 {
            self.0[(party.0 / 64) as usize] &= !(1 << (party.0 % 64));
        }
        self
    }

    /// Returns the intersection.
    #[must_use]
    pub(crate) const fn and(self, other: Self) -> Self {
        Self([self.0[0] & other.0[0], self.0[1] & other.0[1]])
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0[0] == 0 && self.0[1] == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Party> {
        (0..128).map(Party).filter(move |party| self.contains(*party))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_contains_the_parties_that_were_added() {
        let set = Parties::first(70).without(Party(3)).with(Party::WITNESS);
        assert_eq!(set.iter().count(), 70);
        assert!(!set.contains(Party(3)) && set.contains(Party(69)) && !set.contains(Party(70)));
        assert!(set.contains(Party::WITNESS) && !set.contains(Party(200)));
    }
}
