//! Checks invariants of a network: at any time, and after faults have ended.

use std::collections::{BTreeMap, BTreeSet};

use super::{Incarnation, Network, SECOND};
use crate::member::{Hello, Load, Stranger, Target};

impl Network {
    /// Checks that a node that searches reports the places of live nodes of other clusters, and of no others that are
    /// alive.
    fn check_strangers(&self, number: u64, incarnation: &Incarnation) {
        for other in self.nodes.values() {
            let Some(Incarnation { hello, .. }) = &other.incarnation else { continue };
            let is_other = hello.cluster != incarnation.hello.cluster;
            let expected = is_other.then(|| Stranger::Cluster(hello.cluster.clone()));
            for address in &other.addresses {
                let found = incarnation.members.strangers().get(&Target::Address(*address));
                let found = found.filter(|found| matches!(found, Stranger::Cluster(_)));
                assert_eq!(found, expected.as_ref(), "node {number}, {address}");
            }
        }
    }

    /// Checks that all nodes that search have reached a node that joined a second ago.
    pub(super) fn is_reached(&self, node: u64) {
        let Some(Incarnation { id, hello, .. }) = &self.nodes[&node].incarnation else { return };
        let Hello { cluster, name, .. } = hello;
        for (other, searcher) in self.nodes.iter().filter(|(other, _)| **other != node) {
            if let Some(incarnation) = searcher.incarnation.as_ref().filter(|_| searcher.searches)
                && incarnation.hello.cluster == *cluster
                && incarnation.since + 3 * SECOND < self.now
                && !self.may_be_refused(incarnation, *id)
                && (!self.has_thieves
                    || self.met.get(&(incarnation.id, name.clone())) == Some(&hello.key))
            {
                let choices = incarnation.members.choices("kv", |_| Load::default());
                let is_used = choices.iter().any(|choice| choice.peer == *id);
                assert!(is_used, "node {other} has not reached {node}");
            }
        }
    }

    /// Checks that all nodes that search know exactly the live nodes of their cluster, over one link each, and the
    /// places of other clusters. No place was dialed more often than its back-off allows.
    pub(in super::super) fn check(&self) {
        for (number, node) in &self.nodes {
            for ((_, target), dials) in &node.dials {
                let most = dials.windows(20).map(|window| window[19] - window[0]).min();
                assert!(most.is_none_or(|most| most > 10 * SECOND), "{number} dials {target:?}");
            }
            let Some(incarnation) = &node.incarnation else { continue };
            let known: BTreeSet<_> = incarnation.members.peers().map(|(id, ..)| id).collect();
            let running = self.nodes.values().filter_map(|node| node.incarnation.as_ref());
            let others = running.filter(|other| other.hello.cluster == incarnation.hello.cluster);
            let others: BTreeSet<_> =
                others.map(|other| other.id).filter(|id| *id != incarnation.id).collect();
            assert!(known.is_subset(&others), "node {number} knows the dead");
            if node.searches && self.has_thieves {
                self.check_claims(*number, incarnation, &known);
            } else if node.searches {
                assert_eq!(known, others, "node {number} does not know all");
                let choices = incarnation.members.choices("kv", |_| Load::default());
                assert_eq!(choices.len(), others.len(), "node {number} uses all");
                assert!(choices.iter().all(|choice| !choice.rank.0));
                self.check_strangers(*number, incarnation);
            }
            // Nodes that were refused connect again and again.
            for (id, _, _, links) in incarnation.members.peers().filter(|_| !self.has_thieves) {
                assert_eq!(links.len(), 1, "node {number} has one link to {id}");
            }
        }
    }

