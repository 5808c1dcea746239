//! Typed messages: values in the workspace's encoding ([`wire`]), and slices of plain data as they are in memory.
//!
//! Plain data is sent in the sender's byte order, which the receiver must share. The carrier copies a message that
//! leaves at once straight from the caller's slice. Any other message is copied once more, because it is sent even if
//! its future is dropped; [`into_bytes`] avoids that copy. Bytes that arrive while the future of a receive into a slice
//! is polled are written straight to the slice. The engine stores only bytes that arrive between its polls.

use std::borrow::Cow;
use std::future::Future;

use bytes::Bytes;
use midplane_simhw::wire;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::communicator::{Communicator, ReceiveInto, Received};
use super::envelope::Tag;
use super::group::Rank;
use super::process::MessageError;
use super::request::{Load, Mode};

/// A value that can be sent as its bytes: any bytes are a valid value, and there is no padding. Implemented by numbers,
/// arrays of them, and structures that derive `zerocopy`'s `FromBytes`, `IntoBytes` and `Immutable`.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static> Plain for T {}

/// Copies the bytes of plain values.
pub fn to_bytes<T: Plain>(values: &[T]) -> Bytes {
    Bytes::copy_from_slice(values.as_bytes())
}

/// Returns the bytes of plain values without a copy.
pub fn into_bytes<T: Plain>(values: Vec<T>) -> Bytes {
    Bytes::from_owner(PlainValues(values))
}

struct PlainValues<T>(Vec<T>);

impl<T: Plain> AsRef<[u8]> for PlainValues<T> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Returns how many values have this many bytes.
fn count_of<T>(bytes: usize) -> Result<usize, MessageError> {
    let each = size_of::<T>();
    let uneven = MessageError::Uneven { bytes, each };
    if each == 0 || !bytes.is_multiple_of(each) { Err(uneven) } else { Ok(bytes / each) }
}

/// Reads plain values from their bytes: in place if the bytes are aligned, else copied.
fn values_in<T: Plain>(bytes: &[u8]) -> Result<Cow<'_, [T]>, MessageError> {
    let count = count_of::<T>(bytes.len())?;
    if let Ok(values) = <[T]>::ref_from_bytes(bytes) {
        return Ok(values.into());
    }
    let mut values = vec![T::new_zeroed(); count];
    values.as_mut_bytes().copy_from_slice(bytes);
    Ok(values.into())
}

/// Reads the values of another process, of which there must be `count`.
pub(super) fn values_of<T: Plain>(
    count: usize,
    bytes: &[u8],
) -> Result<Cow<'_, [T]>, MessageError> {
    if bytes.len() == count * size_of::<T>() {
        return values_in(bytes);
    }
    let (expected, found) = (count, bytes.len() / size_of::<T>().max(1));
    Err(MessageError::Shape { what: "values of another process", expected, found })
}

/// Reads plain values from their bytes, at any alignment.
///
/// # Errors
/// [`MessageError::Uneven`] if the bytes are no whole number of values.
pub fn from_bytes<T: Plain>(bytes: &[u8]) -> Result<Vec<T>, MessageError> {
    values_in(bytes).map(Cow::into_owned)
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
    /// The type may not be recursive, nor hold sequences of values without bytes, such as `Vec<()>`: a peer could then
    /// end or stall the process by one message.
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

    /// Sends plain values in standard mode.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    ///
    /// # Cancel safety
    /// If dropped before its first poll, nothing is sent; if dropped later, the message is still sent.
    pub async fn send_slice<T: Plain>(
        &self,
        to: Rank,
        tag: Tag,
        values: &[T],
    ) -> Result<(), MessageError> {
        self.send_load(Mode::Standard, to, tag, Load::Copy(values.as_bytes())).await
    }

    /// Receives plain values; returns them with their sender.
    ///
    /// # Errors
    /// [`MessageError::Uneven`], and those of [`receive`](Self::receive).
    ///
    /// # Cancel safety
    /// If dropped, the receive is withdrawn; a message that it had matched returns to its place in the queue.
    pub async fn receive_slice<T: Plain>(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
    ) -> Result<(Vec<T>, Rank), MessageError> {
        let Received { source, bytes, .. } = self.receive(source, tag).await?;
        Ok((from_bytes(&bytes)?, source))
    }

    /// Receives plain values into the beginning of `values`; returns their number and their sender. Of a message
    /// that is too long, `values` then holds the beginning.
    ///
    /// # Errors
    /// [`Failure::Truncated`](super::request::Failure::Truncated) if the message is longer than `values`;
    /// [`MessageError::Uneven`], and those of [`receive`](Self::receive).
    ///
    /// # Cancel safety
    /// If dropped, the receive is withdrawn; a message that it had matched returns to its place in the queue, unless
    /// it was truncated. `values` may hold some of its bytes.
    pub async fn receive_slice_into<T: Plain>(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
        values: &mut [T],
    ) -> Result<(usize, Rank), MessageError> {
        let room = Load::Room { room: size_of_val(values), storage: Vec::new() };
        let pending = self.ireceive_into(source, tag, room)?;
        let outcome = ReceiveInto { pending, memory: values.as_mut_bytes() }.await;
        self.with(|process| process.engine_mut().recycle(outcome.bytes));
        outcome.result.map_err(|failure| self.noted(failure))?;
        let source = self.handle().rank_of(outcome.status.source);
        Ok((count_of::<T>(outcome.status.length)?, source))
    }

    /// Sends the root's value to every process, and returns it at each. The type must be one for
    /// [`receive_value`](Self::receive_value).
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
    ) -> impl Future<Output = Result<T, MessageError>> + use<T> {
        let own = if self.rank() == root { wire::encode(value) } else { Ok(Vec::new()) };
        let spread = own.map(|own| self.broadcast(root, own));
        async move { Ok(wire::decode(&spread?.await?)?) }
    }

    /// Returns the values of all processes, by rank, at every process. The type must be one for
    /// [`receive_value`](Self::receive_value).
    ///
    /// # Errors
    /// [`MessageError::Codec`], and those of [`all_gather`](Self::all_gather).
    ///
    /// # Cancel safety
    /// None: if dropped before it has ended, its communicator is [abandoned](MessageError::Abandoned).
    pub fn all_gather_value<T: Serialize + DeserializeOwned + Sync>(
        &self,
        value: &T,
    ) -> impl Future<Output = Result<Vec<T>, MessageError>> + use<T> {
        let gathered = wire::encode(value).map(|own| self.all_gather(own));
        async move {
            let blocks = gathered?.await?;
            blocks.iter().map(|block| Ok(wire::decode(block)?)).collect()
        }
    }
}
