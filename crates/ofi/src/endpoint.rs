//! A reliable datagram endpoint: sends frames to peers, and receives frames from them.
//!
//! Frames arrive completely and once, but possibly out of order: a long one may complete after a shorter one that was
//! sent later.

mod config;
mod peer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::task::{Context, Poll};
use std::time::Duration;

use thiserror::Error;

use crate::abi::constants::{ADDR_STR, SOCKADDR, SOCKADDR_IN, SOCKADDR_IN6};
use crate::ffi::{CallError, Completion, MAX_NAME, RawEndpoint};
use crate::provider::{self, Choice, OpenError, Provider};
use crate::waiter::Waiter;
pub use config::Config;
use peer::Peer;

/// Most batches of completions that one progress handles: four calls of the provider.
const POLLS: usize = 4;
/// Most polls of a dropped endpoint without a pause while frames are in flight: below a millisecond with most providers.
const LAST_POLLS: usize = 1_000;
/// Further polls of it, and the pause before each: together 1 s.
const PAUSED_POLLS: usize = 5_000;
const PAUSE: Duration = Duration::from_micros(200);
/// Most peers that an endpoint knows at a time: the most nodes of a fabric.
const MOST_PEERS: usize = 1 << 16;

/// A peer that was inserted into an endpoint. It is valid for that endpoint only.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PeerId(pub(crate) u32);

/// The reason why a frame was not sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// Too many frames are in flight; try again after the endpoint was polled.
    #[error("too many frames are under way")]
    Full,
    /// The frame is longer than the endpoint's frames, which have at most this many bytes.
    #[error("the frame has more than {0} bytes")]
    TooLong(usize),
    /// The provider refuses the frame: the peer can't be reached.
    #[error(transparent)]
    Failed(#[from] CallError),
}

/// An event of an endpoint.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A frame has arrived, from a known or an unknown peer.
    Frame {
        /// `None` if the peer was not inserted, or the provider does not report senders.
        from: Option<PeerId>,
        /// The bytes of the frame.
        bytes: &'a [u8],
    },
    /// A frame to this peer was lost: the peer has ended, or can't be reached.
    Lost {
        /// `None` if the provider does not report the peer.
        to: Option<PeerId>,
        /// The error that the provider reports.
        error: CallError,
    },
}

/// A reliable datagram endpoint of libfabric.
pub struct Endpoint {
    raw: RawEndpoint,
    provider: Provider,
    name: Vec<u8>,
    frame_bytes: usize,
    /// Number of slots that receive: the first ones. The others send.
    receives: usize,
    peers: Vec<Peer>,
    /// Indices in `peers` of removed peers.
    forgotten: Vec<PeerId>,
    by_name: BTreeMap<Vec<u8>, PeerId>,
    by_address: BTreeMap<u64, PeerId>,
    /// Free slots to send from.
    free: Vec<usize>,
    /// For each slot, the peer to which its frame is in flight, and the frame's number.
    to: Vec<Option<(PeerId, u64)>>,
    /// Peers with frames that the provider has not accepted yet.
    waiting: BTreeSet<PeerId>,
    /// Frames that have arrived: slot, length, source.
    arrived: VecDeque<(usize, usize, Option<u64>)>,
    /// Slots to receive that the provider has not accepted yet.
    unposted: Vec<usize>,
    lost: VecDeque<(Option<PeerId>, CallError)>,
    /// Buffer for a short frame of several parts.
    gathered: Vec<u8>,
    outstanding: usize,
    failed: Option<CallError>,
    waiter: Waiter,
    /// True if dropping the endpoint may wait for frames in flight.
    lingers: bool,
}

