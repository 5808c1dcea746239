//! The engine against a model that looks at everything.

use proptest::prelude::*;

use super::*;
use crate::message::envelope::{Context, Peer, Tag};

/// Two lists in order, searched from the front.
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

/// Both, and what the test remembers of them.
struct Run {
    real: Matching<u32, u32>,
    model: Model,
    ids: Vec<(PostedId, u32)>,
    claimed: Vec<(Held<u32>, (u64, Key, u32))>,
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
            Op::RemoveHeld(at) if self.real.held_len() > 0 => {
                let at = at % self.real.held_len();
                let (id, _, message) =
                    self.real.held().nth(at).map(|(i, k, m)| (i, k, *m)).unwrap();
                assert_eq!(self.real.remove(id).unwrap().message, message);
                assert!(self.real.remove(id).is_none());
                self.model.held.retain(|held| held.2 != message);
            }
            _ => {}
        }
        assert_eq!(self.real.posted_len(), self.model.posted.len());
        assert_eq!(self.real.held_len(), self.model.held.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn matching_equals_the_model(seed: u64, ops in proptest::collection::vec(operation(), 0..300)) {
        let mut run = Run::new(seed);
        for op in ops {
            run.apply(op);
        }
    }
}

#[test]
fn more_tags_than_kept_queues_come_and_go() {
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
    assert_eq!(run.real.held_len(), 0);
}
