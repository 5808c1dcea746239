//! Carries the messages of `chitchat` in datagrams of the node's socket.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{Chitchat, ChitchatMessage, Deserializable as _, Serializable as _};
use midplane_via::session::Gossip as Datagrams;
use tokio::sync::Mutex;

use super::reachable;

/// Most bytes of the services of all nodes that `chitchat` holds.
const MAX_BYTES: usize = 4 << 20;
/// Most bytes of a digest of all nodes, which must fit a message: 869 nodes.
const MAX_DIGEST: usize = 60_000;
/// Most bytes of a node in such a digest, without its identifier.
const DIGEST_BYTES: usize = 53;
/// Bytes counted for a service in addition to its name.
const OVERHEAD: usize = 128;
/// Most compressed blocks of a message: each expands to at most 64 KiB.
const MAX_BLOCKS: usize = 64;
/// The first bytes of a compressed block (RFC 8878, section 3.1.1).
const BLOCK: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();

/// State of `chitchat`, once it has started.
type Watched = Arc<OnceLock<Arc<Mutex<Chitchat>>>>;

/// The datagrams of a node's gossip, as `chitchat` uses them.
#[derive(Clone)]
pub(super) struct Carrier {
    datagrams: Datagrams,
    bound: SocketAddr,
    watched: Watched,
    /// True while messages are dropped.
    is_dropping: Arc<AtomicBool>,
}

impl Carrier {
    /// Creates the carrier of a node that is bound to this address.
    pub(super) fn new(datagrams: Datagrams, bound: SocketAddr) -> Self {
        Self { datagrams, bound, watched: Watched::default(), is_dropping: Arc::default() }
    }

    /// Sets the `chitchat` whose memory is bounded.
    pub(super) fn watch(&self, chitchat: Arc<Mutex<Chitchat>>) {
        let _ = self.watched.set(chitchat);
    }

    /// Returns whether messages are dropped: other nodes then seem to be silent.
    pub(super) fn is_dropping(&self) -> bool {
        self.is_dropping.load(Ordering::Relaxed)
    }

    /// Returns whether `chitchat` holds too much.
    async fn is_full(&self) -> bool {
        let Some(chitchat) = self.watched.get() else { return false };
        let chitchat = chitchat.lock().await;
        let (mut bytes, mut digest) = (0, 0);
        for (id, state) in chitchat.node_states() {
            digest += DIGEST_BYTES + id.node_id.len();
            let values = state.key_values_including_deleted();
            bytes +=
                values.map(|(key, value)| OVERHEAD + key.len() + value.value.len()).sum::<usize>();
        }
        bytes > MAX_BYTES || digest > MAX_DIGEST
    }
}

#[async_trait]
impl Transport for Carrier {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl Socket for Carrier {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let to = reachable(&[to], Some(self.bound)).map_err(anyhow::Error::msg)?;
        let bytes = message.serialize_to_vec();
        let is_sent = to.first().is_some_and(|to| self.datagrams.send(*to, &bytes));
        anyhow::ensure!(is_sent, "a message of {} bytes is too long: too many nodes", bytes.len());
        Ok(())
    }

    /// Receives a message. Drops messages while other nodes make `chitchat` hold too much; it forgets those that are silent.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let (from, bytes) = poll_fn(|context| self.datagrams.poll_receive(context)).await;
            let is_full = self.is_full().await;
            self.is_dropping.store(is_full, Ordering::Relaxed);
            if is_full {
                tracing::debug!(%from, "gossip is dropped: there are too many nodes, or services");
                continue;
            }
            match parse(&bytes) {
                Ok(message) => return Ok((from, message)),
                Err(error) => tracing::debug!(%from, %error, "gossip that can't be read"),
            }
        }
    }
}

/// Parses a message; one that would expand too much is an error.
fn parse(bytes: &[u8]) -> anyhow::Result<ChitchatMessage> {
    let blocks = bytes.windows(BLOCK.len()).filter(|window| *window == BLOCK).count();
    anyhow::ensure!(blocks <= MAX_BLOCKS, "it has {blocks} compressed blocks");
    let mut rest = bytes;
    let message = ChitchatMessage::deserialize(&mut rest)?;
    anyhow::ensure!(rest.is_empty(), "bytes are left");
    Ok(message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_message_that_becomes_too_long_is_not_read() {
        // A frame of 64 KiB less one of zeros: one block of a byte that is repeated (RFC 8878, section 3.1.1.2.2).
        let length = u32::from(u16::MAX);
        let block = (length << 3 | 0b011).to_le_bytes();
        let mut frame = BLOCK.to_vec();
        frame.extend([0b1010_0000]);
        frame.extend(length.to_le_bytes());
        frame.extend(&block[..3]);
        frame.push(0);
        let message = |blocks| {
            let mut message = vec![2];
            for _ in 0..blocks {
                message.push(1);
                message.extend((frame.len() as u16).to_le_bytes());
                message.extend(&frame);
            }
            message.push(0);
            parse(&message).unwrap_err().to_string()
        };
        assert!(!message(1).contains("block"), "{}", message(1));
        assert_eq!(message(MAX_BLOCKS + 1), "it has 65 compressed blocks");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(mut bytes: Vec<u8>, kind in 0_u8..5) {
            bytes.insert(0, kind);
            let _ = parse(&bytes);
        }
    }
}
