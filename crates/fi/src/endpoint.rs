//! An endpoint: its peers, their rings, and the operations in progress.
//!
//! Nothing here runs by itself: [`Endpoint::progress`] receives records and sends waiting ones.

mod arrivals;
mod atomics;
mod departures;
mod losses;
mod receives;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use midplane_simhw::shm::rings::{RingListener, RingPair, RingRequest, WakeSet, connect};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::fcntl_dupfd_cloexec;
use slab::Slab;

use crate::abi::constants::{ADDR_UNSPEC, ECONNRESET, EHOSTUNREACH};
use crate::address::Address;
use crate::completion::{Bindings, Completions};
use crate::matching::{Matched, Matching};
use crate::memory::Buffer;
use crate::network::{Network, Terms};
use crate::peer::{Content, Finish, Link, Peer};
use crate::region::Regions;
pub(crate) use atomics::Atomic;
pub(crate) use departures::{Completes, Message, Post, Transfer};

/// Bytes of a ring. With the data in it, it fits into a processor's second-level cache.
pub(crate) const RING_BYTES: usize = 128 * 1024;
/// Records of one peer that are handled before the next peer's.
const TURN: usize = 64;
/// Default of the bytes that a buffer for several messages must have left.
const LEAST_MULTI: usize = 64;
/// Does not wait.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Most connections that are accepted at once.
const ACCEPTS: usize = 64;
/// Descriptors that a greeting passes. The system drops them, and the peer is lost, if the process has too few.
const PASSED: usize = 2;
/// Peers at which an endpoint forgets those that have left, and accepts no new one if none has.
pub(crate) const MAX_PEERS: usize = if cfg!(test) { 1 << 9 } else { 1 << 16 };

/// Rings that are shared with a peer.
#[derive(Debug)]
struct Pair {
    rings: RingPair,
    peer: usize,
    /// True if the peer has closed its end: it publishes no more records.
    has_ended: bool,
    /// True if the network's bridge holds the other ends.
    is_remote: bool,
}

/// The parts of a domain that an endpoint uses while it works.
pub(crate) struct Domain<'a> {
    pub(crate) regions: &'a Regions,
    pub(crate) out: &'a mut Completions,
}

/// The destination of bytes that this endpoint has requested.
#[derive(Debug)]
enum Requested {
    Receive(Matched),
    Read(Buffer, Finish),
    Discard,
}

/// A message whose RTS was sent, and for which no CTS has arrived.
#[derive(Debug)]
struct Announced {
    peer: usize,
    content: Content,
    finish: Finish,
    /// True if the operation completes only when the receiver has confirmed it.
    confirms: bool,
}

/// The state of an endpoint except its rings.
#[derive(Debug)]
pub(crate) struct State {
    peers: Vec<Peer>,
    /// Numbers of forgotten peers, for new ones.
    unused: Vec<usize>,
    by_endpoint: BTreeMap<u64, usize>,
    /// For each entry of the address vector, its address, and its peer once there is one.
    routes: Vec<Option<(Address, Option<usize>)>>,
    matching: Matching,
    requested: Slab<(usize, Requested)>,
    announced: Slab<Announced>,
    /// Peers for which records wait to be sent.
    busy: Vec<usize>,
    pub(crate) bindings: Bindings,
    /// True if receives may name a source.
    pub(crate) is_directed: bool,
}

/// An endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: Address,
    listener: RingListener,
    /// Connections whose greeting was not read.
    requests: Slab<RingRequest>,
    /// An epoll set of these connections.
    greetings: OwnedFd,
    /// True if connections wait because descriptors are short.
    is_short: bool,
    wakes: WakeSet,
    /// The connection to other hosts, if the environment names a network.
    network: Option<Network>,
    pairs: Slab<Pair>,
    pub(crate) state: State,
    is_parked: bool,
}

