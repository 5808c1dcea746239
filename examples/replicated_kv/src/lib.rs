//! Numbers by key on three replicas, any two of which suffice. Each operation asks all and continues with the first two answers
//! (Attiya, Bar-Noy, Dolev: Sharing Memory Robustly in Message-Passing Systems, JACM 42(1), 1995).
use std::collections::BTreeMap;
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::{Node, call::Client, call::Serving, time};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tower::service_fn;

/// The names of the replicas.
pub const REPLICAS: [&str; 3] = ["a", "b", "c"];
/// Replicas that have to answer: any two sets of this many share a replica.
const MAJORITY: usize = 2;
/// The time after which a request to a replica is sent again.
const RETRY: Duration = Duration::from_millis(50);

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A number, and the version by which replicas order it: a count, and the writer.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Versioned {
    version: (u64, u64),
    number: u32,
}

/// Holds the data of a replica that survive a crash.
pub type Disk = Arc<Mutex<BTreeMap<u8, Versioned>>>;

/// A key, and the number that a replica stores for it if its own is older.
type Request = (u8, Versioned);

/// Serves one replica as long as the result lives: it keeps the newer number, and answers with the one that it has.
pub fn serve(node: &Node, disk: Disk) -> Result<Serving> {
    let replica = service_fn(move |(key, newer): Request| {
        let mut disk = disk.lock().unwrap();
        let held = disk.entry(key).or_default();
        *held = newer.max(*held);
        ready(Ok::<_, String>(*held))
    });
    Ok(node.serve(node.name(), replica)?)
}

/// A client of the replicas.
#[derive(Clone)]
pub struct Store {
    replicas: [Client<Request, Versioned, String>; 3],
    writer: u64,
    stale: bool,
}

impl Store {
    /// Creates a store. No other store, also of an earlier run, may have the same `writer`. The bug: a `stale` store
    /// reads from one replica.
    pub fn new(node: &Node, writer: u64, stale: bool) -> Self {
        Self { replicas: REPLICAS.map(|name| node.client(name).timeout(RETRY)), writer, stale }
    }

    /// Reads a number; 0 if none was written.
    pub async fn get(&self, key: u8) -> u32 {
        let answers = if self.stale { 1 } else { MAJORITY };
        let newest = self.ask(key, Versioned::default(), answers).await;
        // Otherwise a later read could miss a number that this one has read from one replica.
        self.ask(key, newest, if self.stale { 0 } else { MAJORITY }).await;
        newest.number
    }

    /// Writes a number.
    pub async fn put(&self, key: u8, number: u32) {
        let newest = self.ask(key, Versioned::default(), MAJORITY).await;
        let version = (newest.version.0 + 1, self.writer);
        self.ask(key, Versioned { version, number }, MAJORITY).await;
    }

    /// Has the replicas store `newer`, and returns the newest of the first `answers` answers.
    async fn ask(&self, key: u8, newer: Versioned, answers: usize) -> Versioned {
        let mut asked = JoinSet::new();
        for replica in self.replicas.clone() {
            asked.spawn(async move {
                loop {
                    if let Ok(held) = replica.call((key, newer)).await {
                        break held;
                    }
                    time::sleep(RETRY).await;
                }
            });
        }
        let mut newest = newer;
        for _ in 0..answers {
            let held = asked.join_next().await.expect("there are more replicas than answers");
            newest = newest.max(held.expect("it neither panics nor is cancelled"));
        }
        newest
    }
}
