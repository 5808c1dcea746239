//! All connections of one socket, and its gossip: dials, accepts, assigns datagrams to connections.
//!
//! No I/O and no clock here.

mod cookies;
mod dials;
mod events;
mod reports;
mod tokens;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;

use super::buffer::Buffer;
use super::gossip::Gossip;
use super::pipe::packet::{Accept, Packet};
use super::pipe::{Config, Pipe};
use cookies::Cookies;
pub use events::{Counters, Event, Outgoing, PipeId};
use tokens::Tokens;
pub use tokens::{DEFAULT_PORT_BUFFER, PORT_BUFFERS, TokenCounters};

#[derive(Debug)]
struct Entry {
    pipe: Pipe,
    peer: SocketAddr,
    /// The address of this host that the peer has dialed, if the socket has several.
    own: Option<IpAddr>,
    is_dialer: bool,
    is_queued: bool,
    is_half_open: bool,
    is_reported: bool,
    is_progress_reported: bool,
    is_end_reported: bool,
    timer: Option<Instant>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    entry: Option<Box<Entry>>,
}

/// All connections of one socket.
///
/// After any `&mut self` call: drain [`Endpoint::poll_transmit`], then [`Endpoint::poll_event`], then re-read
/// [`Endpoint::poll_timeout`]. The time never goes back.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    rng: Rng,
    cookies: Cookies,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_id: HashMap<u64, u32, FixedState>,
    /// The connections, by the peer's address and its id.
    by_peer: BTreeMap<(SocketAddr, u64), u32>,
    /// The connections and dials, by the peer's address.
    by_address: BTreeSet<(SocketAddr, u32)>,
    half_open: usize,
    half_open_of: BTreeMap<IpAddr, u32>,
    queue: VecDeque<u32>,
    timers: BTreeSet<(Instant, u32)>,
    events: VecDeque<Event>,
    replies: VecDeque<(SocketAddr, Option<IpAddr>, Vec<u8>)>,
    /// True if the last datagram was such a reply, or gossip: the next one is of a connection, if one has something to send.
    has_replied: bool,
    gossip: Option<Box<Gossip>>,
    is_accepting: bool,
    /// The address of this host to which the datagram was sent that is handled now, if the socket has several.
    pub(crate) own: Option<IpAddr>,
    counters: Counters,
    tokens: Option<Tokens>,
}

