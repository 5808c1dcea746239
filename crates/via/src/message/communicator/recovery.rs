//! Continuing after processes were lost: revoked communicators, agreement, communicators of the survivors.
//!
//! In an agreement, all processes first exchange their proposals. Then, in the order of ranks, each process sends its
//! value to all others, which adopt it unless the sender is lost (the algorithm for strong failure detectors; Chandra
//! and Toueg, "Unreliable failure detectors for reliable distributed systems", 1996, section 6.1). All adopt the value
//! of the first process that survives, and no later value differs. This requires that a process that one process has
//! lost exchanges no more messages with any. A carrier that reports running processes as lost breaks agreements.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{Communicator, Pending};
use crate::message::envelope::{LEFT, Tag};
use crate::message::group::Rank;
use crate::message::process::MessageError;
use crate::message::request::{Failure, Load, Mode};

/// The values that processes agree on.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Proposal {
    flags: u64,
    /// The number of a communicator.
    number: u32,
    /// For each rank, whether it was lost.
    lost: Vec<bool>,
}

impl Proposal {
    fn emit(&self) -> Bytes {
        let mut bytes = self.flags.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend(self.lost.iter().copied().map(u8::from));
        bytes.into()
    }

    fn parse(bytes: &[u8], size: u32) -> Result<Self, MessageError> {
        let parsed = bytes.split_first_chunk().and_then(|(flags, rest)| {
            let (number, lost) = rest.split_first_chunk()?;
            let lost: Vec<_> = lost.iter().map(|lost| *lost != 0).collect();
            let (flags, number) = (u64::from_le_bytes(*flags), u32::from_le_bytes(*number));
            (lost.len() == size as usize).then_some(Self { flags, number, lost })
        });
        let (what, expected) = ("bytes of a process's proposal", 12 + size as usize);
        parsed.ok_or(MessageError::Shape { what, expected, found: bytes.len() })
    }

    fn merge(&mut self, other: &Self) {
        self.flags &= other.flags;
        self.number = self.number.max(other.number);
        self.lost.iter_mut().zip(&other.lost).for_each(|(lost, other)| *lost |= other);
    }
}

impl Communicator {
    /// Ends every operation of this communicator, at all its processes, with [`Failure::Revoked`]: those in progress
    /// and those started later. A process that sees a loss calls it, so that the others do not wait for messages
    /// that will not come. [`agree`](Self::agree) and [`shrink`](Self::shrink) still work.
    ///
    /// Messages whose transfer has begun are still received. A process learns of the revocation when its messages next
    /// progress, and notifies all others when one of its operations ends with this failure.
    pub fn revoke(&self) {
        if self.revoked.swap(true, Ordering::Relaxed) {
            return;
        }
        let context = self.scope.recovery();
        self.with(|process| process.engine_mut().revoke(context));
        self.notify_others(context);
    }

    /// Agrees on flags with all processes that are not lost, even if more of them are lost meanwhile. Returns the
    /// flags that all processes have passed, the same at each. The flags of a lost process may be included. It works
    /// on a communicator that is [revoked](Self::revoke) or [abandoned](MessageError::Abandoned). All processes that
    /// are not lost must call it, in the same order as [`shrink`](Self::shrink). Each of n processes sends 2 (n - 1)
    /// messages.
    ///
    /// # Errors
    /// [`MessageError::Failed`] if this process is finalised meanwhile, [`MessageError::Shape`] if another process
    /// sent something other than a proposal.
    ///
    /// # Cancel safety
    /// None: if dropped, the other processes wait until this one is lost.
    pub fn agree(&self, flags: u64) -> impl Future<Output = Result<u64, MessageError>> + use<> {
        let agreed = self.consensus(flags, 0);
        async move { Ok(agreed.await?.flags) }
    }

