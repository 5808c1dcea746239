//! Messages between nodes: reliable, in their sender's order, and sent only as fast as the receiver takes them.
//!
//! ```
//! # use midplane::Node;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), midplane::Error> {
//! let cluster = format!("doc-{}", std::process::id());
//! let (a, b) = (Node::builder().cluster(&cluster).name("a"), Node::builder().cluster(&cluster).name("b"));
//! let (a, b) = (a.start().await?, b.start().await?);
//! let received = tokio::spawn(async move { b.receive().await });
//! a.send("b", "hello").await?;
//! let (from, bytes) = received.await.expect("it ends")?;
//! assert_eq!((from.name.as_str(), &bytes[..]), ("a", &b"hello"[..]));
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use midplane_via::session::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Instrument;

use crate::error::{Error, ErrorKind};
use crate::framing::{RESERVED, read_body, read_rest, rest_within, write_parts, write_some};
use crate::node::links::{Candidate, Peers};
use crate::node::mailbox::{Outgoing, Received};
use crate::node::{ANSWER_WITHIN, Listener, Node, PeerName};

/// Most bytes of a message: 1 MiB. Use a stream for more.
pub const MAX_MESSAGE: usize = 1 << 20;
/// Most bytes of one sender's messages that wait to be received, with [`OVERHEAD`] for each.
const HELD_OF_ONE: usize = MAX_MESSAGE + OVERHEAD;
/// Most bytes of all senders' messages that wait to be received, with [`OVERHEAD`] for each. Of each sender, this node
/// holds in addition the first 64 KiB of a message that arrives, or the whole message if the sender is slow.
const HELD_OF_ALL: usize = 64 << 20;
/// Bytes counted for a message in addition to its own.
const OVERHEAD: usize = 64;
/// The service of messages.
const SERVICE: &str = "midplane:messages";
/// The first bytes of a stream of messages.
const MAGIC: &[u8; 8] = b"midmsg 1";
/// Most streams of one peer that may wait until its former one has ended.
const MAX_STREAMS: usize = 4;
/// Limit of the time in which the first bytes of a stream arrive: 30 s.
const REST_WITHIN: Duration = Duration::from_secs(30);

/// The stream of messages to a peer, and the right to write to it.
type Slot = OwnedMutexGuard<Option<Stream>>;

/// The receiver of a message: a node's name, or the exact node of a [`PeerName`].
#[derive(Clone, Debug)]
pub struct Recipient(To);

#[derive(Clone, Debug)]
enum To {
    Name(String),
    Peer(PeerName),
}

impl From<&str> for Recipient {
    fn from(name: &str) -> Self {
        Self(To::Name(name.to_owned()))
    }
}

impl From<String> for Recipient {
    fn from(name: String) -> Self {
        Self(To::Name(name))
    }
}

impl From<&PeerName> for Recipient {
    fn from(peer: &PeerName) -> Self {
        Self(To::Peer(peer.clone()))
    }
}

