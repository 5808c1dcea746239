//! The messages of a node: streams to the peers that it sends to, and received messages that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use midplane_simhw::lock::lock;
use midplane_via::session::Stream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use super::listener::PeerName;

/// The stream to a peer, opened at the first message to it.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// The holder of the lock opens the stream, or writes. There is no stream while a message is half written.
    pub(crate) stream: Arc<tokio::sync::Mutex<Option<Stream>>>,
    /// True once the stream was opened. If there is none then, it has failed.
    pub(crate) was_opened: AtomicBool,
}

/// A message that waits to be received, and its share of the bounds.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) from: PeerName,
    pub(crate) bytes: Bytes,
    pub(crate) _room: [OwnedSemaphorePermit; 2],
}

/// The messages of a node.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    inbox: OnceLock<tokio::sync::Mutex<mpsc::UnboundedReceiver<Received>>>,
}

#[derive(Debug, Default)]
struct State {
    /// The peer that each name has referred to since the last error.
    names: BTreeMap<String, u64>,
    outgoing: BTreeMap<u64, Arc<Outgoing>>,
    /// True once this node leaves: no stream is opened any longer.
    is_closed: bool,
    /// Peers whose streams were ended because the peer was unknown. The next message to one of them fails.
    lost: BTreeSet<u64>,
    /// When peers were searched in vain, within the last `SEARCHED`.
    searched: BTreeMap<u64, Instant>,
}

/// Time after a search for a peer in which it is not searched again.
const SEARCHED: Duration = Duration::from_secs(1);

/// Most peers whose loss is remembered.
const MOST_LOST: usize = 4_096;

