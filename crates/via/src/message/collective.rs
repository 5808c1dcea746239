//! Collective operations: each is called by all processes of a communicator.
//!
//! All processes call the same operations in the same order. Contributions may have any lengths, so each
//! operation is also its own v form (such as `MPI_Gatherv`). Their messages have a context of their own, and
//! each operation a tag of its own.
//!
//! A communicator [on NICs](Communicator::on_nics) has the NICs carry out what they can.
//!
//! # Cancel safety
//! None: an operation that is dropped before it has ended, or that fails, leaves its communicator
//! [abandoned](MessageError::Abandoned). It fails once a process that it needs is lost. The other processes are
//! notified: what they have under way over that communicator ends with
//! [`Failure::Abandoned`](super::request::Failure::Abandoned). Other communicators are unaffected.

mod carried;
mod nics;
mod reductions;

use std::future::Future;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::communicator::{Communicator, Pending, wait_all};
use super::envelope::{LEFT, Tag};
use super::group::Rank;
use super::process::MessageError;

pub use midplane_nicvm::collective::Operation;

pub(super) use nics::Nics;

/// One operation, from its call until its end.
pub(super) struct Turn<'a> {
    communicator: &'a Communicator,
    tag: Tag,
    /// Its place in the queue for the NICs, until it leaves the queue; `None` if the hosts carry it out.
    place: Option<u32>,
    ended: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.ended {
            if !self.communicator.abandoned.swap(true, Ordering::Relaxed) {
                self.communicator.notify_left();
            }
            if let Some(nics) = &self.communicator.nics {
                nics.abandon();
            }
        }
    }
}

impl<'a> Turn<'a> {
    /// Claims the operation's place in its communicator's order, before anything is polled.
    pub(super) fn new(communicator: &'a Communicator) -> Result<Self, MessageError> {
        if communicator.abandoned.load(Ordering::Relaxed) {
            return Err(MessageError::Abandoned);
        }
        let tag = Tag(communicator.turn.fetch_add(1, Ordering::Relaxed) % LEFT.0);
        Ok(Self { communicator, tag, place: None, ended: false })
    }

    fn end<T>(mut self, value: T) -> Result<T, MessageError> {
        self.leave_nics();
        self.ended = true;
        Ok(value)
    }

    fn size(&self) -> u32 {
        self.communicator.size()
    }

    fn rank(&self) -> u32 {
        self.communicator.rank().0
    }

    fn send(&self, to: u32, bytes: Bytes) -> Result<Pending, MessageError> {
        let context = self.communicator.handle().collective();
        self.communicator.isend_in(context, Rank(to), self.tag, bytes)
    }

    fn receive(&self, from: u32) -> Result<Pending, MessageError> {
        let context = self.communicator.handle().collective();
        self.communicator.ireceive_in(context, Rank(from), self.tag)
    }

    async fn exchange(&self, to: u32, bytes: Bytes, from: u32) -> Result<Bytes, MessageError> {
        let receive = self.receive(from)?;
        let send = self.send(to, bytes)?;
        let received = receive.await?;
        send.await?;
        Ok(received.bytes.into())
    }

    /// Broadcasts down a binomial tree whose root is `root` (ranks are counted from it).
    async fn broadcast(&self, root: u32, mut bytes: Bytes) -> Result<Bytes, MessageError> {
        let size = self.size();
        let place = (self.rank() + size - root) % size;
        let mut bit = 1;
        while bit < size && place & bit == 0 {
            bit <<= 1;
        }
        if place != 0 {
            let parent = (place - bit + root) % size;
            bytes = self.receive(parent)?.await?.bytes.into();
        }
        let mut sends = Vec::new();
        while bit > 1 {
            bit >>= 1;
            if place + bit < size {
                sends.push(self.send((place + bit + root) % size, bytes.clone())?);
            }
        }
        all(sends).await?;
        Ok(bytes)
    }

    /// Gathers every process's bytes, by rank: through the NICs if they take them, otherwise round a ring.
    pub(super) async fn all_gather(mut self, bytes: Bytes) -> Result<Vec<Bytes>, MessageError> {
        if let Some(nics) = self.nics().await?
            && let Some(blocks) = self.all_gather_by(nics, &bytes).await?
        {
            return self.end(blocks);
        }
        self.leave_nics();
        let (size, rank) = (self.size(), self.rank());
        let mut blocks = vec![Bytes::new(); size as usize];
        blocks[rank as usize] = bytes;
        let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
        for step in 0..size - 1 {
            let (out, comes) = ((rank + size - step) % size, (rank + 2 * size - step - 1) % size);
            let block = blocks[out as usize].clone();
            blocks[comes as usize] = self.exchange(to, block, from).await?;
        }
        self.end(blocks)
    }
}

async fn all(pending: Vec<Pending>) -> Result<Vec<Bytes>, MessageError> {
    let results = wait_all(pending).await.into_iter();
    results.map(|result| result.map(|received| received.bytes.into())).collect()
}

impl Communicator {
    fn checked(&self, root: Rank) -> Result<u32, MessageError> {
        self.handle().group().peer(root)?;
        Ok(root.0)
    }

