//! Collective operations that the NICs carry out.
//!
//! All processes decide alike whether the NICs can carry an operation out, from information that the NICs
//! distribute. If lengths may differ, a first NIC operation carries blocks of [`SMALL`] bytes: the length (4 bytes,
//! little-endian), and the contribution if it fits.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::Bytes;
use midplane_nicvm::collective::{self, MAX_BROADCAST, Operation as WordOperation, SMALL};
use midplane_simhw::port::Status;
use zerocopy::IntoBytes;

use super::operation::Reduction;
use super::{Communicator, MessageError, Nics, Turn};
use crate::message::typed::{Plain, from_bytes};

/// Most bytes that fit into the first operation, after their length.
const WITH_LENGTH: usize = SMALL - 4;
/// Most processes for which the NICs gather.
const MAX_GATHERED: u32 = 256;

impl Turn {
    /// Begins an operation, with a place in the queue for the NICs if they carry out this communicator's
    /// operations.
    pub(in crate::message) fn queued(communicator: &Communicator) -> Result<Self, MessageError> {
        let mut turn = Self::new(communicator)?;
        turn.place = communicator.nics.as_ref().map(|nics| nics.queue());
        Ok(turn)
    }

    /// Begins an operation, with a place in the NICs' queue if `by_nics`.
    pub(super) fn queued_if(
        communicator: &Communicator,
        by_nics: bool,
    ) -> Result<Self, MessageError> {
        if by_nics { Self::queued(communicator) } else { Self::new(communicator) }
    }

    /// Waits until it is this operation's turn and returns the NICs; `None` if the hosts carry it out.
    pub(super) async fn nics(&self) -> Result<Option<Arc<Nics>>, MessageError> {
        let communicator = &self.communicator;
        let (Some(nics), Some(place)) = (&communicator.nics, self.place) else {
            return Ok(None);
        };
        let is_abandoned = || communicator.abandoned.load(Ordering::Relaxed);
        communicator
            .meanwhile(false, |context| {
                // Registered before the check, so that no abandonment is missed.
                let turn = nics.poll_turn(place, context);
                if is_abandoned() {
                    Poll::Ready(Err(MessageError::Abandoned))
                } else {
                    turn.map(Ok)
                }
            })
            .await?;
        Ok(Some(Arc::clone(nics)))
    }

    /// Leaves the NICs' queue: the next operation can use the NICs.
    pub(super) fn leave_nics(&mut self) {
        if let (Some(nics), Some(_)) = (&self.communicator.nics, self.place.take()) {
            nics.leave();
        }
    }

    pub(super) async fn barrier_by(&self, nics: &Nics) -> Result<(), MessageError> {
        self.communicator.carry_out(nics, collective::barrier(0)).await.map(drop)
    }

    /// Broadcasts through the NICs; returns `None` if there are more bytes than they can carry.
    pub(super) async fn broadcast_by(
        &self,
        nics: &Nics,
        root: u32,
        bytes: &Bytes,
    ) -> Result<Option<Bytes>, MessageError> {
        let own = (self.rank() == root).then_some(bytes);
        let first = own.map(|bytes| with_length(bytes));
        let first = self.spread(nics, root, first.as_deref(), SMALL).await?;
        let (length, here) = taken(&first);
        if let Some(here) = here {
            return Ok(Some(own.cloned().unwrap_or_else(|| Bytes::copy_from_slice(&first[here]))));
        }
        if length > MAX_BROADCAST {
            return Ok(None);
        }
        let all = self.spread(nics, root, own.map(AsRef::as_ref), length).await?;
        Ok(Some(own.cloned().unwrap_or_else(|| all.into())))
    }