impl Endpoint {
    /// Opens an endpoint of the provider that libfabric prefers among those that satisfy `choice`.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is then open.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time.
    pub fn open(choice: &Choice, config: &Config) -> Result<Self, OpenError> {
        let Config { frame_bytes, receives, sends, spin } = *config;
        let info = choice.offer(frame_bytes)?;
        let receives = receives.min(info.get().receive().size.max(1));
        let sends = sends.min(info.get().transmit().size.max(1));
        let described = provider::describe(info.get());
        let mut raw = RawEndpoint::open(info, receives + sends, frame_bytes)?;
        let name = raw.name()?;
        let waiter = Waiter::new(raw.take_wait(), spin)?;
        let mut this = Self {
            raw,
            provider: described,
            name,
            frame_bytes,
            receives,
            peers: Vec::new(),
            forgotten: Vec::new(),
            by_name: BTreeMap::new(),
            by_address: BTreeMap::new(),
            free: (receives..receives + sends).collect(),
            to: vec![None; receives + sends],
            waiting: BTreeSet::new(),
            arrived: VecDeque::new(),
            unposted: (0..receives).rev().collect(),
            lost: VecDeque::new(),
            gathered: Vec::new(),
            outstanding: 0,
            failed: None,
            waiter,
            lingers: false,
        };
        this.post_receives();
        this.failed.map_or(Ok(this), |error| Err(error.into()))
    }

    /// Returns the chosen provider.
    #[must_use]
    pub const fn provider(&self) -> &Provider {
        &self.provider
    }

    /// Returns the endpoint's name, by which peers send to it: at most 512 bytes.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns whether a waiting task sleeps on a descriptor (`FI_WAIT_FD`); otherwise it polls every millisecond.
    #[must_use]
    #[doc(hidden)]
    pub const fn has_descriptor(&self) -> bool {
        self.waiter.has_descriptor()
    }

    /// Inserts a peer by the name of its endpoint, which must have the same provider. A known name returns the same
    /// peer.
    ///
    /// # Errors
    /// The provider's, also for a name that is not one of the provider's, and for more than 65,536 peers.
    pub fn insert(&mut self, name: &[u8]) -> Result<PeerId, CallError> {
        if let Some(peer) = self.by_name.get(name) {
            return Ok(*peer);
        }
        if !self.is_name(name) {
            return Err(CallError::invalid("fi_av_insert"));
        }
        if self.by_name.len() >= MOST_PEERS {
            return Err(CallError::no_space("fi_av_insert"));
        }
        let address = self.raw.insert(name)?;
        let new = Peer::new(address);
        let peer = if let Some(place) = self.forgotten.pop() {
            self.peers[place.0 as usize] = new;
            place
        } else {
            self.peers.push(new);
            PeerId(u32::try_from(self.peers.len() - 1).expect("they are bounded"))
        };
        self.by_name.insert(name.to_vec(), peer);
        self.by_address.insert(address, peer);
        Ok(peer)
    }

    /// Removes the peers that are not used and to which nothing was sent since the last call, also from the provider. A
    /// later peer may get the same number.
    #[cfg(feature = "streams")]
    pub(crate) fn forget_idle(&mut self, is_used: impl Fn(PeerId) -> bool) {
        let Self { raw, peers, forgotten, by_name, by_address, lost, .. } = self;
        by_name.retain(|_, id| {
            let peer = &mut peers[id.0 as usize];
            let was_fresh = std::mem::take(&mut peer.is_fresh);
            let is_busy = peer.outstanding() > 0;
            if was_fresh || is_busy || is_used(*id) || raw.remove(peer.address).is_err() {
                return true;
            }
            by_address.remove(&peer.address);
            lost.retain(|(to, _)| *to != Some(*id));
            forgotten.push(*id);
            false
        });
    }

    /// Gives up the waiting frames of peers that are not alive and for which the provider has accepted, completed and
    /// refused no frame since the last call.
    #[cfg(feature = "streams")]
    pub(crate) fn free_stuck(&mut self, is_alive: impl Fn(PeerId) -> bool) {
        let Self { peers, waiting, free, .. } = self;
        waiting.retain(|id| {
            let peer = &mut peers[id.0 as usize];
            if !peer.find_stuck() || is_alive(*id) {
                return true;
            }
            free.extend(peer.waiting.drain(..).map(|(slot, _)| slot));
            peer.on_refused();
            false
        });
    }

    /// Returns whether the bytes can be a name of this provider. The provider may read beyond a name that is too short.
    fn is_name(&self, name: &[u8]) -> bool {
        match self.raw.info().get().address_format() {
            ADDR_STR => {
                let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
                (1..MAX_NAME).contains(&length) && name.len() <= MAX_NAME
            }
            // Socket addresses begin with the family.
            SOCKADDR | SOCKADDR_IN | SOCKADDR_IN6 => {
                name.len() == self.name.len() && name.get(..2) == self.name.get(..2)
            }
            _ => name.len() == self.name.len(),
        }
    }

