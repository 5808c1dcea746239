//! Messages between registered memory of two processes: long ones are not copied.

use super::Communicator;
use crate::memory::{Memory, Segment};
use crate::message::communicator::Probed;
use crate::message::envelope::Tag;
use crate::message::group::Rank;
use crate::message::process::MessageError;
use crate::message::request::{Load, Mode};

impl Communicator {
    /// Registers `bytes` of zeroed memory for messages from and to `peer`. Register memory once, and use it for many
    /// messages: each registration costs time in the kernel.
    ///
    /// `peer` may write to this memory as long as it is connected. A long message between such memory of both processes
    /// is not copied. Messages with other ranks can use the memory too, but are copied.
    ///
    /// ```
    /// # use midplane_via::message::communicator::Communicator;
    /// # use midplane_via::message::envelope::Tag;
    /// # use midplane_via::message::group::Rank;
    /// # use midplane_via::message::process::MessageError;
    /// /// Sends `rounds` blocks of 1 MiB from rank 0 to rank 1.
    /// async fn stream(all: &Communicator, rounds: u8) -> Result<(), MessageError> {
    ///     let peer = Rank(1 - all.rank().0);
    ///     let block = all.register(peer, 1 << 20)?;
    ///     for round in 0..rounds {
    ///         if all.rank() == Rank(0) {
    ///             block.write(0, &[round; 64]).expect("64 bytes of 1 MiB");
    ///             all.send_memory(peer, Tag(1), block.whole()).await?;
    ///         } else {
    ///             assert_eq!(all.receive_memory(peer, Tag(1), block.whole()).await?.length, 1 << 20);
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`MessageError::NotRegistered`] if the wire to `peer` has no registered memory, or none left;
    /// [`MessageError::Rank`].
    pub fn register(&self, peer: Rank, bytes: usize) -> Result<Memory, MessageError> {
        let name = self.handle().group().peer(peer)?;
        let memory = self.with(|process| process.engine_mut().register(name, bytes));
        memory.ok_or(MessageError::NotRegistered { peer, bytes })
    }

    /// Sends a message from registered memory, in standard mode. Do not change the memory before the send completes.
    ///
    /// # Errors
    /// Those of [`isend`](Self::isend), and [`MessageError::Failed`].
    ///
    /// # Cancel safety
    /// If dropped before its first poll, nothing is sent; if dropped later, the message is still sent, from the memory
    /// as it is by then.
    pub async fn send_memory(
        &self,
        to: Rank,
        tag: Tag,
        message: Segment,
    ) -> Result<(), MessageError> {
        self.isend_load(Mode::Standard, to, tag, Load::Memory(message))?.await.map(drop)
    }

    /// Receives a message into registered memory; `None` is a wildcard. Returns its source, tag and length.
    ///
    /// # Errors
    /// [`Failure::Truncated`](crate::message::request::Failure::Truncated) if the message is longer than `room`; those
    /// of [`receive`](Self::receive).
    ///
    /// # Cancel safety
    /// If dropped, the receive is withdrawn; a message that it had matched returns to its place in the queue. The bytes
    /// of such a message may still be written to `room`, and are then copied from there to the queue: leave `room`
    /// unchanged until the message is received again.
    pub async fn receive_memory(
        &self,
        source: impl Into<Option<Rank>>,
        tag: impl Into<Option<Tag>>,
        room: Segment,
    ) -> Result<Probed, MessageError> {
        let pending = self.ireceive_into(source, tag, Load::Memory(room))?;
        let outcome = pending.finished().await;
        outcome.result.map_err(|failure| self.noted(failure))?;
        let (source, tag) = (self.handle().rank_of(outcome.status.source), outcome.status.tag);
        Ok(Probed { source, tag, length: outcome.status.length })
    }
}