impl Node {
    /// Sends a message to a node. It arrives once, after those that this node sent before.
    ///
    /// Waits while the receiver takes no messages. When this returns, the message was sent, but it is lost if the
    /// receiver ends before it has received it. The next send to that receiver then fails, and the one after it reaches
    /// the next node of that name.
    ///
    /// # Errors
    /// [`ErrorKind::Reset`] if the receiver was restarted, or the connection to it was lost, since the last send, or if
    /// the exact node of a [`PeerName`] is not found. A send searches for that node for up to about a second; sends within
    /// the next second return at once. [`ErrorKind::NoService`] if, within the time of
    /// [`connect_timeout`](crate::NodeBuilder::connect_timeout), there was no such node, or it did not receive; at once if
    /// it ends before it has received a first message. [`ErrorKind::TooLarge`] beyond [`MAX_MESSAGE`]. [`ErrorKind::Closed`] once the node's [shutdown](Node::shutdown) has
    /// begun. [`ErrorKind::InUse`], [`ErrorKind::Key`] and [`ErrorKind::Version`] as [`Node::connect`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the message is sent completely or not at all.
    pub async fn send(
        &self,
        to: impl Into<Recipient>,
        bytes: impl Into<Bytes>,
    ) -> Result<(), Error> {
        // Callers that retry in a loop thereby let the node's own tasks run.
        tokio::task::coop::consume_budget().await;
        let (Recipient(to), bytes) = (to.into(), bytes.into());
        if bytes.len() > MAX_MESSAGE {
            let text = format!(
                "a message has at most {MAX_MESSAGE} bytes, not {}: use a stream for more (`Node::connect`)",
                bytes.len()
            );
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        let to_name = match &to {
            To::Peer(peer) => &peer.name,
            To::Name(name) => name,
        };
        let (node, size) = (self.name(), bytes.len());
        let span = tracing::trace_span!("send", node, peer = to_name, bytes = size);
        self.send_to(to, bytes).instrument(span).await
    }

    async fn send_to(&self, to: To, bytes: Bytes) -> Result<(), Error> {
        let closed =
            || Error::new(ErrorKind::Closed, "the node is being shut down: send before that");
        if self.mailbox().is_closed() {
            return Err(closed());
        }
        let (id, name) = match to {
            To::Peer(peer) => (peer.id, peer.name),
            To::Name(name) => (self.named(&name).await?, name),
        };
        // No await separates `forget` from the error: if the future was dropped there, the next send would not report the loss.
        if self.mailbox().has_lost(id, self.knows(id)) || !self.reaches(id, SERVICE).await? {
            self.mailbox().forget(id, None);
            return Err(lost(&name, None));
        }
        let outgoing = self.mailbox().outgoing(id, |other| self.knows(other));
        let outgoing = outgoing.ok_or_else(closed)?;
        let written = self.write(&outgoing, (id, &name), bytes).await;
        if !matches!(written, Ok(Ok(()))) {
            self.mailbox().forget(id, Some(&outgoing));
        }
        if let Err(error) = written? {
            return Err(lost(&name, Some(error)));
        }
        self.meter().messages_sent.add_one();
        Ok(())
    }

    /// Waits for the next message from any node.
    ///
    /// A node receives messages only after its first call of this: its senders wait until then.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] once the node was shut down. The first call also returns [`ErrorKind::InUse`] if an earlier
    /// node has this one's name.
    ///
    /// # Cancel safety
    /// If the future is dropped, no message was taken.
    pub async fn receive(&self) -> Result<(PeerName, Bytes), Error> {
        let inbox = self.mailbox().inbox(|| {
            let (outbox, inbox) = mpsc::unbounded_channel();
            let listener = self.offer(SERVICE.to_owned())?;
            self.runtime().spawn(accept(listener, outbox, self.links()));
            Ok::<_, Error>(inbox)
        })?;
        match inbox.lock().await.recv().await {
            Some(Received { from, bytes, .. }) => {
                self.meter().messages_received.add_one();
                Ok((from, bytes))
            }
            None => Err(Error::new(ErrorKind::Closed, "the node was shut down")),
        }
    }

    /// Finds the node with a name; returns the same one as before unless that has ended.
    async fn named(&self, name: &str) -> Result<u64, Error> {
        if let Some(id) = self.mailbox().named(name) {
            return Ok(id);
        }
        let (mut refused, until) = (BTreeSet::new(), self.search_deadline());
        let is_named = |one: &Candidate| self.is_called(one.peer, name);
        let found = self.find(SERVICE, &mut refused, until, is_named).await;
        let found = found.map_err(|error| self.not_found(name, &error))?;
        let id = found.first().expect("it has found one").peer;
        self.mailbox().name(name.to_owned(), id);
        Ok(id)
    }

    /// Writes a message after earlier ones. The inner error is the stream's.
    async fn write(
        &self,
        outgoing: &Outgoing,
        to: (u64, &str),
        bytes: Bytes,
    ) -> Result<io::Result<()>, Error> {
        let mut slot = match self.opened(outgoing, to).await? {
            Ok(slot) => slot,
            Err(error) => return Ok(Err(error)),
        };
        let stream = slot.as_mut().expect("it was opened");
        #[expect(clippy::cast_possible_truncation, reason = "it was bounded")]
        let head = (bytes.len() as u32).to_le_bytes();
        let written = match write_some(stream, &head, &bytes, 0).await {
            Ok(written) => written,
            Err(error) => return Ok(Err(error)),
        };
        if written == head.len() + bytes.len() {
            return Ok(Ok(()));
        }
        // A message that has begun is sent completely, even if its sender's future is dropped, or its runtime. If this
        // node's runtime ends, the stream ends with the task.
        let mut stream = slot.take().expect("it was opened");
        let rest = self.runtime().spawn(async move {
            write_parts(&mut stream, &head, &bytes, written).await?;
            *slot = Some(stream);
            Ok::<_, io::Error>(())
        });
        Ok(rest.await.unwrap_or_else(|_| Err(io::ErrorKind::ConnectionAborted.into())))
    }

    /// Waits for the messages before this one, and opens the stream if this is the first. The inner error is the
    /// stream's.
    async fn opened(
        &self,
        outgoing: &Outgoing,
        (id, name): (u64, &str),
    ) -> Result<io::Result<Slot>, Error> {
        let until = self.search_deadline();
        let lock = Arc::clone(&outgoing.stream).lock_owned();
        let mut lock = pin!(lock);
        let deadline = until.max(Instant::now() + ANSWER_WITHIN);
        let mut slot = match timeout_at(deadline, &mut lock).await {
            Ok(slot) => slot,
            Err(_) if outgoing.was_opened.load(Ordering::Acquire) => lock.await,
            // The task before has waited as long for the peer to receive.
            Err(_) => return Err(self.not_found(name, &Error::new(ErrorKind::NoService, ""))),
        };
        if slot.is_some() {
            return Ok(Ok(slot));
        }
        if outgoing.was_opened.load(Ordering::Acquire) {
            return Ok(Err(io::ErrorKind::ConnectionReset.into()));
        }
        *slot = Some(self.open_first((id, name), until).await?);
        outgoing.was_opened.store(true, Ordering::Release);
        Ok(Ok(slot))
    }

    /// Opens a stream of messages. Tries again until the time is over or the peer departs, since no message is lost if
    /// it fails.
    async fn open_first(&self, (id, name): (u64, &str), until: Instant) -> Result<Stream, Error> {
        let mut refused = BTreeSet::new();
        loop {
            let found = tokio::select! {
                biased;
                departed = self.departed(id) => {
                    departed?;
                    let text = format!(
                        "node {name:?} has ended, ends, or is no longer reached, and has received no message"
                    );
                    return Err(Error::new(ErrorKind::NoService, text));
                }
                found = self.find(SERVICE, &mut refused, until, |one| one.peer == id) => found,
            };
            let found = found.map_err(|error| self.not_found(name, &error))?;
            let candidate = found.first().expect("it has found one");
            if let Some(mut stream) = self.links().open(candidate, SERVICE, until).await
                && stream.write_all(MAGIC).await.is_ok()
            {
                return Ok(stream);
            }
            refused.insert(candidate.session.number());
        }
    }
}

/// Returns the error of a receiver that has ended, for its sender.
fn lost(name: &str, source: Option<io::Error>) -> Error {
    let why = source.map_or_else(String::new, |error| format!(": {error}"));
    let text = format!(
        "{name} was restarted, or the connection to it lost{why}; messages that it had not received are lost"
    );
    Error::new(ErrorKind::Reset, text)
}

/// Accepts the streams of senders.
async fn accept(mut listener: Listener, outbox: mpsc::UnboundedSender<Received>, mut peers: Peers) {
    let all = Arc::new(Semaphore::new(HELD_OF_ALL));
    let mut senders: BTreeMap<u64, Sender> = BTreeMap::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = peers.left() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, from)) = accepted else { return };
        // The messages of a sender may wait after its streams have ended.
        senders.retain(|_, sender| Arc::strong_count(&sender.room) > 1);
        let sender = senders.entry(from.id).or_insert_with(|| {
            let (streams, queued) = mpsc::channel(MAX_STREAMS);
            let inbound =
                Inbound { from: from.clone(), all: Arc::clone(&all), outbox: outbox.clone() };
            tokio::spawn(inbound.receive(queued, peers.clone()));
            Sender { streams, room: Arc::new(Semaphore::new(HELD_OF_ONE)) }
        });
        if let Err(unread) = sender.streams.try_send((stream, Arc::clone(&sender.room))) {
            tracing::warn!(%from, "a peer sends messages on too many streams; one was dropped");
            unread.into_inner().0.reset();
        }
    }
}

