//! Ranks, groups, and the contexts that separate communicators.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use super::envelope::{Context, Peer};
use super::request::NULL_PEER;

/// A process, by its position in a communicator's group; from 0.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Rank(pub u32);

impl Rank {
    /// The null process (`MPI_PROC_NULL`): a send to it or a receive from it completes at once, with no bytes.
    pub const NULL: Self = Self(u32::MAX);
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NULL { f.write_str("null") } else { self.0.fmt(f) }
    }
}

/// The communicator has no such rank.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("there is no rank {rank}; the communicator has {size} processes, from 0")]
pub struct NoSuchRank {
    /// The rank asked for.
    pub rank: Rank,
    /// Processes of the communicator.
    pub size: u32,
}

/// An ordered list of processes: each one's position is its rank.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Group {
    members: Vec<Peer>,
    /// Members and their ranks, sorted by member; `None` if ranks equal the processes' numbers.
    by_peer: Option<Vec<(Peer, Rank)>>,
}

impl Group {
    /// Makes the group of `members`, in this order. If a process is named twice, its first position counts.
    #[must_use]
    pub fn new(mut members: Vec<Peer>) -> Self {
        let mut by_peer: Vec<_> =
            members.iter().enumerate().map(|(rank, peer)| (*peer, Rank(rank as u32))).collect();
        by_peer.sort_unstable();
        by_peer.dedup_by_key(|(peer, _)| *peer);
        if by_peer.len() < members.len() {
            let mut kept: Vec<_> = by_peer.iter().map(|(peer, rank)| (*rank, *peer)).collect();
            kept.sort_unstable();
            members = kept.into_iter().map(|(_, peer)| peer).collect();
            return Self::new(members);
        }
        let plain = members.iter().enumerate().all(|(rank, peer)| peer.0 as usize == rank);
        Self { members, by_peer: (!plain).then_some(by_peer) }
    }

    /// Returns the group of this one's members, then those that only `other` has.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::new([&self.members[..], &other.members].concat())
    }

    /// Returns the group of the members that `other` has, too, in the order of this one.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.filtered(|peer| other.rank(peer).is_some())
    }

    /// Returns the group of the members that `other` does not have, in the order of this one.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.filtered(|peer| other.rank(peer).is_none())
    }

    /// Returns the group of the members with these ranks, in this order.
    ///
    /// # Errors
    /// [`NoSuchRank`] if the group does not have one of them.
    pub fn include(&self, ranks: &[Rank]) -> Result<Self, NoSuchRank> {
        let members: Result<Vec<_>, _> = ranks.iter().map(|rank| self.peer(*rank)).collect();
        Ok(Self::new(members?))
    }

    /// Returns the group of all members except those with these ranks.
    ///
    /// # Errors
    /// [`NoSuchRank`] if the group does not have one of them.
    pub fn exclude(&self, ranks: &[Rank]) -> Result<Self, NoSuchRank> {
        Ok(self.difference(&self.include(ranks)?))
    }

    fn filtered(&self, keeps: impl Fn(Peer) -> bool) -> Self {
        Self::new(self.members.iter().copied().filter(|peer| keeps(*peer)).collect())
    }

    /// Returns the rank in `other` of the member with this rank here; `None` if `other` does not have it.
    ///
    /// # Errors
    /// [`NoSuchRank`] if this group has no such rank.
    pub fn translate(&self, rank: Rank, other: &Self) -> Result<Option<Rank>, NoSuchRank> {
        Ok(other.rank(self.peer(rank)?))
    }

    /// Returns the number of processes in the group.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// Returns the members, in order of rank.
    #[must_use]
    pub fn members(&self) -> &[Peer] {
        &self.members
    }

    /// Returns the process with this rank.
    ///
    /// # Errors
    /// [`NoSuchRank`] if the group has no such rank, or for [`Rank::NULL`].
    #[inline]
    pub fn peer(&self, rank: Rank) -> Result<Peer, NoSuchRank> {
        let found = self.members.get(rank.0 as usize).copied();
        found.ok_or_else(|| NoSuchRank { rank, size: self.size() })
    }

    /// Returns the rank of a process; `None` if it is no member.
    #[must_use]
    #[inline]
    pub fn rank(&self, peer: Peer) -> Option<Rank> {
        match &self.by_peer {
            None => ((peer.0 as usize) < self.members.len()).then_some(Rank(peer.0)),
            Some(by_peer) => {
                let at = by_peer.binary_search_by_key(&peer, |(peer, _)| *peer).ok()?;
                Some(by_peer[at].1)
            }
        }
    }
}