impl Endpoint {
    /// Opens an endpoint to which peers can connect.
    pub(crate) fn open(is_directed: bool, terms: Option<&Terms>) -> io::Result<Self> {
        let mut address = Address::new()?;
        let network = terms.map(|terms| Network::start(terms, address.endpoint)).transpose()?;
        address.udp = network.as_ref().map(|network| network.address);
        let listener = RingListener::bind(address.name().as_bytes())?;
        let state = State {
            peers: Vec::new(),
            unused: Vec::new(),
            by_endpoint: BTreeMap::new(),
            routes: Vec::new(),
            matching: Matching::new(LEAST_MULTI, getrandom::u64()?),
            requested: Slab::new(),
            announced: Slab::new(),
            busy: Vec::new(),
            bindings: Bindings::default(),
            is_directed,
        };
        Ok(Self {
            address,
            listener,
            requests: Slab::new(),
            greetings: epoll::create(CreateFlags::CLOEXEC)?,
            is_short: false,
            wakes: WakeSet::new()?,
            network,
            pairs: Slab::new(),
            state,
            is_parked: false,
        })
    }

    /// Sets the bytes that a buffer for several messages must have left for the next one.
    pub(crate) const fn set_least_multi(&mut self, bytes: usize) {
        self.state.matching.least_multi = bytes;
    }

    /// Returns the value of [`Endpoint::set_least_multi`].
    pub(crate) const fn least_multi(&self) -> usize {
        self.state.matching.least_multi
    }

    /// Sets or removes an entry of the address vector.
    pub(crate) fn set_route(&mut self, number: u64, address: Option<Address>) {
        let state = &mut self.state;
        let Ok(index) = usize::try_from(number) else { return };
        if state.routes.len() <= index {
            state.routes.resize(index + 1, None);
        }
        let (known, source) = match (address, state.routes[index]) {
            (Some(address), _) => (address, number),
            (None, Some((address, _))) => (address, ADDR_UNSPEC),
            (None, None) => return,
        };
        let peer = state.by_endpoint.get(&known.endpoint).copied();
        if let Some(peer) = peer {
            state.peers[peer].source = source;
        }
        state.routes[index] = address.map(|address| (address, peer));
    }

    /// Receives records, and sends waiting ones. Returns whether there was any work.
    #[inline]
    pub(crate) fn progress(&mut self, domain: &mut Domain<'_>) -> bool {
        let mut has_any = self.network.as_mut().is_some_and(Network::drive);
        let mut ended = Vec::new();
        for (key, pair) in &mut self.pairs {
            match self.state.receive(pair, domain) {
                Ok(handled) => has_any |= handled,
                Err(_) => ended.push(key),
            }
        }
        for key in ended {
            self.end_pair(key, domain);
        }
        if !self.state.busy.is_empty() {
            has_any |= self.flush(domain);
        }
        has_any
    }

    /// Returns whether anything waits to be sent.
    pub(crate) const fn has_work(&self) -> bool {
        !self.state.busy.is_empty()
    }

    /// Handles new and closed connections, which takes system calls.
    pub(crate) fn progress_connections(&mut self) {
        self.is_short = false;
        self.take_greetings();
        for _ in 0..ACCEPTS {
            if !self.is_called() || !self.has_descriptors(1 + PASSED) {
                break;
            }
            match self.listener.accept_one() {
                Some(request) => self.add_request(request),
                None if self.listener.is_paused() => {
                    self.is_short = true;
                    break;
                }
                // The connection was refused.
                None => {}
            }
        }
        while let Some((rings, endpoint)) = self.network.as_ref().and_then(Network::accept) {
            self.accept(rings, endpoint, true);
        }
        let pairs = &mut self.pairs;
        self.wakes.take(|number, is_gone| {
            let key = usize::try_from(number).ok();
            if let Some(pair) = key.and_then(|key| pairs.get_mut(key)) {
                pair.has_ended |= is_gone;
            }
        });
    }

