//! Membership: the known nodes, the links to each, and the choice of a node for a stream.
//!
//! No I/O and no clock here. A node dials the places that discovery returns only while it searches for a service:
//! connections are made when they are first used.
//!
//! # Names
//!
//! Of two nodes with one name, one may have ended: a process that was restarted, whose former connection is still open.
//! The node that started first is tested for [`TRIAL`]; new streams avoid it meanwhile. If it is silent, its links end.
//! If it answers, the later node is notified and not used. `keys.rs` has the rules for nodes with keys of their own.

mod choice;
mod hello;
mod keys;
mod names;
mod peer;
mod place;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use midplane_simhw::seal::PublicKey;
use midplane_simhw::time::Instant;
use midplane_via::session::TransportKind;

pub(crate) use choice::{Choice, Load, choose};
#[cfg(test)]
pub(crate) use hello::CHANGED;
pub(crate) use hello::{Hello, MAX_NAME, MAX_SERVICES, Refusal, Stranger, Unreadable, VERSION};
use keys::Notice;
use peer::{Link, Peer};
use place::Place;
pub(crate) use place::Target;

/// Most nodes that a node knows, most places that it dials, and most links that it has.
const MOST: usize = 4_096;
/// Most places of strangers that a node reports.
const MAX_STRANGERS: usize = 16;
/// Nanoseconds in which a dialed node must describe itself; a search then continues without it.
pub(crate) const DESCRIBE: u64 = 1_000_000_000;
/// Nanoseconds after which a link without a description ends.
const SILENCE: u64 = 30_000_000_000;
/// Nanoseconds in which the first of two nodes with one name must show that it is alive.
pub(crate) const TRIAL: u64 = 1_500_000_000;
/// Nanoseconds between two attempts to end redundant links.
const RETIRE: u64 = 1_000_000_000;

/// An action that the node must take.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Effect {
    /// Dial a place: answer with [`Members::handle_dialed`] or [`Members::handle_refused`].
    Dial(Target),
    /// Send this node's description to the peer of a link.
    Describe(u64),
    /// End a link.
    End(u64),
    /// Wake the tasks that wait for a change.
    Wake,
}

/// The nodes of a cluster, as one of them knows them.
///
/// After any `&mut self` call: drain [`Members::poll_effect`], then re-read [`Members::poll_timeout`]. The time never
/// goes back.
#[derive(Debug)]
pub(crate) struct Members {
    id: u64,
    cluster: String,
    name: String,
    incarnation: u64,
    /// This node's own key, which it proves over sealed sessions.
    key: Option<PublicKey>,
    address: Option<SocketAddr>,
    places: BTreeMap<Target, Place>,
    links: BTreeMap<u64, Link>,
    peers: BTreeMap<u64, Peer>,
    /// Places whose node speaks another version, or is of another cluster.
    strangers: BTreeMap<Target, Stranger>,
    /// Names that are pinned to the keys of their nodes.
    pins: BTreeMap<String, PublicKey>,
    /// Keys that discovery states for places.
    listed: BTreeSet<(SocketAddr, PublicKey)>,
    /// The last refusal of this node by another one.
    notice: Option<Notice>,
    seek_until: Instant,
    retire_at: Instant,
    effects: VecDeque<Effect>,
}

impl Members {
    /// Creates the membership of a node that knows no other. `address` is its own, which it does not dial.
    pub(crate) fn new(hello: &Hello, address: Option<SocketAddr>) -> Self {
        Self {
            id: hello.id,
            cluster: hello.cluster.clone(),
            name: hello.name.clone(),
            incarnation: hello.incarnation,
            key: hello.key(),
            address,
            places: BTreeMap::new(),
            links: BTreeMap::new(),
            peers: BTreeMap::new(),
            strangers: BTreeMap::new(),
            pins: BTreeMap::new(),
            listed: BTreeSet::new(),
            notice: None,
            seek_until: Instant::ZERO,
            retire_at: Instant::FAR_FUTURE,
            effects: VecDeque::new(),
        }
    }