/// A group, this process's rank in it, and three contexts: for the program's messages, for those of collective
/// operations, and for those by which processes recover from losses.
#[derive(Clone, Debug)]
pub struct CommHandle {
    group: Arc<Group>,
    rank: Rank,
    number: u32,
}

impl CommHandle {
    /// Highest number of a communicator.
    const MAX_NUMBER: u32 = u32::MAX / 4;

    /// Makes the handle of communicator `number`. Returns `None` unless `own` is a member and the number is at
    /// most 2^30 - 1.
    #[must_use]
    pub fn new(group: Arc<Group>, own: Peer, number: u32) -> Option<Self> {
        let rank = group.rank(own).filter(|_| number <= Self::MAX_NUMBER)?;
        Some(Self { group, rank, number })
    }

    /// Returns this process's rank.
    #[must_use]
    pub const fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of processes in the group.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.group.size()
    }

    /// Returns the group.
    #[must_use]
    pub const fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Returns the context of the program's messages.
    #[must_use]
    pub const fn context(&self) -> Context {
        Context(self.number * 4)
    }

    /// Returns the context of the messages of collective operations.
    #[must_use]
    pub const fn collective(&self) -> Context {
        Context(self.number * 4 + 1)
    }

    /// Returns the context of the messages by which processes recover from losses.
    pub(super) const fn recovery(&self) -> Context {
        self.context().recovery()
    }

    /// Returns the rank of a message's sender; [`Rank::NULL`] for no peer and for processes outside the
    /// group.
    #[must_use]
    #[inline]
    pub fn rank_of(&self, peer: Peer) -> Rank {
        if peer == NULL_PEER { Rank::NULL } else { self.group.rank(peer).unwrap_or(Rank::NULL) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn group(members: &[u32]) -> Group {
        Group::new(members.iter().copied().map(Peer).collect())
    }

    proptest! {
        #[test]
        fn groups_are_combined_as_lists_of_different_members(
            a in proptest::collection::vec(0_u32..12, 0..10),
            b in proptest::collection::vec(0_u32..12, 0..10),
        ) {
            let (a, b) = (group(&a), group(&b));
            let all = a.union(&b);
            let both = a.intersection(&b);
            prop_assert_eq!(&all.members()[..a.members().len()], a.members());
            for peer in (0..12).map(Peer) {
                let (of_a, of_b) = (a.rank(peer).is_some(), b.rank(peer).is_some());
                prop_assert_eq!(all.rank(peer).is_some(), of_a || of_b);
                prop_assert_eq!(both.rank(peer).is_some(), of_a && of_b);
                prop_assert_eq!(a.difference(&b).rank(peer).is_some(), of_a && !of_b);
            }
            prop_assert_eq!(a.difference(&b).union(&both).size(), a.size());
            let ranks: Vec<_> = (0..a.size()).map(Rank).filter(|rank| {
                a.translate(*rank, &b).unwrap().is_some()
            }).collect();
            prop_assert_eq!(a.include(&ranks).unwrap(), both);
            prop_assert_eq!(a.exclude(&ranks).unwrap(), a.difference(&b));
            prop_assert!(a.include(&[Rank(a.size())]).is_err());
        }
    }

    #[test]
    fn ranks_and_processes_translate_to_each_other() {
        for members in [vec![0, 1, 2], vec![5, 1, 3], vec![2], vec![4, 4, 1, 4, 0]] {
            let group = Group::new(members.iter().copied().map(Peer).collect());
            for rank in 0..group.size() {
                let peer = group.peer(Rank(rank)).unwrap();
                assert_eq!(group.rank(peer), Some(Rank(rank)));
            }
            assert_eq!(group.peer(Rank(0)).unwrap(), Peer(members[0]));
            assert!(group.peer(Rank(group.size())).is_err() && group.peer(Rank::NULL).is_err());
            assert_eq!(group.rank(Peer(9)), None);
        }
        assert_eq!(
            Group::new(vec![Peer(4), Peer(4), Peer(1), Peer(4)]).members(),
            [Peer(4), Peer(1)]
        );
    }
}
