//! Simulates a network of nodes in virtual time, without datagrams: links are made, carry descriptions, and end.

mod checks;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use midplane_simhw::rng::Rng;
use midplane_simhw::seal::PublicKey;
use midplane_simhw::time::Instant;
use midplane_via::session::TransportKind;

use crate::member::{Effect, Hello, Load, Members, Target, VERSION};

pub(super) const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;
/// Nanoseconds between two discovery reports to nodes that search.
const DISCOVER: u64 = 400 * MILLI;
const NODES: u64 = 8;

#[derive(Clone, Debug)]
enum Event {
    Discover(u64),
    Timeout(u64),
    /// The dialer's next attempt, and its wait until the following one.
    Attempt {
        conn: u64,
        wait: u64,
    },
    Hello {
        conn: u64,
        end: usize,
        hello: Hello,
    },
    Goodbye {
        conn: u64,
        end: usize,
    },
    Ended {
        conn: u64,
        end: usize,
    },
    /// Checks that all nodes reach a node that joined, if no fault has occurred since fault `fault`.
    IsReached {
        node: u64,
        fault: u64,
    },
}

struct Node {
    host: u64,
    addresses: Vec<SocketAddr>,
    searches: bool,
    incarnation: Option<Incarnation>,
    timer: Option<u64>,
    /// The key that the node keeps over restarts, if it keeps one.
    kept: Option<[u8; 32]>,
    /// Times at which each incarnation dialed each place.
    dials: BTreeMap<(u64, Target), Vec<u64>>,
}

struct Incarnation {
    id: u64,
    since: u64,
    members: Members,
    hello: Hello,
}

/// A link between two incarnations; end 0 has dialed.
struct Conn {
    ends: [Option<u64>; 2],
    ids: [u64; 2],
    target: Target,
    dialed_at: u64,
    refused_at: Option<u64>,
    /// Time from which no frame passes.
    cut_at: Option<u64>,
    has_ended: [bool; 2],
    /// True if the node at that end has received the other one's description.
    is_described: [bool; 2],
    /// True if the node at that end is closing the link itself.
    is_closing: [bool; 2],
    /// Arrival time of the last frame at each end.
    last: [u64; 2],
    waiting: Vec<(usize, Hello)>,
}

pub(super) struct Network {
    pub(super) rng: Rng,
    now: u64,
    sequence: u64,
    events: BTreeMap<(u64, u64), Event>,
    /// True if nodes have keys of their own.
    is_keyed: bool,
    /// True if some incarnations claim the names of other nodes.
    has_thieves: bool,
    /// The keys of all incarnations, and the incarnations that leave.
    keys: BTreeMap<u64, [u8; 32]>,
    leaving: BTreeSet<u64>,
    /// For each incarnation and name: the incarnations and the key that it used last, and the first kept key that it
    /// has met.
    used: BTreeMap<(u64, String), (BTreeSet<u64>, [u8; 32])>,
    met: BTreeMap<(u64, String), [u8; 32]>,
    nodes: BTreeMap<u64, Node>,
    conns: BTreeMap<u64, Conn>,
    /// Hosts on the other side of a partition.
    apart: BTreeSet<u64>,
    faults: u64,
    healed_at: Option<u64>,
}

impl Network {
    pub(super) fn new(seed: u64, has_thieves: bool) -> Self {
        let mut rng = Rng::new(seed, "network");
        let is_keyed = rng.chance(0.7) || has_thieves;
        let count = rng.between(2, NODES);
        let nodes = (0..count).map(|node| {
            let address = |port| SocketAddr::from(([10, 0, 0, node as u8], port));
            let mut addresses = vec![address(1)];
            addresses.extend(rng.chance(0.3).then(|| address(2)));
            let searches = node == 0 || rng.chance(0.4);
            (
                node,
                Node {
                    host: node / 2,
                    addresses,
                    searches,
                    incarnation: None,
                    timer: None,
                    kept: rng.chance(0.5).then(|| random_key(&mut rng)),
                    dials: BTreeMap::new(),
                },
            )
        });
        let nodes = nodes.collect();
        let mut this = Self {
            rng,
            now: 0,
            sequence: 0,
            events: BTreeMap::new(),
            is_keyed,
            has_thieves,
            keys: BTreeMap::new(),
            leaving: BTreeSet::new(),
            used: BTreeMap::new(),
            met: BTreeMap::new(),
            nodes,
            conns: BTreeMap::new(),
            apart: BTreeSet::new(),
            faults: 0,
            healed_at: None,
        };
        for node in 0..count {
            this.after(node * MILLI, Event::Discover(node));
            if node == 0 || this.rng.chance(0.7) {
                this.join(node);
            }
        }
        this
    }

