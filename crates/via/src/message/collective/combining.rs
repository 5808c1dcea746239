//! Algorithms that combine the values of all processes, in the order of ranks.

use std::ops::Range;

use zerocopy::IntoBytes;

use super::costs::{HOST, Reducing};
use super::operation::Reduction;
use super::{MessageError, Turn};
use crate::message::communicator::Pending;
use crate::message::request::Load;
use crate::message::typed::{Plain, from_bytes, into_bytes, values_of};

impl Turn {
    pub(super) async fn all_reduce<T: Plain>(
        &self,
        mut values: Vec<T>,
        by: &mut impl Reduction<T>,
    ) -> Result<Vec<T>, MessageError> {
        match HOST.all_reduce(self.size(), size_of_val(&values[..])) {
            Reducing::Tree => {
                self.combine_up(&mut values, by).await?;
                let count = values.len();
                let combined = self.broadcast(0, into_bytes(values)).await?;
                Ok(values_of::<T>(count, &combined)?.into_owned())
            }
            Reducing::Doubling => {
                self.double(&mut values, by).await?;
                Ok(values)
            }
            Reducing::Halving => {
                self.halve(&mut values, by).await?;
                Ok(values)
            }
            Reducing::Blocks => {
                let bounds = self.even_bounds(values.len());
                let block = self.combine_blocks(values, &bounds, by).await?;
                self.share::<T>(0, into_bytes(block), &bounds).await
            }
        }
    }

    /// Combines the values of all processes at the root; returns `None` at the others.
    pub(super) async fn reduce<T: Plain>(
        &self,
        root: u32,
        mut values: Vec<T>,
        by: &mut impl Reduction<T>,
    ) -> Result<Option<Vec<T>>, MessageError> {
        let (rank, count) = (self.rank(), values.len());
        if HOST.reduce(self.size(), size_of_val(&values[..])) == Reducing::Blocks {
            let bounds = self.even_bounds(count);
            let block = self.combine_blocks(values, &bounds, by).await?;
            return self.bring_together(root, block, &bounds).await;
        }
        let first = self.combine_up(&mut values, by).await?;
        if first && rank != root {
            self.send(root, into_bytes(values))?.await?;
            return Ok(None);
        }
        if rank != root {
            return Ok(None);
        }
        if !first {
            let bytes = self.receive(0)?.await?.bytes;
            values = values_of(count, &bytes)?.into_owned();
            self.recycle(bytes);
        }
        Ok(Some(values))
    }

    /// Combines the values of the lower ranks; returns `None` at rank 0. If `inclusive`, also combines this rank's
    /// values (Hillis and Steele, 1986).
    pub(super) async fn scan<T: Plain>(
        &self,
        own: Vec<T>,
        by: &mut impl Reduction<T>,
        inclusive: bool,
    ) -> Result<Option<Vec<T>>, MessageError> {
        let (size, rank) = (self.size(), self.rank());
        let mut lower: Option<Vec<T>> = None;
        let mut up_to = own;
        let mut distance = 1;
        while distance < size {
            let earlier = (rank >= distance).then(|| self.receive(rank - distance)).transpose()?;
            let later = rank + distance;
            let send = (later < size).then(|| self.send_values(later, &up_to)).transpose()?;
            if let Some(earlier) = earlier {
                let earlier = earlier.await?.bytes;
                join_before(by, &mut up_to, &earlier)?;
                match &mut lower {
                    Some(lower) => join_before(by, lower, &earlier)?,
                    None => lower = Some(from_bytes(&earlier)?),
                }
                self.recycle(earlier);
            }
            if let Some(send) = send {
                send.await?;
            }
            distance *= 2;
        }
        Ok(if inclusive { Some(up_to) } else { lower })
    }

    /// Combines up a binomial tree; returns true at rank 0, which has the result.
    async fn combine_up<T: Plain>(
        &self,
        values: &mut [T],
        by: &mut impl Reduction<T>,
    ) -> Result<bool, MessageError> {
        let (size, rank) = (self.size(), self.rank());
        let mut bit = 1;
        while bit < size {
            if rank & bit != 0 {
                self.send_values(rank - bit, values)?.await?;
                return Ok(false);
            }
            if rank + bit < size {
                let later = self.receive(rank + bit)?.await?.bytes;
                join_after(by, values, &later)?;
                self.recycle(later);
            }
            bit <<= 1;
        }
        Ok(true)
    }

    /// Combines by recursive doubling, for a power of two of ranks.
    async fn double<T: Plain>(
        &self,
        values: &mut [T],
        by: &mut impl Reduction<T>,
    ) -> Result<(), MessageError> {
        let mut bit = 1;
        while bit < self.size() {
            let partner = self.rank() ^ bit;
            let other = self.exchange_values(partner, values).await?;
            join(by, values, &other, partner < self.rank())?;
            self.recycle(other);
            bit <<= 1;
        }
        Ok(())
    }