impl Endpoint {
    /// Makes an endpoint without connections. The caller draws `seed` at random: ids and cookies are derived
    /// from it.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        let mut rng = Rng::new(seed, "wire");
        let mut secret = [0; 32];
        rng.fill(&mut secret);
        Self {
            tokens: config.port_buffer.map(Tokens::new),
            config,
            rng,
            cookies: Cookies::new(secret),
            slots: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::default(),
            by_peer: BTreeMap::new(),
            by_address: BTreeSet::new(),
            half_open: 0,
            half_open_of: BTreeMap::new(),
            queue: VecDeque::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            replies: VecDeque::new(),
            has_replied: false,
            gossip: None,
            is_accepting: true,
            own: None,
            counters: Counters::default(),
        }
    }

    /// Starts a connection to `to`. It can be written to at once.
    pub fn dial(&mut self, now: Instant, to: SocketAddr) -> PipeId {
        let local = self.draw_id();
        let first_window = self.first_window();
        let pipe = Pipe::dial(now, &self.config, local, to);
        self.add(pipe, to, first_window, true)
    }

    /// Refuses dials from now on, or accepts them again.
    pub fn set_accepting(&mut self, is_accepting: bool) {
        self.is_accepting = is_accepting;
    }

    /// Starts gossip in the cluster of this name, sealed if the endpoint has a key. The caller draws `run` at
    /// random.
    ///
    /// After this, call [`Gossip::set_time`]; and after each handled datagram, [`Gossip::poll_message`].
    pub fn begin_gossip(&mut self, cluster: &str, run: [u8; 16]) {
        let gossip = Gossip::new(self.config.key.as_ref(), cluster, run);
        self.gossip = Some(Box::new(gossip));
    }

    /// Returns the endpoint's gossip, if it was started.
    pub fn gossip(&mut self) -> Option<&mut Gossip> {
        self.gossip.as_deref_mut()
    }

    /// Handles a datagram that was received.
    pub fn handle_datagram(&mut self, now: Instant, from: SocketAddr, datagram: &mut [u8]) {
        if let Some((slot, pipe)) = self.find(now, from, datagram) {
            pipe.handle_datagram(now, datagram);
            self.on_handled(slot, from);
        }
    }

    /// Handles datagrams that were received together: the first `length` bytes of a buffer, each `stride` bytes long,
    /// except the last. May leave another buffer in its place.
    pub(crate) fn handle_buffer(
        &mut self,
        now: Instant,
        from: SocketAddr,
        buffer: &mut Buffer,
        length: usize,
        stride: usize,
    ) {
        if length == 0 {
            self.counters.strangers += 1;
        }
        let mut at = 0;
        while at < length {
            let end = length.min(at + stride);
            match self.find(now, from, &mut buffer[at..end]) {
                Some((slot, pipe)) => {
                    at = pipe.handle_buffer(now, buffer, at..length, stride);
                    self.on_handled(slot, from);
                }
                None => at = end,
            }
        }
    }

    /// Finds the connection that a datagram belongs to; handles the datagram if there is none.
    fn find(
        &mut self,
        now: Instant,
        from: SocketAddr,
        datagram: &mut [u8],
    ) -> Option<(u32, &mut Pipe)> {
        let slot = match Packet::parse(datagram) {
            // A peer whose address has changed learns by the answer that it must dial again.
            Some(Packet::Data { receiver: id, .. }) => match self.by_id.get(&id) {
                Some(&slot) if self.peer_of(slot) == Some(from) => Some(slot),
                _ => {
                    self.on_unknown(from, id);
                    return None;
                }
            },
            Some(
                Packet::Accept(Accept { dialer: id, .. })
                | Packet::Cookie { dialer: id, .. }
                | Packet::Refuse { dialer: id, .. },
            ) => self.by_id.get(&id).copied(),
            Some(Packet::Reset { unknown }) => self.by_peer.get(&(from, unknown)).copied(),
            Some(Packet::Dial(dial)) => {
                self.handle_dial(now, from, dial);
                return None;
            }
            Some(Packet::Gossip) if self.gossip.is_some() => {
                if let Some(gossip) = &mut self.gossip {
                    gossip.handle_datagram(now, from, datagram);
                }
                return None;
            }
            Some(Packet::Gossip) | None => None,
        };
        let entry = slot.and_then(|slot| self.slots[slot as usize].entry.as_mut());
        let found = slot.zip(entry).filter(|(_, entry)| entry.peer == from);
        if found.is_none() {
            self.counters.strangers += 1;
        }
        found.map(|(slot, entry)| (slot, &mut entry.pipe))
    }

    fn peer_of(&self, slot: u32) -> Option<SocketAddr> {
        self.slots[slot as usize].entry.as_ref().map(|entry| entry.peer)
    }

    /// Updates a connection that has handled a datagram. The acceptor's first datagram carries its id.
    fn on_handled(&mut self, slot: u32, from: SocketAddr) {
        let Some(entry) = &self.slots[slot as usize].entry else { return };
        if entry.is_dialer && !entry.is_reported && entry.pipe.remote() != 0 {
            self.by_peer.insert((from, entry.pipe.remote()), slot);
        }
        self.review(slot);
        self.enqueue(slot);
    }

    /// Handles the timeouts that are due by now.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.expire_tokens(now);
        while let Some(&(at, slot)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            if let Some(entry) = &mut self.slots[slot as usize].entry {
                entry.timer = None;
                entry.pipe.handle_timeout(now);
                self.review(slot);
                self.enqueue(slot);
            }
        }
    }

    /// Returns a connection for any use; `None` if it was released.
    pub fn pipe(&mut self, id: PipeId) -> Option<&mut Pipe> {
        let slot = self.slots.get(id.slot as usize)?;
        if slot.generation != id.generation || slot.entry.is_none() {
            return None;
        }
        self.enqueue(id.slot);
        let entry = self.slots[id.slot as usize].entry.as_mut()?;
        entry.is_progress_reported = false;
        Some(&mut entry.pipe)
    }

    /// Returns a connection to read its state; `None` if it was released.
    #[must_use]
    pub fn peek(&self, id: PipeId) -> Option<&Pipe> {
        let slot = self.slots.get(id.slot as usize)?;
        let entry = slot.entry.as_ref().filter(|_| slot.generation == id.generation)?;
        Some(&entry.pipe)
    }

    /// Forgets a connection, open or ended. The peer of an open one is notified when it sends.
    pub fn release(&mut self, id: PipeId) {
        if self.peek(id).is_some() {
            self.remove(id.slot);
        }
    }

    /// Handles the system's refusal of a connection's datagrams of `bytes` and more, which exceed its interface's MTU.
    pub fn handle_refused(&mut self, now: Instant, id: PipeId, bytes: usize) {
        if let Some(pipe) = self.pipe(id) {
            pipe.handle_refused(now, bytes);
        }
    }

    /// Appends the next datagrams of one connection to `out`, at most `most_segments`.
    #[must_use]
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
        most_segments: usize,
    ) -> Option<Outgoing> {
        let outgoing = self.poll_transmit_apart(now, out, most_segments)?;
        self.parts(&outgoing).into_iter().for_each(|part| out.extend_from_slice(part));
        Some(outgoing)
    }

    /// Returns the rest of the datagram that was polled last.
    pub(crate) fn parts(&self, outgoing: &Outgoing) -> [&[u8]; 2] {
        let pipe = outgoing.pipe.and_then(|id| self.peek(id));
        pipe.map_or([&[], &[]], Pipe::parts)
    }

    /// Polls as [`Endpoint::poll_transmit`] does, but leaves out the payload of a single long datagram:
    /// [`Endpoint::parts`] returns it.
    pub(crate) fn poll_transmit_apart(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
        most_segments: usize,
    ) -> Option<Outgoing> {
        let has_replied = std::mem::take(&mut self.has_replied);
        if !has_replied && let Some(outgoing) = self.poll_unconnected(out) {
            return Some(outgoing);
        }
        while let Some(slot) = self.queue.pop_front() {
            if self.tokens.is_some() {
                self.share(now, slot);
            }
            let generation = self.slots[slot as usize].generation;
            let Some(entry) = &mut self.slots[slot as usize].entry else { continue };
            if let Some(transmit) = entry.pipe.poll_transmit_apart(now, out, most_segments) {
                let (to, from) = (entry.peer, entry.own);
                self.queue.push_back(slot);
                let pipe = Some(PipeId { slot, generation });
                return Some(Outgoing { to, from, pipe, transmit });
            }
            entry.is_queued = false;
            self.review(slot);
            self.set_timer(slot);
        }
        self.poll_unconnected(out)
    }

    /// Returns the next event.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns whether [`Endpoint::poll_event`] has an event.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns when [`Endpoint::handle_timeout`] must be called; `None` if only a datagram or the caller can
    /// cause anything.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let tokens = self.tokens.as_ref().and_then(Tokens::poll_timeout);
        self.timers.first().map(|&(at, _)| at).into_iter().chain(tokens).min()
    }

    /// Returns the endpoint's counters.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of connections, half-open ones included.
    #[must_use]
    pub fn pipes(&self) -> usize {
        self.by_id.len()
    }

    fn draw_id(&mut self) -> u64 {
        loop {
            let id = self.rng.next_u64();
            if id != 0 && !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }

    fn add(
        &mut self,
        mut pipe: Pipe,
        peer: SocketAddr,
        first_window: Option<u64>,
        is_dialer: bool,
    ) -> PipeId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        self.begin_share(slot, &mut pipe, first_window);
        self.by_id.insert(pipe.local(), slot);
        self.by_address.insert((peer, slot));
        if !is_dialer {
            self.by_peer.insert((peer, pipe.remote()), slot);
            self.half_open += 1;
            *self.half_open_of.entry(peer.ip()).or_default() += 1;
        }
        let place = &mut self.slots[slot as usize];
        place.entry = Some(Box::new(Entry {
            pipe,
            peer,
            own: self.own.filter(|_| !is_dialer),
            is_dialer,
            is_queued: false,
            is_half_open: !is_dialer,
            is_reported: false,
            is_progress_reported: false,
            is_end_reported: false,
            timer: None,
        }));
        let id = PipeId { slot, generation: place.generation };
        self.enqueue(slot);
        id
    }

    fn remove(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        let Some(entry) = place.entry.take() else { return };
        place.generation = place.generation.wrapping_add(1);
        self.end_share(slot);
        self.by_id.remove(&entry.pipe.local());
        self.by_peer.remove(&(entry.peer, entry.pipe.remote()));
        self.by_address.remove(&(entry.peer, slot));
        if let Some(at) = entry.timer {
            self.timers.remove(&(at, slot));
        }
        if entry.is_half_open {
            self.count_off(entry.peer.ip());
        }
        if entry.is_queued {
            self.queue.retain(|queued| *queued != slot);
        }
        self.free.push(slot);
    }

    fn enqueue(&mut self, slot: u32) {
        if let Some(entry) = &mut self.slots[slot as usize].entry
            && !entry.is_queued
        {
            entry.is_queued = true;
            self.queue.push_back(slot);
        }
    }

    /// Sets a connection's timer, unless one as early is set: a timer that fires early does nothing and is set
    /// anew.
    fn set_timer(&mut self, slot: u32) {
        let Some(entry) = &mut self.slots[slot as usize].entry else { return };
        let Some(at) = entry.pipe.poll_timeout() else { return };
        if let Some(set) = entry.timer {
            if set <= at {
                return;
            }
            self.timers.remove(&(set, slot));
        }
        entry.timer = Some(at);
        self.timers.insert((at, slot));
    }

    /// Queues events for the changes of a connection's state.
    fn review(&mut self, slot: u32) {
        let generation = self.slots[slot as usize].generation;
        let id = PipeId { slot, generation };
        let Some(entry) = &mut self.slots[slot as usize].entry else { return };
        let ended = entry.pipe.ended();
        if !entry.is_reported && entry.pipe.is_established() {
            entry.is_reported = true;
            let (peer, was_half_open) = (entry.peer, std::mem::take(&mut entry.is_half_open));
            self.events.push_back(if entry.is_dialer {
                Event::Established(id)
            } else {
                Event::Accepted(id, peer)
            });
            if was_half_open {
                self.count_off(peer.ip());
                self.ping_others(peer, slot);
            }
        } else if ended.is_some() && entry.is_half_open {
            return self.remove(slot);
        }
        let Some(entry) = &mut self.slots[slot as usize].entry else { return };
        if entry.pipe.take_progress() && !entry.is_progress_reported {
            entry.is_progress_reported = true;
            self.events.push_back(Event::Progress(id));
        }
        if let Some(end) = ended
            && !entry.is_end_reported
        {
            entry.is_end_reported = true;
            self.events.push_back(Event::Ended(id, end));
        }
    }
}

#[cfg(test)]
mod tests;
