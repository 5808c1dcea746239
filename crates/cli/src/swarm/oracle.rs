//! Records sent and received messages, and checks them against the invariants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use midplane::simhw::id::NodeId;
use midplane::simhw::time::Instant;

/// Handle to the oracle, for extensions and applications.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Mutex<Oracle>>);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Oracle> {
        // A panic while it was locked leaves it consistent: each change is one step.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A control message of one unit to another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ControlMessage {
    /// The sender's incarnation.
    pub(crate) incarnation: u32,
    /// Number of times that the sender's connection to the receiver has ended.
    pub(crate) epoch: u32,
    /// Number of the message within its epoch, from 0.
    pub(crate) number: u32,
}

impl ControlMessage {
    pub(crate) fn emit(self) -> Vec<u8> {
        [self.incarnation, self.epoch, self.number].map(u32::to_le_bytes).concat()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<4>();
        let words: [_; 3] = words.try_into().ok()?;
        let [incarnation, epoch, number] = words.map(u32::from_le_bytes);
        rest.is_empty().then_some(Self { incarnation, epoch, number })
    }
}

/// A message from one application to another.
#[derive(Clone, Copy, Debug)]
struct Sent {
    from: NodeId,
    to: NodeId,
    length: usize,
    delivered: bool,
}

/// Messages that were sent and delivered, and broken invariants.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    messages: Vec<Sent>,
    /// By sender, its incarnation and receiver: epoch and number of the last control message that was delivered.
    last: BTreeMap<(NodeId, u32, NodeId), (u32, u32)>,
    pub(crate) control_sent: u64,
    pub(crate) control_delivered: u64,
    pub(crate) delivered: u64,
    /// Ended connections between two units.
    pub(crate) losses: u64,
    /// Frames that needed a token, since the last check: when and where they left, and their destinations.
    pub(crate) controlled: Vec<(Instant, NodeId, NodeId)>,
    /// By node: the number of barriers that it has entered.
    barriers: BTreeMap<NodeId, u32>,
    /// Commands that have not completed, by node and cookie.
    pub(crate) under_way: BTreeMap<(NodeId, u64), String>,
    /// True if senders send nothing new.
    pub(crate) stop_senders: bool,
    pub(crate) stop_receivers: bool,
    /// Counter: receivers reopen their ports whenever it grows.
    pub(crate) renewals: u32,
    /// Descriptions of broken invariants.
    pub(crate) complaints: Vec<String>,
}

impl Oracle {
    pub(crate) fn complain(&mut self, what: String) {
        self.complaints.push(what);
    }

    /// Returns the number of messages sent since the start.
    pub(crate) fn sent(&self) -> u64 {
        self.messages.len() as u64
    }

    /// Returns sender and receiver of each undelivered message, from message `first` on.
    pub(crate) fn lost_after(&self, first: u64) -> Vec<(u16, u16)> {
        let late = self.messages.iter().skip(first as usize).filter(|sent| !sent.delivered);
        late.map(|sent| (sent.from.0, sent.to.0)).collect()
    }

    /// Records that a node enters its next barrier, and returns the barrier's number.
    pub(crate) fn on_barrier(&mut self, node: NodeId) -> u32 {
        let entered = self.barriers.entry(node).or_default();
        *entered += 1;
        *entered
    }

    /// Checks that all `nodes` have entered a barrier that has ended at one of them.
    pub(crate) fn on_barrier_end(&mut self, node: NodeId, number: u32, nodes: usize) {
        let entered = self.barriers.values().filter(|entered| **entered >= number).count();
        if entered < nodes {
            self.complain(format!(
                "node {node}: barrier {number} ends, but {entered} of {nodes} are in it"
            ));
        }
    }

    /// Records a message that is about to be sent, and returns its tag.
    pub(crate) fn on_send(&mut self, from: NodeId, to: NodeId, length: usize) -> u32 {
        self.messages.push(Sent { from, to, length, delivered: false });
        self.messages.len() as u32 - 1
    }

    /// Checks that a message arrives at most once, whole, and at its destination.
    pub(crate) fn on_delivery(&mut self, from: NodeId, to: NodeId, tag: u32, bytes: &[u8]) {
        let Some(sent) = self.messages.get_mut(tag as usize) else {
            return self.complain(format!("node {to}: message {tag} was never sent"));
        };
        let known = *sent;
        sent.delivered = true;
        self.delivered += 1;
        if (known.from, known.to, known.length) != (from, to, bytes.len()) {
            let length = bytes.len();
            self.complain(format!(
                "node {to}: message {tag} of {length} bytes from {from} was {known:?}"
            ));
        } else if known.delivered {
            self.complain(format!("node {to}: message {tag} from {from} was delivered twice"));
        } else if bytes != pattern(tag, bytes.len()) {
            self.complain(format!("node {to}: message {tag} from {from} has other bytes"));
        }
    }

    /// Checks that the control messages delivered of each epoch are a prefix of those sent, and that epochs are in order.
    pub(crate) fn on_control(&mut self, from: NodeId, to: NodeId, bytes: &[u8]) {
        let Some(message) = ControlMessage::parse(bytes) else {
            return self.complain(format!("node {to}: a control message that no node sent"));
        };
        self.control_delivered += 1;
        let ControlMessage { incarnation, epoch, number } = message;
        let key = (from, incarnation, to);
        let holds = match self.last.insert(key, (epoch, number)) {
            Some((last, before)) if last == epoch => number == before + 1,
            Some((last, _)) => last < epoch && number == 0,
            None => number == 0,
        };
        if !holds {
            self.complain(format!(
                "node {to}: control message from {from} out of order: {message:?}"
            ));
        }
        if self
            .last
            .range((from, incarnation + 1, to)..(from, u32::MAX, to))
            .any(|(at, _)| at.2 == to)
        {
            self.complain(format!("node {to}: control message of a former incarnation of {from}"));
        }
    }
}

/// Returns the bytes of a message with this tag.
pub(crate) fn pattern(tag: u32, length: usize) -> Vec<u8> {
    let seed = u64::from(tag) << 32;
    let byte = |at: u64| ((seed ^ at).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    (0..length as u64).map(byte).collect()
}