    /// Makes a communicator of the processes that are not lost, in the same order. Processes that are lost
    /// meanwhile are left out at all processes, or at none. The other conditions are those of
    /// [`agree`](Self::agree).
    ///
    /// # Errors
    /// Those of [`agree`](Self::agree); [`MessageError::NoContext`]; [`Failure::PeerLost`] with this process if
    /// another one has lost it.
    ///
    /// # Cancel safety
    /// None: if dropped, the other processes wait until this one is lost.
    pub fn shrink(&self) -> impl Future<Output = Result<Self, MessageError>> + use<> {
        let (agreed, old) = (self.consensus(0, self.claim_number()), self.clone());
        async move {
            let Proposal { number, lost, .. } = agreed.await?;
            let (own, group) = (old.rank(), old.scope.group());
            if lost[own.0 as usize] {
                return Err(Failure::PeerLost(group.peer(own)?).into());
            }
            let ranks = (0..).map(Rank).zip(lost).filter_map(|(rank, lost)| lost.then_some(rank));
            let survivors = group.exclude(&ranks.collect::<Vec<_>>())?;
            old.with_number(Arc::new(survivors), number)
        }
    }

    fn consensus(
        &self,
        flags: u64,
        number: u32,
    ) -> impl Future<Output = Result<Proposal, MessageError>> + use<> {
        let tag = Tag(self.recoveries.fetch_add(1, Ordering::Relaxed) % LEFT.0);
        let all = self.clone();
        async move {
            let (size, own) = (all.size(), all.rank());
            let mut value = Proposal { flags, number, lost: vec![false; size as usize] };
            let mut sent = all.propose_to_others(tag, &value)?;
            let others = (0..size).map(Rank).filter(|rank| *rank != own);
            let proposed: Vec<_> =
                others.map(|from| (from, all.receive_proposal(tag, from))).collect();
            for (from, receive) in proposed {
                match all.proposal(receive).await? {
                    Some(other) => value.merge(&other),
                    None => value.lost[from.0 as usize] = true,
                }
            }
            for turn in (0..size).map(Rank) {
                if turn == own {
                    sent.extend(all.propose_to_others(tag, &value)?);
                } else if let Some(decided) = all.proposal(all.receive_proposal(tag, turn)).await? {
                    value = decided;
                }
            }
            for send in sent {
                // A process that is lost needs no message.
                let _ = send.outcome().await;
            }
            Ok(value)
        }
    }

    fn propose_to_others(&self, tag: Tag, value: &Proposal) -> Result<Vec<Pending>, MessageError> {
        let (scope, bytes) = (&self.scope, value.emit());
        let others = (0..self.size()).map(Rank).filter(|to| *to != self.rank());
        others
            .map(|to| {
                let request = self.with(|process| {
                    let context = scope.recovery();
                    let send = process.build_send(scope, context, Mode::Standard, to, tag)?;
                    process.start_or_free(send, Load::Bytes(bytes.clone()))
                })?;
                Ok(self.adopt(request, false))
            })
            .collect()
    }

    /// Starts to receive a proposal; `None` if another process has replaced its sender.
    fn receive_proposal(&self, tag: Tag, from: Rank) -> Result<Option<Pending>, MessageError> {
        let scope = &self.scope;
        let request = self.with(|process| {
            if process.engine().has_returned(scope.group().peer(from)?, self.losses) {
                return Ok(None);
            }
            let context = scope.recovery();
            let receive = process.build_receive(scope, context, Some(from), Some(tag))?;
            process.start_or_free(receive, Load::anything()).map(Some)
        })?;
        Ok(request.map(|request| self.adopt(request, true)))
    }

    /// Waits for a proposal; `None` if its sender is lost.
    async fn proposal(
        &self,
        receive: Result<Option<Pending>, MessageError>,
    ) -> Result<Option<Proposal>, MessageError> {
        let Some(receive) = receive? else { return Ok(None) };
        match receive.await {
            Ok(received) => Proposal::parse(&received.bytes, self.size()).map(Some),
            Err(MessageError::Failed(Failure::PeerLost(_) | Failure::PeerRestarted(_))) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