    /// Returns whether a connection waits to be accepted.
    fn is_called(&self) -> bool {
        poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&NOW)) == Ok(1)
    }

    /// Returns whether this process has `count` free descriptors.
    fn has_descriptors(&mut self, count: usize) -> bool {
        let free: Result<Vec<_>, _> =
            (0..count).map(|_| fcntl_dupfd_cloexec(&self.listener, 0)).collect();
        self.is_short |= free.is_err();
        free.is_ok()
    }

    /// Adds a connection, and reads its greeting if it has arrived.
    fn add_request(&mut self, request: RingRequest) {
        let entry = self.requests.vacant_entry();
        let data = EventData::new_u64(entry.key() as u64);
        if epoll::add(&self.greetings, &request, data, EventFlags::IN).is_ok() {
            entry.insert(request);
            self.take_greetings();
        }
    }

    /// Reads the greetings that have arrived.
    fn take_greetings(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let mut events = [MaybeUninit::<Event>::uninit(); ACCEPTS];
        let Ok((events, _)) = epoll::wait(&self.greetings, &mut events, Some(&NOW)) else { return };
        for event in &*events {
            let key = event.data.u64() as usize;
            let brings = self.requests.get(key).is_some_and(RingRequest::brings_descriptors);
            if brings && !self.has_descriptors(PASSED) {
                continue;
            }
            let Some(read) = self.requests.get(key).map(RingRequest::accept) else { continue };
            if read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                continue;
            }
            let request = self.requests.remove(key);
            // This fails only if the set does not have it.
            let _ = epoll::delete(&self.greetings, &request);
            if let Ok((rings, endpoint)) = read {
                self.accept(rings, endpoint, false);
            }
        }
    }

    /// Adds rings that a peer has opened.
    fn accept(&mut self, rings: RingPair, endpoint: u64, is_remote: bool) {
        let is_known = self.state.by_endpoint.contains_key(&endpoint);
        if !is_known && self.state.by_endpoint.len() >= MAX_PEERS && !self.state.forget_peers() {
            return;
        }
        let peer = self.state.peer_of(endpoint);
        // Each side connects at most once.
        if self.state.peers[peer].pairs < 2 {
            self.add_pair(rings, peer, is_remote);
        }
    }

    fn add_pair(&mut self, rings: RingPair, peer: usize, is_remote: bool) {
        let entry = self.pairs.vacant_entry();
        let key = entry.key();
        if self.wakes.add(key as u64, &rings).is_err() {
            return;
        }
        let pair = entry.insert(Pair { rings, peer, has_ended: false, is_remote });
        if self.is_parked && pair.rings.receiver.park() {
            pair.rings.wake();
        }
        let peer = &mut self.state.peers[peer];
        peer.pairs += 1;
        if peer.link == Link::Unconnected {
            peer.link = Link::Open(key);
        }
    }

    /// Removes rings that carry no more records. After the end of the rings to a peer, nothing can be sent to it: the
    /// other rings from the peer end as well, once their records are received.
    fn end_pair(&mut self, key: usize, domain: &mut Domain<'_>) {
        let Pair { peer, .. } = self.pairs.remove(key);
        self.wakes.remove(key as u64);
        let state = &mut self.state.peers[peer];
        state.pairs -= 1;
        if state.link == Link::Open(key) {
            state.link = Link::Lost(ECONNRESET);
            for (_, pair) in &mut self.pairs {
                pair.has_ended |= pair.peer == peer;
            }
        }
        if state.pairs == 0 {
            self.state.lose(peer, ECONNRESET, domain.out);
        }
    }

    /// Connects to a peer that has an entry in the address vector. If the system lacks resources, tries again with the
    /// next progress.
    fn connect(&mut self, peer: usize, domain: &mut Domain<'_>) {
        let endpoint = self.state.peers[peer].endpoint;
        let known = |address: &Address| address.endpoint == endpoint;
        let mut addresses = self.state.routes.iter().flatten().map(|(address, _)| *address);
        let opened = match (addresses.find(known), &self.network) {
            (Some(address), _) if address.host == self.address.host => {
                connect(address.name().as_bytes(), RING_BYTES, self.address.endpoint)
                    .map(|rings| (rings, false))
            }
            (Some(Address { udp: Some(udp), .. }), Some(network)) => {
                network.connect(udp, RING_BYTES).map(|rings| (rings, true))
            }
            _ => Err(io::Error::from_raw_os_error(EHOSTUNREACH)),
        };
        match opened {
            Ok((rings, is_remote)) => self.add_pair(rings, peer, is_remote),
            Err(error) if lacks_resources(&error) => {}
            Err(error) => {
                let code = error.raw_os_error().unwrap_or(EHOSTUNREACH);
                self.state.peers[peer].link = Link::Lost(code);
                self.state.lose(peer, code, domain.out);
            }
        }
    }

    /// Sends waiting records; returns whether any was sent.
    fn flush(&mut self, domain: &mut Domain<'_>) -> bool {
        let mut has_any = false;
        for peer in std::mem::take(&mut self.state.busy) {
            if self.state.peers[peer].link == Link::Unconnected {
                self.connect(peer, domain);
            }
            let Link::Open(key) = self.state.peers[peer].link else {
                // The system had no room for the connection.
                let is_waiting = self.state.peers[peer].link == Link::Unconnected;
                self.state.peers[peer].is_listed = is_waiting;
                if is_waiting {
                    self.state.busy.push(peer);
                }
                continue;
            };
            has_any |= self.state.flush(peer, &mut self.pairs[key].rings, domain);
            if self.state.peers[peer].has_work() {
                self.state.busy.push(peer);
            } else {
                self.state.peers[peer].is_listed = false;
            }
        }
        has_any
    }
}

