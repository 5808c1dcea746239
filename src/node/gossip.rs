//! Gossip: nodes exchange their addresses, and the services that each offers, by the `chitchat` crate.
//!
//! A node needs to know only one other node: it requests all data that the other has. Gossip carries only addresses and
//! services. Sessions are dialed when a service is searched for, to the nodes that offer it.
//!
//! `chitchat` reconciles by Scuttlebutt (van Renesse et al., *Efficient reconciliation and flow control for
//! anti-entropy protocols*, 2008). It detects dead nodes by a phi accrual detector (Hayashibara et al., 2004). Its
//! messages travel in datagrams of the node's own socket: see [`midplane_via::wire::gossip`].

mod carrier;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chitchat::{Chitchat, ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig};
use midplane_simhw::lock::lock;
use midplane_via::session::Gossip as Datagrams;
use midplane_via::wire::gossip::Counters;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::host::{milliseconds, random};
use super::places::{Places, reachable};
use super::state::Shared;
use carrier::Carrier;

/// Period in which a node gossips with three others: 500 ms.
const PERIOD: Duration = Duration::from_millis(500);
/// Number of nodes to which a change is sent at once.
const FANOUT: usize = 3;
/// Rounds between two resolutions of the seeds, once another node is known: half a minute.
const RESOLVE: u32 = 60;
/// Time for which a new node is listed until enough of its heartbeats were received to judge it: 5 s.
const YOUNG: Duration = Duration::from_secs(5);
/// Time for which nodes gossip about a dead one: 1 min. It also bounds how long a partition may last if no seed
/// connects its sides.
const GRACE: Duration = Duration::from_secs(60);

/// The nodes that gossip lists.
#[derive(Debug, Default)]
pub(super) struct Gossip(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The services of each node, by its address.
    nodes: BTreeMap<SocketAddr, BTreeSet<String>>,
    /// Services that are searched for, and until when.
    wanted: BTreeMap<String, Instant>,
}

impl Gossip {
    /// Searches for a service for a while. Returns the addresses that a node at `own` dials for all its searches: those
    /// of the nodes that offer one of the services.
    pub(super) fn search(
        &self,
        service: &str,
        time: Duration,
        own: Option<SocketAddr>,
    ) -> BTreeSet<SocketAddr> {
        let now = Instant::now();
        let mut known = lock(&self.0);
        known.wanted.retain(|_, until| *until > now);
        known.wanted.insert(service.to_owned(), now + time);
        let Known { nodes, wanted } = &*known;
        let offering = nodes.iter().filter(|(_, offered)| {
            let mut offered = offered.iter();
            offered.any(|service| wanted.contains_key(service))
        });
        offering.filter_map(|(address, _)| reachable(&[*address], own).ok()).flatten().collect()
    }

    /// Returns the addresses of the other nodes that gossip lists.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        lock(&self.0).nodes.keys().copied().collect()
    }
}

/// State of a node's gossip.
pub(super) struct Gossiper {
    pub(super) gossip: Arc<Gossip>,
    pub(super) datagrams: Datagrams,
    pub(super) shared: Arc<Shared>,
    pub(super) places: Arc<Places>,
    pub(super) cluster: String,
    /// The address that the node is bound to.
    pub(super) bound: SocketAddr,
}

/// A run of `chitchat`, and the nodes that it has reported.
struct Round {
    chitchat: ChitchatHandle,
    carrier: Carrier,
    own: SocketAddr,
    offered: BTreeSet<String>,
    /// When gossip first reported each node.
    heard: BTreeMap<ChitchatId, Instant>,
    seeds: BTreeSet<SocketAddr>,
    number: u32,
}

