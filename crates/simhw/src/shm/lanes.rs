//! Rings between the processes of one host, without a NIC. The receiver can read a frame as soon as the sender has
//! written it; nothing runs between the two.
//!
//! They use the slots, the rendezvous and the wake-ups of a [`ShmNic`](super::ShmNic), but no firmware. Nothing
//! admits, counts or schedules their frames, no extension handles them, and they cannot be suspended or saved.

mod awaited;
mod connection;
mod events;
mod inbox;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::config::ShmConfig;
use super::rendezvous::{Link, Rendezvous, pass};
use crate::id::{Incarnation, NodeId};
use crate::live::adaptive_spin::AdaptiveSpin;
use crate::nic::StartError;
use crate::region::{Payload, Region, SharedMemory};
use crate::sync::{Ordering, fence};
use crate::wakes::Wakes;
use awaited::Awaited;
use connection::{Connection, Successor};
use inbox::{EventQueue, PeerInbox};

pub use crate::peer_rings::{News, PeerRings, SendRefused, WORDS};

/// The state of another process.
#[derive(Debug, Default)]
enum Peer {
    #[default]
    Expected,
    Connected(Box<Connection>),
    Gone,
}

/// Memory that a peer shares: the peer, the peer's name for it, and the memory.
type Shown = (NodeId, [u64; 2], SharedMemory);

/// The rings between this process and all others of a fabric. Frames of one process arrive in order, each once,
/// including those that it sent before it exited. The methods of [`PeerRings`] send and receive them. Dropping this value
/// disconnects from all of them.
#[derive(Debug)]
pub struct Lanes {
    node: NodeId,
    mtu: usize,
    spin: u32,
    peers: Vec<Peer>,
    awaited: Awaited,
    /// Index of the peer that is polled first.
    next: usize,
    /// The frame that the last poll returned: the index of its sender, and the bytes of its payload.
    unreleased: Option<(usize, usize)>,
    spin_state: AdaptiveSpin,
    /// True if a peer may be leaving, or `returned` or `shown` may have entries.
    has_pending_events: bool,
    /// Processes that have returned and that no poll has reported yet.
    returned: VecDeque<NodeId>,
    /// Memory that peers share and that no poll has returned yet.
    shown: VecDeque<Shown>,
    /// True if the last poll returned shared memory.
    has_just_shown: bool,
    /// True if a socket had no space for shared memory since the last [`PeerRings::arm_wakeup`]. No wake-up reports
    /// that it has space again.
    has_refused_memory: bool,
    events: Arc<EventQueue>,
    wakes: AsyncFd<Arc<Wakes>>,
    _rendezvous: Rendezvous,
}

impl Lanes {
    /// Connects to the other processes of the fabric that `config` names, as they start. No NIC may use the name.
    ///
    /// # Errors
    /// [`StartError`] says how to fix it.
    ///
    /// # Panics
    /// If the current runtime's I/O is not enabled. [`PeerRings::arm_wakeup`] panics if its timers are not.
    pub fn open(config: &ShmConfig) -> Result<Self, StartError> {
        config.check()?;
        Self::open_checked(config)
    }

    /// Opens the rings over which processes bypass their NICs of the fabric in `config`.
    pub(crate) fn bypassing_nic(config: &ShmConfig) -> Result<Self, StartError> {
        let name = format!("{}/rings", config.name);
        Self::open_checked(&ShmConfig { name, ..config.clone() })
    }

    fn open_checked(config: &ShmConfig) -> Result<Self, StartError> {
        Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let failed = |error: std::io::Error| StartError::System(error.kind());
        let wakes = Wakes::new().map_err(failed)?;
        let events = Arc::new(EventQueue::default());
        let inbox = PeerInbox { queue: Arc::clone(&events), wakes: Arc::clone(&wakes) };
        let rendezvous = Rendezvous::open(config, Incarnation::FIRST, Arc::new(inbox))?;
        // Some supported versions of tokio deprecate it.
        #[allow(deprecated, reason = "what is watched stays open; the replacement is unsafe")]
        let wakes = AsyncFd::with_interest(wakes, Interest::READABLE).map_err(failed)?;
        Ok(Self {
            node: config.nic.node,
            mtu: config.nic.mtu,
            spin: config.nic.spin_nanos(),
            peers: (0..config.nodes).map(|_| Peer::default()).collect(),
            awaited: Awaited::new(config.join_timeout),
            next: 0,
            unreleased: None,
            spin_state: AdaptiveSpin::default(),
            has_pending_events: false,
            returned: VecDeque::new(),
            shown: VecDeque::new(),
            has_just_shown: false,
            has_refused_memory: false,
            events,
            wakes,
            _rendezvous: rendezvous,
        })
    }

    /// Returns the node number of this process.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the number of processes of the fabric, including this one.
    #[must_use]
    pub fn nodes(&self) -> u16 {
        u16::try_from(self.peers.len()).expect("it was a u16")
    }

