//! Types for benches: slots without a NIC, and a NIC with many peers in one process.

use std::sync::mpsc::{self, Receiver as Inbox, Sender as Outbox};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::config::ShmConfig;
use super::engine::Engine;
use super::lane::{Receiver, Sender, Shape};
use super::link::ShmLink;
use super::rendezvous::{Link, PeerListener, Rendezvous};
use crate::frame::Header;
use crate::hardware::Firmware;
use crate::id::{Incarnation, NodeId};
use crate::nic::{Nic, StartError};
use crate::passing::Socket;
use crate::segment::{Segment, View};

/// Longest wait for the other side.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Both directions between two processes, without a NIC.
#[derive(Debug)]
pub struct Bare {
    link: Link,
    _rendezvous: Rendezvous,
}

struct PeerInbox(Mutex<Outbox<Link>>);

impl PeerListener for PeerInbox {
    fn joined(&self, link: Link) {
        let outbox = self.0.lock().expect("nothing panics while it holds this lock");
        // The receiver is dropped once it has a link.
        let _ = outbox.send(link);
    }

    fn left(&self, _: NodeId) {}
}

impl Bare {
    /// Connects to the other of the fabric's two nodes; blocks for 20 s at most.
    ///
    /// # Errors
    /// [`StartError`] if this side cannot open its socket, or the other does not connect.
    pub fn meet(config: &ShmConfig) -> Result<Self, StartError> {
        config.check()?;
        let (outbox, inbox): (Outbox<Link>, Inbox<Link>) = mpsc::channel();
        let peer_inbox = Arc::new(PeerInbox(Mutex::new(outbox)));
        let rendezvous = Rendezvous::open(config, Incarnation::FIRST, peer_inbox)?;
        let late = |_| StartError::System(std::io::ErrorKind::TimedOut);
        let link = inbox.recv_timeout(TIMEOUT).map_err(late)?;
        Ok(Self { link, _rendezvous: rendezvous })
    }

    /// Publishes one frame; `false` if there is no free slot.
    #[inline]
    pub fn send(&mut self, header: &Header, payload: &[u8]) -> bool {
        let is_staged = self.link.sender.stage(&header.emit(), View::from(payload)).is_ok();
        self.link.sender.publish();
        is_staged
    }

    /// Takes the next frame and copies its payload out. Returns the payload's length, or `None` without a
    /// frame.
    #[inline]
    pub fn receive(&mut self, out: &mut [u8]) -> Option<usize> {
        if !self.link.receiver.has_frame() {
            return None;
        }
        let header = Header::parse_alone(&self.link.receiver.header()).ok()?;
        let extent = self.link.receiver.extent(header.length.into())?;
        let length = self.link.receiver.payload(extent).copy_to(out);
        self.link.receiver.release(length);
        Some(length)
    }
}

/// Slots of each direction of a [`Crowd`].
const SHAPE: Shape = Shape { slots: 4, areas: 2, mtu: 64 };

/// A NIC whose peers are all in this process.
#[derive(Debug)]
pub struct Crowd<F> {
    engine: Engine<F>,
    senders: Vec<Sender>,
}

impl<F: Firmware> Crowd<F> {
    /// Creates the NIC of node 0 with `peers` peers.
    ///
    /// # Panics
    /// If the system has no socket.
    #[must_use]
    pub fn new(peers: u16, firmware: F) -> Self {
        let config = ShmConfig::new("crowd", NodeId(0), peers + 1);
        let nic = Nic::new(NodeId(0), Incarnation::FIRST, SHAPE.mtu, ShmLink::new(&config));
        let mut engine = Engine::new(firmware, nic, 2);
        let socket = Arc::new(Socket::pair().expect("a socket").0);
        let mut join = |node| {
            let segment = Arc::new(Segment::private(2 * SHAPE.lane_bytes()));
            let back = SHAPE.lane_bytes();
            engine.join(Link {
                node,
                sender: Sender::new(Arc::clone(&segment), 0, SHAPE),
                receiver: Receiver::new(Arc::clone(&segment), back, SHAPE),
                channel: Arc::clone(&socket),
                socket: Arc::clone(&socket),
            });
            Sender::new(segment, back, SHAPE)
        };
        let senders = (1..=peers).map(|node| join(NodeId(node))).collect();
        Self { engine, senders }
    }

    /// Gives the NIC a turn with a frame from each of the first `busy` peers.
    ///
    /// # Panics
    /// If the NIC has not handled earlier frames.
    pub fn turn(&mut self, busy: u16, header: &Header, payload: &[u8]) {
        for (source, sender) in (1..=busy).map(NodeId).zip(&mut self.senders) {
            let header = Header { source, ..*header };
            sender.stage(&header.emit(), View::from(payload)).expect("frames are taken");
            sender.publish();
        }
        self.engine.turn();
    }
}
