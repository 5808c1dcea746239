//! Lanes between the processes of one host, and no NIC: what a process sends lies in the other's
//! reach as soon as it is written, and nothing runs between the two.
//!
//! The same slots, the same meeting place and the same ways of sleeping and being woken as under a
//! [`ShmNic`](super::ShmNic), but no firmware: nothing admits, counts or schedules what goes here, no
//! extension hears of it, and it can't be stopped and saved.

mod awaited;
mod door;
#[cfg(all(test, not(midplane_loom)))]
mod tests;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError};
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
use door::{Door, Inbox, Tidings};

pub use crate::peer_rings::{News, PeerRings, SendRefused, WORDS};

/// Another process.
#[derive(Debug, Default)]
enum Peer {
    #[default]
    Expected,
    Here(Box<Here>),
    Gone,
}

#[derive(Debug)]
struct Here {
    link: Link,
    /// Its connection has ended, or it breaks the rules: what it has published is all.
    is_leaving: bool,
    /// A frame was refused since it last had room.
    was_full: Option<usize>,
    /// The process that is there in its place, once it has left.
    successor: Option<Box<Link>>,
}

impl Here {
    fn new(link: Link) -> Box<Self> {
        Box::new(Self { link, is_leaving: false, was_full: None, successor: None })
    }
}

/// Whose memory, what it calls it, and the memory.
type Shown = (NodeId, [u64; 2], SharedMemory);

/// A process's lanes to all others of a fabric. Frames from one process come in order, each once, and
/// what a process has sent before it ended still comes. Dropping it ends them.
#[derive(Debug)]
pub struct Lanes {
    node: NodeId,
    mtu: usize,
    spin: u32,
    peers: Vec<Peer>,
    awaited: Awaited,
    /// Who is looked at first.
    turn: usize,
    /// The frame that was handed out last: whose, and its length.
    lent: Option<(usize, usize)>,
    spin_state: AdaptiveSpin,
    /// Some may be leaving, have returned, or have shown memory.
    has_tidings: bool,
    /// Processes that have returned and that no poll has reported yet.
    returned: VecDeque<NodeId>,
    /// Memory that others show and nobody has polled for.
    shown: VecDeque<Shown>,
    /// The last poll gave some of it out.
    has_just_shown: bool,
    /// Memory of ours found no room since this was last armed: nobody tells when there is some.
    has_refused_memory: bool,
    inbox: Arc<Inbox>,
    wakes: AsyncFd<Arc<Wakes>>,
    _rendezvous: Rendezvous,
}

impl Lanes {
    /// Searches for the other processes of the fabric that `config` names; no NIC may have the name.
    ///
    /// # Errors
    /// [`StartError`] says what to do about it.
    ///
    /// # Panics
    /// If the current runtime's I/O is not enabled; [`Lanes::arm_wakeup`], if its timers are not.
    pub fn open(config: &ShmConfig) -> Result<Self, StartError> {
        config.check()?;
        Self::open_checked(config)
    }

    /// Opens the rings that processes use beside their NICs of the fabric in `config`.
    pub(crate) fn beside_nic(config: &ShmConfig) -> Result<Self, StartError> {
        let name = format!("{}/rings", config.name);
        Self::open_checked(&ShmConfig { name, ..config.clone() })
    }

    fn open_checked(config: &ShmConfig) -> Result<Self, StartError> {
        Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let failed = |error: std::io::Error| StartError::System(error.kind());
        let wakes = Wakes::new().map_err(failed)?;
        let inbox = Arc::new(Inbox::default());
        let door = Door { inbox: Arc::clone(&inbox), wakes: Arc::clone(&wakes) };
        let rendezvous = Rendezvous::open(config, Incarnation::FIRST, Arc::new(door))?;
        // Not all versions of tokio that will do deprecate it.
        #[allow(deprecated, reason = "what is watched stays open; the replacement is unsafe")]
        let wakes = AsyncFd::with_interest(wakes, Interest::READABLE).map_err(failed)?;
        Ok(Self {
            node: config.nic.node,
            mtu: config.nic.mtu,
            spin: config.nic.spin_nanos(),
            peers: (0..config.nodes).map(|_| Peer::default()).collect(),
            awaited: Awaited::new(config.join_timeout),
            turn: 0,
            lent: None,
            spin_state: AdaptiveSpin::default(),
            has_tidings: false,
            returned: VecDeque::new(),
            shown: VecDeque::new(),
            has_just_shown: false,
            has_refused_memory: false,
            inbox,
            wakes,
            _rendezvous: rendezvous,
        })
    }

