//! Typed messages: values in the crates' one encoding, and slices of plain data as they lie in memory.
//!
//! Plain data is sent in the sender's byte order: sender and receiver must have the same one.

use std::future::Future;

use bytes::Bytes;
use midplane_simhw::wire;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::collective::Turn;
use super::communicator::{Communicator, Received};
use super::envelope::Tag;
use super::group::Rank;
use super::process::MessageError;
use super::request::Mode;

/// Copies the bytes of plain values.
pub fn to_bytes<T: IntoBytes + Immutable>(values: &[T]) -> Bytes {
    Bytes::copy_from_slice(values.as_bytes())
}

/// Reads plain values from their bytes, at any alignment.
///
/// # Errors
/// [`MessageError::Uneven`] if the bytes are no whole number of values, or the type has no bytes.
pub fn from_bytes<T: FromBytes>(bytes: &[u8]) -> Result<Vec<T>, MessageError> {
    let each = size_of::<T>();
    let uneven = MessageError::Uneven { bytes: bytes.len(), each };
    if each == 0 || !bytes.len().is_multiple_of(each) {
        return Err(uneven);
    }
    bytes.chunks_exact(each).map(|chunk| T::read_from_bytes(chunk).map_err(|_| uneven)).collect()
}

impl Communicator {
    /// Sends a value whose encoding has at most [`wire::LIMIT`] bytes.
    ///
    /// # Errors
    /// [`MessageError::Codec`], and those of [`send`](Self::send).
    ///
    /// # Cancel safety
    /// If dropped before its first poll, nothing is sent; if dropped later, the message is still sent.
    pub async fn send_value<T: Serialize + Sync>(
        &self,
        to: Rank,
        tag: Tag,
        value: &T,
    ) -> Result<(), MessageError> {
        self.send(to, tag, wire::encode(value)?).await
    }

    /// Receives a value; returns it with its sender.
    ///
    /// # Errors
    /// [`MessageError::Codec`], and those of [`receive`](Self::receive).
    ///
    /// # Cancel safety
    /// If dropped, the receive is withdrawn; a message that it had matched returns to its place in the queue.
    pub async fn receive_value<T: DeserializeOwned>(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<(T, Rank), MessageError> {
        let Received { source, bytes, .. } = self.receive(source, tag).await?;
        Ok((wire::decode(&bytes)?, source))
    }

    /// Sends plain values.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    ///
    /// # Cancel safety
    /// If dropped before its first poll, nothing is sent; if dropped later, the message is still sent.
    pub async fn send_slice<T: IntoBytes + Immutable + Sync>(
        &self,
        to: Rank,
        tag: Tag,
        values: &[T],
    ) -> Result<(), MessageError> {
        self.send_as(Mode::Standard, to, tag, to_bytes(values)).await
    }

    /// Receives plain values; returns them with their sender.
    ///
    /// # Errors
    /// [`MessageError::Uneven`], and those of [`receive`](Self::receive).
    ///
    /// # Cancel safety
    /// If dropped, the receive is withdrawn; a message that it had matched returns to its place in the queue.
    pub async fn receive_slice<T: FromBytes>(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<(Vec<T>, Rank), MessageError> {
        let Received { source, bytes, .. } = self.receive(source, tag).await?;
        Ok((from_bytes(&bytes)?, source))
    }

    /// Sends the root's value to every process, and returns it at each.
    ///
    /// # Errors
    /// [`MessageError::Codec`], and those of [`broadcast`](Self::broadcast).
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn broadcast_value<T: Serialize + DeserializeOwned + Sync>(
        &self,
        root: Rank,
        value: &T,
    ) -> impl Future<Output = Result<T, MessageError>> {
        let own = if self.rank() == root { wire::encode(value) } else { Ok(Vec::new()) };
        let spread = own.map(|own| self.broadcast(root, own));
        async move { Ok(wire::decode(&spread?.await?)?) }
    }

    /// Returns the values of all processes, by rank, at every process.
    ///
    /// # Errors
    /// [`MessageError::Codec`], and those of [`all_gather`](Self::all_gather).
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn all_gather_value<T: Serialize + DeserializeOwned + Sync>(
        &self,
        value: &T,
    ) -> impl Future<Output = Result<Vec<T>, MessageError>> {
        let gathered = wire::encode(value).map(|own| self.all_gather(own));
        async move {
            let blocks = gathered?.await?;
            blocks.iter().map(|block| Ok(wire::decode(block)?)).collect()
        }
    }

    /// Combines the plain values of all processes element by element, at every process. All must pass equally
    /// many.
    ///
    /// # Errors
    /// [`MessageError::Shape`] if they do not; those of [`all_reduce`](Self::all_reduce).
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn all_reduce_slice<T: FromBytes + IntoBytes + Immutable + Sync>(
        &self,
        values: &[T],
        mut combine: impl FnMut(&mut T, &T),
    ) -> impl Future<Output = Result<Vec<T>, MessageError>> {
        let (turn, expected) = (Turn::new(self), values.len());
        let bytes = values.as_bytes().to_vec();
        async move {
            let mut odd = None;
            let join = |first: &mut Vec<u8>, second: &[u8]| match (
                from_bytes::<T>(first),
                from_bytes::<T>(second),
            ) {
                (Ok(mut a), Ok(b)) if a.len() == b.len() => {
                    a.iter_mut().zip(&b).for_each(|(a, b)| combine(a, b));
                    *first = a.as_bytes().to_vec();
                }
                _ => odd = Some(second.len() / size_of::<T>().max(1)),
            };
            let combined = turn?.all_reduce(bytes, join).await?;
            let values = from_bytes::<T>(&combined)?;
            let found = odd.unwrap_or(values.len());
            if found == expected {
                return Ok(values);
            }
            Err(MessageError::Shape { what: "values of another process", expected, found })
        }
    }
}
