//! New communicators from old ones: duplicated, split, created for some of the processes.
//!
//! All processes of the old communicator take part, as in any collective operation. Each proposes the next
//! number that it could use; the highest one is unused in all of them. Numbers are not reused.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;

use super::Communicator;
use crate::message::collective::Turn;
use crate::message::group::{CommHandle, Group, NoSuchRank, Rank};
use crate::message::process::MessageError;

/// A process's proposal to the others: 16 bytes, little-endian.
#[derive(Clone, Copy)]
struct SplitProposal {
    number: u32,
    color: Option<u32>,
    key: i32,
}

impl SplitProposal {
    fn emit(self) -> Bytes {
        let mut bytes = Vec::with_capacity(16);
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.color.is_some()).to_le_bytes());
        bytes.extend_from_slice(&self.color.unwrap_or_default().to_le_bytes());
        bytes.extend_from_slice(&self.key.to_le_bytes());
        bytes.into()
    }

    fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let (words, []) = bytes.as_chunks::<4>() else { return Err(wrong_size(bytes)) };
        let [number, colored, color, key] = words else { return Err(wrong_size(bytes)) };
        let color = (u32::from_le_bytes(*colored) != 0).then(|| u32::from_le_bytes(*color));
        Ok(Self { number: u32::from_le_bytes(*number), color, key: i32::from_le_bytes(*key) })
    }
}

fn wrong_size(bytes: &[u8]) -> MessageError {
    MessageError::Shape { what: "bytes of a process's proposal", expected: 16, found: bytes.len() }
}

impl Communicator {
    /// Makes a communicator of the same processes in the same order, with contexts of its own.
    ///
    /// # Errors
    /// [`MessageError::NoContext`], and those of collective operations.
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn duplicate(&self) -> impl Future<Output = Result<Self, MessageError>> + use<> {
        let (agreed, old) = (self.propose(None, 0), self.clone());
        async move {
            let (number, _) = agreed.await?;
            old.with_number(Arc::clone(old.scope.group()), number)
        }
    }

    /// Makes one communicator for each color, of the processes that named it. Ranks follow the keys and, where
    /// keys are equal, the ranks here. Returns `None` to a process that named no color.
    ///
    /// # Errors
    /// [`MessageError::NoContext`], and those of collective operations.
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn split(
        &self,
        color: Option<u32>,
        key: i32,
    ) -> impl Future<Output = Result<Option<Self>, MessageError>> + use<> {
        let (agreed, old) = (self.propose(color, key), self.clone());
        async move {
            let (number, proposals) = agreed.await?;
            if color.is_none() {
                return Ok(None);
            }
            let mut members: Vec<_> = (0..)
                .map(Rank)
                .zip(&proposals)
                .filter(|(_, proposal)| proposal.color == color)
                .map(|(rank, proposal)| (proposal.key, rank))
                .collect();
            members.sort_unstable();
            let ranks: Vec<_> = members.into_iter().map(|(_, rank)| rank).collect();
            old.with_number(old.group_of(&ranks)?, number).map(Some)
        }
    }

    /// Makes a communicator of the processes with these ranks, in this order; returns `None` to the other
    /// processes. All processes must pass the same ranks.
    ///
    /// # Errors
    /// [`MessageError::Rank`], [`MessageError::NoContext`], and those of collective operations.
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn create(
        &self,
        ranks: &[Rank],
    ) -> impl Future<Output = Result<Option<Self>, MessageError>> + use<> {
        let (is_member, old) = (ranks.contains(&self.rank()), self.clone());
        let agreed = self.group_of(ranks).map(|group| (group, self.propose(None, 0)));
        async move {
            let (group, agreed) = agreed?;
            let (number, _) = agreed.await?;
            if is_member { old.with_number(group, number).map(Some) } else { Ok(None) }
        }
    }

    fn group_of(&self, ranks: &[Rank]) -> Result<Arc<Group>, NoSuchRank> {
        let members: Result<Vec<_>, _> =
            ranks.iter().map(|rank| self.scope.group().peer(*rank)).collect();
        Ok(Arc::new(Group::new(members?)))
    }

    fn with_number(&self, group: Arc<Group>, number: u32) -> Result<Self, MessageError> {
        let own = self.scope.group().peer(self.rank())?;
        let scope = CommHandle::new(group, own, number).ok_or(MessageError::NoContext)?;
        Ok(self.sibling(scope))
    }

    /// Returns a number that no process here has used, and each process's proposal. The call claims the number
    /// that this process proposes, so calls that run at once end with different numbers.
    fn propose(
        &self,
        color: Option<u32>,
        key: i32,
    ) -> impl Future<Output = Result<(u32, Vec<SplitProposal>), MessageError>> + use<> {
        let number = self.with(|process| {
            let number = process.next_number;
            process.next_number = number.saturating_add(1);
            number
        });
        let (turn, old) = (Turn::queued(self), self.clone());
        async move {
            let proposals = turn?.all_gather(SplitProposal { number, color, key }.emit()).await?;
            let proposals: Result<Vec<_>, _> =
                proposals.iter().map(|proposal| SplitProposal::parse(proposal)).collect();
            let proposals = proposals?;
            let number = proposals.iter().map(|proposal| proposal.number).max().unwrap_or(number);
            if number > CommHandle::MAX_NUMBER {
                return Err(MessageError::NoContext);
            }
            old.with(|process| process.next_number = process.next_number.max(number + 1));
            Ok((number, proposals))
        }
    }
}
