//! A map whose members each have the latest values: for loads, positions, health, settings.
//!
//! ```
//! # use midplane::Node;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), midplane::Error> {
//! # let builder = Node::builder().cluster(format!("doc-{}", std::process::id()));
//! # let (worker, balancer) = (builder.clone().start().await?, builder.start().await?);
//! let load = worker.latest_map::<String, f64>("load").await?; // in one process
//! load.set(&"worker-1".into(), &0.25)?;
//!
//! let board = balancer.latest_map::<String, f64>("load").await?; // in another
//! let change = board.watch().next().await.expect("the node runs");
//! assert_eq!((change.key.as_str(), change.value), ("worker-1", Some(0.25)));
//! assert_eq!(board.get(&"worker-1".into()), Some(0.25));
//! # Ok(())
//! # }
//! ```
//!
//! Every member may write every key. The later of two writes wins; of two concurrent writes, the same one wins on every
//! member. Two writes count as concurrent if the time between them is shorter than the time in which the first reaches the
//! other writer. A member that joins late receives all entries. A member that was slow or disconnected receives the newest
//! value of each key that it lacks: older values are not queued for it.
//!
//! Each change is sent to each member. If some members are not connected to each other, others forward it.

mod replica;
mod sync;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use midplane_simhw::wire::{WireError, decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::AbortHandle;

use crate::error::{Error, ErrorKind};
use crate::node::links::{Kind, Offer, Peers};
use crate::node::{Node, host};
use replica::{Entry, Observer, Refused, Update};
use sync::Shared;

/// A map of latest values, shared by the nodes that join it under one name; made by [`Node::latest_map`].
///
/// Clones are the same map. When the last clone and the last of its [watches](Watch) are dropped, the node is no longer
/// a member. Its values stay at the other members.
///
/// The types may not be recursive, nor hold sequences of values without bytes, such as `Vec<()>`: a peer could then end
/// or stall the process by one entry.
pub struct LatestMap<K, V> {
    member: Arc<Member>,
    of: PhantomData<fn(K) -> V>,
}

/// The node's membership in a map.
#[derive(Debug)]
struct Member {
    shared: Arc<Shared>,
    offer: Arc<Offer>,
    task: AbortHandle,
    readers: AtomicU64,
    peers: Peers,
    name: String,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.offer.withdraw();
        self.task.abort();
    }
}

/// An entry of a map, or a removed one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Latest<K, V> {
    /// The entry's key.
    pub key: K,
    /// The entry's newest value; `None` if it was removed.
    pub value: Option<V>,
    /// The least time since the value was written: it does not include the time on the network.
    pub age: Duration,
}

impl Node {
    /// Joins a map of latest values: all nodes that join it under this name have the same entries. All must use the
    /// same types.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] if this node is a member already, or if an earlier node has this one's name,
    /// [`ErrorKind::Config`] for a name that is empty or has more than 80 bytes, [`ErrorKind::Closed`],
    /// [`ErrorKind::System`] without random numbers.
    ///
    /// # Cancel safety
    /// If the future is dropped, the node is not a member.
    pub async fn latest_map<K, V>(&self, name: &str) -> Result<LatestMap<K, V>, Error>
    where
        K: Serialize + DeserializeOwned,
        V: Serialize + DeserializeOwned,
    {
        let service = Kind::Map.service(name)?;
        let listener = self.offer(service.clone())?;
        // A node that leaves and returns counts its writes from 0 again: they must not look like the former ones.
        let writer =
            host::random().map_err(|error| Error::system("a map can't be joined", error))?;
        let shared = Shared::new(writer, is_typed::<K, V>);
        let offer = listener.offer();
        let task = sync::start(self, listener, service, &shared);
        let (peers, readers, name) = (self.links(), AtomicU64::new(0), name.to_owned());
        let member = Arc::new(Member { shared, offer, task, readers, peers, name });
        Ok(LatestMap { member, of: PhantomData })
    }
}

/// Returns whether the bytes of an update are a key and a value.
fn is_typed<K: DeserializeOwned, V: DeserializeOwned>(update: &Update) -> bool {
    let is_value = |value: &Bytes| decode::<V>(value).is_ok();
    decode::<K>(&update.key).is_ok() && update.value.as_ref().is_none_or(is_value)
}

