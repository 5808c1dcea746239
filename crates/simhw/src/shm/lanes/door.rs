//! What the meeting place has to say to the lanes of its process.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use crate::id::NodeId;
use crate::region::SharedMemory;
use crate::shm::rendezvous::{Link, PeerListener};
use crate::sync::Ordering;
use crate::wakes::Wakes;

/// Memory of others that may wait to be asked for, of all together: who shows more is not listened to.
const MAX_SHOWN: usize = 1024;

/// What the meeting place tells.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) news: Mutex<Vec<(NodeId, Tidings)>>,
    pub(super) has_news: AtomicBool,
}

/// What is told of a process.
#[derive(Debug)]
pub(super) enum Tidings {
    Joined(Box<Link>),
    Shown([u64; 2], SharedMemory),
    Left,
}

/// What the meeting place tells it to.
pub(super) struct Door {
    pub(super) inbox: Arc<Inbox>,
    pub(super) wakes: Arc<Wakes>,
}

impl Door {
    fn tell(&self, node: NodeId, tidings: Tidings) -> bool {
        let mut news = self.inbox.news.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(tidings, Tidings::Shown(..)) && news.len() >= MAX_SHOWN {
            return false;
        }
        news.push((node, tidings));
        self.inbox.has_news.store(true, Ordering::Release);
        self.wakes.signal();
        true
    }
}

impl PeerListener for Door {
    fn joined(&self, link: Link) {
        self.tell(link.node, Tidings::Joined(Box::new(link)));
    }

    fn left(&self, node: NodeId) {
        self.tell(node, Tidings::Left);
    }

    fn shown(&self, node: NodeId, name: [u64; 2], memory: SharedMemory) -> bool {
        self.tell(node, Tidings::Shown(name, memory))
    }
}
