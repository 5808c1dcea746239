//! Links and their witness over channels like those of control messages: in order and reliable,
//! until a peer restarts or is declared dead. Every node has a clock of its own.

mod alone;
mod mishaps;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use midplane_simhw::id::Incarnation;
use midplane_simhw::rng::Rng;
use midplane_simhw::time::Instant;
use proptest::prelude::*;

use super::link::{Link, LinkSetup};
use super::member::{Parties, Party};
use super::message::{Body, Epoch, Grant};
use super::witness::Witness;

const LEASE_NS: u64 = 10_000_000;
const REQUEST_TIMEOUT_NS: u64 = 20_000_000;
const DEAD_NS: u64 = 6_000_000;
const HOLD_NS: u64 = 200_000;
const STEP_NS: u64 = 25_000;

/// A node's clock: `offset` ns ahead of true time, and faster by `ppm` millionths.
#[derive(Clone, Copy, Debug)]
struct Clock {
    offset: u64,
    ppm: u64,
}

impl Clock {
    fn at(self, t: u64) -> Instant {
        Instant::from_nanos(self.offset + t + t / 1_000_000 * self.ppm)
    }
}

#[derive(Debug)]
enum Role {
    Sender(Box<Link>),
    Witness(Witness),
    Down,
}

#[derive(Debug)]
struct Node {
    party: Party,
    role: Role,
    clock: Clock,
    incarnation: u32,
    /// When it stops sending, in true time.
    sending: Option<u64>,
    /// Turns that it still wants.
    wanted: u32,
    turns: u32,
    waiting_since: Option<u64>,
    /// The incarnation of each node that it knows of; 0 for none.
    known: Vec<u32>,
}

#[derive(Debug)]
struct InFlight {
    at: u64,
    sent: u64,
    incarnations: (u32, u32),
    clock: u64,
    body: Body,
}

struct Net {
    nodes: Vec<Node>,
    channels: BTreeMap<(usize, usize), VecDeque<InFlight>>,
    cuts: BTreeSet<(usize, usize)>,
    t: u64,
    rng: Rng,
    seed: u64,
    genesis: bool,
    slowest_ns: u64,
    messages: u64,
    to_witness: u64,
}

impl Net {
    fn new(seed: u64, senders: usize, genesis: bool) -> Self {
        let mut rng = Rng::new(seed, "net");
        let nodes = (0..=senders).map(|at| {
            let party = if at == senders { Party::WITNESS } else { Party(at as u8) };
            let clock = Clock { offset: rng.below(1 << 40), ppm: rng.below(100) };
            Node {
                party,
                role: Role::Down,
                clock,
                incarnation: 1,
                sending: None,
                wanted: 0,
                turns: 0,
                waiting_since: None,
                known: Vec::new(),
            }
        });
        let nodes: Vec<Node> = nodes.collect();
        let mut net = Self {
            nodes,
            channels: BTreeMap::new(),
            cuts: BTreeSet::new(),
            t: 0,
            rng,
            seed,
            genesis,
            slowest_ns: 60_000,
            messages: 0,
            to_witness: 0,
        };
        for at in 0..=senders {
            net.boot(at);
        }
        net
    }

    fn senders(&self) -> usize {
        self.nodes.len() - 1
    }

    fn boot(&mut self, at: usize) {
        let senders = self.senders();
        let node = &mut self.nodes[at];
        let now = node.clock.at(self.t);
        let genesis = self.genesis && node.incarnation == 1;
        node.known = vec![0; senders + 1];
        let quiet_until = if genesis { now } else { now.plus_nanos(LEASE_NS) };
        node.role = if node.party == Party::WITNESS {
            let incarnation = Incarnation(node.incarnation);
            Role::Witness(Witness::new(senders, LEASE_NS, incarnation, genesis, quiet_until))
        } else {
            Role::Sender(Box::new(Link::new(LinkSetup {
                me: node.party,
                senders,
                lease_ns: LEASE_NS,
                request_timeout_ns: REQUEST_TIMEOUT_NS,
                genesis,
                quiet_until,
            })))
        };
    }

    fn crash(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.role = Role::Down;
        node.sending = None;
        node.waiting_since = None;
    }

    /// Makes a sender leave in order, and stops it.
    fn leave(&mut self, at: usize) {
        let now = self.nodes[at].clock.at(self.t);
        if let Role::Sender(link) = &mut self.nodes[at].role {
            link.leave(now);
            self.collect();
        }
        self.crash(at);
    }

