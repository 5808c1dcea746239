//! Connections between processes: connecting and accepting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::messages::{Receiver, Sender};
use super::stream::{Abandoned, ByteStream, DEFAULT_DROPPED};
use crate::message::communicator::Communicator;
use crate::message::envelope::Tag;
use crate::message::group::Rank;
use crate::message::process::MessageError;
use crate::message::request::Failure;
use crate::message::transport::Transport;

/// The tag of requests for a connection.
const CONNECT_TAG: Tag = Tag(0);

/// Connections of one process with the others of a communicator, which nothing else may use. Clones share one
/// set of connections.
///
/// The connecting process numbers the connection, and may write at once. Its bytes have the tag `2n`, those of
/// the accepting process `2n + 1`, so both may connect to each other. Numbers repeat after 2^31 - 1
/// connections.
#[derive(Debug)]
pub struct Streams<P: Transport> {
    communicator: Communicator<P>,
    next: Arc<AtomicU32>,
    abandoned: Arc<Abandoned<P>>,
}

impl<P: Transport> Clone for Streams<P> {
    fn clone(&self) -> Self {
        Self {
            communicator: self.communicator.clone(),
            next: Arc::clone(&self.next),
            abandoned: Arc::clone(&self.abandoned),
        }
    }
}

impl<P: Transport> Streams<P> {
    /// Makes and accepts connections over a communicator, which nothing else in this process may use.
    #[must_use]
    pub fn new(communicator: Communicator<P>) -> Self {
        communicator.assert_no_any_tag();
        let abandoned = Arc::new(Abandoned::new(DEFAULT_DROPPED));
        Self { communicator, next: Arc::default(), abandoned }
    }

    /// Sets, for each peer, how many streams may be draining: they were dropped here before the peer ended
    /// them, and this process still receives and discards their bytes. Beyond the bound, the oldest is given
    /// up: the peer's further bytes then occupy part of the peer's window for unexpected messages. Applies to
    /// clones and streams made later. Default: [`DEFAULT_DROPPED`].
    #[must_use]
    pub fn dropped(mut self, streams: usize) -> Self {
        self.abandoned = Arc::new(Abandoned::new(streams));
        self
    }

    /// Makes a connection with `peer`. It accepts when it likes; bytes written before that wait.
    ///
    /// # Errors
    /// [`MessageError`] if there is no such rank, or its process is lost.
    ///
    /// # Cancel safety
    /// If dropped before its first poll, nothing was done; if dropped later, the peer may accept a connection
    /// that ends at once.
    pub async fn connect(&self, peer: Rank) -> Result<ByteStream<P>, MessageError> {
        // From 1, below 2^31: tags are twice that, and tag 0 is for connection requests.
        let number = self.next.fetch_add(1, Ordering::Relaxed) % 0x7FFF_FFFF + 1;
        let stream = self.stream(peer, Tag(2 * number), Tag(2 * number + 1));
        self.communicator.send(peer, CONNECT_TAG, number.to_le_bytes().to_vec()).await?;
        Ok(stream)
    }

    /// Accepts the next connection that another process has requested.
    ///
    /// # Errors
    /// [`MessageError`] once the message layer is down.
    ///
    /// # Cancel safety
    /// If dropped, no connection was accepted.
    pub async fn accept(&self) -> Result<ByteStream<P>, MessageError> {
        loop {
            self.abandoned.discard();
            let request = match self.communicator.receive(None, CONNECT_TAG).await {
                Ok(request) => request,
                // One process was lost; the others may still connect.
                Err(MessageError::Failed(Failure::PeerLost(_) | Failure::PeerRestarted(_))) => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            // A message of another form is no connection request.
            let Ok(number) = request.bytes[..].try_into().map(u32::from_le_bytes) else { continue };
            if (1..=0x7FFF_FFFF).contains(&number) {
                return Ok(self.stream(request.source, Tag(2 * number + 1), Tag(2 * number)));
            }
        }
    }

    fn stream(&self, peer: Rank, writes: Tag, reads: Tag) -> ByteStream<P> {
        let sender = Sender::new(self.communicator.clone(), peer, writes);
        let receiver = Receiver::new(self.communicator.clone(), peer, reads);
        ByteStream::new(peer, sender, receiver, Arc::clone(&self.abandoned))
    }
}