    /// The process that this is.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// Processes of the fabric, this one included.
    #[must_use]
    pub fn nodes(&self) -> u16 {
        u16::try_from(self.peers.len()).expect("it was a u16")
    }

    /// Most bytes of a payload.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        self.mtu
    }

    /// Sends a frame: copied, and in the other's reach when this returns.
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

    /// The same with a payload that is gathered from `parts`.
    ///
    /// # Errors
    /// [`SendRefused`]; nothing is sent then.
    #[inline]
    pub fn send_parts(
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
        let here = self.here(to)?;
        let sender = &mut here.link.sender;
        let views = parts.iter().map(Payload::view);
        if sender.stage_parts(header_of(words, bytes), bytes, views).is_err() {
            here.was_full = Some(bytes);
            return Err(SendRefused::Full);
        }
        here.was_full = None;
        sender.publish();
        // The sleeper has one between going to sleep and its last look.
        fence(Ordering::SeqCst);
        if sender.takes_wake() {
            here.link.channel.wake();
        }
        Ok(())
    }

    /// Shows another process memory of this one: it may read and write it from then on, until the region is dropped.
    /// It comes beside the frames, earlier or later than those that are sent at the same time.
    ///
    /// # Errors
    /// [`SendRefused`], as of a frame; nothing is shown then.
    ///
    /// # Panics
    /// If others can't map the region: see [`Region::file`].
    pub fn show(&mut self, to: NodeId, name: [u64; 2], region: &Region) -> Result<(), SendRefused> {
        let file = region.file().expect("the region was registered to be shared");
        let here = self.here(to)?;
        match pass(&here.link.socket, name, region.len(), file.as_fd()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                self.has_refused_memory = true;
                Err(SendRefused::Full)
            }
            Err(_) => Err(SendRefused::Gone(to)),
        }
    }

    /// From now on that process is waited for, as if a frame for it were: if it does not come in time it is gone.
    /// Nothing happens if it is there, was, or can't be.
    pub fn await_node(&mut self, node: NodeId) {
        if node != self.node && matches!(self.peers.get(node.index()), Some(Peer::Expected)) {
            self.awaited.begin(node);
        }
    }

    /// Another process that is there.
    #[inline]
    fn here(&mut self, node: NodeId) -> Result<&mut Here, SendRefused> {
        match self.peers.get_mut(node.index()) {
            Some(Peer::Here(here)) if !here.is_leaving => Ok(here),
            Some(Peer::Expected) if node != self.node => {
                self.awaited.begin(node);
                Err(SendRefused::Full)
            }
            Some(Peer::Here(_) | Peer::Gone) => Err(SendRefused::Gone(node)),
            Some(Peer::Expected) | None => Err(SendRefused::NoRing(node)),
        }
    }

    /// What has come next, if anything has. Frames of several processes take turns.
    // Not a call: its caller makes something else of the news, and a copy of one that was written in parts a moment ago
    // waits for them, some 20 ns.
    #[inline(always)]
    pub fn poll(&mut self) -> Option<News<'_>> {
        self.take_back();
        self.take_news();
        // Before what others send: they may send without end.
        if self.has_tidings
            && let Some((from, name, memory)) = self.next_shown()
        {
            return Some(News::Shown { from, name, memory });
        }
        if self.has_tidings
            && let Some((node, returns)) = self.leaver()
        {
            return Some(if returns { News::Restarted(node) } else { News::Left(node) });
        }
        if let Some(node) = self.returned.pop_front() {
            return Some(News::Returned(node));
        }
        if let Some(node) = self.missed() {
            return Some(News::Left(node));
        }
        let at = self.find()?;
        self.lend(at)
    }

    /// A process that has not come in time.
    #[inline]
    fn missed(&mut self) -> Option<NodeId> {
        let node = self.awaited.overdue()?;
        self.peers[node.index()] = Peer::Gone;
        Some(node)
    }

    /// Lets a process in; `false` if the system has no room for its channel: the process learns so from the end of
    /// its connection, and tries again.
    fn admit(wakes: &Wakes, peer: &mut Peer, link: Link) -> bool {
        let is_in = wakes.add(link.node.0.into(), Arc::clone(&link.channel)).is_ok();
        if is_in {
            *peer = Peer::Here(Here::new(link));
        } else {
            link.refuse();
        }
        is_in
    }

    /// Ends what is there of a process.
    fn part(&mut self, at: usize) -> Peer {
        self.wakes.get_ref().remove(at as u64);
        std::mem::replace(&mut self.peers[at], Peer::Gone)
    }

    /// Memory that somebody shows, every other time: frames take turns with it.
    fn next_shown(&mut self) -> Option<Shown> {
        self.has_just_shown = !self.has_just_shown && !self.shown.is_empty();
        if self.has_just_shown { self.shown.pop_front() } else { None }
    }

    /// Who has a frame.
    #[inline]
    fn find(&mut self) -> Option<usize> {
        let count = self.peers.len();
        for step in 0..count {
            let at = self.turn + step;
            let at = if at < count { at } else { at - count };
            if let Peer::Here(here) = &self.peers[at]
                && here.link.receiver.has_frame()
            {
                self.turn = if at + 1 < count { at + 1 } else { 0 };
                return Some(at);
            }
        }
        None
    }

    #[inline(always)]
    fn lend(&mut self, at: usize) -> Option<News<'_>> {
        let Peer::Here(here) = &mut self.peers[at] else { return None };
        let receiver = &mut here.link.receiver;
        let (words, length) = words_of(receiver.words());
        let Some(extent) = receiver.extent(length) else {
            // Nobody of ours writes that: from here on nothing can be believed.
            let node = here.link.node;
            self.part(at);
            return Some(News::Left(node));
        };
        self.lent = Some((at, length));
        let Peer::Here(here) = &self.peers[at] else { return None };
        let payload = here.link.receiver.payload(extent);
        Some(News::Frame { from: here.link.node, words, payload })
    }

    /// The frame that was handed out last is done with.
    #[inline]
    fn take_back(&mut self) {
        let Some((at, length)) = self.lent.take() else { return };
        let Peer::Here(here) = &mut self.peers[at] else { return };
        if here.link.receiver.give_back(length) {
            fence(Ordering::SeqCst);
            if here.link.receiver.takes_wake() {
                here.link.channel.wake();
            }
        }
    }

    /// Takes in who has come and gone.
    #[inline]
    fn take_news(&mut self) {
        if self.inbox.has_news.load(Ordering::Relaxed) {
            self.take_all_news();
        }
    }

    fn take_all_news(&mut self) {
        if !self.inbox.has_news.swap(false, Ordering::Acquire) {
            return;
        }
        let mut news = self.inbox.news.lock().unwrap_or_else(PoisonError::into_inner);
        for (node, tidings) in news.drain(..) {
            let peer = &mut self.peers[node.index()];
            match (tidings, &mut *peer) {
                (Tidings::Joined(link), Peer::Expected) => {
                    if Self::admit(self.wakes.get_ref(), peer, *link) {
                        self.awaited.end(node);
                    }
                }
                (Tidings::Joined(link), Peer::Gone) => {
                    if Self::admit(self.wakes.get_ref(), peer, *link) {
                        self.returned.push_back(node);
                        self.has_tidings = true;
                    }
                }
                (Tidings::Joined(link), Peer::Here(here)) => {
                    here.is_leaving = true;
                    here.successor = Some(link);
                    self.has_tidings = true;
                }
                (Tidings::Shown(name, memory), Peer::Here(_)) => {
                    self.shown.push_back((node, name, memory));
                    self.has_tidings = true;
                }
                (Tidings::Shown(..), _) => {}
                // Its own end, or that of the one that was to take its place.
                (Tidings::Left, Peer::Here(here)) => {
                    here.successor = None;
                    here.is_leaving = true;
                    self.has_tidings = true;
                }
                (Tidings::Left, Peer::Expected | Peer::Gone) => {}
            }
        }
    }

    /// A process that has left and of which nothing is left; whether another one is there in its place.
    fn leaver(&mut self) -> Option<(NodeId, bool)> {
        let leaving = |peer: &Peer| matches!(peer, Peer::Here(here) if here.is_leaving);
        let others = !self.shown.is_empty() || !self.returned.is_empty();
        self.has_tidings = others || self.peers.iter().any(leaving);
        let empty = |peer: &Peer| matches!(peer, Peer::Here(here) if here.is_leaving && !here.link.receiver.has_frame());
        let at = self.peers.iter().position(empty)?;
        let Peer::Here(here) = self.part(at) else { return None };
        let node = here.link.node;
        let returns = here
            .successor
            .is_some_and(|link| Self::admit(self.wakes.get_ref(), &mut self.peers[at], *link));
        Some((node, returns))
    }

    /// Whether there is anything to see: frames, news, room where there was none.
    fn has_any(&mut self) -> bool {
        std::mem::take(&mut self.has_refused_memory)
            || self.inbox.has_news.load(Ordering::Relaxed)
            || !self.shown.is_empty()
            || !self.returned.is_empty()
            || self.peers.iter_mut().any(|peer| match peer {
                Peer::Here(here) => {
                    let has_room = |bytes| here.link.sender.has_room_for(bytes);
                    let may_send = here.was_full.is_some_and(has_room);
                    // That is news once: the frame may never be sent again.
                    here.was_full = here.was_full.filter(|_| !may_send);
                    may_send || here.is_leaving || here.link.receiver.has_frame()
                }
                Peer::Expected | Peer::Gone => false,
            })
    }

    /// Busy-polls for as long as that pays; then arms `waker`, which is woken once a frame has arrived, or there is
    /// space where a frame was refused. `false` if that is so already, and nothing is armed; also now and
    /// then where it is not.
    pub fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        self.take_back();
        let mut spin = std::mem::take(&mut self.spin_state);
        let found = self.has_any().then_some(());
        let found = found.or_else(|| spin.spin(self.spin, || self.has_any().then_some(())));
        self.spin_state = spin;
        if found.is_some() {
            return false;
        }
        self.fall_asleep();
        let mut context = Context::from_waker(waker);
        if self.awaited.is_over(&mut context) {
            return false;
        }
        if let Poll::Ready(Ok(mut ready)) = self.wakes.poll_read_ready(&mut context) {
            // In this order: what comes after the last was taken is told anew.
            ready.clear_ready();
            self.wakes.get_ref().take();
            return false;
        }
        !self.has_any()
    }

    /// Others wake this side, each once; whoever polls meanwhile takes nothing from who waits.
    fn fall_asleep(&self) {
        for peer in &self.peers {
            let Peer::Here(here) = peer else { continue };
            here.link.receiver.fall_asleep();
            if here.was_full.is_some() {
                here.link.sender.await_room();
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
        matches!(peer, Some(Peer::Here(here)) if !here.is_leaving)
    }

    #[inline]
    fn send_parts(
        &mut self,
        to: NodeId,
        words: [u64; WORDS],
        parts: &[Payload<'_>],
    ) -> Result<(), SendRefused> {
        Self::send_parts(self, to, words, parts)
    }

    fn show(&mut self, to: NodeId, name: [u64; 2], region: &Region) -> Result<(), SendRefused> {
        Self::show(self, to, name, region)
    }

    #[inline]
    fn poll(&mut self) -> Option<News<'_>> {
        Self::poll(self)
    }

    fn arm_wakeup(&mut self, waker: &Waker) -> bool {
        Self::arm_wakeup(self, waker)
    }
}

/// A frame's header: its length, then its words.
#[inline]
const fn header_of([a, b, c, d, e]: [u64; WORDS], length: usize) -> [u64; 1 + WORDS] {
    [length as u64, a, b, c, d, e]
}

#[inline]
fn words_of([length, a, b, c, d, e]: [u64; 1 + WORDS]) -> ([u64; WORDS], usize) {
    ([a, b, c, d, e], usize::try_from(length).unwrap_or(usize::MAX))
}