    fn restart(&mut self, at: usize) {
        if !matches!(self.nodes[at].role, Role::Down) {
            return;
        }
        self.nodes[at].incarnation += 1;
        self.boot(at);
        // Nodes with messages under way to the former incarnation learn of the new one.
        let senders: Vec<usize> = (0..self.nodes.len())
            .filter(|from| *from != at && !self.is_cut(*from, at))
            .filter(|from| self.channels.get(&(*from, at)).is_some_and(|queue| !queue.is_empty()))
            .collect();
        for from in senders {
            self.channels.remove(&(from, at));
            self.learn_incarnation(from, at);
        }
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cuts.contains(&(a.min(b), a.max(b)))
    }

    fn lose(&mut self, node: usize, peer: usize, restarted: bool) {
        let party = self.nodes[peer].party;
        let now = self.nodes[node].clock.at(self.t);
        match &mut self.nodes[node].role {
            Role::Sender(link) => link.on_lost(now, party, restarted),
            Role::Witness(witness) if restarted => witness.on_restarted(party),
            Role::Witness(_) | Role::Down => {}
        }
    }

    /// Lets a node learn a peer's present incarnation.
    fn learn_incarnation(&mut self, node: usize, peer: usize) {
        let incarnation = self.nodes[peer].incarnation;
        let known = std::mem::replace(&mut self.nodes[node].known[peer], incarnation);
        if known == incarnation {
            return;
        }
        if known > 0 {
            self.lose(node, peer, true);
        }
        let now = self.nodes[node].clock.at(self.t);
        let is_witness = self.nodes[peer].party == Party::WITNESS;
        if let (Role::Sender(link), true) = (&mut self.nodes[node].role, is_witness) {
            link.on_witness(now, Incarnation(incarnation));
        }
    }

    fn place(&self, party: Party) -> usize {
        if party == Party::WITNESS { self.senders() } else { usize::from(party.0) }
    }

    /// Collects the nodes' messages into the channels.
    fn collect(&mut self) {
        for from in 0..self.nodes.len() {
            loop {
                let out = match &mut self.nodes[from].role {
                    Role::Sender(link) => link.poll_send(),
                    Role::Witness(witness) => witness.poll_send(),
                    Role::Down => None,
                };
                let Some((party, body)) = out else { break };
                let to = self.place(party);
                self.messages += 1;
                self.to_witness += u64::from(party == Party::WITNESS || from == self.senders());
                let delay = self.rng.between(5_000, self.slowest_ns);
                let clock = self.nodes[from].clock.at(self.t).as_nanos();
                let incarnations = (self.nodes[from].incarnation, self.nodes[to].incarnation);
                let queue = self.channels.entry((from, to)).or_default();
                let at = queue.back().map_or(0, |last| last.at).max(self.t + delay);
                queue.push_back(InFlight { at, sent: self.t, incarnations, clock, body });
            }
        }
    }

    fn deliver(&mut self) {
        let pairs: Vec<(usize, usize)> = self.channels.keys().copied().collect();
        for (from, to) in pairs {
            loop {
                let blocked = self.is_cut(from, to) || matches!(self.nodes[to].role, Role::Down);
                let queue = self.channels.get_mut(&(from, to)).expect("just listed");
                let Some(first) = queue.front() else { break };
                if blocked {
                    if self.t >= first.sent + DEAD_NS {
                        queue.clear();
                        if !matches!(self.nodes[from].role, Role::Down) {
                            self.lose(from, to, false);
                        }
                    }
                    break;
                }
                if first.at > self.t {
                    break;
                }
                let message = queue.pop_front().expect("it has a front");
                if message.incarnations
                    != (self.nodes[from].incarnation, self.nodes[to].incarnation)
                {
                    continue;
                }
                self.handle(from, to, message);
            }
        }
    }

    fn handle(&mut self, from: usize, to: usize, message: InFlight) {
        self.learn_incarnation(to, from);
        let party = self.nodes[from].party;
        let now = self.nodes[to].clock.at(self.t);
        match &mut self.nodes[to].role {
            Role::Sender(link) => link.handle(now, party, message.clock, 5_000, message.body),
            Role::Witness(witness) => witness.handle(now, party, message.body),
            Role::Down => {}
        }
        self.check();
        self.collect();
    }

