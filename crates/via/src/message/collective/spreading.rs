//! Algorithms that spread bytes: broadcast and all-gather.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use super::costs::{HOST, Spreading};
use super::{MessageError, Turn, all};
use crate::message::communicator::Pending;
use crate::message::transport::StartError;
use crate::message::typed::{Plain, values_of};

/// Most bytes of a block that is sent together with the lengths of all blocks. Each process sends a longer block
/// directly to every other process.
const INLINE: usize = 1024;
/// Bytes above which a block is long: at most [`LONG_AT_ONCE`] long blocks are in flight at once.
const LONG: usize = 16 << 10;
const LONG_AT_ONCE: usize = 2;
/// Bytes of an encoded length.
const LENGTH: usize = 4;

impl Turn {
    /// Broadcasts down a binomial tree whose root is `root`. Short bytes go down together with their length. Of long
    /// ones, the length goes down, then the blocks of each subtree; all processes exchange their blocks afterwards.
    pub(super) async fn broadcast(&self, root: u32, bytes: Bytes) -> Result<Bytes, MessageError> {
        let (size, place) = (self.size(), (self.rank() + self.size() - root) % self.size());
        if size == 1 {
            return Ok(bytes);
        }
        let mut bit = 1;
        while bit < size && place & bit == 0 {
            bit <<= 1;
        }
        let parent = (place != 0).then(|| (place - bit + root) % size);
        let first = match parent {
            Some(parent) => self.receive(parent)?.await?.bytes.into(),
            None => {
                check_length(&bytes)?;
                first_message(size, &bytes)
            }
        };
        let (length, rest) = split_length(first.clone()).ok_or_else(|| odd(0))?;
        if HOST.broadcast(size, length) == Spreading::Tree {
            if rest.len() != length {
                return Err(odd(rest.len()));
            }
            self.send_below(root, bit, |_, _| first.clone()).await?;
            return Ok(if parent.is_some() { rest } else { bytes });
        }
        let bounds = self.even_bounds(length);
        let start = bounds[place as usize];
        let part = match parent {
            Some(parent) => Bytes::from(self.receive(parent)?.await?.bytes),
            None => bytes,
        };
        let end = bounds[(place + bit).min(size) as usize];
        if part.len() != end - start {
            return Err(odd(part.len()));
        }
        self.send_below(root, bit, |_, _| first.clone()).await?;
        let blocks = |child: u32, end: u32| {
            part.slice(bounds[child as usize] - start..bounds[end as usize] - start)
        };
        self.send_below(root, bit, blocks).await?;
        let own = part.slice(..bounds[place as usize + 1] - start);
        Ok(self.share::<u8>(root, own, &bounds).await?.into())
    }

    /// Sends bytes to each child in the tree of `root`, below the given bit. `of` returns the bytes for the places
    /// from the child to the end of its subtree.
    async fn send_below(
        &self,
        root: u32,
        mut bit: u32,
        of: impl Fn(u32, u32) -> Bytes,
    ) -> Result<(), MessageError> {
        let size = self.size();
        let place = (self.rank() + size - root) % size;
        let mut sends = Vec::new();
        while bit > 1 {
            bit >>= 1;
            let child = place + bit;
            if child < size {
                let bytes = of(child, (child + bit).min(size));
                sends.push(self.send((child + root) % size, bytes)?);
            }
        }
        all(sends).await.map(drop)
    }

    /// Exchanges blocks with all other processes; returns the values of all blocks, concatenated. `bounds` are the
    /// blocks' bounds in the result; the first block is the root's.
    pub(super) async fn share<T: Plain>(
        &self,
        root: u32,
        own: Bytes,
        bounds: &[usize],
    ) -> Result<Vec<T>, MessageError> {
        let received = self.swap(|_| Some(own.clone()), |_| true).await?;
        let mut blocks: Vec<_> = received.into_iter().map(|(_, bytes)| bytes).collect();
        blocks.insert(self.rank() as usize, own.into());
        blocks.rotate_left(root as usize);
        self.joined(blocks, bounds)
    }

    /// Concatenates the values of blocks, whose bounds in the result are `bounds`.
    pub(super) fn joined<T: Plain>(
        &self,
        blocks: Vec<Vec<u8>>,
        bounds: &[usize],
    ) -> Result<Vec<T>, MessageError> {
        let mut values = Vec::with_capacity(bounds[blocks.len()]);
        for (block, ends) in blocks.into_iter().zip(bounds.windows(2)) {
            values.extend_from_slice(&values_of(ends[1] - ends[0], &block)?);
            self.recycle(block);
        }
        Ok(values)
    }