    /// Sends a frame: copies it, and the peer can read it when this returns.
    ///
    /// # Errors
    /// [`SendRefused`]; nothing is sent then.
    #[inline]
    pub fn send(
        &mut self,
        to: NodeId,
        words: [u64; WORDS],
        payload: &[u8],
    ) -> Result<(), SendRefused> {
        self.send_parts(to, words, &[Payload::from(payload)])
    }

    /// Starts the timeout of a process that has not connected, as sending to it does. If it does not connect
    /// [in time](ShmConfig::join_timeout), it counts as exited. Has no effect on any other process.
    pub fn await_node(&mut self, node: NodeId) {
        if node != self.node && matches!(self.peers.get(node.index()), Some(Peer::Expected)) {
            self.awaited.begin(node);
        }
    }

    /// Returns the connection of a process, or why a frame to it is refused.
    #[inline]
    fn connected(&mut self, node: NodeId) -> Result<&mut Connection, SendRefused> {
        match self.peers.get_mut(node.index()) {
            Some(Peer::Connected(peer)) if !peer.is_leaving => Ok(peer),
            Some(Peer::Expected) if node != self.node => {
                self.awaited.begin(node);
                Err(SendRefused::Full)
            }
            Some(Peer::Connected(_) | Peer::Gone) => Err(SendRefused::Gone(node)),
            Some(Peer::Expected) | None => Err(SendRefused::NoRing(node)),
        }
    }

    /// Takes a process that did not connect in time; it counts as exited.
    #[inline]
    fn take_overdue(&mut self) -> Option<NodeId> {
        let node = self.awaited.overdue()?;
        self.peers[node.index()] = Peer::Gone;
        Some(node)
    }

    /// Connects a process. Returns `false` if the system has no resources for its wake-ups: closes the connection,
    /// and the process tries again.
    fn admit(wakes: &Wakes, peer: &mut Peer, link: Link) -> bool {
        let is_in = wakes.add(link.node.0.into(), Arc::clone(&link.channel)).is_ok();
        if is_in {
            *peer = Peer::Connected(Connection::new(link));
        } else {
            link.refuse();
        }
        is_in
    }

    /// Connects the next successor of a process that was disconnected. Returns whether there is one.
    fn admit_next(&mut self, at: usize, mut successors: VecDeque<Successor>) -> bool {
        let peer = &mut self.peers[at];
        while let Some(Successor { link, has_left, shown }) = successors.pop_front() {
            if Self::admit(self.wakes.get_ref(), peer, *link)
                && let Peer::Connected(connection) = peer
            {
                (connection.is_leaving, connection.successors) = (has_left, successors);
                self.shown.extend(shown);
                return true;
            }
        }
        false
    }

    /// Removes the connection of a process, and returns it.
    fn disconnect(&mut self, at: usize) -> Peer {
        self.wakes.get_ref().remove(at as u64);
        std::mem::replace(&mut self.peers[at], Peer::Gone)
    }

    /// Takes the next shared memory, at most in every other poll, so that frames take turns with it.
    fn next_shown(&mut self) -> Option<Shown> {
        self.has_just_shown = !self.has_just_shown && !self.shown.is_empty();
        if self.has_just_shown { self.shown.pop_front() } else { None }
    }

    /// Returns the index of the next peer that has sent a frame.
    #[inline]
    fn next_sender(&mut self) -> Option<usize> {
        let count = self.peers.len();
        for step in 0..count {
            let at = self.next + step;
            let at = if at < count { at } else { at - count };
            if let Peer::Connected(peer) = &self.peers[at]
                && peer.link.receiver.has_frame()
            {
                self.next = if at + 1 < count { at + 1 } else { 0 };
                return Some(at);
            }
        }
        None
    }

    #[inline(always)]
    fn hand_out(&mut self, at: usize) -> Option<News<'_>> {
        let Peer::Connected(peer) = &mut self.peers[at] else { return None };
        let receiver = &mut peer.link.receiver;
        let (words, length) = words_of(receiver.words());
        let Some(extent) = receiver.extent(length) else {
            return Some(News::Left(self.distrust(at)));
        };
        self.unreleased = Some((at, length));
        let Peer::Connected(peer) = &self.peers[at] else { return None };
        let payload = peer.link.receiver.payload(extent);
        Some(News::Frame { from: peer.link.node, words, payload })
    }

    /// Removes a peer that has written a length which no correct process writes: no later frame of it can be trusted.
    /// Its next successor, if there is one, takes its place. Returns the peer's node.
    #[cold]
    fn distrust(&mut self, at: usize) -> NodeId {
        let Peer::Connected(peer) = self.disconnect(at) else {
            unreachable!("it has sent a frame")
        };
        let node = peer.link.node;
        self.shown.retain(|(from, ..)| *from != node);
        if self.admit_next(at, peer.successors) {
            self.returned.push_back(node);
            self.has_pending_events = true;
        }
        node
    }

    /// Releases the slot of the frame that the last poll returned.
    #[inline]
    fn release_frame(&mut self) {
        let Some((at, length)) = self.unreleased.take() else { return };
        let Peer::Connected(peer) = &mut self.peers[at] else { return };
        if peer.link.receiver.release(length) {
            fence(Ordering::SeqCst);
            if peer.link.receiver.takes_wake() {
                peer.link.channel.wake();
            }
        }
    }

    /// Returns whether a poll may find an event, or a refused frame now has space.
    fn has_any(&mut self) -> bool {
        std::mem::take(&mut self.has_refused_memory)
            || self.events.is_pending.load(Ordering::Relaxed)
            || !self.shown.is_empty()
            || !self.returned.is_empty()
            || self.peers.iter_mut().any(|peer| match peer {
                Peer::Connected(peer) => {
                    let has_room = |bytes| peer.link.sender.has_room_for(bytes);
                    let may_send = peer.was_full.is_some_and(has_room);
                    // Reported once: the caller may never send the frame again.
                    peer.was_full = peer.was_full.filter(|_| !may_send);
                    may_send || peer.is_leaving || peer.link.receiver.has_frame()
                }
                Peer::Expected | Peer::Gone => false,
            })
    }

    /// Requests one wake-up from each peer. Polling does not withdraw the requests.
    fn request_wakeups(&self) {
        for peer in &self.peers {
            let Peer::Connected(peer) = peer else { continue };
            peer.link.receiver.arm_wakeup();
            if peer.was_full.is_some() {
                peer.link.sender.await_room();
            }
        }
        fence(Ordering::SeqCst);
    }
}

