use midplane_simhw::rng::Rng;
use midplane_simhw::wire;
use proptest::prelude::*;

use super::check::{Event, History, Violation, ViolationKind};
use super::*;

mod order;
mod restarts;

/// Values are unique, so each identifies its write.
type Value = u64;

/// Updates in flight, with their arrival times.
type Link = VecDeque<(u64, Update<Value>)>;

/// Memories over links with delay. Reliable updates keep their order; others may be lost or
/// reordered.
struct Cluster {
    nodes: Vec<Option<Memory<Value>>>,
    rng: Rng,
    loss: f64,
    now: u64,
    /// Reliable updates in flight, in the order of arrival.
    reliable: BTreeMap<(NodeId, NodeId), Link>,
    unreliable: Vec<(u64, NodeId, NodeId, Update<Value>)>,
    deaths: Vec<(u64, NodeId)>,
    history: History,
    /// Writer and ticket of each place that any node has applied.
    order: BTreeMap<u64, (NodeId, u64)>,
    /// The place of each such write.
    places: BTreeMap<(NodeId, u64), u64>,
    /// The longest log of any node so far.
    longest: usize,
    /// Coherent writes of each node that are not committed yet.
    tickets: Vec<Vec<(u64, Location)>>,
}

const LOOP: u64 = 1_000_000;
const STEP: u64 = LOOP / 20;

impl Cluster {
    fn new(nodes: u16, seed: u64, loss: f64) -> Self {
        let names: Vec<NodeId> = (0..nodes).map(NodeId).collect();
        let memory = |node: &NodeId| Some(Memory::new(*node, &names, Duration::from_nanos(LOOP)));
        Self {
            nodes: names.iter().map(memory).collect(),
            rng: Rng::new(seed, "memory"),
            loss,
            now: 1,
            reliable: BTreeMap::new(),
            unreliable: Vec::new(),
            deaths: Vec::new(),
            history: names.iter().map(|node| (*node, Vec::new())).collect(),
            order: BTreeMap::new(),
            places: BTreeMap::new(),
            longest: 0,
            tickets: vec![Vec::new(); usize::from(nodes)],
        }
    }

    fn write(&mut self, node: u16, level: Level, location: Location) {
        let now = Instant::from_nanos(self.now);
        let value = self.rng.next_u64();
        let Some(memory) = &mut self.nodes[usize::from(node)] else { return };
        match level {
            Level::Slow => memory.slow_write(now, location, value),
            Level::Pram => memory.pram_write(location, value),
            Level::Coherent => {
                let ticket = memory.co_write(location, value);
                self.tickets[usize::from(node)].push((ticket, location));
                return;
            }
        }
        let (_, origin) = memory.read_origin(location).unwrap();
        self.note(node, Event::Write { location, origin });
    }

    fn read(&mut self, node: u16, location: Location) {
        let Some(memory) = &self.nodes[usize::from(node)] else { return };
        let origin = memory.read_origin(location).map(|(_, origin)| origin);
        self.note(node, Event::Read { location, origin });
    }

    fn note(&mut self, node: u16, event: Event) {
        self.history.get_mut(&NodeId(node)).unwrap().push(event);
    }

    /// Removes a node. Each other node is notified at its own time.
    fn kill(&mut self, node: u16) {
        self.nodes[usize::from(node)] = None;
        self.deaths.push((self.now + LOOP * 2, NodeId(node)));
    }

    fn send(&mut self) {
        let now = Instant::from_nanos(self.now);
        for at in 0..self.nodes.len() {
            let from = NodeId(at as u16);
            let Some(memory) = &mut self.nodes[at] else { continue };
            let mut out: Vec<_> = std::iter::from_fn(|| memory.poll_send()).collect();
            for to in (0..self.history.len() as u16).map(NodeId) {
                while let Some(update) = memory.poll_slow(now, to) {
                    out.push((to, update));
                }
            }
            for (to, update) in out {
                assert!(wire::encode(&update).is_ok(), "an update is too long to be sent");
                let delay = self.rng.between(LOOP / 4, LOOP / 2);
                if update.is_reliable() {
                    let link = self.reliable.entry((from, to)).or_default();
                    let last = link.back().map_or(0, |(at, _)| *at);
                    link.push_back(((self.now + delay).max(last), update));
                } else if !self.rng.chance(self.loss) {
                    self.unreliable.push((self.now + delay, from, to, update));
                }
            }
        }
    }