/// Returns whether a connection failed because the system lacks resources for it at present.
fn lacks_resources(error: &io::Error) -> bool {
    use libc::{EAGAIN, EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC};
    match error.raw_os_error() {
        Some(code) => matches!(code, EAGAIN | EMFILE | ENFILE | ENOBUFS | ENOMEM | ENOSPC),
        // The system refused the rings' memory: for now, unless the process may have none.
        None => {
            !matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
        }
    }
}

impl State {
    /// Returns the number of an endpoint's peer; adds the peer if it is new.
    fn peer_of(&mut self, endpoint: u64) -> usize {
        if let Some(peer) = self.by_endpoint.get(&endpoint) {
            return *peer;
        }
        let peer = self.unused.pop().unwrap_or(self.peers.len());
        let mut source = ADDR_UNSPEC;
        for (number, route) in self.routes.iter_mut().enumerate() {
            if let Some((address, known)) = route
                && address.endpoint == endpoint
            {
                (source, *known) = (number as u64, Some(peer));
            }
        }
        let new = Peer::new(endpoint, source);
        match self.peers.get_mut(peer) {
            Some(place) => *place = new,
            None => self.peers.push(new),
        }
        self.by_endpoint.insert(endpoint, peer);
        peer
    }

    /// Forgets the peers without a connection to which no address and no message refers. Returns whether a number is unused.
    fn forget_peers(&mut self) -> bool {
        let named = self.routes.iter().flatten().filter_map(|(_, peer)| *peer);
        let kept = self.matching.messages.iter().map(|(_, message)| message.envelope.peer);
        let used: BTreeSet<usize> = named.chain(kept).collect();
        let Self { peers, unused, by_endpoint, .. } = self;
        by_endpoint.retain(|_, number| {
            let peer = &peers[*number];
            let is_used = peer.pairs > 0 || peer.is_listed || used.contains(number);
            if !is_used {
                unused.push(*number);
            }
            is_used
        });
        !unused.is_empty()
    }

    /// Adds a peer to those for which records wait.
    fn list(&mut self, peer: usize) {
        if !std::mem::replace(&mut self.peers[peer].is_listed, true) {
            self.busy.push(peer);
        }
    }

    fn source(&self, peer: usize) -> u64 {
        self.peers[peer].source
    }
}
