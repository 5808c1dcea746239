//! Tests that compare the matching engine with a model that searches linearly.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::key::Shape;
use super::queues::Queues;
use super::*;
use crate::message::envelope::{Context, Peer, Tag};

/// The model: two ordered lists, searched from the front.
#[derive(Default)]
struct Model {
    posted: Vec<(Pattern, u32)>,
    held: Vec<(u64, Key, u32)>,
    arrivals: u64,
}

impl Model {
    fn arrive(&mut self, key: Key) -> Option<u32> {
        let at = self.posted.iter().position(|(pattern, _)| pattern.accepts(key))?;
        Some(self.posted.remove(at).1)
    }

    fn hold(&mut self, key: Key, message: u32) {
        self.held.push((self.arrivals, key, message));
        self.arrivals += 1;
    }

    fn peek(&self, pattern: &Pattern) -> Option<u32> {
        self.held.iter().find(|(_, key, _)| pattern.accepts(*key)).map(|held| held.2)
    }

    fn take(&mut self, pattern: &Pattern) -> Option<(u64, Key, u32)> {
        let at = self.held.iter().position(|(_, key, _)| pattern.accepts(*key))?;
        Some(self.held.remove(at))
    }

    fn put_back(&mut self, held: (u64, Key, u32)) {
        self.held.push(held);
        self.held.sort_unstable();
    }
}

#[derive(Clone, Debug)]
enum Op {
    Arrive(Key),
    Receive(Pattern),
    Withdraw(usize),
    Probe(Pattern),
    Claim(Pattern),
    PutBack(usize),
    RemoveHeld(usize),
}

fn key() -> impl Strategy<Value = Key> {
    (0_u32..2, 0_u32..3, 0_u32..3).prop_map(|(context, source, tag)| Key {
        context: Context(context),
        source: Peer(source),
        tag: Tag(tag),
    })
}

fn pattern() -> impl Strategy<Value = Pattern> {
    (key(), any::<bool>(), any::<bool>()).prop_map(|(key, source, tag)| Pattern {
        context: key.context,
        source: source.then_some(key.source),
        tag: tag.then_some(key.tag),
    })
}

fn operation() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => key().prop_map(Op::Arrive),
        6 => pattern().prop_map(Op::Receive),
        1 => any::<usize>().prop_map(Op::Withdraw),
        2 => pattern().prop_map(Op::Probe),
        2 => pattern().prop_map(Op::Claim),
        2 => any::<usize>().prop_map(Op::PutBack),
        1 => any::<usize>().prop_map(Op::RemoveHeld),
    ]
}

/// Generates operations without wildcards.
fn exact_operation() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => key().prop_map(Op::Arrive),
        2 => key().prop_map(|key| Op::Receive(exact(key))),
        2 => key().prop_map(|key| Op::Claim(exact(key))),
        2 => any::<usize>().prop_map(Op::PutBack),
        1 => any::<usize>().prop_map(Op::RemoveHeld),
    ]
}

/// The engine, the model, and the state of the test.
struct Run {
    real: Matching<u32, u32>,
    model: Model,
    ids: Vec<(PostedId, u32)>,
    claimed: Vec<(UnexpectedMessage<u32>, (u64, Key, u32))>,
    next: u32,
}

impl Run {
    fn new(seed: u64) -> Self {
        let model = Model::default();
        Self { real: Matching::new(seed), model, ids: vec![], claimed: vec![], next: 0 }
    }

