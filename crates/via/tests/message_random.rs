//! Random sends, receives, cancellations, claims and drops: messages arrive once, complete and in order, and windows
//! are conserved.

use std::collections::BTreeMap;

use crate::engines::{Process, cluster, message, receive, send, settle, take};
use midplane_simhw::rng::Rng;
use midplane_via::message::engine::{Config, WhenFull};
use midplane_via::message::envelope::{Context, Peer, Tag};
use midplane_via::message::matching::Pattern;
use midplane_via::message::memory::MemoryConfig;
use midplane_via::message::request::{Failure, Load, Mode, Operation, Outcome, Request, State};
use midplane_via::message::transport::{Claim, TryReceive, Wait};
use proptest::prelude::*;

const PROCESSES: u64 = 3;
const ANYTHING: Pattern = Pattern { context: Context(0), source: None, tag: None };

/// Sender, receiver and tag of a stream of messages.
type Stream = (u32, u32, u32);

/// A random program, and a record of its messages.
struct Random {
    engines: Vec<Process>,
    rng: Rng,
    sent: BTreeMap<Stream, Vec<(u32, usize)>>,
    received: BTreeMap<Stream, Vec<u32>>,
    sends: Vec<(usize, Request, u32)>,
    receives: Vec<(usize, Request)>,
    numbers: u32,
    cancelled: Vec<u32>,
}

impl Random {
    fn new(seed: u64, depth: usize, window: usize, policy: WhenFull) -> Self {
        let memory = MemoryConfig::default().depth(depth).room(600).seed(seed);
        let config = Config::default().eager(500).window(window).when_full(policy).batch(5);
        Self {
            engines: cluster(PROCESSES as usize, memory, config),
            rng: Rng::new(seed, "program"),
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            sends: vec![],
            receives: vec![],
            numbers: 0,
            cancelled: vec![],
        }
    }

    fn any_receive(&mut self) -> Option<usize> {
        let count = self.receives.len() as u64;
        (count > 0).then(|| self.rng.below(count) as usize)
    }

    fn step(&mut self) {
        let at = self.rng.below(PROCESSES) as usize;
        match self.rng.below(14) {
            0..=2 => self.send(at),
            3..=5 => {
                let source = self.rng.chance(0.7).then(|| self.rng.below(PROCESSES) as u32);
                let tag = self.rng.chance(0.7).then(|| self.rng.below(2) as u32);
                let request = receive(&mut self.engines[at], source, tag, 4096);
                self.receives.push((at, request));
            }
            6 => {
                if let Some(index) = self.any_receive() {
                    let (at, request) = self.receives[index];
                    self.engines[at].requests().cancel(request);
                }
            }
            // As a dropped future: a message that the receive has matched returns to the queue.
            7 => {
                if let Some(index) = self.any_receive() {
                    let (at, request) = self.receives.swap_remove(index);
                    self.engines[at].destroy(request, true);
                }
            }
            8 if !self.sends.is_empty() => {
                let index = self.rng.below(self.sends.len() as u64) as usize;
                let (at, request, _) = self.sends[index];
                self.engines[at].requests().cancel(request);
            }
            9 => self.probe(at),
            10 | 11 => {
                let receipt = self.engines[at].receive_now(&ANYTHING, 4096, &mut Vec::new());
                if let TryReceive::Here(outcome) = receipt {
                    self.check(at, &outcome);
                }
            }
            _ => {
                self.engines[at].advance(Wait::Not);
            }
        }
        // Some requests stay done for a while, so that done ones are dropped, too.
        if self.rng.chance(0.3) {
            self.reap();
        }
    }