/// A stream of messages, and the bound of its sender's messages that this node holds.
type Bounded = (Stream, Arc<Semaphore>);

/// The streams of a sender, in the order in which they are read.
#[derive(Debug)]
struct Sender {
    streams: mpsc::Sender<Bounded>,
    /// Shared with each stream that is not read to its end, and each message that was not received.
    room: Arc<Semaphore>,
}

/// Receives the messages of a sender.
#[derive(Debug)]
struct Inbound {
    from: PeerName,
    /// Bounds the messages of all senders.
    all: Arc<Semaphore>,
    outbox: mpsc::UnboundedSender<Received>,
}

impl Inbound {
    /// Receives the messages of one stream after the other. Resets each stream: an idle sender holds its end until then,
    /// and this node's shutdown would wait for it.
    async fn receive(self, mut streams: mpsc::Receiver<Bounded>, mut peers: Peers) {
        while let Some((stream, room)) = streams.recv().await {
            let mut stream = BufReader::with_capacity(4_096, stream);
            let read = tokio::select! {
                biased;
                () = peers.left() => Ok(()),
                read = self.read(&mut stream, room) => read,
            };
            if let Err(error) = read {
                tracing::debug!(from = %self.from, %error, "a peer's messages have ended");
            }
            stream.into_inner().reset();
        }
    }

