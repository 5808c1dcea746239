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
        /// The packet's envelope, as it was received.
        envelope: Envelope,
        /// The packet's payload. A sender that shares memory may still be writing it.
        payload: Payload<'a>,
    },
    /// A process was lost: nothing more arrives from it until [`Event::Returned`].
    Lost(Peer),
    /// The connection to a process was lost, and the packets in flight with it. The process may still run: either
    /// [`Event::Lost`] or [`Event::Returned`] follows. `Wires` repeat those packets; an engine
    /// treats the process as lost.
    Broken(Peer),
    /// A process was lost, and the carrier knows that it was started again.
    Restarted(Peer),
    /// A new process has replaced one that was lost: packets can be exchanged with it.
    Returned(Peer),
    /// The bytes of a data packet were written straight to the registered memory of its receive
    /// ([`Carrier::lend`]).
    Placed {
        /// The process that sent the packet.
        from: Peer,
        /// The envelope of the data packet.
        envelope: Envelope,
    },
    /// The NIC no longer reads the memory that was posted for the send with this handle
    /// ([`Posted::InUse`]).
    Released(u64),
    /// The carrier has handled an event of its own: poll it again.
    Handled,
}

/// The state of registered memory after a packet was posted from it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Posted {
    /// The packet's bytes were copied: the memory may be changed.
    Copied,
    /// The NIC reads the memory until [`Event::Released`], or until the receiver is lost.
    InUse,
}

/// Why a packet was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The carrier has no room for the packet now.
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

    /// Returns whether the carrier reaches only processes of this host, and loses a process only after it has ended.
    fn is_local(&self) -> bool {
        false
    }

    /// Names the kind of wire that carries packets to `peer` now: `memory`, `stream`. `None` if there is none, or the
    /// carrier has one kind only.
    fn wire_to(&self, _peer: Peer) -> Option<&'static str> {
        None
    }

    /// Estimates the time from a packet's post to its arrival at `to`. An engine derives from it the longest message
    /// that it sends without a handshake; `Wires` prefer the carrier with the lowest. Default:
    /// 256 ns, that of shared memory.
    fn latency(&self, _to: Peer) -> Duration {
        Duration::from_nanos(256)
    }

    /// Returns the maximum payload of a packet in bytes, at least 16.
    fn room(&self) -> usize;

    /// Returns the maximum payload in bytes of a data packet for the receive `receive`, for which `to` has sent a
    /// CTS.
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

    /// Offers the memory of the receive `receive` for its message; the next packet posted to `to` is the CTS for it.
    /// A carrier whose peers write straight to that memory reports [`Event::Placed`]. Other carriers ignore the call.
    fn lend(&mut self, _to: Peer, _receive: u64, _room: &Segment) {}

    /// Queues a data packet for `to` whose payload is registered memory. `send` is the handle that
    /// [`Event::Released`] reports.
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

    /// Arms `waker`: wakes it once an event has arrived, or there is room again after a packet was refused. Replaces
    /// the former waker. If either is already the case, returns `false` and does not promise to wake it.
    fn arm_wakeup(&mut self, waker: &Waker) -> bool;

    /// Does what [`Carrier::arm_wakeup`] does. `missing` returns the one peer that all requests in progress wait for;
    /// `None` if there is no such peer. It examines every request.
    fn arm_wakeup_for(&mut self, waker: &Waker, _missing: &dyn Fn() -> Option<Peer>) -> bool {
        self.arm_wakeup(waker)
    }

    /// Returns whether every posted packet has reached its receiver's side, so that none is lost if this process
    /// ends now. A carrier over streams returns whether the streams have taken the packets.
    fn is_flushed(&mut self) -> bool {
        true
    }

    /// Leaves the network. Packets posted before still arrive; then the other processes' carriers report this process
    /// as lost.
    fn close(&mut self);
}