    fn check_blocks(&self, blocks: &[Bytes]) -> Result<(), MessageError> {
        let (expected, found) = (self.size() as usize, blocks.len());
        if expected != found {
            return Err(MessageError::Shape { what: "blocks, one a process", expected, found });
        }
        Ok(())
    }

    /// Waits until all processes have called it. Uses dissemination, in ceil(log2 n) rounds (Hensgen, Finkel
    /// and Manber, 1988).
    ///
    /// # Errors
    /// [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn barrier(&self) -> impl Future<Output = Result<(), MessageError>> {
        let turn = Turn::queued(self);
        async move {
            let turn = turn?;
            if let Some(nics) = turn.nics().await? {
                turn.barrier_by(nics).await?;
                return turn.end(());
            }
            let (size, rank) = (turn.size(), turn.rank());
            let mut distance = 1;
            while distance < size {
                let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
                turn.exchange(to, Bytes::new(), from).await?;
                distance *= 2;
            }
            turn.end(())
        }
    }

    /// Sends the root's bytes to every process, down a binomial tree, and returns them at each. `bytes` of
    /// other processes are ignored.
    ///
    /// # Errors
    /// [`MessageError::Rank`], [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn broadcast(
        &self,
        root: Rank,
        bytes: impl Into<Bytes>,
    ) -> impl Future<Output = Result<Bytes, MessageError>> {
        let turn = self.checked(root).and_then(|root| Ok((Turn::queued(self)?, root)));
        let bytes = bytes.into();
        async move {
            let (mut turn, root) = turn?;
            if let Some(nics) = turn.nics().await?
                && let Some(bytes) = turn.broadcast_by(nics, root, &bytes).await?
            {
                return turn.end(bytes);
            }
            turn.leave_nics();
            let bytes = turn.broadcast(root, bytes).await?;
            turn.end(bytes)
        }
    }

    /// Gathers every process's bytes, by rank, at the root; returns `None` at the others.
    ///
    /// # Errors
    /// [`MessageError::Rank`], [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn gather(
        &self,
        root: Rank,
        bytes: impl Into<Bytes>,
    ) -> impl Future<Output = Result<Option<Vec<Bytes>>, MessageError>> {
        let turn = self.checked(root).and_then(|root| Ok((Turn::new(self)?, root)));
        let bytes = bytes.into();
        async move {
            let (turn, root) = turn?;
            if turn.rank() != root {
                turn.send(root, bytes)?.await?;
                return turn.end(None);
            }
            let others = (0..turn.size()).filter(|rank| *rank != root);
            let receives: Result<Vec<_>, _> = others.map(|from| turn.receive(from)).collect();
            let mut blocks = all(receives?).await?;
            blocks.insert(root as usize, bytes);
            turn.end(Some(blocks))
        }
    }

    /// Sends each of the root's blocks, by rank, to its process; returns this process's block. `blocks` of
    /// other processes are ignored.
    ///
    /// # Errors
    /// [`MessageError::Shape`] at the root if there is not one block a process; [`MessageError::Rank`],
    /// [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn scatter(
        &self,
        root: Rank,
        blocks: Vec<Bytes>,
    ) -> impl Future<Output = Result<Bytes, MessageError>> {
        let turn = self.checked(root).and_then(|root| {
            if self.rank().0 == root {
                self.check_blocks(&blocks)?;
            }
            Ok((Turn::new(self)?, root))
        });
        async move {
            let (turn, root) = turn?;
            if turn.rank() != root {
                let received = turn.receive(root)?.await?;
                return turn.end(received.bytes.into());
            }
            let mut own = Bytes::new();
            let mut sends = Vec::new();
            for (rank, block) in (0..).zip(blocks) {
                if rank == root {
                    own = block;
                } else {
                    sends.push(turn.send(rank, block)?);
                }
            }
            all(sends).await?;
            turn.end(own)
        }
    }

    /// Gathers every process's bytes, by rank, at every process: round a ring, in n - 1 steps.
    ///
    /// # Errors
    /// [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn all_gather(
        &self,
        bytes: impl Into<Bytes>,
    ) -> impl Future<Output = Result<Vec<Bytes>, MessageError>> {
        let turn = Turn::queued(self);
        let bytes = bytes.into();
        async move { turn?.all_gather(bytes).await }
    }

    /// Sends each process its block, and returns the blocks for this one, by rank. In step k each process sends
    /// to the rank k above it, so no process is the target of all at once.
    ///
    /// # Errors
    /// [`MessageError::Shape`] if there is not one block a process; [`MessageError::Failed`],
    /// [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn all_to_all(
        &self,
        mut blocks: Vec<Bytes>,
    ) -> impl Future<Output = Result<Vec<Bytes>, MessageError>> {
        let turn = self.check_blocks(&blocks).and_then(|()| Turn::new(self));
        async move {
            let turn = turn?;
            let (size, rank) = (turn.size(), turn.rank());
            let mut received = vec![Bytes::new(); size as usize];
            received[rank as usize] = std::mem::take(&mut blocks[rank as usize]);
            for step in 1..size {
                let (to, from) = ((rank + step) % size, (rank + size - step) % size);
                let block = std::mem::take(&mut blocks[to as usize]);
                received[from as usize] = turn.exchange(to, block, from).await?;
            }
            turn.end(received)
        }
    }
}