    /// Broadcasts the bytes that the root passes as `own`; the others have room for `room` bytes.
    async fn spread(
        &self,
        nics: &Nics,
        root: u32,
        own: Option<&[u8]>,
        room: usize,
    ) -> Result<Vec<u8>, MessageError> {
        if let Some(bytes) = own {
            nics.write(0, bytes)?;
        }
        let region = nics.room(own.map_or(room, <[u8]>::len))?;
        let command = collective::broadcast(rank_of(root), region, 0);
        self.communicator.carry_out(nics, command).await?;
        own.map_or_else(|| nics.read(room), |bytes| Ok(bytes.to_vec()))
    }

    /// Gathers through the NICs; returns `None` if a process has more bytes than they can carry.
    pub(super) async fn all_gather_by(
        &self,
        nics: &Nics,
        bytes: &Bytes,
    ) -> Result<Option<Vec<Bytes>>, MessageError> {
        if self.size() > MAX_GATHERED {
            return Ok(None);
        }
        let whole = SMALL * self.size() as usize;
        nics.write(SMALL * self.rank() as usize, &with_length(bytes))?;
        let command = collective::all_gather(SMALL, nics.room(whole)?, 0);
        self.communicator.carry_out(nics, command).await?;
        let all = nics.read(whole)?;
        let blocks = all.chunks_exact(SMALL);
        Ok(blocks.map(|block| Some(Bytes::copy_from_slice(&block[taken(block).1?]))).collect())
    }

    /// Combines every process's values at the root, or at all processes if `root` is `None`; returns the result's
    /// bytes. Other processes get arbitrary bytes.
    pub(super) async fn reduce_by_nics<T: Plain>(
        &self,
        root: Option<u32>,
        values: &[T],
        operation: WordOperation,
    ) -> Result<Vec<u8>, MessageError> {
        let bytes = values.as_bytes();
        let Some(nics) = self.nics().await? else { return Err(MessageError::Abandoned) };
        nics.write(0, bytes)?;
        let region = nics.room(bytes.len())?;
        // The NICs add from the root on, hosts from rank 0: floating-point sums would differ.
        let root = root.filter(|root| operation != WordOperation::SumFloat || *root == 0);
        let command = match root {
            Some(root) => collective::reduce(rank_of(root), operation, region, 0),
            None => collective::all_reduce(operation, region, 0),
        };
        let ended = self.communicator.carry_out(&nics, command).await?;
        match ended.status {
            Status::Truncated => Ok(vec![0; ended.length as usize]),
            _ => nics.read(bytes.len()),
        }
    }
}

impl Communicator {
    /// Returns the operation by which the NICs reduce these values; `None` if the hosts do.
    pub(super) fn by_nics<T: Plain>(
        &self,
        values: &[T],
        by: &impl Reduction<T>,
    ) -> Option<WordOperation> {
        let takes = self.nics.is_some() && size_of_val(values) <= SMALL;
        if takes { by.on_nics() } else { None }
    }
}

/// Converts a rank: a communicator on NICs has the ranks of the NICs' group.
fn rank_of(rank: u32) -> u16 {
    u16::try_from(rank).expect("the NICs' group has as many members")
}

/// Makes the first block for `bytes`: their length, then all of them if they fit, else none.
fn with_length(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut first = length.to_le_bytes().to_vec();
    if bytes.len() <= WITH_LENGTH {
        first.extend_from_slice(bytes);
    }
    first
}

/// Returns the length in a first block, and the range of the bytes if they are in it.
fn taken(first: &[u8]) -> (usize, Option<Range<usize>>) {
    let length = first.first_chunk().map_or(0, |length| u32::from_le_bytes(*length)) as usize;
    (length, (length <= WITH_LENGTH).then_some(4..4 + length))
}

/// Returns the values of a result, if all processes passed as many as `own`.
pub(super) fn values_of<T: Plain>(combined: &[u8], own: &[T]) -> Result<Vec<T>, MessageError> {
    if let Some(found) = WordOperation::differs(combined, size_of_val(own)) {
        let (expected, found) = (own.len(), found / size_of::<T>().max(1));
        return Err(MessageError::Shape { what: "values of another process", expected, found });
    }
    from_bytes(combined)
}
