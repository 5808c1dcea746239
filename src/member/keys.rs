//! Keys of the nodes: which node may use a name, and which is at a place.
//!
//! If sessions are sealed, each node proves a key of its own. Through shared memory it only states its key, and is
//! trusted: the peer is a process of the same user. Two nodes with one key are one restarted node, or two that were
//! configured alike: `names.rs` chooses one. For two nodes with one name and different keys:
//!
//! - The name of a node that keeps its key in a file is *pinned* to the key as long as this process runs, even while
//!   the node is away. Another key is refused, even if its node has waited for the name before.
//! - A node whose key is valid for this start only has its name as long as it is alive. A later node is *held*: it is
//!   not used, and none of its streams is accepted. It may be the first node, restarted, so the first one is asked for a
//!   sign of life. If the first node has ended, or is silent for [`TRIAL`], the name is free. If it is alive, the later
//!   node is refused.
//! - When another node gets the name, a leaving node that had it is held: none of its further streams is accepted.
//!
//! A refused node is sent the reason, over a link that ends one second later.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use midplane_simhw::seal::PublicKey;
use midplane_simhw::time::Instant;
use midplane_via::session::TransportKind;

use super::hello::Refusal;
use super::peer::{Link, Peer};
use super::{Effect, Hello, Load, MOST, Members, Stranger, TRIAL};

/// Most names that are pinned to keys. Further names are not pinned, so that a flood of names removes none.
pub(super) const MAX_PINS: usize = 2 * MOST;
/// Nanoseconds in which a refused node may read the reason and end the link itself.
pub(super) const REFUSED: u64 = 1_000_000_000;
/// Nanoseconds for which a node reports that another node has refused it.
const REMEMBERED: u64 = 30_000_000_000;

/// A refusal of this node by another one.
#[derive(Debug)]
pub(super) struct Notice {
    by: String,
    why: Refusal,
    until: Instant,
}

impl Members {
    /// Replaces the keys that discovery states for the nodes at these addresses.
    pub(crate) fn handle_keys(&mut self, listed: BTreeSet<(SocketAddr, PublicKey)>) {
        self.listed = listed;
    }

    /// Returns the key of a node that has described itself over a link, or the reason to refuse it.
    pub(super) fn identify(
        &self,
        link: &Link,
        hello: &Hello,
        proven: Option<PublicKey>,
    ) -> Result<Option<PublicKey>, Refusal> {
        let said = hello.key();
        let key = if link.transport == TransportKind::Shm { said } else { proven };
        if said != key {
            return Err(Refusal::Unproven);
        }
        if link.addresses().any(|address| self.is_listed_otherwise(address, key)) {
            return Err(Refusal::Place);
        }
        let is_namesake = hello.name == self.name && key != self.key;
        let is_pinned = self.is_pinned_otherwise(&hello.name, key);
        let is_double = self.peers.get(&hello.id).is_some_and(|peer| peer.key != key);
        match is_namesake || is_pinned || is_double {
            true => Err(Refusal::Name),
            false => Ok(key),
        }
    }

    fn is_pinned_otherwise(&self, name: &str, key: Option<PublicKey>) -> bool {
        self.pins.get(name).is_some_and(|pin| Some(*pin) != key)
    }

    fn is_listed_otherwise(&self, address: SocketAddr, key: Option<PublicKey>) -> bool {
        let all = (address, PublicKey::new([0; 32]))..=(address, PublicKey::new([255; 32]));
        let mut keys = self.listed.range(all).map(|(_, key)| *key).peekable();
        keys.peek().is_some() && !keys.any(|listed| Some(listed) == key)
    }

    /// Refuses the peer of a link: sends it the reason, and ends the link.
    pub(super) fn refuse(&mut self, now: Instant, number: u64, name: String, why: Refusal) {
        let Some(link) = self.links.get_mut(&number).filter(|link| !link.is_ending) else { return };
        if link.refused.is_some() {
            return;
        }
        link.refused = Some((why, now.plus_nanos(REFUSED)));
        if let Some(target) = link.target {
            self.on_stranger(target, Stranger::Key(name, why));
        }
        self.effects.extend([Effect::Describe(number), Effect::Wake]);
    }

    /// Handles a peer that refuses this node.
    pub(super) fn on_notice(&mut self, now: Instant, number: u64, by: String, why: Refusal) {
        if let Some(target) = self.links.get(&number).and_then(|link| link.target) {
            self.on_stranger(target, Stranger::Refuses(by.clone(), why));
        }
        // A node of the same name is not impartial: its refusal counts for its own place only.
        if by != self.name {
            self.notice = Some(Notice { by, why, until: now.plus_nanos(REMEMBERED) });
        }
        self.effects.push_back(Effect::Wake);
        self.end(number);
    }

