//! Passes events of peers from the rendezvous's thread to the task that polls the rings.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use crate::id::NodeId;
use crate::lock::lock;
use crate::region::SharedMemory;
use crate::shm::rendezvous::{Link, PeerListener};
use crate::sync::Ordering;
use crate::wakes::Wakes;

/// Most pieces of memory of one peer that wait in this inbox, and as many that wait with all its successors together. A
/// peer that shares more is disconnected.
pub(super) const MAX_SHOWN: usize = 1024;

/// The events that no poll has handled yet.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    pub(super) pending: Mutex<Pending>,
    pub(super) is_pending: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) events: Vec<(NodeId, PeerEvent)>,
    /// Counts the pieces of memory among the events, by peer.
    shown: BTreeMap<NodeId, usize>,
}

impl EventQueue {
    /// Takes the events that no poll has handled yet.
    pub(super) fn take(&self) -> Vec<(NodeId, PeerEvent)> {
        std::mem::take(&mut *lock(&self.pending)).events
    }
}

/// An event of one peer.
#[derive(Debug)]
pub(super) enum PeerEvent {
    Joined(Box<Link>),
    Shown([u64; 2], SharedMemory),
    Left,
}

/// Receives the rendezvous's events: queues each and wakes the polling task.
pub(super) struct PeerInbox {
    pub(super) queue: Arc<EventQueue>,
    pub(super) wakes: Arc<Wakes>,
}

impl PeerInbox {
    fn push(&self, node: NodeId, event: PeerEvent) -> bool {
        let mut pending = lock(&self.queue.pending);
        if matches!(event, PeerEvent::Shown(..)) {
            let its = pending.shown.entry(node).or_default();
            if *its >= MAX_SHOWN {
                return false;
            }
            *its += 1;
        }
        pending.events.push((node, event));
        self.queue.is_pending.store(true, Ordering::Release);
        self.wakes.signal();
        true
    }
}

impl PeerListener for PeerInbox {
    fn joined(&self, link: Link) {
        self.push(link.node, PeerEvent::Joined(Box::new(link)));
    }

    fn left(&self, node: NodeId) {
        self.push(node, PeerEvent::Left);
    }

    fn shown(&self, node: NodeId, name: [u64; 2], memory: SharedMemory) -> bool {
        self.push(node, PeerEvent::Shown(name, memory))
    }
}
