//! A change that is under way, as one member sees it.

use std::collections::BTreeSet;

use midplane_simhw::id::NodeId;
use midplane_simhw::port::Command;

use super::wire::Offer;
use crate::extension::Extension;

/// The phase of a change at this member.
///
/// ```text
/// Preparing --ready, and all below--> Voted --commit--> Committed --done below--> over
///     |                                 |
///     +--- coordinator gone ----> Recovering (lowest rank alone) --all answered--> either way
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    Preparing,
    Voted,
    Recovering,
    Committed,
}

pub(super) struct Change {
    pub(super) offer: Offer,
    pub(super) phase: Phase,
    pub(super) parent: Option<NodeId>,
    /// True if a member runs a version of the epoch that this change would bring: another one, if the change is aborted.
    pub(super) is_behind: bool,
    /// True if the version that this change brings was taken down on all members.
    pub(super) is_withdrawn: bool,
    /// True once the coordinator was lost: it is down, or has restarted and does not know this change.
    pub(super) lost_coordinator: bool,
    /// The member that ends the change after the coordinator's death.
    pub(super) leader: Option<NodeId>,
    pub(super) children: Vec<NodeId>,
    /// Members whose answer is awaited.
    pub(super) waiting: BTreeSet<NodeId>,
    pub(super) module: Vec<u8>,
    /// Children that have requested the module.
    pub(super) wanting: BTreeSet<NodeId>,
    pub(super) ready: Option<Box<dyn Extension>>,
    pub(super) command: Option<Command>,
    pub(super) any_committed: bool,
}

impl Change {
    pub(super) fn new(offer: Offer, rank: u16, members: &[NodeId]) -> Self {
        let mut change = Self {
            offer,
            phase: Phase::Preparing,
            parent: None,
            is_behind: false,
            is_withdrawn: false,
            lost_coordinator: false,
            leader: None,
            children: Vec::new(),
            waiting: BTreeSet::new(),
            module: Vec::new(),
            wanting: BTreeSet::new(),
            ready: None,
            command: None,
            any_committed: false,
        };
        let takes_part = change.takes_part(members);
        let root = takes_part.iter().position(|member| *member == offer.id.coordinator);
        let own = takes_part.iter().position(|member| *member == members[usize::from(rank)]);
        if let (Some(root), Some(own)) = (root, own) {
            let size = takes_part.len();
            let place = (own + size - root) % size;
            // Two children each: a member forwards each part twice, however many members there are.
            let below = (2 * place + 1..2 * place + 3).filter(|child| *child < size);
            change.children = below.map(|child| takes_part[(child + root) % size]).collect();
        }
        change.waiting = change.children.iter().copied().collect();
        change
    }

    /// Returns the members that take part, in the order of their ranks.
    pub(super) fn takes_part(&self, members: &[NodeId]) -> Vec<NodeId> {
        let bits = self.offer.members;
        let is_in =
            |rank: usize| bits.get(rank / 8).is_some_and(|byte| byte & 1 << (rank % 8) != 0);
        let ranked = members.iter().enumerate();
        ranked.filter(|(rank, _)| is_in(*rank)).map(|(_, member)| *member).collect()
    }
}
