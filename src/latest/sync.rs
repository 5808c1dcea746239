//! Exchanges a map's entries with its other members: one stream to each, with one batch in flight.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane_simhw::lock::lock;
use midplane_simhw::wire::{decode, encode};
use midplane_via::session::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::replica::{Observer, Replica, Update};
use crate::framing::{read_body, write_parts};
use crate::node::host;
use crate::node::links::{Candidate, Peers};
use crate::node::{Listener, Node, PeerName};

/// Most bytes of a batch's updates, unless a single one is longer.
const BATCH: usize = 32 * 1024;
/// Most bytes of a batch: the longest update and the batch's header.
const MAX_BATCH: usize = 48 * 1024;
/// The first bytes of a stream.
const MAGIC: &[u8; 8] = b"midmap 1";
/// The byte that acknowledges a batch.
const ACK: u8 = 6;
/// Period in which unknown members are searched for, old removals dropped, and lost streams reopened: 500 ms.
const TICK: Duration = Duration::from_millis(500);
/// Limit of the time in which the rest of a batch arrives: 30 s.
const REST_WITHIN: Duration = Duration::from_secs(30);
/// Most streams that peers may have open to one map.
const MAX_STREAMS: usize = 4_096;

/// A member's copy of a map, and the tasks that wait for its changes.
#[derive(Debug)]
pub(super) struct Shared {
    replica: Mutex<Replica>,
    /// Notified when an observer may have entries to receive, or the node has ended.
    pub(super) changed: Notify,
    /// The time zero of the replica, by both clocks.
    start: (Instant, Option<Duration>),
    /// Returns whether an update's bytes are a key and a value of the map's types.
    is_typed: fn(&Update) -> bool,
    /// Peers with a sending task, each with whether its stream is being opened or a batch is in flight.
    sending: Mutex<BTreeMap<u64, bool>>,
}

impl Shared {
    pub(super) fn new(id: u64, is_typed: fn(&Update) -> bool) -> Arc<Self> {
        Arc::new(Self {
            replica: Mutex::new(Replica::new(id)),
            changed: Notify::new(),
            start: (Instant::now(), host::uptime()),
            is_typed,
            sending: Mutex::default(),
        })
    }

    /// Returns the replica's time. It passes while this host is suspended, because other members write then.
    pub(super) fn now(&self) -> i64 {
        let (start, up_at) = self.start;
        let up = host::uptime().zip(up_at).map(|(now, then)| now.saturating_sub(then));
        let since = up.unwrap_or_else(|| start.elapsed());
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }

    /// Calls `read` on the replica.
    pub(super) fn read<R>(&self, read: impl FnOnce(&Replica) -> R) -> R {
        read(&lock(&self.replica))
    }

    /// Changes the replica, and wakes the tasks that wait for changes.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Replica, i64) -> R) -> R {
        let mut replica = lock(&self.replica);
        // Read under the lock, so that the replica's time never goes back.
        let now = self.now();
        let result = change(&mut replica, now);
        drop(replica);
        self.changed.notify_waiters();
        result
    }

    /// Takes the entries that an observer has yet to receive, without waking other tasks.
    pub(super) fn take(&self, observer: Observer, room: usize) -> Vec<Update> {
        let mut replica = lock(&self.replica);
        let now = self.now();
        replica.take(now, observer, room)
    }

    /// Waits until the peers have received all entries.
    async fn flushed(&self) {
        loop {
            let changed = self.changed.notified();
            // Both under one lock: a sender marks its batch as under way before it takes the entries, and joins the
            // replica while it is marked.
            let is_flushed = {
                let sending = lock(&self.sending);
                let is_under_way = sending.values().any(|is_under_way| *is_under_way);
                !is_under_way && !self.read(Replica::is_behind)
            };
            if is_flushed {
                return;
            }
            changed.await;
        }
    }

    /// Sets whether a batch is in flight to a peer.
    fn set_under_way(&self, peer: u64, is_under_way: bool) {
        lock(&self.sending).insert(peer, is_under_way);
        self.changed.notify_waiters();
    }

    /// Waits until an observer has an entry to receive.
    async fn due(&self, observer: Observer) {
        loop {
            let changed = self.changed.notified();
            if lock(&self.replica).has_due(observer) != Some(false) {
                return;
            }
            changed.await;
        }
    }
}

/// Starts the task of a map. When the node ends, the task ends after it has sent all waiting entries.
pub(super) fn start(
    node: &Node,
    listener: Listener,
    service: String,
    shared: &Arc<Shared>,
) -> AbortHandle {
    let (peers, shared) = (node.links(), Arc::clone(shared));
    let running = async move {
        let mut leaving = peers.clone();
        let left = async {
            leaving.left().await;
            shared.flushed().await;
        };
        tokio::select! {
            biased;
            () = left => {}
            () = accept(listener, &shared) => {}
            () = connect(&peers, &service, &shared) => {}
            () = search(&peers, &service, &shared) => {}
        }
        // Readers are woken to detect the end.
        shared.changed.notify_waiters();
    };
    node.runtime().spawn(running).abort_handle()
}

/// Searches for members, and drops old removals.
async fn search(peers: &Peers, service: &str, shared: &Shared) {
    while peers.search(service).await {
        shared.with(|replica, now| replica.expire(now));
        tokio::time::sleep(TICK).await;
    }
}