    /// Uses a new node, or holds it while its name belongs to another key.
    pub(super) fn admit(&mut self, now: Instant, id: u64) {
        let Some(peer) = self.peers.get(&id).filter(|peer| !peer.is_leaving) else { return };
        let (name, key, is_kept) = (peer.name.clone(), peer.key, peer.is_kept);
        let is_other = |other: &Peer| other.name == name && other.key != key;
        let has_name =
            |other: &Peer| is_other(other) && !other.is_leaving && other.held_by.is_none();
        let holder = self.peers.iter().find(|(_, other)| has_name(other)).map(|(id, _)| *id);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.held_by = holder;
        }
        if let Some(holder) = holder {
            // The name may have been pinned to another node's key while this node waited for it.
            return match self.is_pinned_otherwise(&name, key) {
                true => self.refuse_peer(now, id),
                false => self.challenge(now, holder),
            };
        }
        // The node that had the name before leaves, or was refused: none of its further streams is accepted.
        self.peers.values_mut().filter(|other| is_other(other)).for_each(|other| {
            other.held_by = Some(id);
        });
        if let Some(key) = key.filter(|_| is_kept)
            && (self.pins.len() < MAX_PINS || self.pins.contains_key(&name))
        {
            self.pins.insert(name, key);
        }
        self.on_namesake(now, id);
    }

    /// Requests a sign of life from the node that has a name: its acknowledgement of a description.
    pub(super) fn challenge(&mut self, now: Instant, holder: u64) {
        if let Some(peer) = self.peers.get_mut(&holder)
            && peer.challenge.is_none()
        {
            peer.challenge = Some(now.plus_nanos(TRIAL));
            self.effects.extend(peer.links.iter().copied().map(Effect::Describe));
        }
    }

    /// Decides about the nodes whose sign of life is overdue.
    pub(super) fn judge_holders(&mut self, now: Instant, load: impl Fn(u64) -> Load) {
        let is_over = |peer: &Peer| peer.challenge.is_some_and(|at| at <= now);
        let over: Vec<_> =
            self.peers.iter().filter(|(_, peer)| is_over(peer)).map(|(id, _)| *id).collect();
        for id in over {
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            peer.challenge = None;
            let is_silent = peer.links.iter().all(|number| load(*number).is_suspected);
            if is_silent {
                self.replace(now, id);
            } else {
                let is_held = |peer: &Peer| peer.held_by == Some(id) && !peer.is_leaving;
                let held = self.peers.iter().filter(|(_, peer)| is_held(peer)).map(|(id, _)| *id);
                held.collect::<Vec<_>>().into_iter().for_each(|held| self.refuse_peer(now, held));
            }
            self.effects.push_back(Effect::Wake);
        }
    }

    /// Refuses a node whose name belongs to another key, over all of its links.
    fn refuse_peer(&mut self, now: Instant, id: u64) {
        let Some(peer) = self.peers.get(&id) else { return };
        let (name, links) = (peer.name.clone(), peer.links.clone());
        links.into_iter().for_each(|link| self.refuse(now, link, name.clone(), Refusal::Name));
    }

    /// Handles a node that leaves or has ended: the first waiting node that was not refused gets its name.
    pub(super) fn release(&mut self, now: Instant, holder: u64) {
        let is_refused = |number: &u64| self.links.get(number).is_none_or(Link::is_refused);
        let waits =
            |peer: &Peer| peer.held_by == Some(holder) && !peer.links.iter().all(is_refused);
        let waiting = self.peers.iter().filter(|(_, peer)| waits(peer));
        let mut waiting: Vec<_> = waiting.map(|(id, peer)| (peer.since, *id)).collect();
        waiting.sort_unstable();
        waiting.into_iter().for_each(|(_, id)| self.admit(now, id));
    }

    /// Returns the reason why the peer of a link is refused.
    pub(crate) fn refusal_of(&self, link: u64) -> u8 {
        let refused = self.links.get(&link).and_then(|link| link.refused);
        refused.map_or(0, |(why, _)| why.number())
    }

    /// Returns the name of a node that has recently refused this one, and the reason.
    pub(crate) fn notice(&self, now: Instant) -> Option<(&str, Refusal)> {
        let notice = self.notice.as_ref().filter(|notice| notice.until > now)?;
        Some((&notice.by, notice.why))
    }
}
