//! New communicators from old ones: duplicated, split, created for some of the processes.
//!
//! All processes of the old communicator take part, as in any collective operation. Each proposes a number; the highest
//! proposal wins. No two proposals in the world are equal, so communicators that are made at once, of overlapping groups
//! and in any order, have different numbers. Numbers are not reused.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use zerocopy::little_endian::{I32, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Communicator;
use crate::message::collective::Turn;
use crate::message::group::{CommHandle, Group, Rank};
use crate::message::process::MessageError;
use crate::message::transport::BuildError;

/// A process's proposal to the other processes: 28 bytes, little-endian.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
struct SplitProposal {
    number: U32,
    colored: U32,
    color: U128,
    key: I32,
}

impl SplitProposal {
    fn new(number: u32, color: Option<u128>, key: i32) -> Self {
        let colored = u32::from(color.is_some()).into();
        let color = color.unwrap_or_default().into();
        Self { number: number.into(), colored, color, key: key.into() }
    }

    fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let (what, expected) = ("bytes of a process's proposal", size_of::<Self>());
        let wrong = |_| MessageError::Shape { what, expected, found: bytes.len() };
        Self::read_from_bytes(bytes).map_err(wrong)
    }
}

/// Returns the boot identifier of this host's kernel; `None` if it has none.
fn host() -> Option<u128> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    u128::from_str_radix(&id.trim().replace('-', ""), 16).ok()
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

    /// Makes one communicator for each color, of the processes that passed it. Ranks follow the keys and, where
    /// keys are equal, the ranks here. Returns `None` to a process that passed no color.
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
        self.split_by(color.map(u128::from), key)
    }

    /// Makes one communicator for each host, of its processes, in the order of the ranks here
    /// (`MPI_COMM_TYPE_SHARED`). Processes of one host have the same Linux kernel, as containers of one host do;
    /// on another system, each process gets a communicator of its own.
    ///
    /// # Errors
    /// Those of [`split`](Self::split).
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn split_shared(&self) -> impl Future<Output = Result<Self, MessageError>> + use<> {
        let split = self.split_by(Some(host().unwrap_or_else(|| self.rank().0.into())), 0);
        async move { split.await?.ok_or(MessageError::NoContext) }
    }

    fn split_by(
        &self,
        color: Option<u128>,
        key: i32,
    ) -> impl Future<Output = Result<Option<Self>, MessageError>> + use<> {
        let (agreed, old) = (self.propose(color, key), self.clone());
        async move {
            let (number, proposals) = agreed.await?;
            if color.is_none() {
                return Ok(None);
            }
            let own = proposals[old.rank().0 as usize].color;
            let mut members: Vec<_> = (0..)
                .map(Rank)
                .zip(&proposals)
                .filter(|(_, proposal)| proposal.colored.get() != 0 && proposal.color == own)
                .map(|(rank, proposal)| (proposal.key.get(), rank))
                .collect();
            members.sort_unstable();
            let ranks: Vec<_> = members.into_iter().map(|(_, rank)| rank).collect();
            old.with_number(Arc::new(old.scope.group().include(&ranks)?), number).map(Some)
        }
    }

    /// Makes a communicator of a group of this one's processes; returns `None` to the other processes. All
    /// processes must pass the same group.
    ///
    /// # Errors
    /// [`BuildError::Unknown`] for a process that is not in this communicator, [`MessageError::NoContext`], and
    /// those of collective operations.
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn create(
        &self,
        group: &Group,
    ) -> impl Future<Output = Result<Option<Self>, MessageError>> + use<> {
        let own = self.scope.group();
        let checked = match group.difference(own).members().first() {
            Some(stranger) => Err(BuildError::Unknown(*stranger)),
            None => Ok(self.propose(None, 0)),
        };
        let (group, old) = (Arc::new(group.clone()), self.clone());
        async move {
            let (number, _) = checked?.await?;
            if old.scope.group().translate(old.rank(), &group)?.is_some() {
                old.with_number(group, number).map(Some)
            } else {
                Ok(None)
            }
        }
    }

    pub(super) fn with_number(&self, group: Arc<Group>, number: u32) -> Result<Self, MessageError> {
        let own = self.scope.group().peer(self.rank())?;
        let scope = CommHandle::new(group, own, number).ok_or(MessageError::NoContext)?;
        Ok(self.sibling(scope))
    }

    /// Returns a number that no other communicator in the world has, and each process's proposal.
    fn propose(
        &self,
        color: Option<u128>,
        key: i32,
    ) -> impl Future<Output = Result<(u32, Vec<SplitProposal>), MessageError>> + use<> {
        let number = self.claim_number();
        let own = SplitProposal::new(number, color, key);
        let turn = Turn::queued(self);
        async move {
            let proposals = turn?.all_gather(Bytes::copy_from_slice(own.as_bytes())).await?;
            let proposals: Result<Vec<_>, _> =
                proposals.iter().map(|proposal| SplitProposal::parse(proposal)).collect();
            let proposals = proposals?;
            let number =
                proposals.iter().map(|proposal| proposal.number.get()).max().unwrap_or(number);
            Ok((number, proposals))
        }
    }

    /// Returns a number that no process has proposed.
    pub(super) fn claim_number(&self) -> u32 {
        self.with(|process| {
            let number = process.next_number;
            process.next_number = number.saturating_add(process.processes);
            number
        })
    }
}