    /// Replaces the places that discovery returns.
    pub(crate) fn handle_places(&mut self, now: Instant, found: &BTreeSet<Target>) {
        self.places.retain(|target, place| {
            place.is_listed = found.contains(target);
            // A place that is listed again is dialed no sooner than if it had stayed.
            place.is_listed || place.link.is_some() || place.again_at > now
        });
        let (own, here) = (Target::Local(self.id), self.address.map(Target::Address));
        for target in found {
            if *target != own && Some(*target) != here && self.places.len() < MOST {
                self.places.entry(*target).or_insert_with(|| Place::new(now, *target));
            }
        }
        let places = &self.places;
        self.strangers.retain(|target, _| places.contains_key(target));
        self.dial_due(now);
    }

    /// Searches for nodes until `until`: dials the places whose node is unknown, or is one of this host without a link through
    /// shared memory.
    pub(crate) fn seek(&mut self, now: Instant, until: Instant) {
        self.seek_until = self.seek_until.max(until);
        self.dial_due(now);
    }

    /// Handles a dial to a place that has begun, over this link.
    pub(crate) fn handle_dialed(
        &mut self,
        now: Instant,
        target: Target,
        link: u64,
        transport: TransportKind,
    ) {
        if let Some(place) = self.places.get_mut(&target) {
            (place.is_dialing, place.link) = (false, Some(link));
        }
        self.add_link(now, link, transport, Some(target));
    }

    /// Handles a place that can't be dialed.
    pub(crate) fn handle_refused(&mut self, now: Instant, target: Target) {
        if let Some(place) = self.places.get_mut(&target) {
            place.on_refused(now);
        }
    }

    /// Handles a link that another node has dialed.
    pub(crate) fn handle_accepted(&mut self, now: Instant, link: u64, transport: TransportKind) {
        if self.links.len() >= MOST {
            return self.effects.push_back(Effect::End(link));
        }
        self.add_link(now, link, transport, None);
    }

    fn add_link(
        &mut self,
        now: Instant,
        link: u64,
        transport: TransportKind,
        target: Option<Target>,
    ) {
        let state = Link {
            transport,
            target,
            peer: None,
            since: now,
            is_slow: false,
            is_ending: false,
            rival: 0,
            refused: None,
        };
        self.links.insert(link, state);
        self.effects.push_back(Effect::Describe(link));
    }

    /// Sets the transport of a dialed link, if another than the first one tried has answered.
    pub(crate) fn handle_transport(&mut self, number: u64, transport: TransportKind) {
        if let Some(link) = self.links.get_mut(&number) {
            link.transport = transport;
        }
    }

    /// Handles the description that the peer of a link has sent; `proven` is the key that the peer has proven to have.
    pub(crate) fn handle_hello(
        &mut self,
        now: Instant,
        number: u64,
        hello: Hello,
        proven: Option<PublicKey>,
    ) {
        let Some(link) = self.links.get(&number).filter(|link| !link.is_ending) else { return };
        if !hello.cluster.is_empty() && hello.cluster != self.cluster {
            // The dialing end ends the link: it may not have received this node's description yet.
            return match link.target {
                Some(target) if link.peer.is_none() => {
                    self.on_stranger(target, Stranger::Cluster(hello.cluster));
                    self.end(number);
                }
                None if link.peer.is_none() => {}
                _ => self.end(number),
            };
        }
        if let Some(why) = Refusal::of(hello.refusal) {
            return self.on_notice(now, number, hello.name, why);
        }
        if link.is_refused() {
            return;
        }
        match self.identify(link, &hello, proven) {
            Ok(key) => self.on_node(now, number, hello, key),
            Err(why) => self.refuse(now, number, hello.name, why),
        }
    }

