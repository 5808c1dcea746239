//! What an engine needs of whatever carries its packets.

use std::task::Waker;

use midplane_simhw::region::Payload;

use super::envelope::{Envelope, Peer};
use super::progression::InitError;

/// What a carrier has to tell.
#[derive(Debug)]
pub enum Event<'a> {
    /// A packet has come.
    Packet {
        /// Who sent it: what the carrier knows, not what the envelope claims.
        from: Peer,
        /// Its envelope.
        envelope: Envelope,
        /// Its payload; another process may be writing it.
        payload: Payload<'a>,
    },
    /// A process is gone; nothing more comes from it, until [`Event::Returned`].
    Lost(Peer),
    /// The same, and the carrier knows that it was started again.
    Restarted(Peer),
    /// A process is there in the place of one that was lost: packets go to it and come from it.
    Returned(Peer),
}

/// Why a packet was not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// No room now.
    Full,
    /// The process is gone.
    Lost,
}

/// Carries packets between processes: exactly once, and in order from each process to each other,
/// or says that a process is lost. One that is lost may return, as another process with its number: nothing
/// that was posted for the former one reaches it. Packets of different processes have no order.
///
/// An engine posts no packet to its own process.
pub trait Carrier: Send {
    /// The process that this is.
    fn own(&self) -> Peer;

    /// Reaches further processes.
    ///
    /// # Errors
    /// [`InitError::Unknown`].
    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError>;

    /// Most bytes of a packet's payload, at least 16.
    fn room(&self) -> usize;

    /// Most bytes of the payload of a part of a message that `to` has cleared for its `receive`.
    fn part(&self, _to: Peer, _receive: u64) -> usize {
        self.room()
    }

    /// Takes a packet for `to`; the payload is copied before it returns.
    ///
    /// # Errors
    /// [`Refusal`]; the packet is the caller's still.
    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal>;

    /// What has come since.
    fn poll(&mut self) -> Option<Event<'_>>;

    /// Wakes `waker` once something has come, or there is room again where a packet was refused;
    /// replaces the waker before. `false` if that is so already; then nothing is armed.
    fn arm(&mut self, waker: &Waker) -> bool;

    /// Whether all that was posted is safe with the others: nothing is lost if this process ends now.
    fn is_flushed(&mut self) -> bool {
        true
    }

    /// Takes part no longer: what was posted still arrives, then the others see the process lost.
    fn close(&mut self);
}

/// For programs that choose a carrier while they run.
impl<C: Carrier + ?Sized> Carrier for Box<C> {
    fn own(&self) -> Peer {
        (**self).own()
    }

    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        (**self).connect(peers)
    }

    fn room(&self) -> usize {
        (**self).room()
    }

    fn part(&self, to: Peer, receive: u64) -> usize {
        (**self).part(to, receive)
    }

    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        (**self).post(to, envelope, payload)
    }

    fn poll(&mut self) -> Option<Event<'_>> {
        (**self).poll()
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        (**self).arm(waker)
    }

    fn is_flushed(&mut self) -> bool {
        (**self).is_flushed()
    }

    fn close(&mut self) {
        (**self).close();
    }
}