    fn apply(&mut self, op: Op) {
        self.next += 1;
        let number = self.next;
        match op {
            Op::Arrive(key) => {
                let (arrival, met) = self.real.arrive(key);
                assert_eq!(met, self.model.arrive(key));
                if met.is_none() {
                    self.real.hold(key, arrival, number);
                    self.model.hold(key, number);
                }
            }
            Op::Receive(pattern) => {
                let met = self.real.take(&pattern).map(|held| held.message);
                assert_eq!(met, self.model.take(&pattern).map(|held| held.2));
                if met.is_none() {
                    self.ids.push((self.real.post(&pattern, number), number));
                    self.model.posted.push((pattern, number));
                }
            }
            Op::Withdraw(at) if !self.ids.is_empty() => {
                let (id, number) = self.ids[at % self.ids.len()];
                let before = self.model.posted.len();
                self.model.posted.retain(|(_, posted)| *posted != number);
                assert_eq!(self.real.withdraw(id), self.model.posted.len() < before);
            }
            Op::Probe(pattern) => {
                let seen = self.real.peek(&pattern).map(|(_, _, message)| *message);
                assert_eq!(seen, self.model.peek(&pattern));
            }
            Op::Claim(pattern) => match (self.real.take(&pattern), self.model.take(&pattern)) {
                (Some(real), Some(model)) => {
                    assert_eq!(real.message, model.2);
                    self.claimed.push((real, model));
                }
                (None, None) => {}
                (real, model) => panic!("{real:?} is not {model:?}"),
            },
            Op::PutBack(at) if !self.claimed.is_empty() => {
                let (real, model) = self.claimed.swap_remove(at % self.claimed.len());
                match self.real.put_back(real) {
                    Ok(_) => {
                        assert_eq!(self.model.arrive(model.1), None);
                        self.model.put_back(model);
                    }
                    Err((receive, _)) => assert_eq!(self.model.arrive(model.1), Some(receive)),
                }
            }
            Op::RemoveHeld(at) if self.real.unexpected_len() > 0 => {
                let at = at % self.real.unexpected_len();
                let (id, message) =
                    self.real.unexpected().nth(at).map(|(i, _, m)| (i, *m)).unwrap();
                assert_eq!(self.real.remove(id).unwrap().message, message);
                assert!(self.real.remove(id).is_none());
                self.model.held.retain(|held| held.2 != message);
            }
            _ => {}
        }
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.real.posted_len(), self.model.posted.len());
        assert_eq!(self.real.unexpected_len(), self.model.held.len());
        let mut held: Vec<_> =
            self.real.unexpected().map(|(_, key, message)| (*message, key)).collect();
        let mut expected: Vec<_> = self.model.held.iter().map(|held| (held.2, held.1)).collect();
        held.sort_unstable();
        expected.sort_unstable();
        assert_eq!(held, expected);
    }

    /// Receives all held messages, starting with each shape in turn.
    fn drain(&mut self) {
        for open in 0.. {
            let Some(&(_, key, _)) = self.model.held.last() else { return };
            let source = (open & 1 == 0).then_some(key.source);
            let tag = (open & 2 == 0).then_some(key.tag);
            self.apply(Op::Receive(Pattern { context: key.context, source, tag }));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Posts many receives first, so that some are in the queues and the last ones in the list.
    #[test]
    fn matching_equals_the_model(
        seed: u64, open in proptest::collection::vec(pattern(), 0..30),
        ops in proptest::collection::vec(operation(), 0..300),
    ) {
        let mut run = Run::new(seed);
        for op in open.into_iter().map(Op::Receive).chain(ops) {
            run.apply(op);
        }
        run.drain();
    }

    /// Reuses the slots of messages before any receive uses a wildcard.
    #[test]
    fn a_shape_first_used_late_finds_all_messages_in_order(
        seed: u64,
        early in proptest::collection::vec(exact_operation(), 0..200),
        late in proptest::collection::vec(operation(), 0..30),
    ) {
        let mut run = Run::new(seed);
        for op in early.into_iter().chain(late) {
            run.apply(op);
        }
        run.drain();
    }

    /// Keeps two keys apart that the tables cannot distinguish by hash.
    #[test]
    fn keys_with_equal_hashes_are_distinguished(
        ops in proptest::collection::vec((operation(), any::<bool>()), 0..200),
    ) {
        let twins = twins();
        let mut run = Run::new(TWINS);
        for (op, which) in ops {
            let key = twins[usize::from(which)];
            run.apply(match op {
                Op::Arrive(_) => Op::Arrive(key),
                Op::Receive(_) => Op::Receive(exact(key)),
                Op::Claim(_) => Op::Claim(exact(key)),
                Op::Probe(_) => Op::Probe(exact(key)),
                op => op,
            });
        }
        run.drain();
    }
}

/// The seed for which the hashes of the two keys collide.
const TWINS: u64 = 0;

/// Returns two keys whose stored hashes are equal.
fn twins() -> [Key; 2] {
    static FOUND: LazyLock<[Key; 2]> = LazyLock::new(|| {
        let queues = Queues::new(TWINS);
        // Multiplied, since consecutive numbers have hashes that are far apart.
        let key = |i: u32| Key {
            context: Context(0),
            source: Peer(i.wrapping_mul(0x85EB_CA6B)),
            tag: Tag(i.wrapping_mul(0x9E37_79B1) >> 7),
        };
        let hash = |i| queues.hash(Shape::EXACT.common(key(i)));
        let mut seen = BTreeMap::new();
        (0..2_000_000)
            .find_map(|i| Some([key(seen.insert(hash(i), i)?), key(i)]))
            .expect("a million keys have some hundred such pairs")
    });
    *FOUND
}

fn exact(key: Key) -> Pattern {
    Pattern { context: key.context, source: Some(key.source), tag: Some(key.tag) }
}

fn held(run: &mut Run, tags: impl IntoIterator<Item = u32>) {
    for tag in tags {
        run.apply(Op::Arrive(Key { context: Context(0), source: Peer(0), tag: Tag(tag) }));
    }
}

/// Holds three messages of each key; takes one out and puts it back, with or without a fourth behind them, and
/// with each shape in use or not.
#[test]
fn a_message_put_back_regains_its_place() {
    for (place, behind, wild) in (0..12).map(|i| (i % 3, i / 3 % 2 == 0, i / 6 == 0)) {
        let mut run = Run::new(0);
        held(&mut run, [1, 2, 1, 2, 1, 2]);
        let any = Pattern { context: Context(0), source: None, tag: None };
        if wild {
            run.apply(Op::Probe(any));
        }
        let key = Key { context: Context(0), source: Peer(0), tag: Tag(1) };
        (0..=place).for_each(|_| run.apply(Op::Claim(exact(key))));
        if behind {
            held(&mut run, [1]);
        }
        // The one that was taken last first, then those before it.
        (0..=place).rev().for_each(|at| run.apply(Op::PutBack(at)));
        (0..3).for_each(|_| run.apply(Op::Receive(exact(key))));
        (0..run.model.held.len()).for_each(|_| run.apply(Op::Receive(any)));
        assert_eq!(run.real.unexpected_len(), 0);
    }
}

#[test]
fn ids_of_removed_messages_match_no_message() {
    let mut real = Matching::<(), u32>::new(0);
    let key = Key { context: Context(0), source: Peer(0), tag: Tag(0) };
    let hold = |real: &mut Matching<_, _>, message| {
        let (arrival, _) = real.arrive(key);
        real.hold(key, arrival, message)
    };
    let gone: Vec<_> = (0..4).map(|message| hold(&mut real, message)).collect();
    assert_eq!(real.remove(gone[2]).unwrap().message, 2);
    let again = hold(&mut real, 4);
    assert!(real.remove(gone[2]).is_none());
    while real.take(&exact(key)).is_some() {}
    assert!(gone.iter().chain([&again]).all(|id| real.remove(*id).is_none()));
    let anew = hold(&mut real, 5);
    assert!(gone.iter().chain([&again]).all(|id| real.remove(*id).is_none()));
    assert_eq!(real.remove(anew).unwrap().message, 5);
}

/// Checks that messages held one after another are adjacent in memory, also after all were received.
#[test]
fn slots_are_used_in_order_again_once_all_are_free() {
    let mut real = Matching::<(), u32>::new(0);
    let key = |tag| Key { context: Context(0), source: Peer(0), tag: Tag(tag) };
    for _ in 0..2 {
        for tag in 0..10 {
            let (arrival, _) = real.arrive(key(tag));
            real.hold(key(tag), arrival, tag);
        }
        assert!(real.unexpected().map(|(.., message)| *message).eq(0..10));
        for tag in [3, 1, 4, 0, 5, 9, 2, 6, 8, 7] {
            assert_eq!(real.take(&exact(key(tag))).unwrap().message, tag);
        }
    }
}

#[test]
fn queues_of_many_tags_are_made_and_removed() {
    let mut run = Run::new(0);
    let key = |tag| Key { context: Context(0), source: Peer(tag % 7), tag: Tag(tag) };
    for round in 0..3 {
        (0..500).for_each(|tag| run.apply(Op::Arrive(key(tag))));
        for tag in (0..500).rev() {
            let key = key(tag);
            let (source, tag) = (Some(key.source), Some(key.tag));
            let wild = Pattern { context: key.context, source, tag: tag.filter(|_| round != 1) };
            run.apply(Op::Receive(wild));
        }
    }
    assert_eq!(run.real.unexpected_len(), 0);
}