    fn send(&mut self, at: usize) {
        let to = self.rng.below(PROCESSES) as u32;
        let tag = self.rng.below(2) as u32;
        let length = [8, 40, 499, 500, 501, 1999][self.rng.below(6) as usize];
        let mode = [Mode::Standard, Mode::Synchronous, Mode::Ready][self.rng.below(3) as usize];
        self.numbers += 1;
        let bytes = message(at as u32, self.numbers, length);
        self.sent.entry((at as u32, to, tag)).or_default().push((self.numbers, length));
        let context = Context(0);
        let operation = Operation::Send { mode, to: Peer(to), context, tag: Tag(tag) };
        if self.rng.chance(0.5)
            && let Some(outcome) = self.engines[at].send_now(operation, &bytes)
        {
            assert_eq!((outcome.status.length, outcome.result), (length, Ok(())));
            return;
        }
        let request = send(&mut self.engines[at], mode, to, tag, &bytes);
        self.sends.push((at, request, self.numbers));
    }

    /// Checks that a received message was sent, and is complete.
    fn check(&mut self, at: usize, outcome: &Outcome) {
        let Self { sent, received, .. } = self;
        match outcome.result {
            Ok(()) => {}
            Err(Failure::Cancelled) => return,
            Err(other) => panic!("{other}"),
        }
        let number = u32::from_le_bytes(outcome.bytes[4..8].try_into().unwrap());
        let source = outcome.status.source.0;
        let stream = (source, at as u32, outcome.status.tag.0);
        let sent = sent.get(&stream).expect("the stream has messages");
        let (_, length) = sent.iter().find(|(n, _)| *n == number).expect("it was sent");
        assert_eq!(outcome.bytes, message(source, number, *length), "complete and intact");
        received.entry(stream).or_default().push(number);
    }

    /// Claims a message, and receives it or puts it back.
    fn probe(&mut self, at: usize) {
        let engine = &mut self.engines[at];
        let seen = engine.iprobe(&ANYTHING, Claim::Leave);
        let Some(found) = engine.iprobe(&ANYTHING, Claim::Take) else {
            assert!(seen.is_none());
            return;
        };
        assert_eq!(seen.map(|seen| (seen.key, seen.length)), Some((found.key, found.length)));
        let request = found.claimed.unwrap();
        if self.rng.chance(0.5) {
            engine.start(request, Load::anything()).unwrap();
            self.receives.push((at, request));
        } else {
            engine.destroy(request, false);
        }
    }

    fn reap(&mut self) {
        let Self { engines, cancelled, .. } = self;
        self.sends.retain(|(at, request, number)| {
            let Some(outcome) = take(&mut engines[*at], *request) else { return true };
            match outcome.result {
                Ok(()) => {}
                Err(Failure::Cancelled) => cancelled.push(*number),
                Err(other) => panic!("{other}"),
            }
            false
        });
        let mut ended = Vec::new();
        self.receives.retain(|(at, request)| {
            let Some(outcome) = take(&mut engines[*at], *request) else { return true };
            ended.push((*at, outcome));
            false
        });
        for (at, outcome) in ended {
            self.check(at, &outcome);
        }
    }

    /// Receives all remaining messages, and checks the whole run.
    fn finish(mut self) {
        for (at, request) in &self.receives {
            self.engines[*at].requests().cancel(*request);
        }
        for round in 0.. {
            assert!(round < 1_000, "stuck:\n{}", self.explain());
            settle(&mut self.engines);
            self.reap();
            for (at, engine) in self.engines.iter_mut().enumerate() {
                while engine.iprobe(&ANYTHING, Claim::Leave).is_some() {
                    self.receives.push((at, receive(engine, None, None, 4096)));
                }
            }
            if self.sends.is_empty() && self.receives.is_empty() {
                break;
            }
        }
        for engine in &self.engines {
            assert_eq!(engine.unexpected_bytes(), 0, "windows are conserved");
            assert_eq!(engine.counters().malformed, 0);
            assert!(engine.explain().waiting.is_empty());
        }
        for (stream, sent) in &self.sent {
            // Receives are reaped in no order; the test below checks the order.
            let mut received = self.received.remove(stream).unwrap_or_default();
            received.sort_unstable();
            let kept = sent.iter().map(|(n, _)| *n).filter(|n| !self.cancelled.contains(n));
            assert_eq!(received, kept.collect::<Vec<_>>(), "{stream:?}");
        }
    }