    /// Combines by recursive halving: in each step, two processes combine one half each. Then exchanges the results
    /// in the opposite order. For a power of two of ranks.
    async fn halve<T: Plain>(
        &self,
        values: &mut [T],
        by: &mut impl Reduction<T>,
    ) -> Result<(), MessageError> {
        let rank = self.rank();
        let mut kept = 0..values.len();
        let mut given: Vec<(u32, Range<usize>)> = Vec::new();
        let mut bit = 1;
        while bit < self.size() {
            let (partner, middle) = (rank ^ bit, kept.start.midpoint(kept.end));
            let (low, high) = (kept.start..middle, middle..kept.end);
            let (keep, give) = if rank & bit == 0 { (low, high) } else { (high, low) };
            let other = self.exchange_values(partner, &values[give.clone()]).await?;
            join(by, &mut values[keep.clone()], &other, partner < rank)?;
            self.recycle(other);
            given.push((partner, give));
            kept = keep;
            bit <<= 1;
        }
        for (partner, gave) in given.into_iter().rev() {
            let other = self.exchange_values(partner, &values[kept.clone()]).await?;
            values[gave.clone()].copy_from_slice(&values_of(gave.len(), &other)?);
            self.recycle(other);
            kept = kept.start.min(gave.start)..kept.end.max(gave.end);
        }
        Ok(())
    }

    /// Sends each process its block of the values, and combines the blocks for this one: by pairwise exchange.
    /// A ring would send as many bytes, but its steps depend on one another and do not combine in rank order.
    pub(super) async fn combine_blocks<T: Plain>(
        &self,
        values: Vec<T>,
        bounds: &[usize],
        by: &mut impl Reduction<T>,
    ) -> Result<Vec<T>, MessageError> {
        let rank = self.rank();
        let block = |rank: u32| bounds[rank as usize]..bounds[rank as usize + 1];
        let own = values[block(rank)].to_vec();
        let (values, each) = (into_bytes(values), size_of::<T>());
        let block_for = |to| {
            let Range { start, end } = block(to);
            Some(values.slice(start * each..end * each))
        };
        let mut lower = self.swap(block_for, |_| true).await?;
        let higher = lower.split_off(rank as usize);
        let mut first: Option<Vec<T>> = None;
        for (_, bytes) in lower {
            match &mut first {
                Some(first) => join_after(by, first, &bytes)?,
                None => first = Some(values_of(own.len(), &bytes)?.into_owned()),
            }
            self.recycle(bytes);
        }
        let mut combined = match first {
            Some(mut first) => {
                by.join(&mut first, &own);
                first
            }
            None => own,
        };
        for (_, bytes) in higher {
            join_after(by, &mut combined, &bytes)?;
            self.recycle(bytes);
        }
        Ok(combined)
    }

    /// Sends each process's block to the root; returns all blocks there, concatenated in rank order.
    async fn bring_together<T: Plain>(
        &self,
        root: u32,
        block: Vec<T>,
        bounds: &[usize],
    ) -> Result<Option<Vec<T>>, MessageError> {
        if self.rank() != root {
            self.send(root, into_bytes(block))?.await?;
            return Ok(None);
        }
        let receives: Result<Vec<_>, _> = self.others().map(|from| self.receive(from)).collect();
        let mut blocks = Vec::new();
        for receive in receives? {
            blocks.push(receive.await?.bytes);
        }
        blocks.insert(root as usize, block.as_bytes().to_vec());
        self.joined(blocks, bounds).map(Some)
    }

    fn send_values<T: Plain>(&self, to: u32, values: &[T]) -> Result<Pending, MessageError> {
        self.send_load(to, Load::Copy(values.as_bytes()))
    }

    async fn exchange_values<T: Plain>(
        &self,
        partner: u32,
        values: &[T],
    ) -> Result<Vec<u8>, MessageError> {
        let receive = self.receive(partner)?;
        let send = self.send_values(partner, values)?;
        let received = receive.await?;
        send.await?;
        Ok(received.bytes)
    }
}

/// Combines `own` with received bytes: those of lower ranks if `lower`, else of higher ranks.
fn join<T: Plain>(
    by: &mut impl Reduction<T>,
    own: &mut [T],
    received: &[u8],
    lower: bool,
) -> Result<(), MessageError> {
    if lower { join_before(by, own, received) } else { join_after(by, own, received) }
}

/// Combines received bytes, of higher ranks, with `first`.
fn join_after<T: Plain>(
    by: &mut impl Reduction<T>,
    first: &mut [T],
    received: &[u8],
) -> Result<(), MessageError> {
    by.join(first, &values_of(first.len(), received)?);
    Ok(())
}

/// Combines `second` with received bytes, of lower ranks; the result is in `second`.
fn join_before<T: Plain>(
    by: &mut impl Reduction<T>,
    second: &mut [T],
    received: &[u8],
) -> Result<(), MessageError> {
    let mut first = values_of(second.len(), received)?.into_owned();
    by.join(&mut first, second);
    second.copy_from_slice(&first);
    Ok(())
}