    /// Returns whether a node may refuse another one: because the other one's name is or was claimed with another key.
    fn may_be_refused(&self, incarnation: &Incarnation, by: u64) -> bool {
        let Hello { name, key, .. } = &incarnation.hello;
        let others = self.nodes.values().filter_map(|node| node.incarnation.as_ref());
        let mut others =
            others.filter(|other| other.hello.name == *name && other.id != incarnation.id);
        others.any(|other| other.hello.key != *key)
            || self.met.get(&(by, name.clone())).is_some_and(|met| met != key)
    }

    fn name_of(&self, id: u64) -> Option<&str> {
        self.nodes[&self.node_of(id)?]
            .incarnation
            .as_ref()
            .map(|incarnation| &*incarnation.hello.name)
    }

    /// Checks that a node accepts streams of one key for each name, and opens none to another. It may change the key
    /// only if it has no session with the former node, or that node leaves or is silent; and never from the first kept
    /// key that it has met.
    pub(super) fn check_names(&mut self, node: u64) {
        let incarnation = self.nodes[&node].incarnation.as_ref().unwrap();
        let own = incarnation.id;
        let accepted =
            incarnation.members.links().filter_map(|link| incarnation.members.peer_of(link));
        let accepted: BTreeMap<u64, String> =
            accepted.map(|(id, name)| (id, name.to_owned())).collect();
        for choice in incarnation.members.choices("kv", |_| Load::default()) {
            let peer = incarnation.members.peer_of(choice.link);
            assert_eq!(peer, Some((choice.peer, &*accepted[&choice.peer])));
        }
        let mut now: BTreeMap<String, (BTreeSet<u64>, [u8; 32])> = BTreeMap::new();
        for (id, name) in accepted {
            let key = self.keys[&id];
            let (ids, used) = now.entry(name).or_insert((BTreeSet::new(), key));
            ids.insert(id);
            assert_eq!(*used, key, "node {node} uses two keys for one name");
        }
        for (name, (ids, key)) in now {
            if let Some((before, used)) = self.used.insert((own, name.clone()), (ids, key))
                && used != key
            {
                let is_had = before.iter().any(|before| self.has_session(own, *before));
                assert!(!is_had, "node {node}: {name} was stolen");
            }
            if self.nodes.values().any(|node| node.kept == Some(key)) {
                let met = self.met.entry((own, name.clone())).or_insert(key);
                assert_eq!(*met, key, "node {node}: {name} is pinned");
            } else {
                let met = self.met.get(&(own, name));
                assert_eq!(met, None, "node {node} uses a key that is not kept");
            }
        }
    }

    /// Returns whether a node has a session with another one that is alive, does not leave, and is not cut off.
    fn has_session(&self, own: u64, other: u64) -> bool {
        let is_connected = self.conns.iter().any(|(number, conn)| {
            // Without a description, the other node has no name yet.
            let is_described = conn.ids.iter().position(|id| *id == own);
            is_described.is_some_and(|end| conn.is_described[end] && conn.ids[1 - end] == other)
                && !conn.has_ended.contains(&true)
                && self.is_open(*number)
        });
        is_connected && self.is_alive(other) && !self.leaving.contains(&other)
    }

    /// Checks that a node that searches knows one live node for each name, unless the name is its own or is pinned to a
    /// key that no node has.
    fn check_claims(&self, number: u64, incarnation: &Incarnation, known: &BTreeSet<u64>) {
        let running = self.nodes.values().filter_map(|node| node.incarnation.as_ref());
        for other in running.filter(|other| other.hello.cluster == incarnation.hello.cluster) {
            let name = &other.hello.name;
            let met = self.met.get(&(incarnation.id, name.clone()));
            let may_be_used = met.is_none_or(|key| *key == other.hello.key);
            if self.may_be_refused(incarnation, other.id) {
                continue;
            }
            if may_be_used && *name != incarnation.hello.name {
                let is_known = known.iter().any(|id| self.name_of(*id) == Some(name));
                assert!(is_known, "node {number} knows no {name}");
            } else {
                assert!(!known.contains(&other.id), "node {number} knows {name} of another key");
            }
        }
    }
}
