//! Connections between processes: who asks for one, and who accepts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::lane::{Receiver, Sender};
use super::stream::{Abandoned, ByteStream, DEFAULT_DROPPED};
use crate::message::communicator::Communicator;
use crate::message::envelope::Tag;
use crate::message::group::Rank;
use crate::message::process::MessageError;
use crate::message::progression::Progression;
use crate::message::request::Failure;

/// Where connections are asked for.
const KNOCK: Tag = Tag(0);

/// Connections of one process with the others of a communicator, which is theirs alone. Clones are
/// the same.
///
/// Who connects numbers the connection, and may write at once. Its bytes have the tag `2n`, those
/// of the other side `2n + 1`, so that both sides may connect to each other. Numbers begin again
/// after 2^31 - 1 connections.
#[derive(Debug)]
pub struct Streams<P: Progression> {
    communicator: Communicator<P>,
    next: Arc<AtomicU32>,
    abandoned: Arc<Abandoned<P>>,
}

impl<P: Progression> Clone for Streams<P> {
    fn clone(&self) -> Self {
        Self {
            communicator: self.communicator.clone(),
            next: Arc::clone(&self.next),
            abandoned: Arc::clone(&self.abandoned),
        }
    }
}

impl<P: Progression> Streams<P> {
    /// All connections over a communicator: the only user of it in this process.
    #[must_use]
    pub fn new(communicator: Communicator<P>) -> Self {
        communicator.assert_no_any_tag();
        let abandoned = Arc::new(Abandoned::new(DEFAULT_DROPPED));
        Self { communicator, next: Arc::default(), abandoned }
    }

    /// Bounds, for each peer, the streams that were dropped here before the peer ended them and whose bytes this process
    /// still takes in and throws away. Beyond it, the oldest is given up: what the peer writes there waits in the peer's
    /// window for unexpected messages, which it then has less of. For clones and streams that are made later. Default:
    /// [`DEFAULT_DROPPED`].
    #[must_use]
    pub fn dropped(mut self, streams: usize) -> Self {
        self.abandoned = Arc::new(Abandoned::new(streams));
        self
    }

    /// A connection with `peer`, which accepts it when it likes: what is written before that waits.
    ///
    /// # Errors
    /// [`MessageError`] if there is no such rank, or it is gone.
    ///
    /// # Cancel safety
    /// Dropped before it was polled, it has done nothing; later, the other side may accept a
    /// connection that ends at once.
    pub async fn connect(&self, peer: Rank) -> Result<ByteStream<P>, MessageError> {
        // From 1, below 2^31: tags are twice that, and 0 is where connections are asked for.
        let number = self.next.fetch_add(1, Ordering::Relaxed) % 0x7FFF_FFFF + 1;
        let stream = self.stream(peer, Tag(2 * number), Tag(2 * number + 1));
        self.communicator.send(peer, KNOCK, number.to_le_bytes().to_vec()).await?;
        Ok(stream)
    }

    /// The next connection that somebody has asked for.
    ///
    /// # Errors
    /// [`MessageError`] once the message layer is down.
    ///
    /// # Cancel safety
    /// Dropped, it has accepted nothing.
    pub async fn accept(&self) -> Result<ByteStream<P>, MessageError> {
        loop {
            self.abandoned.discard();
            let knock = match self.communicator.receive(None, KNOCK).await {
                Ok(knock) => knock,
                // Whoever it was, the others may still come.
                Err(MessageError::Failed(Failure::PeerLost(_) | Failure::PeerRestarted(_))) => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            // Other bytes are no connection.
            let Ok(number) = knock.bytes[..].try_into().map(u32::from_le_bytes) else { continue };
            if (1..=0x7FFF_FFFF).contains(&number) {
                return Ok(self.stream(knock.source, Tag(2 * number + 1), Tag(2 * number)));
            }
        }
    }

    fn stream(&self, peer: Rank, writes: Tag, reads: Tag) -> ByteStream<P> {
        let sender = Sender::new(self.communicator.clone(), peer, writes);
        let receiver = Receiver::new(self.communicator.clone(), peer, reads);
        ByteStream::new(peer, sender, receiver, Arc::clone(&self.abandoned))
    }
}
