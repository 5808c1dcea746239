//! Carries packets between the processes of one host, bypassing the NIC: the sender copies into shared memory, and the
//! receiver copies out.
//!
//! LAM/MPI has shared-memory progression interfaces for this, next to those over VIA. They are the shortest path where
//! both ends are on one host. The [Virtual Interfaces](crate::rdma) reach every node; the NIC admits and schedules
//! their traffic, and suspends it with the process.

use std::task::Waker;

use midplane_simhw::id::NodeId;
use midplane_simhw::nic::StartError;
use midplane_simhw::shm::lanes::{Lanes, News, PeerRings as _, SendRefused};
use midplane_simhw::shm::{DEFAULT_MTU, ShmConfig};

use crate::message::carrier::{Carrier, Event, Refusal};
use crate::message::envelope::{Envelope, Peer};
use crate::message::transport::InitError;

/// Carries packets over shared-memory rings: process `p` is node `p` of their fabric.
#[derive(Debug)]
pub struct LaneCarrier {
    lanes: Option<Lanes>,
    own: Peer,
    nodes: u16,
    room: usize,
    /// A process whose restart was reported, and whose return is the next event.
    returned: Option<Peer>,
}

impl LaneCarrier {
    /// Opens the rings to the processes of the fabric that `config` names. No NIC may use the same name.
    ///
    /// # Errors
    /// [`StartError`] says what to do about it.
    ///
    /// # Panics
    /// If the current runtime's I/O is not enabled.
    pub fn open(config: &ShmConfig) -> Result<Self, StartError> {
        let lanes = Lanes::open(config)?;
        let own = Peer(lanes.node().0.into());
        let (nodes, room) = (lanes.nodes(), lanes.mtu());
        Ok(Self { own, nodes, room, returned: None, lanes: Some(lanes) })
    }
}

impl Carrier for LaneCarrier {
    fn own(&self) -> Peer {
        self.own
    }

    /// Waits for the peers to join. A peer that does not join [in time](ShmConfig::join_timeout) is reported as lost.
    fn connect(&mut self, peers: &[Peer]) -> Result<(), InitError> {
        for peer in peers {
            let node = u16::try_from(peer.0).ok().filter(|node| *node < self.nodes);
            let node = node.ok_or(InitError::Unknown(*peer))?;
            if let Some(lanes) = &mut self.lanes {
                lanes.await_node(NodeId(node));
            }
        }
        Ok(())
    }

    fn is_local(&self) -> bool {
        true
    }

    fn wire_to(&self, _peer: Peer) -> Option<&'static str> {
        Some("memory")
    }

    fn room(&self) -> usize {
        self.room
    }

    /// Returns at most `DEFAULT_MTU`: with short parts, the receiver copies one while the sender copies the next.
    fn part(&self, _to: Peer, _receive: u64) -> usize {
        self.room.min(DEFAULT_MTU)
    }

    #[inline]
    fn post(&mut self, to: Peer, envelope: &Envelope, payload: &[u8]) -> Result<(), Refusal> {
        let (Some(lanes), Ok(node)) = (&mut self.lanes, u16::try_from(to.0)) else {
            return Err(Refusal::Lost);
        };
        lanes.send(NodeId(node), envelope.words(), payload).map_err(|refused| match refused {
            SendRefused::Full => Refusal::Full,
            _ => Refusal::Lost,
        })
    }

    #[inline]
    fn poll(&mut self) -> Option<Event<'_>> {
        if let Some(peer) = self.returned.take() {
            return Some(Event::Returned(peer));
        }
        match self.lanes.as_mut()?.poll()? {
            News::Left(node) => Some(Event::Lost(Peer(node.0.into()))),
            News::Restarted(node) => {
                let peer = Peer(node.0.into());
                self.returned = Some(peer);
                Some(Event::Restarted(peer))
            }
            News::Returned(node) => Some(Event::Returned(Peer(node.0.into()))),
            // This carrier requests no memory. Dropping the event unmaps it.
            News::Shown { .. } => None,
            News::Frame { from, words, payload } => {
                let from = Peer(from.0.into());
                match Envelope::of_words(from, words) {
                    Ok(envelope) => Some(Event::Packet { from, envelope, payload }),
                    // Any field may be wrong, so no later packet of that process can be trusted.
                    Err(_) => Some(Event::Lost(from)),
                }
            }
        }
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        self.returned.is_none() && self.lanes.as_mut().is_none_or(|lanes| lanes.arm_wakeup(waker))
    }

    fn close(&mut self) {
        self.lanes = None;
    }
}