    fn after(&mut self, nanos: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + nanos, self.sequence), event);
    }

    fn delay(&mut self) -> u64 {
        self.rng.between(MILLI / 10, 20 * MILLI)
    }

    fn instant(&self) -> Instant {
        Instant::from_nanos(self.now + 1)
    }

    /// Makes one random fault happen.
    pub(super) fn fault(&mut self) {
        self.faults += 1;
        let count = self.nodes.len() as u64;
        let node = self.rng.below(count);
        match self.rng.below(6) {
            0 => self.heal(),
            1 => {
                self.heal();
                self.apart = (0..4).filter(|_| self.rng.chance(0.4)).collect();
                let now = self.now;
                for number in self.conns.keys().copied().collect::<Vec<_>>() {
                    if !self.is_open(number) {
                        self.conns.get_mut(&number).unwrap().cut_at = Some(now);
                        self.after(30 * SECOND, Event::Ended { conn: number, end: 0 });
                        self.after(30 * SECOND, Event::Ended { conn: number, end: 1 });
                    }
                }
            }
            _ if self.nodes[&node].incarnation.is_none() => self.join(node),
            2 => self.leave(node),
            3 => self.crash(node),
            _ => {
                self.crash(node);
                if self.rng.chance(0.5) {
                    let pause = self.rng.between(1, SECOND / 2);
                    self.run(pause);
                }
                self.join(node);
            }
        }
    }

    pub(super) fn heal(&mut self) {
        self.faults += 1;
        if !self.apart.is_empty() {
            self.healed_at = Some(self.now);
        }
        self.apart.clear();
        self.conns.values_mut().for_each(|conn| conn.cut_at = None);
        for number in self.conns.keys().copied().collect::<Vec<_>>() {
            let waiting = std::mem::take(&mut self.conns.get_mut(&number).unwrap().waiting);
            waiting.into_iter().for_each(|(end, hello)| self.send(number, end, hello));
            // Links to an incarnation that is gone end now.
            for end in 0..2 {
                let conn = &self.conns[&number];
                let is_over = conn.has_ended[1 - end] || !self.is_alive(conn.ids[1 - end]);
                if conn.ends[1].is_some() && is_over {
                    self.after(SECOND * 9 / 10, Event::Ended { conn: number, end });
                }
            }
        }
    }

    fn join(&mut self, node: u64) {
        let id = self.rng.next_u64() | 1;
        let cluster = if self.rng.chance(0.15) { "another" } else { "a" };
        let mut name = node;
        if self.has_thieves && self.rng.chance(0.3) {
            name = self.rng.below(self.nodes.len() as u64);
        }
        let kept = self.nodes[&node].kept.filter(|_| self.is_keyed);
        let fresh = random_key(&mut self.rng);
        let key = kept.unwrap_or(if self.is_keyed { fresh } else { [0; 32] });
        self.keys.insert(id, key);
        let hello = Hello {
            version: VERSION,
            cluster: cluster.into(),
            id,
            incarnation: self.now / MILLI,
            name: format!("node-{name}"),
            services: vec!["kv".into()],
            rival: 0,
            key,
            is_kept: kept.is_some(),
            refusal: 0,
            ofi: Vec::new(),
        };
        let members = Members::new(&hello, None);
        let incarnation = Incarnation { id, since: self.now, members, hello };
        let state = self.nodes.get_mut(&node).unwrap();
        (state.incarnation, state.timer) = (Some(incarnation), None);
        // After a partition, or while other nodes have just joined, reaching the node takes longer.
        if self.apart.is_empty() && self.healed_at.is_none_or(|at| self.now > at + 12 * SECOND) {
            let fault = self.faults;
            self.after(SECOND, Event::IsReached { node, fault });
        }
    }

    fn crash(&mut self, node: u64) {
        let id = self.nodes.get_mut(&node).unwrap().incarnation.take().unwrap().id;
        for number in self.conns.keys().copied().collect::<Vec<_>>() {
            let Some(end) = self.conns[&number].ids.iter().position(|end| *end == id) else {
                continue;
            };
            let is_shm = matches!(self.conns[&number].target, Target::Local(_));
            // The system reports a crash at once, a keepalive within its period, a partition not at all.
            let after = if is_shm { MILLI } else { self.rng.between(MILLI, SECOND * 7 / 10) };
            if self.is_open(number) && self.conns[&number].ends[1 - end].is_some() {
                self.after(after, Event::Ended { conn: number, end: 1 - end });
            }
        }
    }

    fn leave(&mut self, node: u64) {
        let id = self.nodes[&node].incarnation.as_ref().unwrap().id;
        self.leaving.insert(id);
        for number in self.conns.keys().copied().collect::<Vec<_>>() {
            if let Some(end) = self.conns[&number].ids.iter().position(|end| *end == id)
                && self.is_open(number)
            {
                let at = self.arrival(number, end);
                self.after(at, Event::Goodbye { conn: number, end: 1 - end });
            }
        }
        let pause = self.rng.below(SECOND / 2);
        self.run(pause);
        self.crash(node);
    }

    fn is_alive(&self, id: u64) -> bool {
        self.nodes
            .values()
            .filter_map(|node| node.incarnation.as_ref())
            .any(|incarnation| incarnation.id == id)
    }

    fn node_of(&self, id: u64) -> Option<u64> {
        let mut nodes = self.nodes.iter();
        nodes
            .find(|(_, node)| node.incarnation.as_ref().is_some_and(|l| l.id == id))
            .map(|(n, _)| *n)
    }

    /// Returns whether frames pass between two hosts.
    fn is_joined(&self, one: u64, other: u64) -> bool {
        one == other || self.apart.contains(&one) == self.apart.contains(&other)
    }

    fn is_open(&self, conn: u64) -> bool {
        let conn = &self.conns[&conn];
        let hosts = conn.ids.map(|id| self.node_of(id).map(|node| self.nodes[&node].host));
        conn.cut_at.is_none() && hosts[0].zip(hosts[1]).is_none_or(|(a, b)| self.is_joined(a, b))
    }

    fn arrival(&mut self, conn: u64, end: usize) -> u64 {
        let at = self.now + self.delay();
        let last = &mut self.conns.get_mut(&conn).unwrap().last[end];
        *last = at.max(*last + 1);
        *last - self.now
    }

    fn send(&mut self, number: u64, end: usize, hello: Hello) {
        let is_open = self.is_open(number);
        let conn = self.conns.get_mut(&number).unwrap();
        if conn.ends[1].is_none() || !is_open {
            return conn.waiting.push((end, hello));
        }
        let at = self.arrival(number, end);
        self.after(at, Event::Hello { conn: number, end: 1 - end, hello });
    }

    pub(super) fn run(&mut self, nanos: u64) {
        let until = self.now + nanos;
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= until
        {
            self.now = entry.key().0;
            let event = entry.remove();
            self.handle(event);
        }
        self.now = until;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Discover(node) => {
                self.discover(node);
                self.after(DISCOVER, Event::Discover(node));
            }
            Event::Timeout(node) if self.nodes[&node].timer == Some(self.now) => {
                self.nodes.get_mut(&node).unwrap().timer = None;
                let loads = self.loads(node);
                let load = |link: u64| loads.get(&link).copied().unwrap_or_default();
                self.with(node, |members, now| members.handle_timeout(now, load));
                let incarnation = self.nodes[&node].incarnation.as_ref();
                let next = incarnation
                    .and_then(|incarnation| incarnation.members.poll_timeout())
                    .map(Instant::as_nanos);
                assert!(next.is_none_or(|at| at > self.now), "all that is due is done");
            }
            Event::Timeout(_) => {}
            Event::Attempt { conn, wait } => self.attempt(conn, wait),
            Event::Hello { conn, end, hello } => {
                let Conn { ids, target, .. } = &self.conns[&conn];
                let key = self.keys[&ids[1 - end]];
                let is_proven = matches!(target, Target::Address(_)) && key != [0; 32];
                let proven = is_proven.then_some(PublicKey::new(key));
                self.conns.get_mut(&conn).unwrap().is_described[end] |= hello.refusal == 0;
                self.with_end(conn, end, |members, now, link| {
                    members.handle_hello(now, link, hello, proven);
                });
            }
            Event::Goodbye { conn, end } => self.with_end(conn, end, |members, now, link| {
                members.handle_goodbye(now, link);
            }),
            Event::Ended { conn, end } => self.ended(conn, end),
            Event::IsReached { node, fault } if fault == self.faults => self.is_reached(node),
            Event::IsReached { .. } => {}
        }
    }

    fn discover(&mut self, node: u64) {
        let Node { host, searches: true, incarnation: Some(incarnation), .. } = &self.nodes[&node]
        else {
            return;
        };
        let (host, cluster) = (*host, incarnation.hello.cluster.clone());
        let addresses = self.nodes.values().flat_map(|node| node.addresses.iter().copied());
        let mut places: BTreeSet<_> = addresses.map(Target::Address).collect();
        let here = self.nodes.values().filter(|node| node.host == host);
        let running = here.filter_map(|node| node.incarnation.as_ref());
        let running = running.filter(|incarnation| incarnation.hello.cluster == cluster);
        places.extend(running.map(|incarnation| Target::Local(incarnation.id)));
        self.with(node, |members, now| {
            members.handle_places(now, &places);
            members.seek(now, now.plus_nanos(SECOND));
        });
    }

    fn attempt(&mut self, number: u64, wait: u64) {
        let conn = &self.conns[&number];
        if conn.has_ended[0] || conn.ends[1].is_some() || !self.is_alive(conn.ids[0]) {
            return;
        }
        let serves = |node: &Node| match conn.target {
            Target::Local(id) => {
                node.incarnation.as_ref().is_some_and(|incarnation| incarnation.id == id)
            }
            Target::Address(address) => node.addresses.contains(&address),
        };
        let from = self.node_of(conn.ids[0]).unwrap();
        let Some((to, node)) = self.nodes.iter().find(|(_, node)| serves(node)) else {
            return self.after(0, Event::Ended { conn: number, end: 0 });
        };
        let (to, is_joined) = (*to, self.is_joined(self.nodes[&from].host, node.host));
        let give_up = conn.dialed_at + 10 * SECOND;
        let give_up = conn.refused_at.map_or(give_up, |at| give_up.min(at + SECOND * 3 / 2));
        let Some(id) =
            node.incarnation.as_ref().map(|incarnation| incarnation.id).filter(|_| is_joined)
        else {
            if is_joined {
                let now = self.now;
                self.conns.get_mut(&number).unwrap().refused_at.get_or_insert(now);
            }
            if self.now + wait >= give_up {
                let left = give_up.saturating_sub(self.now);
                return self.after(left, Event::Ended { conn: number, end: 0 });
            }
            return self.after(wait, Event::Attempt { conn: number, wait: (2 * wait).min(SECOND) });
        };
        let transport = match conn.target {
            Target::Local(_) => TransportKind::Shm,
            Target::Address(_) => TransportKind::Udp(self.nodes[&from].addresses[0]),
        };
        let conn = self.conns.get_mut(&number).unwrap();
        (conn.ends[1], conn.ids[1]) = (Some(number), id);
        let waiting = std::mem::take(&mut conn.waiting);
        self.with(to, |members, now| members.handle_accepted(now, number, transport));
        waiting.into_iter().for_each(|(end, hello)| self.send(number, end, hello));
    }

    fn ended(&mut self, number: u64, end: usize) {
        let conn = self.conns.get_mut(&number).unwrap();
        let is_partition = conn.cut_at.is_some_and(|at| self.now < at + 30 * SECOND);
        if (is_partition && !conn.is_closing[end])
            || std::mem::replace(&mut conn.has_ended[end], true)
        {
            return;
        }
        let id = conn.ids[end];
        if let Some(node) = self.node_of(id) {
            self.with(node, |members, now| drop(members.handle_ended(now, number)));
        }
    }

    /// Has a node handle an event, and carries out its effects.
    fn with(&mut self, node: u64, handle: impl FnOnce(&mut Members, Instant)) {
        let now = self.instant();
        let Some(incarnation) = &mut self.nodes.get_mut(&node).unwrap().incarnation else { return };
        handle(&mut incarnation.members, now);
        let id = incarnation.id;
        while let Some(effect) =
            self.nodes.get_mut(&node).unwrap().incarnation.as_mut().unwrap().members.poll_effect()
        {
            match effect {
                Effect::Dial(target) => self.dial(node, id, target),
                Effect::Describe(link) => {
                    let incarnation = self.nodes[&node].incarnation.as_ref().unwrap();
                    let (rival, refusal) =
                        (incarnation.members.rival_of(link), incarnation.members.refusal_of(link));
                    let hello = Hello { rival, refusal, ..incarnation.hello.clone() };
                    let end = usize::from(self.conns[&link].ids[0] != id);
                    self.send(link, end, hello);
                }
                Effect::End(link) => {
                    let end = usize::from(self.conns[&link].ids[0] != id);
                    self.conns.get_mut(&link).unwrap().is_closing[end] = true;
                    self.after(0, Event::Ended { conn: link, end });
                    let at = self.arrival(link, end);
                    if self.conns[&link].ends[1 - end].is_some() && self.is_open(link) {
                        self.after(at, Event::Ended { conn: link, end: 1 - end });
                    }
                }
                Effect::Wake => {}
            }
        }
        self.check_names(node);
        let members = &self.nodes[&node].incarnation.as_ref().unwrap().members;
        if let Some(at) = members.poll_timeout() {
            // Timers round up to a millisecond.
            let late = self.rng.below(1_000_000) * self.rng.below(2);
            let at = at.as_nanos().max(self.now) + late;
            let timer = &mut self.nodes.get_mut(&node).unwrap().timer;
            if timer.is_none_or(|timer| timer > at) {
                *timer = Some(at);
                self.after(at - self.now, Event::Timeout(node));
            }
        }
    }

    fn with_end(&mut self, conn: u64, end: usize, handle: impl FnOnce(&mut Members, Instant, u64)) {
        let state = &self.conns[&conn];
        if let Some(node) = self.node_of(state.ids[end]).filter(|_| !state.has_ended[end]) {
            self.with(node, |members, now| handle(members, now, conn));
        }
    }

    fn dial(&mut self, node: u64, id: u64, target: Target) {
        self.sequence += 1;
        let (number, now) = (self.sequence, self.now);
        self.nodes.get_mut(&node).unwrap().dials.entry((id, target)).or_default().push(now);
        let transport = match target {
            Target::Local(other) if !self.is_alive(other) => {
                return self.with(node, |members, now| members.handle_refused(now, target));
            }
            Target::Local(_) => TransportKind::Shm,
            Target::Address(address) => TransportKind::Udp(address),
        };
        let conn = Conn {
            ends: [Some(number), None],
            ids: [id, 0],
            target,
            dialed_at: now,
            refused_at: None,
            cut_at: None,
            has_ended: [false; 2],
            is_described: [false; 2],
            is_closing: [false; 2],
            last: [now; 2],
            waiting: Vec::new(),
        };
        self.conns.insert(number, conn);
        let delay = self.delay();
        self.after(delay, Event::Attempt { conn: number, wait: 100 * MILLI });
        self.with(node, |members, now| members.handle_dialed(now, target, number, transport));
    }

    /// Returns the loads of a node's links: links that were cut for a second are suspected.
    fn loads(&self, node: u64) -> BTreeMap<u64, Load> {
        let Some(incarnation) = &self.nodes[&node].incarnation else { return BTreeMap::new() };
        let load = |number: u64| {
            let conn = &self.conns[&number];
            let is_suspected = conn.cut_at.is_some_and(|at| self.now >= at + SECOND)
                || conn.ids.iter().any(|id| !self.is_alive(*id));
            (number, Load { streams: 0, is_suspected })
        };
        incarnation.members.links().map(load).collect()
    }
}

fn random_key(rng: &mut Rng) -> [u8; 32] {
    let mut key = [0; 32];
    rng.fill(&mut key);
    key
}