impl PeerRings for Lanes {
    fn mtu(&self) -> usize {
        self.mtu
    }

    fn has_peer(&self, node: NodeId) -> bool {
        let peer = self.peers.get(node.index());
        matches!(peer, Some(Peer::Connected(peer)) if !peer.is_leaving)
    }

    #[inline]
    fn send_parts(
        &mut self,
        to: NodeId,
        words: [u64; WORDS],
        parts: &[Payload<'_>],
    ) -> Result<(), SendRefused> {
        let bytes = parts.iter().map(Payload::len).sum();
        let mtu = self.mtu;
        if bytes > mtu {
            return Err(SendRefused::TooLong { bytes, mtu });
        }
        let peer = self.connected(to)?;
        let sender = &mut peer.link.sender;
        let views = parts.iter().map(Payload::view);
        if sender.stage_parts(header_of(words, bytes), bytes, views).is_err() {
            peer.was_full = Some(bytes);
            return Err(SendRefused::Full);
        }
        peer.was_full = None;
        sender.publish();
        // A parking peer has the matching fence between setting its flag and its last poll.
        fence(Ordering::SeqCst);
        if sender.takes_wake() {
            peer.link.channel.wake();
        }
        Ok(())
    }

    fn show(&mut self, to: NodeId, name: [u64; 2], region: &Region) -> Result<(), SendRefused> {
        let file = region.file().expect("the region was registered to be shared");
        let peer = self.connected(to)?;
        match pass(&peer.link.socket, name, region.len(), file.as_fd()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                self.has_refused_memory = true;
                Err(SendRefused::Full)
            }
            Err(_) => Err(SendRefused::Gone(to)),
        }
    }

    // Inlined so that the caller converts the event without a copy in memory. A copy right after the stores of the
    // event's parts stalls until these complete, some 20 ns.
    #[inline(always)]
    fn poll(&mut self) -> Option<News<'_>> {
        self.release_frame();
        self.handle_events();
        // A process that has returned may have shared memory, and may have left again.
        if let Some(node) = self.returned.pop_front() {
            return Some(News::Returned(node));
        }
        // Before frames: peers may send frames without end.
        if self.has_pending_events
            && let Some((from, name, memory)) = self.next_shown()
        {
            return Some(News::Shown { from, name, memory });
        }
        if self.has_pending_events
            && let Some((node, returns)) = self.take_leaver()
        {
            return Some(if returns { News::Restarted(node) } else { News::Left(node) });
        }
        if let Some(node) = self.take_overdue() {
            return Some(News::Left(node));
        }
        let at = self.next_sender()?;
        self.hand_out(at)
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        self.release_frame();
        // Busy-polls first, for an adaptive time.
        let mut spin = std::mem::take(&mut self.spin_state);
        let found = self.has_any().then_some(());
        let found = found.or_else(|| spin.spin(self.spin, || self.has_any().then_some(())));
        self.spin_state = spin;
        if found.is_some() {
            return false;
        }
        self.request_wakeups();
        let mut context = Context::from_waker(waker);
        if self.awaited.is_over(&mut context) {
            return false;
        }
        if let Poll::Ready(Ok(mut ready)) = self.wakes.poll_read_ready(&mut context) {
            // In this order: a wake-up that comes after `take` makes the descriptor ready again.
            ready.clear_ready();
            self.wakes.get_ref().take();
            return false;
        }
        !self.has_any()
    }
}

/// Returns the header of a frame: the payload's length, then the words.
#[inline]
const fn header_of([a, b, c, d, e]: [u64; WORDS], length: usize) -> [u64; 1 + WORDS] {
    [length as u64, a, b, c, d, e]
}

#[inline]
fn words_of([length, a, b, c, d, e]: [u64; 1 + WORDS]) -> ([u64; WORDS], usize) {
    ([a, b, c, d, e], usize::try_from(length).unwrap_or(usize::MAX))
}