    /// Handles the description of a node of this cluster with this key.
    fn on_node(&mut self, now: Instant, number: u64, hello: Hello, key: Option<PublicKey>) {
        let Some(link) = self.links.get_mut(&number) else { return };
        let id = hello.id;
        let is_other = link.peer.is_some_and(|before| before != id)
            || self.peers.get(&id).is_some_and(|peer| {
                peer.name != hello.name || peer.incarnation != hello.incarnation
            });
        (link.is_slow, link.rival) = (false, hello.rival);
        if let Some(place) = link.target.and_then(|target| self.places.get_mut(&target)) {
            place.peer = Some(id);
        }
        if let Some(target) = link.target {
            self.strangers.remove(&target);
        }
        let is_full = self.peers.len() >= MOST && !self.peers.contains_key(&id);
        if id == self.id || is_other || is_full {
            return self.end(number);
        }
        link.peer = Some(id);
        let is_new = !self.peers.contains_key(&id);
        let peer = self.peers.entry(id).or_insert_with(|| Peer {
            name: hello.name,
            incarnation: hello.incarnation,
            key,
            is_kept: hello.is_kept,
            since: now,
            services: BTreeSet::new(),
            links: Vec::new(),
            is_leaving: false,
            trial: None,
            rival: None,
            held_by: None,
            challenge: None,
        });
        peer.services = hello.services.into_iter().collect();
        if !peer.links.contains(&number) {
            peer.links.push(number);
        }
        let links = &self.links;
        peer.links.sort_by_key(|number| links[number].order(self.id, *number));
        if peer.links.len() > 1 {
            self.retire_at = self.retire_at.min(now.plus_nanos(RETIRE));
        }
        // A held node may have connected again before its former link ended.
        if is_new || peer.held_by.is_some() {
            self.admit(now, id);
        }
        self.effects.push_back(Effect::Wake);
    }

    /// Handles a description that can't be read: only its link ends.
    pub(crate) fn handle_unreadable(&mut self, number: u64, why: Unreadable) {
        let target = self.links.get(&number).and_then(|link| link.target);
        if let (Some(target), Unreadable::Version(version)) = (target, why) {
            self.on_stranger(target, Stranger::Version(version));
        }
        self.end(number);
    }

    /// Records that the node at a place is not of this cluster.
    fn on_stranger(&mut self, target: Target, stranger: Stranger) {
        if self.strangers.len() < MAX_STRANGERS || self.strangers.contains_key(&target) {
            self.strangers.insert(target, stranger);
        }
    }

    /// Records whether the peer of a link is slow: it did not answer in time. Returns whether that has changed.
    pub(crate) fn handle_answer(&mut self, number: u64, is_slow: bool) -> bool {
        let link = self.links.get_mut(&number);
        link.is_some_and(|link| std::mem::replace(&mut link.is_slow, is_slow) != is_slow)
    }

