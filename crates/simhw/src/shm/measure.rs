//! Slots without a NIC, for benches.

use std::sync::mpsc::{self, Receiver as Inbox, Sender as Outbox};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::config::ShmConfig;
use super::rendezvous::{Link, PeerListener, Rendezvous};
use crate::frame::Header;
use crate::id::{Incarnation, NodeId};
use crate::nic::StartError;
use crate::segment::View;

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