    /// Receives the messages of a stream until it ends.
    async fn read(&self, stream: &mut BufReader<Stream>, room: Arc<Semaphore>) -> io::Result<()> {
        let mut magic = [0; MAGIC.len()];
        timeout(REST_WITHIN, stream.read_exact(&mut magic)).await??;
        if magic != *MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no stream of messages"));
        }
        loop {
            let mut head = [0; 4];
            stream.read_exact(&mut head).await?;
            let length = u32::from_le_bytes(head) as usize;
            if length > MAX_MESSAGE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a message too long"));
            }
            let own = acquire(&room, length).await?;
            let (body, shared) = self.read_message(stream, length).await?;
            let from = self.from.clone();
            let received = Received { from, bytes: body.into(), _room: [own, shared] };
            if self.outbox.send(received).is_err() {
                return Ok(());
            }
        }
    }

    /// Reads a message, and takes its share of the bound of all senders once its first 64 KiB have arrived. If others
    /// wait for theirs, a slow sender returns its share, and takes it again when the message is complete.
    async fn read_message(
        &self,
        stream: &mut BufReader<Stream>,
        length: usize,
    ) -> io::Result<(Vec<u8>, OwnedSemaphorePermit)> {
        let first = length.min(RESERVED);
        let mut body = timeout(rest_within(first), read_body(stream, first)).await??;
        let mut share = Some(acquire(&self.all, length).await?);
        let on_slow = || {
            if self.all.available_permits() == 0 {
                share = None;
            }
            Ok(())
        };
        let rest = read_rest(stream, &mut body, length, on_slow);
        timeout(rest_within(length), rest).await??;
        let share = match share {
            Some(share) => share,
            None => acquire(&self.all, length).await?,
        };
        Ok((body, share))
    }
}

/// Takes a message's share of a bound.
async fn acquire(bound: &Arc<Semaphore>, length: usize) -> io::Result<OwnedSemaphorePermit> {
    #[expect(clippy::cast_possible_truncation, reason = "it was bounded")]
    let share = (length + OVERHEAD) as u32;
    let acquired = Arc::clone(bound).acquire_many_owned(share).await;
    acquired.map_err(|_| io::ErrorKind::ConnectionAborted.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::CHANGED;

    /// Begins the longest message to the node that connects, and stops after `sent` of its bytes.
    #[cfg(feature = "sim")]
    async fn begin(node: Node, sent: usize) -> crate::sim::Result {
        let (_stream, to) = node.listen(node.name()).await?.accept().await?;
        let until = node.search_deadline();
        let found =
            node.find(SERVICE, &mut BTreeSet::new(), until, |one| one.peer == to.id).await?;
        let mut stream = node.links().open(&found[0], SERVICE, until).await.expect("it accepts");
        let head = (MAX_MESSAGE as u32).to_le_bytes();
        stream.write_all(&[&MAGIC[..], &head, &vec![0; sent]].concat()).await?;
        std::future::pending().await
    }

    /// Regression: senders that had begun long messages kept the messages of all others from arriving.
    #[cfg(feature = "sim")]
    #[test]
    fn senders_that_do_not_complete_their_messages_stop_no_other() {
        for sent in [0, RESERVED + 1] {
            let mut sim = crate::Sim::builder().build();
            let slow = || (0..HELD_OF_ALL / MAX_MESSAGE).map(|number| format!("slow-{number}"));
            slow().for_each(|name| _ = sim.host(name, move |node| begin(node, sent)));
            sim.host("sender", |node| async move {
                node.listen("sender").await?.accept().await?;
                node.send("client-1", vec![1; MAX_MESSAGE]).await?;
                std::future::pending().await
            });
            sim.client(move |node| async move {
                // From now on, the node receives messages.
                let _ = timeout(Duration::ZERO, node.receive()).await;
                let mut streams = Vec::new();
                for name in slow() {
                    streams.push(node.connect(&name).await?);
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
                let start = Instant::now();
                streams.push(node.connect("sender").await?);
                assert!(node.receive().await?.1 == vec![1; MAX_MESSAGE]);
                assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
                Ok(())
            });
            sim.run().unwrap();
        }
    }

    #[tokio::test]
    async fn the_bytes_of_messages_never_change() {
        let builder = Node::builder().cluster(format!("golden-{}", std::process::id()));
        let receiver = builder.clone().name("receiver").start().await.unwrap();
        let sender = builder.start().await.unwrap();
        // Instead of a receiver of messages: one that reads the bytes of the stream.
        let mut listener = receiver.offer(SERVICE.to_owned()).unwrap();
        sender.send("receiver", "one").await.unwrap();
        sender.send("receiver", "").await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let golden = b"midmsg 1\x03\0\0\0one\0\0\0\0";
        let mut bytes = [0; 19];
        stream.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes, *golden, "{CHANGED}");
    }
}
