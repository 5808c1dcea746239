//! Nodes with one name: chooses which of them is used.

use midplane_simhw::seal::PublicKey;
use midplane_simhw::time::Instant;
use midplane_via::session::TransportKind;

use super::peer::Peer;
use super::{Effect, Load, Members, TRIAL};

impl Members {
    /// Returns the nodes with this name and key that accept streams, in the order of their starts.
    fn namesakes(&self, name: &str, key: Option<PublicKey>) -> Vec<u64> {
        let is_one = |peer: &Peer| {
            peer.name == name && peer.key == key && !peer.is_leaving && peer.held_by.is_none()
        };
        let all = self.peers.iter().filter(|(_, peer)| is_one(peer));
        let mut all: Vec<_> = all.map(|(id, peer)| (peer.incarnation, *id)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// Handles a new node: if other nodes have its name, tests the one that started first.
    pub(super) fn on_namesake(&mut self, now: Instant, id: u64) {
        let Some(peer) = self.peers.get(&id) else { return };
        let all = self.namesakes(&peer.name, peer.key);
        let Some((&first, later)) = all.split_first().filter(|(_, later)| !later.is_empty()) else {
            return;
        };
        // An address belongs to one process: the node that had it before has ended.
        let has_address = |transport: &TransportKind| transport.address().is_some();
        let places: Vec<_> = self.transports(id).filter(has_address).collect();
        let gone: Vec<_> = all
            .iter()
            .filter(|other| **other != id)
            .filter(|other| self.transports(**other).any(|transport| places.contains(&transport)))
            .copied()
            .collect();
        if !gone.is_empty() {
            return gone.into_iter().for_each(|other| self.replace(now, other));
        }
        if first == id {
            // The first node has just described itself, so it is alive.
            return later.iter().copied().for_each(|other| self.set_rival(other, first));
        }
        let links = self.peers[&first].links.clone();
        if let Some(peer) = self.peers.get_mut(&first) {
            peer.trial.get_or_insert_with(|| now.plus_nanos(TRIAL));
        }
        // A living node acknowledges the description; over UDP, silence makes it suspected.
        self.effects.extend(links.into_iter().map(Effect::Describe));
    }

    fn transports(&self, id: u64) -> impl Iterator<Item = TransportKind> {
        let links = self.peers.get(&id).map(|peer| peer.links.as_slice()).unwrap_or_default();
        links.iter().filter_map(|number| self.links.get(number)).map(|link| link.transport)
    }

    /// Replaces a node by another one with its name: ends its links.
    pub(super) fn replace(&mut self, now: Instant, id: u64) {
        let links = self.peers.get(&id).map(|peer| peer.links.clone()).unwrap_or_default();
        links.into_iter().for_each(|number| self.end(number));
        if let Some(peer) = self.peers.get_mut(&id) {
            (peer.is_leaving, peer.trial, peer.challenge) = (true, None, None);
        }
        self.on_departure(now, id);
    }

    /// Decides the trials that are over.
    pub(super) fn judge(&mut self, now: Instant, load: impl Fn(u64) -> Load) {
        let is_over = |peer: &Peer| peer.trial.is_some_and(|at| at <= now);
        let over: Vec<_> =
            self.peers.iter().filter(|(_, peer)| is_over(peer)).map(|(id, _)| *id).collect();
        for id in over {
            let is_silent = self.peers[&id].links.iter().all(|number| load(*number).is_suspected);
            if is_silent {
                self.replace(now, id);
            } else {
                self.on_sign_of_life(id);
            }
            self.effects.push_back(Effect::Wake);
        }
    }

    /// Handles a sign of life: if the node was tested, the later ones with its name are not used.
    pub(super) fn on_sign_of_life(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.trial.take().is_none() {
            return;
        }
        let (name, key) = (peer.name.clone(), peer.key);
        let later = self.namesakes(&name, key).into_iter().filter(|other| *other != id);
        later.collect::<Vec<_>>().into_iter().for_each(|other| self.set_rival(other, id));
    }

    fn set_rival(&mut self, id: u64, rival: u64) {
        if let Some(peer) = self.peers.get_mut(&id) {
            (peer.rival, peer.trial) = (Some(rival), None);
            self.effects.extend(peer.links.iter().copied().map(Effect::Describe));
        }
    }

    /// Handles a node that leaves or has ended: nodes that were not used because of it are used again.
    pub(super) fn on_departure(&mut self, now: Instant, id: u64) {
        let mut freed = None;
        for peer in self.peers.values_mut().filter(|peer| peer.rival == Some(id)) {
            peer.rival = None;
            self.effects.extend(peer.links.iter().copied().map(Effect::Describe));
            freed = Some((peer.name.clone(), peer.key));
        }
        if let Some((name, key)) = freed
            && let Some(last) = self.namesakes(&name, key).pop()
        {
            // The first of several is tested, and then used.
            self.on_namesake(now, last);
        }
        self.release(now, id);
    }

    /// Returns the living node that had the name of a link's peer before it; 0 if there is none.
    pub(crate) fn rival_of(&self, link: u64) -> u64 {
        let peer = self.links.get(&link).and_then(|link| self.peers.get(&link.peer?));
        peer.and_then(|peer| peer.rival).unwrap_or(0)
    }

    /// Returns another living node that had this one's name before it, and the name of the peer that reports it. A node
    /// with a key of its own believes no report.
    pub(crate) fn rival(&self) -> Option<(u64, Option<&str>)> {
        let is_first = |(id, peer): &(&u64, &Peer)| {
            let is_before = (peer.incarnation, **id) < (self.incarnation, self.id);
            peer.name == self.name && !peer.is_leaving && is_before
        };
        if let Some((id, _)) = self.peers.iter().find(is_first) {
            return Some((*id, None));
        }
        // A rival of a node with a key of its own would have the same key: a peer's word is no proof of that.
        if self.key.is_some() {
            return None;
        }
        let mut links = self.links.values().filter(|link| ![0, self.id].contains(&link.rival));
        links.find_map(|link| Some((link.rival, Some(&*self.peers.get(&link.peer?)?.name))))
    }
}