    /// Returns how many frames may be sent now, to all peers together.
    #[must_use]
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Returns how many frames to a peer are in flight.
    #[must_use]
    pub fn outstanding(&self, to: PeerId) -> usize {
        self.peers[to.0 as usize].outstanding()
    }

    /// Returns how many frames were sent to a peer since the oldest one in flight, including it: fewer than these can
    /// overtake it.
    #[cfg(any(feature = "nic", feature = "streams"))]
    pub(crate) fn span(&self, to: PeerId) -> usize {
        self.peers[to.0 as usize].span()
    }

    /// Copies a frame, given in parts, and sends it.
    ///
    /// # Errors
    /// [`SendError`]; the frame is then not sent.
    ///
    /// # Panics
    /// If the peer is another endpoint's.
    pub fn send(&mut self, to: PeerId, parts: &[&[u8]]) -> Result<(), SendError> {
        self.send_frame(to, parts, Some(self.provider.inject))
    }

    /// Sends a frame like [`Endpoint::send`], always with a completion: [`Endpoint::is_idle`] is false until the
    /// provider has sent it.
    #[cfg(feature = "streams")]
    pub(crate) fn send_completed(&mut self, to: PeerId, parts: &[&[u8]]) -> Result<(), SendError> {
        self.send_frame(to, parts, None)
    }

