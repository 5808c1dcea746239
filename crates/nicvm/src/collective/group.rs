//! The group's members, and the messages to them.

use std::collections::BTreeSet;

use midplane_simhw::id::NodeId;

use super::{HEAD, RETRY};
use crate::backlog::Backlog;
use crate::context::Context;
use crate::control::{Body, MAX_MESSAGE};

/// The members of the group, this member's rank, and its messages to the others.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Vec<NodeId>,
    pub(super) rank: u16,
    pub(super) backlog: Backlog,
    /// Members for each of which so many messages wait that one was dropped.
    pub(super) stuck: BTreeSet<u16>,
}

impl Group {
    pub(super) const fn new(members: Vec<NodeId>) -> Self {
        Self { members, rank: 0, backlog: Backlog::new(RETRY), stuck: BTreeSet::new() }
    }

    pub(super) const fn size(&self) -> u16 {
        self.members.len() as u16
    }

    /// Returns the rank `distance` after this one in the ring of all members.
    pub(super) fn after(&self, distance: u16) -> u16 {
        ((u32::from(self.rank) + u32::from(distance)) % u32::from(self.size())) as u16
    }

    pub(super) fn rank_of(&self, node: NodeId) -> Option<u16> {
        self.members.iter().position(|member| *member == node).map(|rank| rank as u16)
    }

    /// Sends a member a message of operation `number`, as soon as there is room for it.
    pub(super) fn send(
        &mut self,
        nic: &mut Context<'_>,
        rank: u16,
        head: (u8, u8, u32),
        body: &[u8],
    ) {
        let member = self.members[usize::from(rank)];
        if !self.backlog.send(nic, member, &emit(head, body)) {
            self.stuck.insert(rank);
        }
    }

    /// Sends a member a message that the protocol repeats until it is answered.
    pub(super) fn try_send(
        &self,
        nic: &mut Context<'_>,
        rank: u16,
        head: (u8, u8, u32),
        body: &[u8],
    ) {
        let _ = nic.send_control(self.members[usize::from(rank)], &emit(head, body));
    }
}

/// Encodes a message: its opcode, its round and the number of its operation precede `body`.
fn emit((opcode, round, number): (u8, u8, u32), body: &[u8]) -> Body {
    let mut message = [0; MAX_MESSAGE];
    (message[0], message[1]) = (opcode, round);
    message[2..HEAD].copy_from_slice(&number.to_le_bytes());
    message[HEAD..HEAD + body.len()].copy_from_slice(body);
    Body::new(&message[..HEAD + body.len()]).expect("it is no longer than a message")
}
