//! Collective operations that the NICs carry out.
//!
//! All processes decide alike whether the NICs can carry an operation out, from information that the NICs
//! distribute. If lengths may differ, the operation begins with one of [`SMALL`] bytes, of which the first 4
//! are the length, little-endian.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::task::Poll;

use bytes::Bytes;
use midplane_nicvm::collective::{self, MAX_BROADCAST, SMALL};
use midplane_simhw::port::Status;

use super::{Communicator, MessageError, Nics, Operation, Turn};

/// Most bytes that fit into the first operation, after their length.
const WITH_LENGTH: usize = SMALL - 4;
/// Most processes for which the NICs gather.
const MAX_GATHERED: u32 = 256;

impl<'a> Turn<'a> {
    /// Begins an operation, with a place in the queue for the NICs if they carry out this communicator's
    /// operations.
    pub(in crate::message) fn queued(communicator: &'a Communicator) -> Result<Self, MessageError> {
        let mut turn = Self::new(communicator)?;
        turn.place = communicator.nics.as_ref().map(|nics| nics.queue());
        Ok(turn)
    }

    /// Waits until it is this operation's turn and returns the NICs; `None` if the hosts carry it out.
    pub(super) async fn nics(&self) -> Result<Option<&'a Nics>, MessageError> {
        let (Some(nics), Some(place)) = (&self.communicator.nics, self.place) else {
            return Ok(None);
        };
        let communicator = self.communicator;
        communicator
            .meanwhile(|context| match communicator.abandoned.load(Ordering::Relaxed) {
                true => Poll::Ready(Err(MessageError::Abandoned)),
                false => nics.poll_turn(place, context).map(Ok),
            })
            .await?;
        Ok(Some(nics))
    }

    /// Passes the NICs on to the next operation.
    pub(super) fn leave_nics(&mut self) {
        if let (Some(nics), Some(_)) = (&self.communicator.nics, self.place.take()) {
            nics.leave();
        }
    }

    pub(super) async fn barrier_by(&self, nics: &Nics) -> Result<(), MessageError> {
        self.communicator.carry_out(nics, collective::barrier(0)).await.map(drop)
    }

    /// Broadcasts through the NICs; returns `None` if the bytes are more than they take.
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

    /// Gathers through the NICs; returns `None` if a process has more bytes than they take.
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

    /// Combines every process's words, at the root, or everywhere if that is `None`. Other processes get
    /// arbitrary words.
    pub(super) async fn reduce_by_nics(
        &self,
        root: Option<u32>,
        bytes: &[u8],
        operation: Operation,
    ) -> Result<Vec<u8>, MessageError> {
        let Some(nics) = self.nics().await? else { return Err(MessageError::Abandoned) };
        nics.write(0, bytes)?;
        let region = nics.room(bytes.len())?;
        // The NICs add from the root on, hosts from rank 0: floating-point sums would differ.
        let root = root.filter(|root| operation != Operation::SumFloat || *root == 0);
        let command = match root {
            Some(root) => collective::reduce(rank_of(root), operation, region, 0),
            None => collective::all_reduce(operation, region, 0),
        };
        let ended = self.communicator.carry_out(nics, command).await?;
        match ended.status {
            Status::Truncated => Ok(vec![0; ended.length as usize]),
            _ => nics.read(bytes.len()),
        }
    }
}

/// Converts a rank: a communicator on NICs has the ranks of the NICs' group.
fn rank_of(rank: u32) -> u16 {
    u16::try_from(rank).expect("the NICs' group has as many members")
}

/// Makes the first block for `bytes`: their length, and either all of them or none.
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

/// Returns whether the NICs take so many words.
pub(super) const fn fits(words: &[u64]) -> bool {
    words.len() * 8 <= SMALL
}

pub(super) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the words of a result, if all processes passed equally many.
pub(super) fn words_of(joined: &[u8], words: usize) -> Result<Vec<u64>, MessageError> {
    if let Some(found) = Operation::differs(joined, words * 8) {
        let what = "words of another process";
        return Err(MessageError::Shape { what, expected: words, found: found / 8 });
    }
    Ok(joined.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}
