//! Operations that combine everybody's contribution, always in the order of ranks: the operator
//! has to be associative and need not be commutative.

use bytes::Bytes;

use super::{Communicator, Operation, Progression, Rank, Turn, carried};
use crate::message::process::MessageError;

impl<P: Progression> Turn<'_, P> {
    /// Up a binomial tree: the result, at rank 0.
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
}

impl<P: Progression> Communicator<P> {
    /// Everybody's bytes combined, at the root; `None` at the others. `combine` joins the second,
    /// of higher ranks, to the first.
    ///
    /// # Errors
    /// [`MessageError::Rank`], [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub async fn reduce(
        &self,
        root: Rank,
        bytes: impl Into<Vec<u8>>,
        mut combine: impl FnMut(&mut Vec<u8>, &[u8]),
    ) -> Result<Option<Vec<u8>>, MessageError> {
        self.scope().group().peer(root)?;
        let turn = Turn::new(self)?;
        let combined = turn.reduce(bytes.into(), &mut combine).await?;
        let combined = match (combined, root.0) {
            (combined, 0) => combined,
            (Some(bytes), root) => {
                turn.send(root, bytes.into())?.await?;
                None
            }
            (None, root) if root == turn.rank() => Some(turn.receive(0)?.await?.bytes),
            (None, _) => None,
        };
        turn.end(combined)
    }

    /// Everybody's bytes combined, at every process.
    ///
    /// # Errors
    /// [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub async fn all_reduce(
        &self,
        bytes: impl Into<Vec<u8>>,
        mut combine: impl FnMut(&mut Vec<u8>, &[u8]),
    ) -> Result<Bytes, MessageError> {
        let turn = Turn::new(self)?;
        let combined = turn.reduce(bytes.into(), &mut combine).await?.unwrap_or_default();
        let combined = turn.broadcast(0, combined.into()).await?;
        turn.end(combined)
    }

    /// Everybody's words combined one by one, at the root; `None` at the others. All have as many.
    ///
    /// # Errors
    /// [`MessageError::Shape`] at the root where they have not; [`MessageError::Rank`],
    /// [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub async fn reduce_words(
        &self,
        root: Rank,
        words: &[u64],
        operation: Operation,
    ) -> Result<Option<Vec<u64>>, MessageError> {
        let rank = self.checked(root)?;
        let bytes = carried::bytes_of(words);
        let combined = if carried::fits(words) && self.nics.is_some() {
            let turn = Turn::queued(self)?;
            let combined = turn.reduce_by_nics(Some(rank), &bytes, operation).await?;
            turn.end((self.rank() == root).then_some(combined))?
        } else {
            self.reduce(root, bytes, |first, second| operation.join(first, second)).await?
        };
        combined.map(|combined| carried::words_of(&combined, words.len())).transpose()
    }

    /// Everybody's words combined one by one, at every process. All have as many; where some bring more
    /// than the NICs take and others do not, all wait for ever on a communicator
    /// [on NICs](Self::on_nics).
    ///
    /// # Errors
    /// [`MessageError::Shape`] where they have not as many; [`MessageError::Failed`],
    /// [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub async fn all_reduce_words(
        &self,
        words: &[u64],
        operation: Operation,
    ) -> Result<Vec<u64>, MessageError> {
        let bytes = carried::bytes_of(words);
        let combined = if carried::fits(words) && self.nics.is_some() {
            let turn = Turn::queued(self)?;
            let combined = turn.reduce_by_nics(None, &bytes, operation).await?;
            turn.end(combined)?
        } else {
            self.all_reduce(bytes, |first, second| operation.join(first, second)).await?.into()
        };
        carried::words_of(&combined, words.len())
    }

    /// The bytes of all ranks up to this one combined, this one's included (Hillis and Steele,
    /// 1986): ceil(log2 n) rounds.
    ///
    /// # Errors
    /// [`MessageError::Failed`], [`MessageError::Abandoned`].
    ///
    /// # Cancel safety
    /// None: dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub async fn scan(
        &self,
        bytes: impl Into<Vec<u8>>,
        mut combine: impl FnMut(&mut Vec<u8>, &[u8]),
    ) -> Result<Vec<u8>, MessageError> {
        let turn = Turn::new(self)?;
        let (size, rank) = (turn.size(), turn.rank());
        let mut bytes = bytes.into();
        let mut distance = 1;
        while distance < size {
            let earlier = (rank >= distance).then(|| turn.receive(rank - distance)).transpose()?;
            let later = rank + distance;
            let send =
                (later < size).then(|| turn.send(later, bytes.clone().into())).transpose()?;
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
        turn.end(bytes)
    }
}