    /// Advances time by one step: alarms, messages and the applications' turns.
    fn step(&mut self) {
        self.t += STEP_NS;
        for node in &mut self.nodes {
            let now = node.clock.at(self.t);
            match &mut node.role {
                Role::Sender(link) => {
                    if link.poll_timeout(now).is_some_and(|at| at <= now) {
                        link.handle_timeout(now);
                    }
                }
                Role::Witness(witness) => {
                    if witness.poll_timeout().is_some_and(|at| at <= now) {
                        witness.handle_timeout(now);
                    }
                }
                Role::Down => {}
            }
        }
        self.collect();
        self.deliver();
        for at in 0..self.senders() {
            self.apply(at);
        }
        self.check();
        self.collect();
    }

    fn apply(&mut self, at: usize) {
        let t = self.t;
        let node = &mut self.nodes[at];
        let now = node.clock.at(t);
        let Role::Sender(link) = &mut node.role else { return };
        if let Some(until) = node.sending {
            if t >= until {
                node.sending = None;
                node.turns += 1;
                node.wanted -= 1;
                node.waiting_since = (node.wanted > 0).then_some(t);
                link.release(now, node.wanted > 0, now);
            }
            return;
        }
        if node.wanted > 0 {
            node.waiting_since.get_or_insert(t);
            link.want(now);
            if link.is_ready(now, now.plus_nanos(HOLD_NS * 2), 0) {
                link.start();
                node.sending = Some(t + HOLD_NS);
            }
        }
    }

    fn check(&self) {
        let mut valid = Vec::new();
        let mut epochs: BTreeMap<Epoch, Vec<Party>> = BTreeMap::new();
        for node in &self.nodes {
            let Role::Sender(link) = &node.role else { continue };
            let Some((epoch, until)) = link.validity() else { continue };
            epochs.entry(epoch).or_default().push(node.party);
            if until > node.clock.at(self.t) {
                valid.push((node.party, epoch));
            }
        }
        let (seed, t) = (self.seed, self.t);
        assert!(valid.len() <= 1, "seed {seed} at {t}: two valid holders {valid:?}");
        for (epoch, holders) in epochs {
            assert!(holders.len() <= 1, "seed {seed} at {t}: {holders:?} hold {epoch:?}");
        }
        let sending = self.nodes.iter().filter(|node| node.sending.is_some()).count();
        assert!(sending <= 1, "seed {seed} at {t}: {sending} send at once");
    }

    fn run_for(&mut self, nanos: u64) {
        for _ in 0..nanos / STEP_NS {
            self.step();
        }
    }

    fn heal(&mut self) {
        self.cuts.clear();
        for at in 0..self.nodes.len() {
            self.restart(at);
        }
    }

    /// Asserts that every sender gets a turn within `leases` leases.
    fn all_get_a_turn(&mut self, leases: u64) {
        let before: Vec<u32> = self.nodes.iter().map(|node| node.turns).collect();
        let senders = self.senders();
        for node in &mut self.nodes[..senders] {
            node.wanted += 1;
        }
        for _ in 0..leases {
            self.run_for(LEASE_NS);
            let done = |(node, before): (&Node, &u32)| node.turns > *before;
            if self.nodes[..senders].iter().zip(&before).all(done) {
                return;
            }
        }
        let turns: Vec<u32> = self.nodes.iter().map(|node| node.turns).collect();
        panic!("seed {}: some never got a turn: {before:?} -> {turns:?}", self.seed);
    }
}

#[test]
fn without_faults_turns_are_fair_and_the_witness_gets_no_message() {
    let mut net = Net::new(1, 5, true);
    for node in &mut net.nodes[..5] {
        node.wanted = 1_000_000;
    }
    net.run_for(40 * LEASE_NS);
    let turns: Vec<u32> = net.nodes[..5].iter().map(|node| node.turns).collect();
    let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
    assert!(*least > 100 && most - least <= 3, "{turns:?}");
    assert_eq!(net.to_witness, 0);
}

#[test]
fn a_lone_sender_needs_no_message_to_send_again() {
    let mut net = Net::new(2, 3, true);
    net.nodes[1].wanted = 1;
    net.run_for(LEASE_NS / 4);
    assert_eq!(net.nodes[1].turns, 1);
    let messages = net.messages;
    net.nodes[1].wanted = 1;
    net.run_for(LEASE_NS / 8);
    assert_eq!(net.nodes[1].turns, 2);
    assert_eq!(net.messages, messages);
}

#[test]
fn a_crashed_holder_is_survived_within_two_leases_and_its_detection() {
    let mut net = Net::new(3, 3, true);
    net.nodes[0].wanted = 1_000;
    net.run_for(LEASE_NS);
    net.crash(0);
    let t = net.t;
    net.nodes[1].wanted = 1;
    while net.nodes[1].turns == 0 {
        net.step();
        assert!(net.t - t < DEAD_NS + 2 * LEASE_NS, "not within the bound");
    }
}

