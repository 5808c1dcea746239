//! The interface between an engine and the carrier of its packets.

use std::task::Waker;
use std::time::Duration;

use midplane_simhw::region::Payload;

use super::envelope::{Envelope, Peer};
use super::transport::InitError;

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
    /// The carrier has handled an event of its own: poll it again.
    Handled,
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

    /// Returns the next event, if there is one.
    fn poll(&mut self) -> Option<Event<'_>>;

    /// Has `waker` woken once an event has arrived, or there is room where a packet was refused. Replaces the
    /// former waker. Returns `false` and arms nothing if that is already so.
    fn arm_wakeup(&mut self, waker: &Waker) -> bool;

    /// Returns whether every posted packet has reached its receiver's side: if this process ends now, none is
    /// lost.
    fn is_flushed(&mut self) -> bool {
        true
    }

    /// Leaves the network: what was posted still arrives, then the others see this process lost.
    fn close(&mut self);
}