    /// Sends a frame; the provider copies it, without a completion, if it has at most `inject` bytes.
    fn send_frame(
        &mut self,
        to: PeerId,
        parts: &[&[u8]],
        inject: Option<usize>,
    ) -> Result<(), SendError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > self.frame_bytes {
            return Err(SendError::TooLong(self.frame_bytes));
        }
        if let Some(error) = self.failed {
            return Err(error.into());
        }
        let peer = &mut self.peers[to.0 as usize];
        peer.is_fresh = true;
        let (address, is_first) = (peer.address, peer.waiting.is_empty());
        let is_short = inject.is_some_and(|most| length <= most);
        if is_first && is_short && self.inject(parts, address)? {
            self.peers[to.0 as usize].on_injected();
            return Ok(());
        }
        let slot = self.free.pop().ok_or(SendError::Full)?;
        let mut rest = self.raw.slot_mut(slot);
        for part in parts {
            let (now, later) = rest.split_at_mut(part.len());
            now.copy_from_slice(part);
            rest = later;
        }
        if is_first && self.post(slot, length, to)? {
            return Ok(());
        }
        self.peers[to.0 as usize].waiting.push_back((slot, length));
        self.waiting.insert(to);
        Ok(())
    }

    fn inject(&mut self, parts: &[&[u8]], address: u64) -> Result<bool, CallError> {
        if let [whole] = parts {
            return self.raw.inject(whole, address);
        }
        self.gathered.clear();
        parts.iter().for_each(|part| self.gathered.extend_from_slice(part));
        self.raw.inject(&self.gathered, address)
    }

    /// Passes a slot to the provider to send. Returns `false` if the provider can accept it only later. After an error,
    /// the slot is free.
    fn post(&mut self, slot: usize, length: usize, to: PeerId) -> Result<bool, CallError> {
        let peer = &mut self.peers[to.0 as usize];
        let posted = self.raw.post_send(slot, length, peer.address);
        match posted {
            Ok(true) => {
                self.to[slot] = Some((to, peer.on_posted()));
                self.outstanding += 1;
            }
            Ok(false) => {}
            Err(_) => self.free.push(slot),
        }
        posted
    }

    /// Lets the provider progress, without waiting.
    pub fn progress(&mut self) {
        let Self { raw, receives, arrived, free, to, peers, outstanding, lost, unposted, .. } =
            self;
        let mut each = |completion: Completion| {
            let Completion { slot, length, source, error } = completion;
            match (slot, error) {
                (Some(slot), None) if slot < *receives => arrived.push_back((slot, length, source)),
                // The frame was too long, or the end of its sender cut it off.
                (Some(slot), Some(_)) if slot < *receives => unposted.push(slot),
                (slot, error) => {
                    let sent = slot.and_then(|slot| to[slot].take());
                    if let Some((PeerId(peer), number)) = sent {
                        peers[peer as usize].on_completed(number);
                        *outstanding -= 1;
                    }
                    free.extend(slot);
                    lost.extend(error.map(|error| (sent.map(|(peer, _)| peer), error)));
                }
            }
        };
        for _ in 0..POLLS {
            match raw.poll(&mut each) {
                Ok(true) => self.waiter.on_completion(),
                Ok(false) => break,
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        // Callers need not know each of more losses than this.
        self.lost.truncate(self.to.len());
        self.post_receives();
        self.send_waiting();
    }

    fn post_receives(&mut self) {
        while let Some(slot) = self.unposted.pop() {
            match self.raw.post_receive(slot) {
                Ok(true) => {}
                Ok(false) => {
                    self.unposted.push(slot);
                    return;
                }
                Err(error) => {
                    self.failed = Some(error);
                    return;
                }
            }
        }
    }

    /// Sends frames that the provider did not accept before, in order for each peer.
    fn send_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        for to in std::mem::take(&mut self.waiting) {
            while let Some((slot, length)) = self.peers[to.0 as usize].waiting.pop_front() {
                match self.post(slot, length, to) {
                    Ok(true) => {}
                    Ok(false) => {
                        self.peers[to.0 as usize].waiting.push_front((slot, length));
                        self.waiting.insert(to);
                        break;
                    }
                    Err(error) => {
                        self.peers[to.0 as usize].on_refused();
                        self.lost.push_back((Some(to), error));
                    }
                }
            }
        }
    }

    /// Calls `each` with the next event, and returns its result. If there is no event, wakes the context's task when
    /// there is.
    ///
    /// If `is_urgent` is true, wakes the task within a millisecond or two in any case.
    ///
    /// # Errors
    /// The provider's, if the endpoint is no longer usable; each further call then returns it.
    pub fn poll_event<R>(
        &mut self,
        context: &mut Context<'_>,
        is_urgent: bool,
        each: impl FnOnce(Event<'_>) -> R,
    ) -> Poll<Result<R, CallError>> {
        if self.arrived.is_empty() {
            self.progress();
        }
        if let Some((slot, length, source)) = self.arrived.pop_front() {
            let source = source.filter(|_| self.provider.has_source);
            let from = source.and_then(|source| self.by_address.get(&source).copied());
            let result = each(Event::Frame { from, bytes: &self.raw.slot(slot)[..length] });
            self.unposted.push(slot);
            if self.arrived.is_empty() {
                self.post_receives();
            }
            return Poll::Ready(Ok(result));
        }
        if let Some((to, error)) = self.lost.pop_front() {
            return Poll::Ready(Ok(each(Event::Lost { to, error })));
        }
        if let Some(error) = self.failed {
            return Poll::Ready(Err(error));
        }
        let is_urgent = is_urgent || !self.is_idle() || !self.unposted.is_empty();
        let Self { waiter, raw, .. } = self;
        waiter.park(context, is_urgent, || raw.may_wait());
        Poll::Pending
    }

    /// Returns whether the provider has sent all frames.
    #[must_use]
    #[doc(hidden)]
    pub fn is_idle(&self) -> bool {
        self.outstanding == 0 && self.waiting.is_empty()
    }

    /// Makes the drop of the endpoint wait, for about 1 s at most, until the frames in flight have left.
    #[cfg(feature = "streams")]
    pub(crate) const fn linger(&mut self) {
        self.lingers = true;
    }

    /// Gives up the frames that the provider has not sent: dropping the endpoint no longer waits for them.
    #[cfg(feature = "streams")]
    pub(crate) fn abandon(&mut self) {
        self.failed.get_or_insert(CallError::timed_out("fi_send"));
    }
}

/// Lets the provider progress, so that the frames in flight leave.
impl Drop for Endpoint {
    fn drop(&mut self) {
        let paused = if self.lingers { PAUSED_POLLS } else { 0 };
        for poll in 0..LAST_POLLS + paused {
            if self.is_idle() || self.failed.is_some() {
                break;
            }
            if poll >= LAST_POLLS {
                #[expect(clippy::disallowed_methods, reason = "a destructor can't wait otherwise")]
                std::thread::sleep(PAUSE);
            }
            self.progress();
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Endpoint");
        debug.field("provider", &self.provider.name).field("peers", &self.by_name.len());
        debug.finish_non_exhaustive()
    }
}