impl<K, V> LatestMap<K, V>
where
    K: Serialize + DeserializeOwned,
    V: Serialize + DeserializeOwned,
{
    /// Sets the value of a key here, and soon at all members. Never waits.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`]: a key has at most 1 KiB in serde's encoding, a value 32 KiB, a map 65,536 keys and
    /// 256 MiB. The text names the limit. [`ErrorKind::Config`] if serde can't encode the key or the value, or can't decode
    /// them again: the format needs each field, so `skip_serializing_if` and `untagged` don't work.
    pub fn set(&self, key: &K, value: &V) -> Result<(), Error> {
        let key = encode(key).map_err(|error| not_encoded(error, Refused::Key))?;
        let value = encode(value).map_err(|error| not_encoded(error, Refused::Value))?;
        // Other members would drop it.
        if decode::<K>(&key).is_err() || decode::<V>(&value).is_err() {
            let text = "serde can't decode what it has encoded: the type of the key or the value has an attribute like \
                        `skip_serializing_if` or `untagged`, without which it works";
            return Err(Error::new(ErrorKind::Config, text));
        }
        let set = self.member.shared.with(|map, now| map.set(now, key.into(), value.into()));
        set.map_err(too_large)
    }

    /// Removes a key here, and soon at all members. Returns whether it had a value.
    ///
    /// A removal is kept for 10 minutes. A member that was disconnected for longer, and still has the entry, restores
    /// it.
    pub fn remove(&self, key: &K) -> bool {
        let Ok(key) = encode(key) else { return false };
        self.member.shared.with(|map, now| map.remove(now, key.into()))
    }

    /// Returns the newest value of a key that has arrived here.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<V> {
        let key = encode(key).ok()?;
        let value = self.member.shared.read(|map| map.get(&key)?.value.clone())?;
        decode(&value).ok()
    }

    /// Returns all entries with their ages, in the order of their keys' encodings.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Latest<K, V>> {
        let copy = |(key, entry): (&Bytes, &Entry)| (key.clone(), entry.clone());
        let entries: Vec<_> = self.member.shared.read(|map| map.entries().map(copy).collect());
        let now = self.member.shared.now();
        let entry = |(key, entry): (Bytes, Entry)| {
            let age = u64::try_from(now.saturating_sub(entry.written)).unwrap_or(0);
            latest(&key, entry.value.as_ref(), age)
        };
        entries.into_iter().filter_map(entry).collect()
    }

    /// Watches the map: yields all present entries, and then each change.
    #[must_use]
    pub fn watch(&self) -> Watch<K, V> {
        let number = self.member.readers.fetch_add(1, Ordering::Relaxed);
        let reader = Observer::Reader(number);
        self.member.shared.with(|map, _| map.join(reader, true));
        Watch { map: self.clone(), reader }
    }

    /// Returns the number of updates from other members that were dropped: beyond the limits, or of other types.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.member.shared.read(|map| map.refused)
    }
}

fn latest<K: DeserializeOwned, V: DeserializeOwned>(
    key: &Bytes,
    value: Option<&Bytes>,
    age: u64,
) -> Option<Latest<K, V>> {
    let value = value.map(|value| decode(value)).transpose().ok()?;
    Some(Latest { key: decode(key).ok()?, value, age: Duration::from_micros(age) })
}

/// Returns the error of a key or a value that was not encoded.
fn not_encoded(error: WireError, refused: Refused) -> Error {
    match error {
        WireError::Unencodable => Error::new(ErrorKind::Config, error.to_string()),
        _ => too_large(refused),
    }
}

fn too_large(refused: Refused) -> Error {
    let text = match refused {
        Refused::Key => format!("a key of a map has at most {} bytes", replica::MAX_KEY),
        Refused::Value => format!(
            "a value of a map has at most {} bytes: split it over more keys",
            replica::MAX_VALUE
        ),
        Refused::Keys => format!("a map has at most {} keys", replica::MAX_KEYS),
        Refused::Bytes => format!("the values of a map have at most {} bytes", replica::MAX_BYTES),
    };
    Error::new(ErrorKind::TooLarge, text)
}

impl<K, V> Clone for LatestMap<K, V> {
    fn clone(&self) -> Self {
        Self { member: Arc::clone(&self.member), of: PhantomData }
    }
}

impl<K, V> fmt::Debug for LatestMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatestMap").field("name", &self.member.name).finish_non_exhaustive()
    }
}

/// Watches a map; made by [`LatestMap::watch`].
///
/// A watch that is not read holds no values: for a key that has changed often, it yields only the newest value.
#[derive(Debug)]
pub struct Watch<K, V> {
    map: LatestMap<K, V>,
    reader: Observer,
}

impl<K: DeserializeOwned, V: DeserializeOwned> Watch<K, V> {
    /// Waits for the next changed entry; `None` once the node was shut down.
    ///
    /// # Cancel safety
    /// If the future is dropped, no change was taken.
    pub async fn next(&mut self) -> Option<Latest<K, V>> {
        let Member { shared, peers, .. } = &*self.map.member;
        loop {
            // The second is notified as well when the node's runtime has ended, and the map's task with it.
            let (changed, closed) = (shared.changed.notified(), peers.changed());
            // One at a time: a value that is not taken yet may still be replaced.
            if let Some(Update { key, value, age, .. }) = shared.take(self.reader, 0).pop() {
                match latest(&key, value.as_ref(), age) {
                    // `None` is the end of the node.
                    None => continue,
                    change => return change,
                }
            }
            if peers.is_leaving() {
                return None;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = closed => {}
            }
        }
    }
}

impl<K, V> Drop for Watch<K, V> {
    fn drop(&mut self) {
        self.map.member.shared.with(|map, _| map.leave(self.reader));
    }
}