    fn deliver(&mut self, from: NodeId, to: NodeId, update: Update<Value>) {
        if let Some(memory) = &mut self.nodes[usize::from(to.0)] {
            memory.handle_update(Instant::from_nanos(self.now), from, update);
        }
        self.note_order();
        // A committed write is visible now.
        for at in 0..self.nodes.len() {
            let Some(memory) = &self.nodes[at] else { continue };
            let mut placed = Vec::new();
            self.tickets[at].retain(|(ticket, location)| {
                let is_done = memory.is_done(*ticket);
                // No node saw a write that was replaced before any of them applied it.
                if is_done && let Some(place) = self.places.get(&(NodeId(at as u16), *ticket)) {
                    placed.push((*place, *location));
                }
                !is_done
            });
            for (order, location) in placed {
                let writer = NodeId(at as u16);
                let origin = Origin { writer, level: Level::Coherent, order };
                self.note(at as u16, Event::Write { location, origin });
            }
        }
    }

    /// Notes the coherent writes that nodes have applied. Asserts that they have one total order.
    fn note_order(&mut self) {
        for memory in self.nodes.iter_mut().flatten() {
            self.longest = self.longest.max(memory.coherent.log_len());
            for (place, writer, ticket) in memory.coherent.applied.drain(..) {
                let write = (writer, ticket);
                assert_eq!(*self.order.entry(place).or_insert(write), write, "at {place}");
                assert_eq!(*self.places.entry(write).or_insert(place), place, "{write:?}");
            }
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        let links: Vec<(NodeId, NodeId)> = self.reliable.keys().copied().collect();
        for (from, to) in links {
            loop {
                let link = self.reliable.get_mut(&(from, to)).unwrap();
                if link.front().is_none_or(|(at, _)| *at > now) {
                    break;
                }
                let (_, update) = link.pop_front().unwrap();
                self.deliver(from, to, update);
            }
        }
        let (due, later) =
            std::mem::take(&mut self.unreliable).into_iter().partition(|(at, ..)| *at <= now);
        self.unreliable = later;
        let due: Vec<(u64, NodeId, NodeId, Update<Value>)> = due;
        due.into_iter().for_each(|(_, from, to, update)| self.deliver(from, to, update));
        let (heard, later): (Vec<_>, _) =
            std::mem::take(&mut self.deaths).into_iter().partition(|(at, _)| *at <= now);
        self.deaths = later;
        for (_, node) in heard {
            let now = Instant::from_nanos(now);
            self.nodes.iter_mut().flatten().for_each(|memory| memory.on_peer_lost(now, node));
        }
        self.send();
    }

    fn play(&mut self, steps: u32, levels: &[Level], locations: u64) {
        let nodes = self.nodes.len() as u64;
        for _ in 0..steps {
            let node = self.rng.below(nodes) as u16;
            let location = self.rng.below(locations) as Location;
            if self.rng.chance(0.4) {
                let level = levels[self.rng.below(levels.len() as u64) as usize];
                self.write(node, level, location);
            } else {
                self.read(node, location);
            }
            if self.rng.chance(0.5) {
                self.step();
            }
        }
    }

    fn settle(&mut self) {
        (0..400).for_each(|_| self.step());
    }

    fn check(&self) -> Result<(), Violation> {
        check::slow(&self.history)?;
        check::pram(&self.history)?;
        check::coherent(&self.history)
    }
}

fn check_levels(seed: u64) {
    for level in [Level::Slow, Level::Pram, Level::Coherent] {
        let mut cluster = Cluster::new(4, seed, 0.3);
        cluster.play(400, &[level], 6);
        // The writer itself may be the last node to see its coherent write.
        cluster.settle();
        assert_eq!(cluster.check(), Ok(()), "{level:?}, seed {seed}");
    }
}

#[test]
fn c4_each_level_keeps_its_promise_over_random_histories() {
    (0..50).for_each(check_levels);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(25))]
    #[test]
    fn c4_each_level_keeps_its_promise_from_new_seeds(seed: u64) {
        check_levels(seed);
    }
}

fn check_copies(seed: u64) {
    let mut cluster = Cluster::new(4, seed, 0.5);
    cluster.play(300, &[Level::Slow], 6);
    cluster.settle();
    for location in 0..6 {
        let values: Vec<_> =
            cluster.nodes.iter().flatten().map(|memory| memory.read(location)).collect();
        assert!(values.windows(2).all(|pair| pair[0] == pair[1]), "{location}: {values:?}");
    }
    assert!(cluster.nodes.iter().flatten().all(|memory| memory.unacknowledged().is_empty()));
}