    /// Handles a peer that accepts and opens no more streams.
    pub(crate) fn handle_goodbye(&mut self, now: Instant, number: u64) {
        let Some(id) = self.links.get(&number).and_then(|link| link.peer) else { return };
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.is_leaving = true;
            self.on_departure(now, id);
        }
        self.effects.push_back(Effect::Wake);
    }

    /// Handles the end of a link. Returns the name of its peer if that has no other link.
    pub(crate) fn handle_ended(&mut self, now: Instant, number: u64) -> Option<String> {
        let link = self.links.remove(&number)?;
        if let Some(place) = link.target.and_then(|target| self.places.get_mut(&target)) {
            place.on_ended(now, link.since, link.peer.is_some());
        }
        self.effects.push_back(Effect::Wake);
        self.dial_due(now);
        let id = link.peer?;
        let peer = self.peers.get_mut(&id)?;
        peer.links.retain(|known| *known != number);
        if !peer.links.is_empty() {
            return None;
        }
        let gone = self.peers.remove(&id);
        self.on_departure(now, id);
        gone.map(|peer| peer.name)
    }

    /// Handles all timeouts that are due; `load` returns the load of a link.
    pub(crate) fn handle_timeout(&mut self, now: Instant, load: impl Fn(u64) -> Load) {
        self.dial_due(now);
        self.judge(now, &load);
        self.judge_holders(now, &load);
        if now >= self.retire_at {
            self.retire_at = Instant::FAR_FUTURE;
            self.retire(now, &load);
        }
        let is_over = |link: &Link| link.ends_at().is_some_and(|at| at <= now);
        let over = self.links.iter().filter(|(_, link)| is_over(link)).map(|(number, _)| *number);
        over.collect::<Vec<_>>().into_iter().for_each(|number| self.end(number));
    }

    /// Ends redundant links once they carry no stream: links that this node has dialed to peers with a better link.
    fn retire(&mut self, now: Instant, load: impl Fn(u64) -> Load) {
        let links = &self.links;
        let spare = self.peers.values().flat_map(|peer| {
            let standing = peer.links.iter().filter(|number| !links[*number].is_ending);
            standing.skip(1).filter(|number| links[*number].target.is_some()).copied()
        });
        for number in spare.collect::<Vec<_>>() {
            if load(number).streams == 0 {
                self.end(number);
            } else {
                self.retire_at = now.plus_nanos(RETIRE);
            }
        }
    }

    fn end(&mut self, number: u64) {
        if let Some(link) = self.links.get_mut(&number)
            && !std::mem::replace(&mut link.is_ending, true)
        {
            self.effects.push_back(Effect::End(number));
        }
    }

    /// Returns the numbers, names, services and links of the known nodes that are not held.
    pub(crate) fn peers(&self) -> impl Iterator<Item = (u64, &str, &BTreeSet<String>, &[u64])> {
        let known = self.peers.iter().filter(|(_, peer)| peer.held_by.is_none());
        known.map(|(id, peer)| (*id, &*peer.name, &peer.services, &*peer.links))
    }

    /// Returns the number and the name of a link's peer. `None` if the peer is held or refused: its streams are not
    /// accepted.
    pub(crate) fn peer_of(&self, link: u64) -> Option<(u64, &str)> {
        let id = self.links.get(&link).filter(|link| !link.is_refused())?.peer?;
        let peer = self.peers.get(&id).filter(|peer| peer.held_by.is_none())?;
        Some((id, &peer.name))
    }

    /// Returns whether there is a link to a node that has described itself.
    pub(crate) fn knows(&self, id: u64) -> bool {
        self.peers.contains_key(&id)
    }

    /// Returns whether there is a link to a node that accepts streams: it has not said goodbye.
    pub(crate) fn stays(&self, id: u64) -> bool {
        self.peers.get(&id).is_some_and(|peer| !peer.is_leaving)
    }

    /// Returns whether the known node of this number has this name.
    pub(crate) fn is_called(&self, id: u64, name: &str) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.name == name)
    }

    /// Returns when a known node was started, by its own clock, and its state as this node sees it.
    pub(crate) fn standing(&self, id: u64) -> Option<(u64, &'static str)> {
        let peer = self.peers.get(&id)?;
        let is_slow = peer.links.iter().any(|number| self.links[number].is_slow);
        let state = match peer {
            _ if peer.is_leaving => "leaving",
            _ if peer.rival.is_some() => "another has its name",
            _ if is_slow => "silent",
            _ => "open",
        };
        Some((peer.incarnation, state))
    }

    /// Returns the places whose node is not of this cluster, each with the reason.
    pub(crate) const fn strangers(&self) -> &BTreeMap<Target, Stranger> {
        &self.strangers
    }

    /// Returns the numbers of all links.
    pub(crate) fn links(&self) -> impl Iterator<Item = u64> {
        self.links.keys().copied()
    }

    /// Returns the next action to take.
    #[must_use]
    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns when to call [`Members::handle_timeout`]; `None` if only an event can cause an action.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let trials = self.peers.values().flat_map(|peer| [peer.trial, peer.challenge]);
        let trials = trials.flatten().min();
        let mute = self.links.values().filter_map(Link::ends_at).min();
        let retire = (self.retire_at < Instant::FAR_FUTURE).then_some(self.retire_at);
        [self.next_dial(), trials, mute, retire].into_iter().flatten().min()
    }
}