impl Gossiper {
    /// Gossips until the node ends.
    pub(super) async fn run(self) {
        let mut own = self.own_address().await;
        let mut counted = Counters::default();
        loop {
            match self.gossip(own, &mut counted).await {
                Ok(moved_to) => own = moved_to,
                Err(error) => tracing::warn!(%error, "gossip starts anew"),
            }
            lock(&self.gossip.0).nodes.clear();
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Returns the address at which other nodes reach this one. If the node is bound to all addresses of its host, that
    /// is the one from which the system sends to a seed, or to a node that has sent a datagram.
    async fn own_address(&self) -> SocketAddr {
        if !self.bound.ip().is_unspecified() {
            return canonical(self.bound);
        }
        loop {
            self.datagrams.set_time();
            let mut others = self.places.addresses(&self.shared, Some(self.bound)).await.addresses;
            let receiving = std::future::poll_fn(|context| self.datagrams.poll_receive(context));
            others.extend(timeout(PERIOD, receiving).await.ok().map(|(from, _)| from));
            let routes = others.iter().filter_map(|other| route(self.bound, *other));
            if let Some(own) = routes.min_by_key(|own| own.ip().is_loopback()) {
                tracing::debug!(%own, "other nodes are told this address");
                return own;
            }
        }
    }

    /// Gossips until `chitchat` ends, or this node's address changes; returns its present address.
    async fn gossip(&self, own: SocketAddr, counted: &mut Counters) -> Result<SocketAddr, String> {
        let failed = |error| format!("{error:#}");
        let carrier = Carrier::new(self.datagrams.clone(), self.bound);
        let services = self.shared.offered();
        let values = services.iter().map(|service| (service.clone(), String::new())).collect();
        let chitchat = chitchat::spawn_chitchat(self.config(own), values, &carrier).await;
        let chitchat = chitchat.map_err(failed)?;
        carrier.watch(chitchat.chitchat());
        let ended = chitchat.termination_watcher();
        let mut ended = std::pin::pin!(ended);
        let mut round = Round {
            chitchat,
            carrier,
            own,
            offered: services,
            heard: BTreeMap::new(),
            seeds: BTreeSet::new(),
            number: 0,
        };
        let mut period = interval(PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let changed = self.shared.changed.notified();
            let is_due = tokio::select! {
                ended = &mut ended => return ended.map(|()| own).map_err(failed),
                _ = period.tick() => true,
                () = changed => false,
            };
            self.announce(&mut round).await;
            if is_due {
                self.datagrams.set_time();
                self.review(&mut round).await;
                let moved_to = self.seek(&mut round).await;
                *counted = self.report(*counted);
                if let Some(moved_to) = moved_to {
                    tracing::debug!(%moved_to, "other nodes are told a new address");
                    let _ = round.chitchat.shutdown().await;
                    return Ok(moved_to);
                }
            }
        }
    }

    fn config(&self, own: SocketAddr) -> ChitchatConfig {
        // A node is considered dead after 8 times its mean interval, which starts with five assumed intervals of 1 s.
        let failure_detector_config = FailureDetectorConfig {
            phi_threshold: 8.0,
            sampling_window_size: 100,
            max_interval: Duration::from_secs(10),
            initial_interval: Duration::from_secs(1),
            dead_node_grace_period: GRACE,
        };
        // Both numbers are drawn anew with each start of the node, and the second one with each start of `chitchat`, so
        // that a node is not mistaken for its former incarnation.
        let id = self.shared.id();
        ChitchatConfig {
            chitchat_id: ChitchatId {
                node_id: format!("{id:016x}").into(),
                generation_id: milliseconds(),
                gossip_advertise_addr: own,
            },
            cluster_id: self.cluster.clone(),
            gossip_interval: PERIOD,
            listen_addr: own,
            // `seek` gossips with the seeds at their present addresses.
            seed_nodes: Vec::new(),
            failure_detector_config,
            marked_for_deletion_grace_period: GRACE,
            catchup_callback: None,
            extra_liveness_predicate: None,
        }
    }

    /// Announces services that are offered since the last call, or no longer offered.
    async fn announce(&self, round: &mut Round) {
        let services = self.shared.offered();
        if services == round.offered {
            return;
        }
        let change = |chitchat: &mut Chitchat| {
            let state = chitchat.self_node_state();
            round.offered.difference(&services).for_each(|service| state.delete(service));
            services.difference(&round.offered).for_each(|service| state.set(service, ""));
        };
        round.chitchat.with_chitchat(change).await;
        round.offered = services;
        let known = self.gossip.addresses();
        gossip_with(&round.chitchat, &known);
    }

    /// Updates the list of nodes: those that `chitchat` considers live now, and new ones. While messages are dropped, the
    /// former nodes stay.
    async fn review(&self, round: &mut Round) {
        let (now, heard) = (Instant::now(), &mut round.heard);
        let own = format!("{:016x}", self.shared.id());
        let nodes = round.chitchat.with_chitchat(|chitchat| {
            let live: BTreeSet<_> = chitchat.live_nodes().collect();
            heard.retain(|id, _| chitchat.node_state(id).is_some());
            let mut nodes: BTreeMap<SocketAddr, BTreeSet<String>> = BTreeMap::new();
            for (id, state) in chitchat.node_states() {
                let since = *heard.entry(id.clone()).or_insert(now);
                let is_named = live.contains(id) || now < since + YOUNG;
                // A former run of this node, at another address, is no other node.
                let is_other = *id.node_id != *own && id.gossip_advertise_addr != round.own;
                if is_named && is_other {
                    let services = state.key_values().map(|(service, _)| service.to_owned());
                    nodes.entry(id.gossip_advertise_addr).or_default().extend(services);
                }
            }
            nodes
        });
        let mut nodes = nodes.await;
        let mut known = lock(&self.gossip.0);
        if round.carrier.is_dropping() {
            nodes.append(&mut known.nodes);
        }
        known.nodes = nodes;
    }

    /// Gossips with seeds that are not known to live. Returns this node's new address, if the system sends to the seeds
    /// from another one than before.
    async fn seek(&self, round: &mut Round) -> Option<SocketAddr> {
        let known = self.gossip.addresses();
        let (is_due, mut moved_to) = (round.number.is_multiple_of(RESOLVE), None);
        if known.is_empty() || is_due {
            let seeds = self.places.addresses(&self.shared, Some(self.bound)).await.addresses;
            if self.bound.ip().is_unspecified() && (is_due || round.own.ip().is_loopback()) {
                let routes = seeds.iter().filter_map(|seed| route(self.bound, *seed));
                moved_to = moved(round.own, routes);
            }
            round.seeds = seeds.into_iter().map(canonical).collect();
            round.seeds.remove(&round.own);
        }
        round.number = round.number.wrapping_add(1);
        let unknown = round.seeds.iter().filter(|seed| !known.contains(seed));
        gossip_with(&round.chitchat, &unknown.copied().collect::<Vec<_>>());
        moved_to
    }

    /// Reports the counts since the last call.
    fn report(&self, before: Counters) -> Counters {
        let now = self.datagrams.counters();
        if now.skewed > 0 && before.skewed == 0 {
            tracing::warn!(
                "gossip of a host is refused, as its clock differs by more than a minute: set the clocks"
            );
        }
        self.shared.meter.on_gossip(&now, &before, lock(&self.gossip.0).nodes.len());
        now
    }
}

/// Gossips with some of these nodes, chosen at random.
fn gossip_with(chitchat: &ChitchatHandle, addresses: &[SocketAddr]) {
    let from = random().unwrap_or(0) as usize % addresses.len().max(1);
    for address in addresses.iter().cycle().skip(from).take(FANOUT.min(addresses.len())) {
        // An error means that `chitchat` has ended, which its watcher reports.
        let _ = chitchat.gossip(*address);
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns the address from which the system sends to another node.
fn route(bound: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
    let socket = UdpSocket::bind(SocketAddr::new(bound.ip(), 0)).ok()?;
    // Nothing is sent.
    socket.connect(to).ok()?;
    let own = canonical(SocketAddr::new(socket.local_addr().ok()?.ip(), bound.port()));
    (!own.ip().is_unspecified()).then_some(own)
}

/// Returns the address that a node at `own` advertises instead: the first of the `routes` to its seeds that is not
/// loopback. `None` if `own` is one of these, or there is none.
fn moved(own: SocketAddr, routes: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
    let routes: Vec<_> = routes.filter(|route| !route.ip().is_loopback()).collect();
    routes.first().filter(|_| !routes.contains(&own)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_advertises_another_address_once_its_seeds_are_reached_from_one() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let moved_to = |own: &str, routes: &[&str]| {
            moved(address(own), routes.iter().map(|route| address(route)))
        };
        // At first the only seed with an address is the node's own name, which the host resolves to loopback.
        assert_eq!(moved_to("127.0.0.1:1", &["127.0.0.1:1"]), None);
        let (open, new) = ("10.0.0.1:1", "10.0.0.2:1");
        assert_eq!(moved_to("127.0.0.1:1", &["127.0.0.1:1", open]), Some(address(open)));
        assert_eq!(moved_to(open, &[new, "127.0.0.1:1", open]), None);
        assert_eq!(moved_to(open, &["127.0.0.1:1", new]), Some(address(new)));
        assert_eq!(moved_to(open, &["127.0.0.1:1"]), None);
        assert_eq!(moved_to(open, &[]), None);
    }
}
