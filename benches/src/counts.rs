//! Counts bytes that arrive over the kernel's sockets or a node's streams, by sender.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Bytes read at once.
const PART: usize = 256 << 10;

/// Returns Jain's index of the senders' goodput: 1 if all have the same.
pub fn jain(shares: &[f64]) -> f64 {
    let sum = shares.iter().sum::<f64>();
    let squares = shares.iter().map(|share| share * share).sum::<f64>();
    // If all goodputs are 0, they are equal.
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// Bytes received from each sender, by a name. Once it and its clones are dropped, nothing is read and all is closed.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    table: Table,
    /// True once a stream has ended.
    has_lost: Arc<AtomicBool>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

#[derive(Clone, Debug, Default)]
struct Table(Arc<Mutex<BTreeMap<String, u64>>>);

impl Table {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, sender: String, bytes: usize) {
        *self.lock().entry(sender).or_default() += bytes as u64;
    }
}

impl Counts {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(task);
    }

    /// Reads a stream to its end in a task, and counts its bytes as those of `sender`.
    pub fn read(&self, sender: impl ToString, mut stream: impl AsyncRead + Send + Unpin + 'static) {
        let (table, has_lost) = (self.table.clone(), Arc::clone(&self.has_lost));
        let sender = sender.to_string();
        table.add(sender.clone(), 0);
        self.spawn(async move {
            let mut bytes = vec![0; PART];
            while let Ok(read @ 1..) = stream.read(&mut bytes).await {
                table.add(sender.clone(), read);
            }
            has_lost.store(true, Ordering::Relaxed);
        });
    }

    /// Receives a socket's datagrams in a task, and counts the bytes of each as those of its sender.
    pub fn receive(&self, socket: UdpSocket) {
        let table = self.table.clone();
        self.spawn(async move {
            let mut bytes = vec![0; PART];
            while let Ok((length, from)) = socket.recv_from(&mut bytes).await {
                table.add(from.to_string(), length);
            }
        });
    }

    /// Returns whether a sender's stream has ended, so that the rates since then are not its.
    pub fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Relaxed)
    }

    /// Returns the goodput of each sender in 10^6 bit/s, in the order of names, during `measured` after `warm_up`.
    pub async fn rates(&self, warm_up: Duration, measured: Duration) -> Vec<f64> {
        sleep(warm_up).await;
        let before = self.table.lock().clone();
        sleep(measured).await;
        let mbps = |(sender, after): (&String, &u64)| {
            let bytes = after - before.get(sender).unwrap_or(&0);
            bytes as f64 * 8.0 / 1e6 / measured.as_secs_f64()
        };
        self.table.lock().iter().map(mbps).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the goodput of a sender that had exited was a result.
    #[tokio::test]
    async fn a_sender_whose_stream_ends_is_lost() {
        let counts = Counts::default();
        let (sender, receiver) = tokio::io::duplex(16);
        counts.read("one", receiver);
        counts.rates(Duration::ZERO, Duration::from_millis(1)).await;
        assert!(!counts.has_lost());
        drop(sender);
        while !counts.has_lost() {
            tokio::task::yield_now().await;
        }
    }
}
