//! Collective operations: each is called by all processes of a communicator.
//!
//! All processes call the same operations in the same order. Contributions that are not combined may have any
//! lengths, so that gather, for example, is also `MPI_Gatherv`. The messages of collective operations have their own
//! context, and each operation has its own tag.
//!
//! The call itself assigns the operation its place in the order, and returns a future that borrows nothing. Several
//! operations may be in progress, in any tasks, and end in any order. An operation progresses only while its future
//! is polled.
//!
//! On a communicator [on NICs](Communicator::on_nics), the NICs carry out the operations that they support.
//!
//! # Cancel safety
//! None: an operation that is dropped before it has ended, or that fails, leaves its communicator
//! [abandoned](MessageError::Abandoned). An operation fails once a process that it needs is lost. The other processes
//! are notified: their operations in progress over that communicator end with
//! [`Failure::Abandoned`](super::request::Failure::Abandoned). Other communicators are unaffected. An operation that NICs
//! carry out ends later, with [`Failure::PeerLost`](super::request::Failure::PeerLost), if it needs a process that has
//! abandoned the communicator: once that process has dropped its last handle.

mod carried;
mod combining;
mod costs;
mod nics;
mod operation;
mod reductions;
mod spreading;

use std::future::Future;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::communicator::{Communicator, Pending, wait_all};
use super::envelope::{LEFT, Tag};
use super::group::Rank;
use super::process::MessageError;
use super::request::Load;

pub use operation::{Number, Operation, Reduction, max_location, min_location};

pub(super) use nics::Nics;

/// A collective operation, from its call until its end.
pub(super) struct Turn {
    communicator: Communicator,
    tag: Tag,
    /// The operation's place in the NICs' queue, until it leaves the queue; `None` if the hosts carry it out.
    place: Option<u32>,
    ended: bool,
}

impl Drop for Turn {
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

impl Turn {
    /// Claims the operation's place in its communicator's order, before anything is polled.
    pub(super) fn new(communicator: &Communicator) -> Result<Self, MessageError> {
        if communicator.abandoned.load(Ordering::Relaxed) {
            return Err(MessageError::Abandoned);
        }
        let tag = Tag(communicator.turn.fetch_add(1, Ordering::Relaxed) % LEFT.0);
        Ok(Self { communicator: communicator.clone(), tag, place: None, ended: false })
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

    /// Returns the other processes, by rank.
    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let own = self.rank();
        (0..self.size()).filter(move |rank| *rank != own)
    }

    /// Divides `count` values into one block for each process, of nearly equal sizes; returns the blocks' bounds.
    fn even_bounds(&self, count: usize) -> Vec<usize> {
        let size = self.size() as usize;
        let (each, more) = (count / size, count % size);
        (0..=size).map(|at| at * each + at.min(more)).collect()
    }

    fn send(&self, to: u32, bytes: Bytes) -> Result<Pending, MessageError> {
        self.send_load(to, Load::Bytes(bytes))
    }

    fn send_load(&self, to: u32, load: Load<'_>) -> Result<Pending, MessageError> {
        let context = self.communicator.handle().collective();
        self.communicator.isend_in(context, Rank(to), self.tag, load)
    }

    fn receive(&self, from: u32) -> Result<Pending, MessageError> {
        let context = self.communicator.handle().collective();
        self.communicator.ireceive_in(context, Rank(from), self.tag)
    }

    /// Returns the buffer of a received message to the engine's pool.
    fn recycle(&self, buffer: Vec<u8>) {
        self.communicator.with(|process| process.engine_mut().recycle(buffer));
    }

    async fn exchange(&self, to: u32, bytes: Bytes, from: u32) -> Result<Bytes, MessageError> {
        let receive = self.receive(from)?;
        let send = self.send(to, bytes)?;
        let received = receive.await?;
        send.await?;
        Ok(received.bytes.into())
    }

    /// Gathers every process's bytes, by rank: through the NICs if they take them.
    pub(super) async fn all_gather(mut self, bytes: Bytes) -> Result<Vec<Bytes>, MessageError> {
        if let Some(nics) = self.nics().await?
            && let Some(blocks) = self.all_gather_by(&nics, &bytes).await?
        {
            return self.end(blocks);
        }
        self.leave_nics();
        let blocks = self.gather_all(bytes).await?;
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

    fn check_count(&self, what: &'static str, found: usize) -> Result<(), MessageError> {
        let expected = self.size() as usize;
        if expected == found { Ok(()) } else { Err(MessageError::Shape { what, expected, found }) }
    }

    fn check_blocks(&self, blocks: &[Bytes]) -> Result<(), MessageError> {
        self.check_count("blocks, one a process", blocks.len())
    }

    /// Waits until all processes have called `barrier`. Uses the dissemination algorithm, in ceil(log2 n) rounds
    /// (Hensgen, Finkel and Manber, 1988).
    ///
    /// # Errors
    /// [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn barrier(&self) -> impl Future<Output = Result<(), MessageError>> + use<> {
        let turn = Turn::queued(self);
        async move {
            let turn = turn?;
            if let Some(nics) = turn.nics().await? {
                turn.barrier_by(&nics).await?;
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

    /// Sends the root's bytes to every process, and returns them at each; `bytes` of other processes are ignored.
    /// Short messages go down a binomial tree. Of a long one, each process gets a block, and sends it to all others.
    ///
    /// # Errors
    /// [`MessageError::Rank`], [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn broadcast<B: Into<Bytes>>(
        &self,
        root: Rank,
        bytes: B,
    ) -> impl Future<Output = Result<Bytes, MessageError>> + use<B> {
        let turn = self.checked(root).and_then(|root| Ok((Turn::queued(self)?, root)));
        let bytes = bytes.into();
        async move {
            let (mut turn, root) = turn?;
            if let Some(nics) = turn.nics().await?
                && let Some(bytes) = turn.broadcast_by(&nics, root, &bytes).await?
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
    pub fn gather<B: Into<Bytes>>(
        &self,
        root: Rank,
        bytes: B,
    ) -> impl Future<Output = Result<Option<Vec<Bytes>>, MessageError>> + use<B> {
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
    ) -> impl Future<Output = Result<Bytes, MessageError>> + use<> {
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

    /// Gathers every process's bytes, by rank, at every process. Blocks of at most 1 KiB take ceil(log2 n) steps
    /// (Bruck, 1997); each process sends a longer block directly to every other process.
    ///
    /// # Errors
    /// [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn all_gather<B: Into<Bytes>>(
        &self,
        bytes: B,
    ) -> impl Future<Output = Result<Vec<Bytes>, MessageError>> + use<B> {
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
    ) -> impl Future<Output = Result<Vec<Bytes>, MessageError>> + use<> {
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