impl Mailbox {
    /// Ends the streams to peers after the messages that were sent, and makes no new ones.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let outgoing = std::mem::take(&mut state.outgoing);
        drop(state);
        drop(outgoing);
    }

    /// Returns the peer that a name refers to.
    pub(crate) fn named(&self, name: &str) -> Option<u64> {
        lock(&self.state).names.get(name).copied()
    }

    /// Sets the peer that a name refers to.
    pub(crate) fn name(&self, name: String, id: u64) {
        lock(&self.state).names.insert(name, id);
    }

    /// Returns the stream to a peer; `None` once the mailbox was closed. Before it makes a new one, it ends those to
    /// peers that `knows` does not know.
    pub(crate) fn outgoing(&self, id: u64, knows: impl Fn(u64) -> bool) -> Option<Arc<Outgoing>> {
        let state = lock(&self.state);
        if let Some(outgoing) = state.outgoing.get(&id) {
            return Some(Arc::clone(outgoing));
        }
        let others: Vec<_> = state.outgoing.keys().copied().collect();
        drop(state);
        let gone: Vec<_> = others.into_iter().filter(|other| !knows(*other)).collect();
        let mut state = lock(&self.state);
        if state.is_closed {
            return None;
        }
        let mut ended = Vec::new();
        for other in gone {
            // Another task may have removed it meanwhile.
            let Some(outgoing) = state.outgoing.remove(&other) else { continue };
            if outgoing.was_opened.load(Ordering::Acquire) {
                state.lost.insert(other);
            }
            ended.push(outgoing);
        }
        while state.lost.len() > MOST_LOST
            && let Some(forgotten) = state.lost.pop_first()
        {
            state.names.retain(|_, named| *named != forgotten);
        }
        let outgoing = Arc::clone(state.outgoing.entry(id).or_default());
        drop(state);
        drop(ended);
        Some(outgoing)
    }

    /// Returns whether messages to a peer may be lost: their stream was ended because the peer was unknown, or there is
    /// one and the peer is not known now. [`Mailbox::forget`] resets that.
    pub(crate) fn has_lost(&self, id: u64, is_known: bool) -> bool {
        let state = lock(&self.state);
        let was_opened = |outgoing: &Arc<Outgoing>| outgoing.was_opened.load(Ordering::Acquire);
        state.lost.contains(&id) || (!is_known && state.outgoing.get(&id).is_some_and(was_opened))
    }

    /// Returns whether a peer was searched in vain a short time ago.
    pub(crate) fn was_searched(&self, id: u64) -> bool {
        let at = lock(&self.state).searched.get(&id).copied();
        at.is_some_and(|at| at.elapsed() < SEARCHED)
    }

    /// Notes that a peer was searched in vain.
    pub(crate) fn note_searched(&self, id: u64) {
        let mut state = lock(&self.state);
        state.searched.retain(|_, at| at.elapsed() < SEARCHED);
        state.searched.insert(id, Instant::now());
    }

    /// Returns whether this node leaves.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).is_closed
    }

    /// Returns the number of messages that wait to be received.
    pub(crate) fn waiting(&self) -> usize {
        // A task that holds the lock waits for a message, so none waits to be received.
        let inbox = self.inbox.get().and_then(|inbox| inbox.try_lock().ok());
        inbox.map_or(0, |inbox| inbox.len())
    }

    /// Forgets a peer that has ended, or whose stream `failed`. A later stream to it continues.
    pub(crate) fn forget(&self, id: u64, failed: Option<&Arc<Outgoing>>) {
        let mut state = lock(&self.state);
        let is_later =
            |known: &Arc<Outgoing>| failed.is_some_and(|failed| !Arc::ptr_eq(known, failed));
        if state.outgoing.get(&id).is_some_and(is_later) {
            return;
        }
        state.names.retain(|_, named| *named != id);
        state.lost.remove(&id);
        let outgoing = state.outgoing.remove(&id);
        drop(state);
        drop(outgoing);
    }

    /// Returns the received messages; the first call receives them from `start`.
    pub(crate) fn inbox<E>(
        &self,
        start: impl FnOnce() -> Result<mpsc::UnboundedReceiver<Received>, E>,
    ) -> Result<&tokio::sync::Mutex<mpsc::UnboundedReceiver<Received>>, E> {
        // If two first calls run at once, the lock lets one of them start.
        let _one_at_a_time = lock(&self.state);
        if let Some(inbox) = self.inbox.get() {
            return Ok(inbox);
        }
        let inbox = tokio::sync::Mutex::new(start()?);
        Ok(self.inbox.get_or_init(|| inbox))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(mailbox: &Mailbox, id: u64, knows: impl Fn(u64) -> bool) {
        let outgoing = mailbox.outgoing(id, knows).expect("the mailbox is open");
        outgoing.was_opened.store(true, Ordering::Release);
    }

    #[test]
    fn a_closed_mailbox_makes_no_stream() {
        let mailbox = Mailbox::default();
        assert!(mailbox.outgoing(1, |_| true).is_some());
        mailbox.close();
        assert!(mailbox.outgoing(1, |_| true).is_none());
    }

    #[test]
    fn streams_to_peers_that_have_ended_are_dropped_with_the_next_new_one() {
        let mailbox = Mailbox::default();
        for id in 0..100 {
            open(&mailbox, id, |other| other + 3 > id);
        }
        assert_eq!(lock(&mailbox.state).outgoing.keys().copied().collect::<Vec<_>>(), [97, 98, 99]);
        assert!(mailbox.has_lost(96, true) && !mailbox.has_lost(97, true));
        mailbox.forget(96, None);
        assert!(!mailbox.has_lost(96, true), "it was reported");
    }

    /// Regression: each peer that was unknown counted as lost.
    #[test]
    fn a_peer_without_an_opened_stream_has_lost_no_message() {
        let mailbox = Mailbox::default();
        assert!(mailbox.outgoing(1, |_| true).is_some());
        open(&mailbox, 2, |_| true);
        open(&mailbox, 3, |_| true);
        // Meanwhile another task reports the loss of peer 3.
        open(&mailbox, 4, |_| {
            mailbox.forget(3, None);
            false
        });
        let lost: Vec<_> = (1..=4).filter(|id| mailbox.has_lost(*id, true)).collect();
        assert_eq!(lost, [2]);
    }
}