    /// Sends each other process the block that `block` returns for it, and receives from those for which `sends`
    /// returns true; returns the received blocks, by rank. Of long blocks, few are in flight at once, each to another
    /// process, so that no process is the target of all.
    pub(super) async fn swap(
        &self,
        block: impl Fn(u32) -> Option<Bytes>,
        sends: impl Fn(u32) -> bool,
    ) -> Result<Vec<(u32, Vec<u8>)>, MessageError> {
        let (size, rank) = (self.size(), self.rank());
        let mut under_way = VecDeque::new();
        let mut received = Vec::new();
        for step in 1..size {
            let (to, from) = ((rank + step) % size, (rank + size - step) % size);
            let receive = sends(from).then(|| self.receive(from)).transpose()?;
            let block = block(to);
            let long = block.as_ref().is_some_and(|block| block.len() > LONG);
            let send = block.map(|block| self.send(to, block)).transpose()?;
            under_way.push_back((from, receive, send));
            let most = if long { LONG_AT_ONCE } else { size as usize };
            while under_way.len() >= most {
                finish(&mut under_way, &mut received).await?;
            }
        }
        while !under_way.is_empty() {
            finish(&mut under_way, &mut received).await?;
        }
        received.sort_unstable_by_key(|(from, _)| *from);
        Ok(received)
    }

    /// Gathers every process's bytes, by rank: the lengths and the short blocks by Bruck's algorithm (1997), in
    /// ceil(log2 n) steps, then the long blocks directly.
    pub(super) async fn gather_all(&self, bytes: Bytes) -> Result<Vec<Bytes>, MessageError> {
        let (size, rank) = (self.size(), self.rank());
        check_length(&bytes)?;
        // The blocks of this rank and those after it, cyclically: the length, and the bytes of a short one.
        let mut blocks = vec![(bytes.len(), Some(bytes.clone()).filter(|b| b.len() <= INLINE))];
        let mut distance = 1;
        while distance < size {
            let count = distance.min(size - distance) as usize;
            let (to, from) = ((rank + size - distance) % size, (rank + distance) % size);
            let packed = pack(&blocks[..count]);
            let other = self.exchange(to, packed, from).await?;
            blocks.extend(unpack(other, count)?);
            distance <<= 1;
        }
        blocks.rotate_right(rank as usize);
        let own = (bytes.len() > INLINE).then_some(&bytes);
        let long = self.swap(|_| own.cloned(), |from| blocks[from as usize].1.is_none()).await?;
        for (from, bytes) in long {
            let (length, block) = &mut blocks[from as usize];
            if bytes.len() != *length {
                return Err(odd(bytes.len()));
            }
            *block = Some(bytes.into());
        }
        Ok(blocks.into_iter().map(|(_, block)| block.unwrap_or_else(|| bytes.clone())).collect())
    }
}

/// The messages with another process in one step of a swap.
type Step = (u32, Option<Pending>, Option<Pending>);

/// Waits for the first step in progress, and appends its received block to `received`.
async fn finish(
    under_way: &mut VecDeque<Step>,
    received: &mut Vec<(u32, Vec<u8>)>,
) -> Result<(), MessageError> {
    let Some((from, receive, send)) = under_way.pop_front() else { return Ok(()) };
    if let Some(receive) = receive {
        received.push((from, receive.await?.bytes));
    }
    if let Some(send) = send {
        send.await?;
    }
    Ok(())
}

/// Makes the first message of a broadcast: the length, and all bytes if they are not sent in blocks.
fn first_message(size: u32, bytes: &Bytes) -> Bytes {
    let whole = HOST.broadcast(size, bytes.len()) == Spreading::Tree;
    pack(&[(bytes.len(), whole.then(|| bytes.clone()))])
}

/// Checks that a length fits into the four bytes in which it travels.
///
/// # Errors
/// [`StartError::TooLong`].
fn check_length(bytes: &Bytes) -> Result<(), MessageError> {
    let (length, most) = (bytes.len(), u32::MAX as usize);
    if length > most { Err(StartError::TooLong { length, most }.into()) } else { Ok(()) }
}

fn split_length(mut bytes: Bytes) -> Option<(usize, Bytes)> {
    let length = bytes.try_get_u32_le().ok()? as usize;
    Some((length, bytes))
}

/// Packs blocks: the length of each, little-endian, and its bytes if present.
fn pack(blocks: &[(usize, Option<Bytes>)]) -> Bytes {
    let bytes = blocks.iter().filter_map(|(_, block)| block.as_ref());
    let mut packed =
        Vec::with_capacity(blocks.len() * LENGTH + bytes.map(Bytes::len).sum::<usize>());
    for (length, block) in blocks {
        packed.extend_from_slice(&(*length as u32).to_le_bytes());
        packed.extend_from_slice(block.as_deref().unwrap_or_default());
    }
    packed.into()
}

/// Reads `count` blocks that [`pack`] has packed; short blocks have their bytes, long ones only their length.
fn unpack(packed: Bytes, count: usize) -> Result<Vec<(usize, Option<Bytes>)>, MessageError> {
    let mut rest = packed;
    let mut blocks = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, mut after) = split_length(rest).ok_or_else(|| odd(0))?;
        let short = length <= INLINE;
        if short && after.len() < length {
            return Err(odd(after.len()));
        }
        blocks.push((length, short.then(|| after.split_to(length))));
        rest = after;
    }
    if rest.is_empty() { Ok(blocks) } else { Err(odd(rest.len())) }
}

/// Returns the error for a message of another process that this operation does not send.
const fn odd(found: usize) -> MessageError {
    MessageError::Shape { what: "bytes of another process's block", expected: LENGTH, found }
}
