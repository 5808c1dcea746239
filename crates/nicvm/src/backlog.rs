//! Control messages that wait for room in the queues to their peers.
//!
//! An extension whose protocol repeats no message sends through a [`Backlog`]: messages that find a full queue wait in it,
//! and leave in order once acknowledgements have made room. An extension forgets the messages for a peer that is down.
//! Messages that still wait when the extension is replaced or deactivated are lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use midplane_simhw::id::NodeId;

use crate::context::Context;
use crate::control::Body;
use crate::extension::TimeoutId;
use crate::timeout::Service;

/// Time between two attempts.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// Most messages that wait for one peer: 16 times its queue, or 1.7 MB.
const MOST: usize = 16_384;

/// The waiting control messages of one extension.
#[derive(Clone, Debug)]
pub struct Backlog {
    waiting: BTreeMap<NodeId, VecDeque<Body>>,
    /// The extension's timeout for the next attempt.
    timeout: TimeoutId,
}

impl Backlog {
    /// Creates a backlog without messages. When `timeout` expires, the extension calls [`Backlog::retry`].
    #[must_use]
    pub const fn new(timeout: TimeoutId) -> Self {
        Self { waiting: BTreeMap::new(), timeout }
    }

    /// Sends a message after those that wait for the same peer. Returns `false` if so many wait that it is dropped.
    ///
    /// # Panics
    /// If the message is longer than a control message may be.
    pub fn send(&mut self, nic: &mut Context<'_>, to: NodeId, message: &[u8]) -> bool {
        if !self.waiting.contains_key(&to)
            && nic.control_room(to) > 0
            && nic.send_control(to, message).is_ok()
        {
            return true;
        }
        if self.waiting.is_empty() {
            nic.set_timeout(self.timeout, Service::Exact, RETRY_AFTER);
        }
        let waiting = self.waiting.entry(to).or_default();
        if waiting.len() >= MOST {
            return false;
        }
        waiting.push_back(Body::new(message).expect("the message fits a control message"));
        true
    }

    /// Sends the messages for which there is room now.
    pub fn retry(&mut self, nic: &mut Context<'_>) {
        self.waiting.retain(|to, waiting| {
            let count = nic.control_room(*to).min(waiting.len());
            for message in waiting.drain(..count) {
                nic.send_control(*to, &message).expect("there is room for it");
            }
            !waiting.is_empty()
        });
        if !self.waiting.is_empty() {
            nic.set_timeout(self.timeout, Service::Exact, RETRY_AFTER);
        }
    }

    /// Drops the messages for a peer that is down or has restarted.
    pub fn forget(&mut self, peer: NodeId) {
        self.waiting.remove(&peer);
    }

    /// Returns how many messages wait for a peer.
    pub(crate) fn waiting_for(&self, peer: NodeId) -> usize {
        self.waiting.get(&peer).map_or(0, VecDeque::len)
    }

    /// Returns how many messages wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }
}