    fn explain(&self) -> String {
        self.engines.iter().map(|engine| format!("{}\n", engine.explain())).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_message_arrives_once_and_complete(
        seed: u64, steps in 1_usize..400, depth in 1_usize..9,
        window in prop_oneof![Just(1300_usize), Just(3000), Just(1 << 20)], wait: bool,
    ) {
        let policy = if wait { WhenFull::Wait } else { WhenFull::Rendezvous };
        let mut random = Random::new(seed, depth, window, policy);
        for _ in 0..steps {
            random.step();
        }
        random.finish();
    }

    #[test]
    fn messages_of_one_sender_and_tag_never_overtake(
        seed: u64, lengths in proptest::collection::vec(0_usize..5, 1..60), depth in 1_usize..4,
        wild: (bool, bool), early in 0_usize..60, modes in proptest::collection::vec(0_usize..3, 60),
    ) {
        const LENGTHS: [usize; 5] = [8, 39, 40, 41, 300];
        let memory = MemoryConfig::default().depth(depth).room(64).seed(seed);
        let mut pair = cluster(2, memory, Config::default().eager(40).window(400));
        let source = (!wild.0).then_some(0);
        let tag = (!wild.1).then_some(3);
        let early = early.min(lengths.len());
        let mut receives: Vec<_> =
            (0..early).map(|_| receive(&mut pair[1], source, tag, 1000)).collect();
        let mut sends = vec![];
        for (number, length) in lengths.iter().enumerate() {
            let mode = [Mode::Standard, Mode::Synchronous, Mode::Ready][modes[number]];
            let bytes = message(0, number as u32, LENGTHS[*length]);
            sends.push(send(&mut pair[0], mode, 1, 3, &bytes));
        }
        settle(&mut pair);
        receives.extend((early..lengths.len()).map(|_| receive(&mut pair[1], source, tag, 1000)));
        settle(&mut pair);
        for (number, request) in receives.into_iter().enumerate() {
            let outcome = take(&mut pair[1], request).expect("it is received");
            prop_assert_eq!(outcome.bytes, message(0, number as u32, LENGTHS[lengths[number]]));
        }
        for request in sends {
            prop_assert!(take(&mut pair[0], request).expect("it is sent").result.is_ok());
        }
    }

    #[test]
    fn messages_with_and_without_requests_never_overtake(
        seed: u64, lengths in proptest::collection::vec(0_usize..5, 1..60), depth in 1_usize..4,
        wild: (bool, bool),
    ) {
        const LENGTHS: [usize; 5] = [8, 39, 40, 41, 300];
        let memory = MemoryConfig::default().depth(depth).room(64).seed(seed);
        let mut pair = cluster(2, memory, Config::default().eager(40).window(400));
        let mut rng = Rng::new(seed, "who asks how");
        let (source, tag) = ((!wild.0).then_some(0), (!wild.1).then_some(3));
        let pattern = Pattern { context: Context(0), source: source.map(Peer), tag: tag.map(Tag) };
        let (mut sent, mut receives) = (0, vec![]);
        while receives.len() < lengths.len() {
            match rng.below(5) {
                0 if sent < lengths.len() => {
                    let bytes = message(0, sent as u32, LENGTHS[lengths[sent]]);
                    let (mode, to, tag) = (Mode::Standard, Peer(1), Tag(3));
                    let operation = Operation::Send { mode, to, context: Context(0), tag };
                    let sent_now = rng.chance(0.5).then(|| pair[0].send_now(operation, &bytes));
                    if sent_now.flatten().is_none() {
                        send(&mut pair[0], mode, 1, 3, &bytes);
                    }
                    sent += 1;
                }
                1 => match pair[1].receive_now(&pattern, 1000, &mut Vec::new()) {
                    TryReceive::Here(outcome) => receives.push(Err(outcome)),
                    TryReceive::NotYet | TryReceive::Refused => {}
                },
                2 if rng.chance(0.3) => receives.push(Ok(receive(&mut pair[1], source, tag, 1000))),
                side => {
                    pair[side as usize % 2].advance(Wait::Not);
                }
            }
        }
        for (number, bytes) in lengths.iter().enumerate().skip(sent) {
            let bytes = message(0, number as u32, LENGTHS[*bytes]);
            send(&mut pair[0], Mode::Standard, 1, 3, &bytes);
        }
        settle(&mut pair);
        for (number, receive) in receives.into_iter().enumerate() {
            let late = |request| take(&mut pair[1], request).expect("it is received");
            let outcome = receive.map_or_else(|outcome| outcome, late);
            prop_assert_eq!(outcome.bytes, message(0, number as u32, LENGTHS[lengths[number]]));
        }
        prop_assert!(pair[1].unexpected_bytes() == 0 && pair[1].counters().malformed == 0);
    }
}

#[test]
fn a_dropped_done_receive_returns_its_message_to_the_queue() {
    let mut random = Random::new(0, 4, 1 << 20, WhenFull::Rendezvous);
    random.send(0);
    let to = random.sent.keys().next().unwrap().1 as usize;
    let request = receive(&mut random.engines[to], None, None, 4096);
    settle(&mut random.engines);
    assert_eq!(random.engines[to].requests().state(request), Some(State::Done));
    random.engines[to].destroy(request, true);
    random.finish();
}

#[test]
fn sends_and_receives_without_a_request_need_no_others_to_wait() {
    let memory = MemoryConfig::default().room(600);
    let mut pair = cluster(2, memory, Config::default().eager(500));
    settle(&mut pair);
    let operation = |mode, to| {
        let context = Context(0);
        Operation::Send { mode, to: Peer(to), context, tag: Tag(3) }
    };
    let standard = operation(Mode::Standard, 1);
    let mut send = |mode, to, length: usize| {
        let outcome = pair[0].send_now(operation(mode, to), &message(0, 1, length));
        outcome.map(|outcome| (outcome.status.length, outcome.result))
    };
    assert_eq!(send(Mode::Standard, 1, 500), Some((500, Ok(()))));
    assert_eq!(send(Mode::Ready, 1, 8), Some((8, Ok(()))));
    for (mode, to, length) in [
        (Mode::Synchronous, 1, 8),
        (Mode::Buffered, 1, 8),
        (Mode::Standard, 1, 501),
        (Mode::Standard, 0, 8),
        (Mode::Standard, 2, 8),
    ] {
        assert_eq!(send(mode, to, length), None, "{mode:?} to {to}, {length} bytes");
    }
    let try_receive =
        |pair: &mut [Process], room| pair[1].receive_now(&ANYTHING, room, &mut vec![]);
    let TryReceive::Here(first) = try_receive(&mut pair, 400) else { panic!("it has arrived") };
    let truncated = Failure::Truncated { length: 500, room: 400 };
    assert_eq!((first.result, &first.bytes[..]), (Err(truncated), &message(0, 1, 500)[..400]));
    assert!(
        matches!(try_receive(&mut pair, 400), TryReceive::Here(second) if second.result.is_ok())
    );
    assert!(matches!(try_receive(&mut pair, 400), TryReceive::NotYet));

    let posted = receive(&mut pair[1], None, Some(9), 400);
    assert!(matches!(try_receive(&mut pair, 400), TryReceive::Refused), "another receive waits");
    pair[1].destroy(posted, true);
    pair[0].send_now(standard, b"held").unwrap();
    pair[1].advance(Wait::Not);
    assert!(matches!(try_receive(&mut pair, 400), TryReceive::Refused), "a message waits");
    let held = receive(&mut pair[1], None, None, 400);
    assert_eq!(take(&mut pair[1], held).unwrap().bytes, b"held");
    drop(pair.remove(0));
    let from_lost = Pattern { source: Some(Peer(0)), ..ANYTHING };
    let after = (0..3).map(|_| pair[0].receive_now(&from_lost, 400, &mut vec![]));
    assert!(matches!(after.last(), Some(TryReceive::Refused)), "the sender was lost");
    assert_eq!(pair[0].unexpected_bytes(), 0);
}
