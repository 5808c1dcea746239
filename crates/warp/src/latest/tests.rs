use midplane_simhw::rng::Rng;
use proptest::prelude::*;

use super::*;
use crate::gate::GateKeeper;

/// The receiver's side: the latest values of one sender.
#[derive(Clone, Debug)]
struct LatestReceiver<K, V> {
    values: BTreeMap<K, (u64, V)>,
}

impl<K: Ord, V> Default for LatestReceiver<K, V> {
    fn default() -> Self {
        Self { values: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, V> LatestReceiver<K, V> {
    /// Processes a copy that arrived. A newer value replaces the present one; an older one is
    /// discarded. Returns the acknowledgement to send in either case.
    fn handle_copy(&mut self, key: K, version: u64, number: u64, value: V) -> Ack<K> {
        let known = self.values.get(&key).map_or(0, |(version, _)| *version);
        if version > known {
            self.values.insert(key.clone(), (version, value));
        }
        Ack { key, version: version.max(known), number }
    }

    /// Returns the newest value of `key` and its version.
    #[must_use]
    fn get(&self, key: &K) -> Option<(&V, u64)> {
        self.values.get(key).map(|(version, value)| (value, *version))
    }
}

/// The feedback delay: the round trip, in nanoseconds.
const LOOP: u64 = 1_000_000;
/// Size of a copy in bytes.
const BYTES: u32 = 100;

/// A sender and a receiver over a lossy network, in steps of a fortieth of a feedback delay.
struct Pair {
    slots: LatestSender<u32, u64>,
    latest: LatestReceiver<u32, u64>,
    keeper: GateKeeper,
    gate: crate::gate::Gate,
    rng: Rng,
    loss: f64,
    rate: f64,
    /// One-way delay, in nanoseconds.
    way: u64,
    now: Instant,
    written: u64,
    copies: VecDeque<(Instant, u32, u64, u64, u64)>,
    acks: VecDeque<(Instant, Ack<u32>)>,
}

impl Pair {
    fn new(seed: u64, loss: f64, rate: f64) -> Self {
        let (keeper, gate) = GateKeeper::new(u64::from(BYTES) * 64);
        Self {
            slots: LatestSender::new(Duration::from_nanos(LOOP)),
            latest: LatestReceiver::default(),
            keeper,
            gate,
            rng: Rng::new(seed, "slots"),
            loss,
            rate,
            way: LOOP / 2,
            now: Instant::from_nanos(1),
            written: 0,
            copies: VecDeque::new(),
            acks: VecDeque::new(),
        }
    }

    fn write(&mut self, key: u32, value: u64) {
        self.written += 1;
        self.slots.write(self.now, key, self.written, value);
    }

    fn step(&mut self) {
        self.now = self.now.plus_nanos(LOOP / 40);
        let now = self.now;
        self.keeper.add_credit(now, self.rate);
        while self.copies.front().is_some_and(|copy| copy.0 <= now) {
            let (_, key, version, number, value) = self.copies.pop_front().unwrap();
            let ack = self.latest.handle_copy(key, version, number, value);
            if !self.rng.chance(self.loss) {
                self.acks.push_back((now.plus_nanos(self.way), ack));
            }
        }
        while self.acks.front().is_some_and(|(at, _)| *at <= now) {
            let (_, ack) = self.acks.pop_front().unwrap();
            self.slots.handle_ack(now, &ack);
        }
        while self.gate.is_open(BYTES) {
            let Some(copy) = self.slots.poll_send(now) else { break };
            let copy =
                (now.plus_nanos(self.way), *copy.key, copy.version, copy.number, *copy.value);
            assert!(self.gate.c_send(BYTES, || ()).is_sent());
            if !self.rng.chance(self.loss) {
                self.copies.push_back(copy);
            }
        }
    }

    fn run(&mut self, loops: u64) {
        (0..loops * 40).for_each(|_| self.step());
    }

    fn missing(&self, keys: u32) -> usize {
        let is_missing =
            |key: &u32| self.slots.version(key) != self.latest.get(key).map(|(_, version)| version);
        (0..keys).filter(is_missing).count()
    }
}

fn check_visible(seed: u64) {
    let mut pair = Pair::new(seed, 0.5, 1e9);
    // Writes some keys often, and one only once, at the end.
    for round in 0..200_u64 {
        let key = pair.rng.below(19) as u32;
        pair.write(key, round);
        (0..5).for_each(|_| pair.step());
    }
    for key in 0..20 {
        pair.write(key, u64::from(key));
    }
    pair.run(3);
    assert_eq!(pair.missing(20), 0, "seed {seed}, loss measured {:.2}", pair.slots.loss);
}

#[test]
fn c3_at_half_loss_every_last_value_is_visible_within_three_delays() {
    (0..300).for_each(check_visible);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn c3_every_last_value_is_visible_from_new_seeds(seed: u64) {
        check_visible(seed);
    }
}

#[test]
fn without_loss_a_value_is_sent_once() {
    let mut pair = Pair::new(1, 0.0, 1e9);
    for key in 0..100 {
        pair.write(key, 1);
        pair.run(2);
    }
    assert_eq!((pair.slots.sent(), pair.slots.unacknowledged().count()), (100, 0));
    assert!(pair.slots.poll_timeout().is_none_or(|at| at > pair.now));
}

/// The round trip takes four times the configured feedback delay.
#[test]
fn a_path_slower_than_configured_needs_few_copies() {
    let mut pair = Pair::new(4, 0.0, 1e9);
    pair.way = 2 * LOOP;
    for value in 0..40 {
        if value == 20 {
            // The first values need more copies, until the delay is measured.
            assert!(pair.slots.sent() < 200, "{} copies of 20 values", pair.slots.sent());
            pair.slots.sent = 0;
        }
        pair.write(0, value);
        pair.run(10);
    }
    assert_eq!(pair.slots.unacknowledged().count(), 0);
    assert!(pair.slots.sent() <= 40, "{} copies of 20 values", pair.slots.sent());
}

#[test]
fn a_slow_gate_sends_the_latest_value_of_each_key_in_turn() {
    // The gate allows two copies a feedback delay, against 40 writes: the values that arrive are
    // recent ones.
    let mut pair = Pair::new(2, 0.0, f64::from(BYTES) * 2.0 / 1e-3);
    for round in 0..2_000_u64 {
        pair.write((round % 4) as u32, round);
        pair.step();
    }
    assert!(
        pair.slots.sent() < 64 + 110,
        "more copies than the gate allows: {}",
        pair.slots.sent()
    );
    for key in 0..4 {
        let (value, _) = pair.latest.get(&key).unwrap();
        assert!(2_000 - value < 40 * 5, "key {key} is at {value}");
    }
    pair.run(10);
    assert_eq!(pair.missing(4), 0, "the last value of some key is missing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn under_any_loss_the_last_write_arrives(
        seed: u64, loss in 0.0..0.8, writes in proptest::collection::vec((0_u32..10, 0_u32..60), 1..60),
        cut in 0_u64..30,
    ) {
        let mut pair = Pair::new(seed, loss, 1e8);
        for (key, steps) in writes {
            pair.write(key, u64::from(steps));
            (0..steps).for_each(|_| pair.step());
        }
        // All copies are lost for a while.
        pair.loss = 1.0;
        pair.run(cut);
        pair.loss = loss;
        pair.run(60);
        prop_assert_eq!(pair.missing(10), 0);
    }
}

#[test]
fn a_lost_receiver_gets_one_value_now_and_then_and_all_values_when_it_returns() {
    let mut pair = Pair::new(3, 0.0, 1e9);
    (0..10).for_each(|key| pair.write(key, 1));
    pair.run(2);
    pair.loss = 1.0;
    pair.slots.begin_anew(pair.now, true);
    let before = pair.slots.sent();
    (0..12).for_each(|key| pair.write(key, 2));
    pair.run(640);
    let copies = pair.slots.sent() - before;
    assert!((5..=12).contains(&copies), "{copies} copies to a receiver that is lost");
    assert_eq!(pair.slots.unacknowledged().count(), 0, "nothing is expected from it");
    assert!(pair.slots.has_acknowledged(&0, u64::MAX) && !pair.slots.is_silent());
    pair.loss = 0.0;
    pair.slots.begin_anew(pair.now, false);
    pair.run(3);
    assert_eq!((pair.missing(12), pair.slots.unacknowledged().count()), (0, 0));
}
