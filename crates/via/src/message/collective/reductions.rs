//! Reductions: operations that combine the contributions of all processes, always in the order of ranks.

use std::future::Future;

use super::carried;
use super::operation::Reduction;
use super::{Communicator, Rank, Turn};
use crate::message::process::MessageError;
use crate::message::typed::Plain;

impl Communicator {
    /// Combines the values of all processes position by position; returns the result at the root, `None` at the
    /// others. All processes must pass the same number of values.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce), and [`MessageError::Rank`].
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn reduce<T: Plain, R: Reduction<T>>(
        &self,
        root: Rank,
        values: &[T],
        mut by: R,
    ) -> impl Future<Output = Result<Option<Vec<T>>, MessageError>> + use<T, R> {
        let by_nics = self.by_nics(values, &by);
        let turn = self
            .checked(root)
            .and_then(|root| Ok((Turn::queued_if(self, by_nics.is_some())?, root)));
        let values = values.to_vec();
        async move {
            let (turn, root) = turn?;
            let combined = match by_nics {
                Some(operation) => {
                    let combined = turn.reduce_by_nics(Some(root), &values, operation).await?;
                    let is_root = turn.rank() == root;
                    let combined = turn.end(is_root.then_some(combined))?;
                    return combined.map(|bytes| carried::values_of(&bytes, &values)).transpose();
                }
                None => turn.reduce(root, values, &mut by).await?,
            };
            turn.end(combined)
        }
    }

    /// Combines the values of all processes position by position; returns the result at every process. All processes
    /// must pass the same number of values. `by` is an [`Operation`](super::Operation), or a function that combines
    /// its second argument, from higher ranks, into its first.
    ///
    /// The numbers of bytes and processes decide the algorithm: recursive doubling, or a tree if the number of
    /// processes is no power of two; recursive halving and doubling; or one block for each process. If the result
    /// depends on the association, as a floating-point sum does, all processes still get the same result.
    ///
    /// # Errors
    /// [`MessageError::Failed`], [`MessageError::Abandoned`]. If the numbers of values differ,
    /// [`MessageError::Shape`] at a process that detects it; the others may end with
    /// [`Failure::Abandoned`](crate::message::request::Failure::Abandoned). On a communicator
    /// [on NICs](Self::on_nics), if some processes pass more bytes than the NICs carry and others do not, all wait
    /// for ever.
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn all_reduce<T: Plain, R: Reduction<T>>(
        &self,
        values: &[T],
        mut by: R,
    ) -> impl Future<Output = Result<Vec<T>, MessageError>> + use<T, R> {
        let by_nics = self.by_nics(values, &by);
        let turn = Turn::queued_if(self, by_nics.is_some());
        let values = values.to_vec();
        async move {
            let turn = turn?;
            if let Some(operation) = by_nics {
                let combined = turn.reduce_by_nics(None, &values, operation).await?;
                return carried::values_of(&turn.end(combined)?, &values);
            }
            let combined = turn.all_reduce(values, &mut by).await?;
            turn.end(combined)
        }
    }

    /// Combines the values of all processes position by position, and returns to each its block of the result,
    /// of `counts[rank]` values. All processes must pass the same counts, and as many values as their sum.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce); [`MessageError::Shape`] if there is not one count a process,
    /// or the number of values is not the sum of the counts.
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn reduce_scatter<T: Plain, R: Reduction<T>>(
        &self,
        values: &[T],
        counts: &[usize],
        mut by: R,
    ) -> impl Future<Output = Result<Vec<T>, MessageError>> + use<T, R> {
        let mut bounds = vec![0];
        bounds.extend(counts.iter().scan(0_usize, |end, count| {
            *end = end.saturating_add(*count);
            Some(*end)
        }));
        let turn = self
            .check_count("counts, one a process", counts.len())
            .and_then(|()| check_whole(values.len(), bounds[counts.len()]))
            .and_then(|()| Turn::new(self));
        let values = values.to_vec();
        async move {
            let turn = turn?;
            let block = turn.combine_blocks(values, &bounds, &mut by).await?;
            turn.end(block)
        }
    }

    /// Combines the values of all ranks up to and including this one position by position, in ceil(log2 n)
    /// rounds (Hillis and Steele, 1986).
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce).
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn scan<T: Plain, R: Reduction<T>>(
        &self,
        values: &[T],
        mut by: R,
    ) -> impl Future<Output = Result<Vec<T>, MessageError>> + use<T, R> {
        let turn = Turn::new(self);
        let values = values.to_vec();
        async move {
            let turn = turn?;
            let combined = turn.scan(values, &mut by, true).await?.unwrap_or_default();
            turn.end(combined)
        }
    }

    /// Combines the values of all ranks below this one position by position; returns `None` at rank 0.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce).
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn exclusive_scan<T: Plain, R: Reduction<T>>(
        &self,
        values: &[T],
        mut by: R,
    ) -> impl Future<Output = Result<Option<Vec<T>>, MessageError>> + use<T, R> {
        let turn = Turn::new(self);
        let values = values.to_vec();
        async move {
            let turn = turn?;
            let lower = turn.scan(values, &mut by, false).await?;
            turn.end(lower)
        }
    }
}

fn check_whole(found: usize, expected: usize) -> Result<(), MessageError> {
    let what = "values, as many as the counts together";
    if found == expected { Ok(()) } else { Err(MessageError::Shape { what, expected, found }) }
}
