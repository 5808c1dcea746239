//! Reductions: operations that combine the contributions of all processes, always in the order of ranks. The
//! operator must be associative and need not be commutative.

use std::future::Future;

use bytes::Bytes;

use super::{Communicator, Operation, Rank, Turn, carried};
use crate::message::process::MessageError;

impl Turn<'_> {
    /// Combines up a binomial tree; returns the result at rank 0.
    async fn reduce(
        &self,
        mut bytes: Vec<u8>,
        combine: &mut impl FnMut(&mut Vec<u8>, &[u8]),
    ) -> Result<Option<Vec<u8>>, MessageError> {
        let (size, rank) = (self.size(), self.rank());
        let mut bit = 1;
        while bit < size {
            if rank & bit != 0 {
                self.send(rank - bit, bytes.into())?.await?;
                return Ok(None);
            }
            if rank + bit < size {
                let later = self.receive(rank + bit)?.await?;
                combine(&mut bytes, &later.bytes);
            }
            bit <<= 1;
        }
        Ok(Some(bytes))
    }

    async fn reduce_to(
        self,
        root: u32,
        bytes: Vec<u8>,
        mut combine: impl FnMut(&mut Vec<u8>, &[u8]),
    ) -> Result<Option<Vec<u8>>, MessageError> {
        let combined = self.reduce(bytes, &mut combine).await?;
        let combined = match (combined, root) {
            (combined, 0) => combined,
            (Some(bytes), root) => {
                self.send(root, bytes.into())?.await?;
                None
            }
            (None, root) if root == self.rank() => Some(self.receive(0)?.await?.bytes),
            (None, _) => None,
        };
        self.end(combined)
    }

    pub(in crate::message) async fn all_reduce(
        self,
        bytes: Vec<u8>,
        mut combine: impl FnMut(&mut Vec<u8>, &[u8]),
    ) -> Result<Bytes, MessageError> {
        let combined = self.reduce(bytes, &mut combine).await?.unwrap_or_default();
        let combined = self.broadcast(0, combined.into()).await?;
        self.end(combined)
    }

    async fn scan(
        self,
        mut bytes: Vec<u8>,
        mut combine: impl FnMut(&mut Vec<u8>, &[u8]),
    ) -> Result<Vec<u8>, MessageError> {
        let (size, rank) = (self.size(), self.rank());
        let mut distance = 1;
        while distance < size {
            let earlier = (rank >= distance).then(|| self.receive(rank - distance)).transpose()?;
            let later = rank + distance;
            let send =
                (later < size).then(|| self.send(later, bytes.clone().into())).transpose()?;
            if let Some(earlier) = earlier {
                let mut combined = earlier.await?.bytes;
                combine(&mut combined, &bytes);
                bytes = combined;
            }
            if let Some(send) = send {
                send.await?;
            }
            distance *= 2;
        }
        self.end(bytes)
    }
}

impl Communicator {
    /// Combines the bytes of all processes; returns them at the root, `None` at the others. `combine` joins its
    /// second argument, from higher ranks, to its first.
    ///
    /// # Errors
    /// [`MessageError::Rank`], [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn reduce(
        &self,
        root: Rank,
        bytes: impl Into<Vec<u8>>,
        combine: impl FnMut(&mut Vec<u8>, &[u8]),
    ) -> impl Future<Output = Result<Option<Vec<u8>>, MessageError>> {
        let turn = self.checked(root).and_then(|root| Ok((Turn::new(self)?, root)));
        let bytes = bytes.into();
        async move {
            let (turn, root) = turn?;
            turn.reduce_to(root, bytes, combine).await
        }
    }

    /// Combines the bytes of all processes; returns them at every process.
    ///
    /// # Errors
    /// [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn all_reduce(
        &self,
        bytes: impl Into<Vec<u8>>,
        combine: impl FnMut(&mut Vec<u8>, &[u8]),
    ) -> impl Future<Output = Result<Bytes, MessageError>> {
        let turn = Turn::new(self);
        let bytes = bytes.into();
        async move { turn?.all_reduce(bytes, combine).await }
    }

    /// Combines the words of all processes element by element; returns them at the root, `None` at the others.
    /// All must pass equally many.
    ///
    /// # Errors
    /// [`MessageError::Shape`] at the root if they do not; [`MessageError::Rank`], [`MessageError::Failed`],
    /// [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn reduce_words(
        &self,
        root: Rank,
        words: &[u64],
        operation: Operation,
    ) -> impl Future<Output = Result<Option<Vec<u64>>, MessageError>> {
        let (by_nics, bytes) = (self.words_by_nics(words), carried::bytes_of(words));
        let words = words.len();
        let turn = self.checked(root).and_then(|root| Ok((self.turn_for(by_nics)?, root)));
        async move {
            let (turn, root) = turn?;
            let combined = if by_nics {
                let combined = turn.reduce_by_nics(Some(root), &bytes, operation).await?;
                let is_root = turn.rank() == root;
                turn.end(is_root.then_some(combined))?
            } else {
                turn.reduce_to(root, bytes, |first, second| operation.join(first, second)).await?
            };
            combined.map(|combined| carried::words_of(&combined, words)).transpose()
        }
    }

    /// Returns whether the NICs carry out a reduction of these words.
    fn words_by_nics(&self, words: &[u64]) -> bool {
        carried::fits(words) && self.nics.is_some()
    }

    fn turn_for(&self, by_nics: bool) -> Result<Turn<'_>, MessageError> {
        if by_nics { Turn::queued(self) } else { Turn::new(self) }
    }

    /// Combines the words of all processes element by element; returns them at every process. All must pass
    /// equally many. On a communicator [on NICs](Self::on_nics), if some pass more words than the NICs take and
    /// others do not, all wait for ever.
    ///
    /// # Errors
    /// [`MessageError::Shape`] if they do not pass equally many; [`MessageError::Failed`],
    /// [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn all_reduce_words(
        &self,
        words: &[u64],
        operation: Operation,
    ) -> impl Future<Output = Result<Vec<u64>, MessageError>> {
        let (by_nics, bytes) = (self.words_by_nics(words), carried::bytes_of(words));
        let (turn, words) = (self.turn_for(by_nics), words.len());
        async move {
            let turn = turn?;
            let combined = if by_nics {
                let combined = turn.reduce_by_nics(None, &bytes, operation).await?;
                turn.end(combined)?
            } else {
                turn.all_reduce(bytes, |first, second| operation.join(first, second)).await?.into()
            };
            carried::words_of(&combined, words)
        }
    }

    /// Combines the bytes of all ranks up to and including this one (Hillis and Steele, 1986), in ceil(log2 n)
    /// rounds.
    ///
    /// # Errors
    /// [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn scan(
        &self,
        bytes: impl Into<Vec<u8>>,
        combine: impl FnMut(&mut Vec<u8>, &[u8]),
    ) -> impl Future<Output = Result<Vec<u8>, MessageError>> {
        let turn = Turn::new(self);
        let bytes = bytes.into();
        async move { turn?.scan(bytes, combine).await }
    }
}