/// Starts a sending task for each peer that has the map.
async fn connect(peers: &Peers, service: &str, shared: &Arc<Shared>) {
    let mut tasks = JoinSet::new();
    loop {
        let changed = peers.changed();
        for candidate in peers.offering(service) {
            let is_new = !lock(&shared.sending).contains_key(&candidate.peer);
            if is_new {
                lock(&shared.sending).insert(candidate.peer, true);
                tasks.spawn(send(candidate, peers.clone(), service.to_owned(), Arc::clone(shared)));
            }
        }
        while tasks.try_join_next().is_some() {}
        let _ = timeout(TICK, changed).await;
    }
}

/// A task that sends to a peer. Dropping it removes the peer as an observer.
struct Sending {
    shared: Arc<Shared>,
    peer: u64,
}

impl Drop for Sending {
    fn drop(&mut self) {
        // In this order: the next task of this peer starts once the peer is removed, and joins it anew.
        lock(&self.shared.replica).leave(Observer::Peer(self.peer));
        lock(&self.shared.sending).remove(&self.peer);
        self.shared.changed.notify_waiters();
    }
}

async fn send(candidate: Candidate, peers: Peers, service: String, shared: Arc<Shared>) {
    let sending = Sending { shared, peer: candidate.peer };
    let observer = Observer::Peer(candidate.peer);
    let opened = peers.open(&candidate, &service, Instant::now()).await;
    let Some(stream) = opened else { return };
    lock(&sending.shared.replica).join(observer, true);
    sending.shared.set_under_way(candidate.peer, false);
    if let Err(error) = send_batches(stream, candidate.peer, &sending.shared).await {
        tracing::debug!(service, peer = candidate.peer, %error, "a member of a map is gone");
    }
}

/// Sends waiting entries, one batch at a time.
async fn send_batches(mut stream: Stream, peer: u64, shared: &Shared) -> io::Result<()> {
    let observer = Observer::Peer(peer);
    stream.write_all(MAGIC).await?;
    let mut ack = [0];
    loop {
        // A peer that has exited, or leaves, ends the stream. It sends nothing while no batch is in flight.
        tokio::select! {
            biased;
            read = stream.read_exact(&mut ack) => {
                read?;
                return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer to nothing"));
            }
            () = shared.due(observer) => {}
        }
        shared.set_under_way(peer, true);
        let updates = shared.take(observer, BATCH);
        let batch = encode(&updates).map_err(io::Error::other)?;
        #[expect(clippy::cast_possible_truncation, reason = "it was bounded")]
        let head = (batch.len() as u32).to_le_bytes();
        write_parts(&mut stream, &head, &batch, 0).await?;
        stream.read_exact(&mut ack).await?;
        if ack != [ACK] {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no acknowledgement"));
        }
        shared.set_under_way(peer, false);
    }
}

/// Accepts the streams of members.
async fn accept(mut listener: Listener, shared: &Arc<Shared>) {
    let mut tasks = JoinSet::new();
    while let Ok((stream, from)) = listener.accept().await {
        while tasks.try_join_next().is_some() {}
        if tasks.len() < MAX_STREAMS {
            let shared = Arc::clone(shared);
            tasks.spawn(async move {
                if let Err(error) = receive(stream, &from, &shared).await {
                    tracing::debug!(%from, %error, "a stream of a map has ended");
                }
            });
        }
    }
}

/// Merges the batches of a member until its stream ends.
async fn receive(stream: Stream, from: &PeerName, shared: &Shared) -> io::Result<()> {
    let invalid = |text| io::Error::new(io::ErrorKind::InvalidData, text);
    let mut stream = BufReader::with_capacity(4_096, stream);
    let mut magic = [0; MAGIC.len()];
    timeout(REST_WITHIN, stream.read_exact(&mut magic)).await??;
    if magic != *MAGIC {
        return Err(invalid("it is no stream of a map, or one of another version"));
    }
    loop {
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        let length = u32::from_le_bytes(head) as usize;
        if length > MAX_BATCH {
            return Err(invalid("a batch too long"));
        }
        let batch = timeout(REST_WITHIN, read_body(&mut stream, length)).await??;
        let mut updates: Vec<Update> = decode(&batch).map_err(io::Error::other)?;
        let count = updates.len();
        updates.retain(shared.is_typed);
        shared.with(|replica, now| {
            replica.refused += (count - updates.len()) as u64;
            for update in updates {
                replica.handle(now, from.id, update);
            }
        });
        stream.write_all(&[ACK]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::super::replica::Version;
    use super::*;
    use crate::member::CHANGED;

    #[test]
    fn the_bytes_of_a_batch_never_change() {
        let version = Version { counter: 2, writer: 3 };
        let written =
            Update { key: b"k"[..].into(), value: Some(b"vv"[..].into()), version, age: 4 };
        let removed = Update { value: None, ..written.clone() };
        let batch = vec![written, removed];
        let word = |number: u8| [number, 0, 0, 0, 0, 0, 0, 0];
        let mut golden = word(2).to_vec();
        golden.extend(
            [&word(1)[..], b"k\x01", &word(2), b"vv", &word(2), &word(3), &word(4)].concat(),
        );
        golden.extend([&word(1)[..], b"k\0", &word(2), &word(3), &word(4)].concat());
        assert_eq!(encode(&batch).unwrap(), golden, "{CHANGED}");
        assert_eq!(decode::<Vec<Update>>(&golden).unwrap(), batch, "{CHANGED}");
        assert_eq!((MAGIC, ACK), (b"midmap 1", 6), "{CHANGED}");
    }
}