fn check_leavers(seed: u64) {
    let mut net = Net::new(seed, 5, true);
    for node in &mut net.nodes[..5] {
        node.wanted = 1_000_000;
    }
    net.run_for(2 * LEASE_NS);
    for leaver in [3, 1, 4, 0] {
        net.leave(leaver);
        let before = net.nodes[2].turns;
        net.run_for(LEASE_NS / 2);
        assert!(net.nodes[2].turns > before, "seed {seed}: stalled after {leaver}");
        net.run_for(LEASE_NS / 10 * (seed % 8));
    }
}

#[test]
fn senders_that_leave_cost_the_others_no_lease() {
    (0..25).for_each(check_leavers);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(25))]
    #[test]
    fn senders_that_leave_cost_the_others_no_lease_from_new_seeds(seed: u64) {
        check_leavers(seed);
    }
}

#[test]
fn a_leaving_sender_returns_a_token_without_waiters_to_the_witness() {
    let mut net = Net::new(9, 3, true);
    net.leave(0);
    net.run_for(LEASE_NS / 4);
    net.nodes[1].wanted = 1;
    net.run_for(LEASE_NS / 2);
    assert_eq!(net.nodes[1].turns, 1);
}

#[test]
fn a_sender_that_left_returns_in_its_next_incarnation() {
    let mut net = Net::new(5, 3, true);
    for node in &mut net.nodes[..3] {
        node.wanted = 1_000_000;
    }
    net.run_for(LEASE_NS);
    net.leave(1);
    net.run_for(LEASE_NS);
    net.restart(1);
    net.all_get_a_turn(20);
}

#[test]
fn a_sender_that_left_is_in_no_later_epoch() {
    let at = |leases: u64| Instant::from_nanos(leases * LEASE_NS);
    let mut witness = Witness::new(3, LEASE_NS, Incarnation::FIRST, true, Instant::ZERO);
    let (epoch, left) = (Epoch::base(Incarnation::FIRST), Party(1));
    witness.handle(at(1), left, Body::Leave { epoch, taken: 0 });
    witness.handle(at(3), Party(0), Body::RecoverLink { epoch, suspect: None, gave_up: true });
    witness.handle_timeout(at(5));
    let live = std::iter::from_fn(|| witness.poll_send()).find_map(|(_, body)| match body {
        Body::GrantLink(grant) => Some(grant.live),
        _ => None,
    });
    assert_eq!(live, Some(Parties::first(3).without(left)));
}

#[test]
fn a_sender_that_left_is_not_asked_for_support_even_in_an_epoch_that_lists_it() {
    let (now, all) = (Instant::from_nanos(2 * LEASE_NS), Parties::first(2));
    let mut link = Link::new(LinkSetup {
        me: Party(1),
        senders: 2,
        lease_ns: LEASE_NS,
        request_timeout_ns: REQUEST_TIMEOUT_NS,
        genesis: true,
        quiet_until: Instant::ZERO,
    });
    link.want(now);
    link.handle(now, Party(0), 0, 0, Body::Leave { epoch: Epoch::GENESIS, taken: 0 });
    let grant = Grant {
        epoch: Epoch(7),
        number: 0,
        evidence: 0,
        asked_us: u32::MAX,
        live: all,
        buffers: 0,
        consumed: 0,
        quantum: 0,
        line_busy_ns: 0,
        queue: Vec::new(),
    };
    link.handle(now, Party::WITNESS, 0, 0, Body::GrantLink(grant));
    let asked = std::iter::from_fn(|| link.poll_send());
    let asked: Vec<Party> = asked
        .filter(|(_, body)| matches!(body, Body::AskSupport { .. }))
        .map(|(party, _)| party)
        .collect();
    assert_eq!(asked, [Party::WITNESS]);
}

#[test]
fn a_holder_that_is_cut_off_stops_before_another_starts() {
    let mut net = Net::new(4, 2, true);
    net.nodes[0].wanted = 1_000_000;
    net.run_for(LEASE_NS);
    net.cuts.insert((0, 1));
    net.nodes[1].wanted = 1_000_000;
    let before = net.nodes[1].turns;
    net.run_for(20 * LEASE_NS);
    assert!(net.nodes[1].turns > before || net.nodes[0].turns > 0);
    net.heal();
    net.all_get_a_turn(200);
}