#[test]
fn after_the_last_slow_write_all_copies_are_alike_at_half_loss() {
    (0..30).for_each(check_copies);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(15))]
    #[test]
    fn all_copies_are_alike_at_half_loss_from_new_seeds(seed: u64) {
        check_copies(seed);
    }
}

fn check_mixed(seed: u64) {
    let mut cluster = Cluster::new(3, seed, 0.2);
    cluster.play(300, &[Level::Slow, Level::Pram, Level::Coherent], 2);
    cluster.settle();
    for location in 0..2 {
        (0..3).for_each(|node| cluster.read(node, location));
    }
    assert_eq!(check::slow(&cluster.history), Ok(()), "seed {seed}");
}

#[test]
fn levels_may_be_mixed_on_one_location() {
    (0..40).for_each(check_mixed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn levels_may_be_mixed_on_one_location_from_new_seeds(seed: u64) {
        check_mixed(seed);
    }
}

fn origin(writer: u16, level: Level, order: u64) -> Origin {
    Origin { writer: NodeId(writer), level, order }
}

fn history(level: Level, writes: &[(Location, u64)], reads: &[(Location, u64)]) -> History {
    let write = |(location, order): &(Location, u64)| Event::Write {
        location: *location,
        origin: origin(0, level, *order),
    };
    let read = |(location, order): &(Location, u64)| Event::Read {
        location: *location,
        origin: (*order > 0).then(|| origin(0, level, *order)),
    };
    let ours = writes.iter().map(write).collect();
    BTreeMap::from([(NodeId(0), ours), (NodeId(1), reads.iter().map(read).collect())])
}

/// Tests the checkers with the smallest history of each violation.
#[test]
fn c4_the_checkers_find_every_kind_of_violation() {
    let wrong = |result: Result<(), Violation>| result.unwrap_err().what;
    let back = history(Level::Slow, &[(7, 1), (7, 2)], &[(7, 2), (7, 1)]);
    assert_eq!(wrong(check::slow(&back)), ViolationKind::NotMonotonic);
    let air = history(Level::Slow, &[(7, 1)], &[(7, 2)]);
    assert_eq!(wrong(check::slow(&air)), ViolationKind::OutOfThinAir);
    let mut blind = history(Level::Slow, &[(7, 1)], &[]);
    blind.get_mut(&NodeId(0)).unwrap().push(Event::Read { location: 7, origin: None });
    assert_eq!(wrong(check::slow(&blind)), ViolationKind::NotMonotonic);

    // The reader sees the writer's second write, but then not its first one, which was to another
    // location.
    let gap = history(Level::Pram, &[(1, 1), (2, 2)], &[(2, 2), (1, 0)]);
    assert_eq!(wrong(check::pram(&gap)), ViolationKind::NotMonotonic);
    let gap = history(Level::Slow, &[(1, 1), (2, 1)], &[(2, 1), (1, 0)]);
    assert_eq!(check::slow(&gap), Ok(()), "slow memory allows this gap");
    let stale = history(Level::Pram, &[(1, 1), (1, 2), (2, 3)], &[(2, 3), (1, 1)]);
    assert_eq!(wrong(check::pram(&stale)), ViolationKind::NotMonotonic);
    let fine = history(Level::Pram, &[(1, 1), (1, 2), (2, 3)], &[(1, 1), (2, 0), (2, 3), (1, 2)]);
    assert_eq!(check::pram(&fine), Ok(()));

    // Two readers see two writers' writes in different orders: PRAM allows that, coherence does
    // not.
    let two = |level: Level| {
        let write = |writer, order| {
            vec![Event::Write { location: 1, origin: origin(writer, level, order) }]
        };
        let read = |a: Origin, b: Origin| {
            [a, b].map(|origin| Event::Read { location: 1, origin: Some(origin) }).to_vec()
        };
        let orders = if level == Level::Pram { (1, 1) } else { (1, 2) };
        let (a, b) = (origin(0, level, orders.0), origin(1, level, orders.1));
        BTreeMap::from([
            (NodeId(0), write(0, orders.0)),
            (NodeId(1), write(1, orders.1)),
            (NodeId(2), read(a, b)),
            (NodeId(3), read(b, a)),
        ])
    };
    assert_eq!(check::pram(&two(Level::Pram)), Ok(()));
    assert_eq!(wrong(check::coherent(&two(Level::Coherent))), ViolationKind::NotMonotonic);
    let mut doubled = two(Level::Coherent);
    doubled.insert(NodeId(1), doubled[&NodeId(0)].clone());
    assert_eq!(wrong(check::coherent(&doubled)), ViolationKind::Misplaced);
}

/// Tests that the checker rejects a valid history after two of its reads are exchanged.
#[test]
fn c4_a_mutated_history_is_caught() {
    let mut caught = 0;
    for seed in 0..30 {
        let mut cluster = Cluster::new(3, seed, 0.0);
        cluster.play(400, &[Level::Coherent], 2);
        cluster.settle();
        assert_eq!(cluster.check(), Ok(()));
        let mut mutant = cluster.history.clone();
        for events in mutant.values_mut() {
            let reads: Vec<usize> = (0..events.len())
                .filter(|at| matches!(events[*at], Event::Read { origin: Some(_), .. }))
                .collect();
            if let (Some(first), Some(last)) = (reads.first(), reads.last()) {
                events.swap(*first, *last);
            }
        }
        caught += u32::from(check::coherent(&mutant).is_err());
    }
    assert!(caught >= 27, "{caught} of 30");
}

/// Draws any update by a peer, with numbers at and between the ends of their range.
fn any_update() -> impl Strategy<Value = Update<Value>> {
    let number = || prop_oneof![Just(u64::MAX), Just(u64::MAX - 1), 0_u64..6, any::<u64>()];
    let entry = (0_u16..5, number(), 0_u32..3, number()).prop_map(|(writer, ticket, at, value)| {
        Entry { writer: NodeId(writer), ticket, location: at, value }
    });
    let log = proptest::collection::vec((number(), entry.clone()), 0..4);
    let coherent = (0_u8..8, number(), number(), number(), entry, log).prop_map(
        |(kind, view, place, other, entry, log)| match kind {
            0 => Coherence::Request(entry),
            1 => Coherence::Place { view, place, entry, committed: other },
            2 => Coherence::Have { view, place },
            3 => Coherence::Committed { view, place },
            4 => Coherence::Ask { view },
            6 => Coherence::Excluded,
            5 => Coherence::Known {
                view,
                of_view: other,
                committed: place,
                log,
                more: place % 2 == 1,
            },
            _ => Coherence::View { view, committed: other, log, more: place % 2 == 1 },
        },
    );
    prop_oneof![
        (0_u32..3, number(), number(), number(), number()).prop_map(
            |(location, order, number, clock, value)| {
                Update::Slow { location, order, number, clock, value }
            }
        ),
        (0_u32..3, number(), number(), number(), number()).prop_map(
            |(key, version, number, kind, clock)| {
                let fates = [Fate::Shown, Fate::Older(clock), Fate::Repeated(clock), Fate::Refused];
                let ack = Ack { key, version, number };
                Update::SlowAck { ack, fate: fates[kind as usize % fates.len()] }
            }
        ),
        (0_u32..3, number(), number(), number()).prop_map(|(location, order, clock, value)| {
            Update::Pram { location, order, clock, value }
        }),
        coherent.prop_map(Update::Coherent),
    ]
}

proptest! {
    /// Tests that no clock, view, place or version at the end of its range makes a memory panic; it
    /// continues to write and to see its own writes.
    #[test]
    fn no_update_of_any_peer_panics(
        updates in proptest::collection::vec((0_u16..6, any_update(), 0_u8..8), 1..40),
    ) {
        let names: Vec<NodeId> = (0..5).map(NodeId).collect();
        let mut memory: Memory<Value> =
            Memory::new(NodeId(1), &names, Duration::from_nanos(LOOP));
        for (step, (from, update, what)) in (1_u64..).zip(updates) {
            let now = Instant::from_nanos(step * STEP);
            memory.handle_update(now, NodeId(from), update);
            match what {
                0 => memory.on_peer_lost(now, NodeId(from)),
                4 => memory.on_peer_seen(now, NodeId(from), from % 2 == 0),
                1 => memory.slow_write(now, 0, step),
                2 => memory.pram_write(1, step),
                3 => drop(memory.co_write(2, step)),
                _ => while memory.poll_slow(now, NodeId(from)).is_some() {},
            }
            if what == 1 || what == 2 {
                prop_assert_eq!(memory.read(u32::from(what) - 1), Some(&step));
            }
            while memory.poll_send().is_some() {}
        }
    }
}
