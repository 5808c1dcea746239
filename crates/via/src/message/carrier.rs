//! The interface between an engine and the carrier of its packets.

use std::task::Waker;
use std::time::Duration;

use midplane_simhw::region::Payload;

use super::envelope::{Envelope, Peer};
use super::transport::InitError;
use crate::memory::{Memory, Segment};

/// An event that a carrier reports.
#[derive(Debug)]
pub enum Event<'a> {
    /// A packet has arrived.
    Packet {
        /// The sender, as the carrier knows it, whatever the envelope claims.
        from: Peer,
        /// Its envelope.
        envelope: Envelope,
        /// Its payload; a sender that shares memory may still be writing it.
        payload: Payload<'a>,
    },
    /// A process was lost: nothing more arrives from it until [`Event::Returned`].
    Lost(Peer),
    /// The connection to a process was lost, with packets that were under way. The process may still run: either
    /// [`Event::Lost`] or [`Event::Returned`] follows. Only [`Wires`](super::wires::Wires) lose nothing then; for an
    /// engine the process was lost.
    Broken(Peer),
    /// A process was lost, and the carrier knows that it was started again.
    Restarted(Peer),
    /// A new process has replaced one that was lost: packets can be exchanged with it.
    Returned(Peer),
    /// The bytes of a data packet were written to the memory that was lent to its receive
    /// ([`Carrier::lend`]).
    Placed {
        /// The sender.
        from: Peer,
        /// The packet's envelope.
        envelope: Envelope,
    },
    /// The NIC no longer reads the memory of a packet that was posted for this send
    /// ([`Posted::InUse`]).
    Released(u64),
    /// The carrier has handled an event of its own: poll it again.
    Handled,
}

/// The use of registered memory from which a packet was posted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Posted {
    /// Its bytes were copied: the memory may be changed.
    Copied,
    /// The NIC reads it until [`Event::Released`], or until the receiver was lost.
    InUse,
}

/// Why a packet was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// There is no room now.
    Full,
    /// The process was lost.
    Lost,
}

/// Carries packets between processes: exactly once, and in order for each pair of processes, or reports that a
/// process was lost. A lost process may return as another process with its number: nothing posted for the
/// former one reaches it. Packets of different senders have no order.
///
/// Once packets to a process were lost, further ones are refused until [`Carrier::poll`] has returned the loss.
///
/// An engine posts no packet to its own process.
pub trait Carrier: Send {
    /// Returns the number of this process.
    fn own(&self) -> Peer;

    /// Connects to further processes.
    ///
    /// # Errors
    /// [`InitError::Unknown`].
    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError>;

    /// Returns whether it reaches processes of this host only, and loses a process only if that has ended.
    fn is_local(&self) -> bool {
        false
    }

    /// Names the kind of wire that carries packets to `peer` now: `memory`, `stream`. `None` if there is none, or the
    /// carrier has one kind only.
    fn wire_to(&self, _peer: Peer) -> Option<&'static str> {
        None
    }

    /// Estimates the time from a packet's post to its arrival at `to`. It decides how long a message may be that is
    /// sent without a handshake, and which of several [`Wires`](super::wires::Wires) is preferred. Default: 256 ns,
    /// that of memory.
    fn latency(&self, _to: Peer) -> Duration {
        Duration::from_nanos(256)
    }

    /// Returns the most bytes of a packet's payload, at least 16.
    fn room(&self) -> usize;

    /// Returns the most payload bytes of one data packet for the receive `receive`, which `to` has cleared.
    fn part(&self, _to: Peer, _receive: u64) -> usize {
        self.room()
    }

    /// Queues a packet for `to`; the payload is copied before it returns.
    ///
    /// # Errors
    /// [`Refusal`]; the packet was not queued.
    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal>;

    /// Registers `bytes` of memory for messages from and to `peer`. `None` if this carrier has no registered memory, or
    /// has none left.
    fn register(&mut self, _peer: Peer, _bytes: usize) -> Option<Memory> {
        None
    }

    /// Lends memory for the message that the receive `receive` has matched; the next packet posted to `to` clears that
    /// message. A carrier that has the bytes written there reports [`Event::Placed`]. Others do nothing.
    fn lend(&mut self, _to: Peer, _receive: u64, _room: &Segment) {}

    /// Queues a data packet for `to` whose payload is registered memory. `send` returns with [`Event::Released`].
    ///
    /// # Errors
    /// [`Refusal`]; the packet was not queued.
    fn post_memory(
        &mut self,
        to: Peer,
        envelope: &Envelope,
        payload: &Segment,
        _send: u64,
    ) -> Result<Posted, Refusal> {
        self.post(to, envelope, &payload.to_vec()).map(|()| Posted::Copied)
    }

    /// Returns the next event, if there is one.
    fn poll(&mut self) -> Option<Event<'_>>;

    /// Has `waker` woken once an event has arrived, or there is room where a packet was refused. Replaces the
    /// former waker. Returns `false` and arms nothing if that is already so.
    fn arm_wakeup(&mut self, waker: &Waker) -> bool;

    /// Does what [`Carrier::arm_wakeup`] does. `missing` finds the peer that all requests under way wait for; `None` if they
    /// wait for several, for any, or there are none. It looks at all of them.
    fn arm_wakeup_for(&mut self, waker: &Waker, _missing: &dyn Fn() -> Option<Peer>) -> bool {
        self.arm_wakeup(waker)
    }

    /// Returns whether every posted packet has reached its receiver's side: if this process ends now, none is
    /// lost.
    fn is_flushed(&mut self) -> bool {
        true
    }

    /// Leaves the network: what was posted still arrives, then the others see this process lost.
    fn close(&mut self);
}
