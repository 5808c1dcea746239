//! Control messages between the NICs of two ends.

use midplane_nicvm::backlog::Backlog;
use midplane_nicvm::context::Context;
use midplane_nicvm::control::MAX_MESSAGE;
use midplane_nicvm::extension::TimeoutId;
use midplane_simhw::id::NodeId;
use midplane_simhw::wire;
use serde::{Deserialize, Serialize};

use crate::attributes::Discriminator;

/// The timeout after which the messages of an [`Outbox`] are sent again.
pub(super) const RETRY: TimeoutId = TimeoutId(1);

/// Control messages between NICs about connections.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) enum Message {
    Request {
        request: u32,
        from: End,
        to: Discriminator,
    },
    Accept {
        request: u32,
        from: End,
    },
    Refuse {
        request: u32,
        reason: u8,
    },
    /// The requester no longer waits.
    Withdraw {
        request: u32,
    },
    /// A request of one of two peers that request each other.
    Peer {
        from: End,
        local: Discriminator,
        remote: Discriminator,
    },
    /// The connection has ended: `expected` is the frame that was expected next, `error` the error in it.
    End {
        vi: u16,
        connection: u16,
        expected: u32,
        error: u8,
    },
    /// A step of the gate of a connection.
    Gate {
        vi: u16,
        connection: u16,
        step: Step,
    },
}

impl Message {
    /// Returns what `send` makes of the message's bytes.
    fn encoded<T>(&self, send: impl FnOnce(&[u8]) -> T) -> T {
        let mut buffer = [0; MAX_MESSAGE];
        let length = wire::encode_into(self, &mut buffer).expect("every message fits MAX_MESSAGE");
        send(&buffer[..length])
    }
}

/// One end of a connection to be made.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct End {
    pub(super) vi: u16,
    pub(super) connection: u16,
    pub(super) attributes: [u64; 2],
}

/// A step of the protocol by which two NICs open and close the gate of a connection.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum Step {
    /// To the sender: the receiver's host can take its receive queue.
    Ready,
    /// To the receiver: grant the receive queue to the host.
    Open,
    /// To the sender: whether the receive queue was granted.
    Opened(bool),
    /// To the receiver: the host sends no more.
    Close,
    /// To the sender: close the gate.
    Shut,
}

/// Messages that no node repeats. They are sent in order among themselves, each once its node can take it.
#[derive(Debug)]
pub(super) struct Outbox(Backlog);

impl Default for Outbox {
    fn default() -> Self {
        Self(Backlog::new(RETRY))
    }
}

impl Outbox {
    /// Sends a message, after the earlier ones to its node; later, if the node can't take it now.
    pub(super) fn send(&mut self, nic: &mut Context<'_>, message: Option<(NodeId, Message)>) {
        let Some((to, message)) = message else { return };
        // At the limit, the peer is one that has acknowledged nothing for long, and learns by its own timeouts.
        message.encoded(|bytes| self.0.send(nic, to, bytes));
    }

    /// Sends the messages that their nodes can take now.
    pub(super) fn send_again(&mut self, nic: &mut Context<'_>) {
        self.0.retry(nic);
    }

    /// Drops the messages to a node that has failed or restarted: they concern its former connections.
    pub(super) fn forget_node(&mut self, node: NodeId) {
        self.0.forget(node);
    }
}

/// Sends a message; returns `false` if the node can't take it now.
pub(super) fn send_message(nic: &mut Context<'_>, to: NodeId, message: &Message) -> bool {
    message.encoded(|bytes| nic.send_control(to, bytes).is_ok())
}
