//! A model of both sides in random order. Memory may change before the completion that announces the write is seen.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const AREA: usize = 1024;
/// Fewest receive descriptors that a side may have.
const DESCRIPTORS: u16 = 8;
const LONGEST: usize = AREA / 4;

/// A write that is under way.
#[derive(Clone, Copy, Debug)]
enum Write {
    Packet { immediate: i32 },
    Words { words: [u64; WORDS], wakes: bool },
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize),
    /// Free the oldest packet that was taken.
    Free,
    /// Take the oldest completion.
    Take,
    Park,
    /// The process is woken by its application, or by another link.
    Wake,
    /// The oldest write under way reaches the other side's memory.
    Write,
    /// The other side sees the completion of the oldest write that has.
    Complete,
}

#[derive(Debug)]
struct Side {
    exchange: Exchange,
    /// The other side's words, in this side's memory.
    memory: [u64; WORDS],
    /// Writes that have not reached the other side's memory.
    writes: VecDeque<Write>,
    /// Immediate data of writes to this side that are in its memory, unseen; then of those that it can take.
    unseen: VecDeque<i32>,
    completions: VecDeque<i32>,
    /// Room that each taken packet frees.
    taken: VecDeque<u64>,
    /// Length of the packet that was refused.
    refused: Option<usize>,
    parked: bool,
    sent: u64,
    received: u64,
    /// Posted receive descriptors that no write has consumed yet.
    posted: u64,
}

impl Side {
    fn new() -> Self {
        Self {
            exchange: Exchange::new(AREA, DESCRIPTORS),
            memory: [0; WORDS],
            writes: VecDeque::new(),
            unseen: VecDeque::new(),
            completions: VecDeque::new(),
            taken: VecDeque::new(),
            refused: None,
            parked: false,
            sent: 0,
            received: 0,
            posted: u64::from(DESCRIPTORS),
        }
    }

    fn read(&mut self) {
        self.exchange.on_words(self.memory);
    }

    fn publish(&mut self, wakes: bool) -> bool {
        let Some(words) = self.exchange.words(wakes) else { return false };
        self.writes.push_back(Write::Words { words, wakes });
        self.exchange.on_published(wakes);
        true
    }

    fn send_unsent(&mut self) {
        while self.exchange.owes() && self.publish(true) {
            self.exchange.on_sent();
        }
    }

    fn request(&mut self) {
        self.exchange.request(true);
        self.send_unsent();
    }

    fn publish_if_due(&mut self, parks: bool) {
        let memory = self.memory;
        match self.exchange.due(parks, true, || Some(memory)) {
            Due::Nothing => {}
            Due::Words => assert!(self.publish(false), "it takes no descriptor"),
            Due::Reply => self.send_unsent(),
        }
    }

    fn send(&mut self, bytes: usize) {
        let place = self.exchange.credit.take(bytes).or_else(|| {
            self.read();
            self.exchange.credit.take(bytes)
        });
        let Some(place) = place else {
            self.request();
            self.refused = Some(bytes);
            return;
        };
        self.refused = None;
        self.sent += 1;
        self.writes.push_back(Write::Packet { immediate: place.immediate });
        if self.exchange.is_low(DESCRIPTORS) {
            self.read();
        }
        if self.exchange.is_low(DESCRIPTORS) && self.exchange.request_count().is_some() {
            self.publish(false);
        }
    }

    fn take(&mut self) {
        let Some(immediate) = self.completions.pop_front() else { return };
        self.posted += 1;
        self.exchange.reader.posted += 1;
        if immediate == 0 {
            self.exchange.on_taken();
            self.read();
            self.publish_if_due(false);
            return;
        }
        let (_, _, frees) = self.exchange.reader.locate(immediate).expect("a packet");
        self.received += 1;
        self.taken.push_back(frees);
    }

    fn free(&mut self) {
        if let Some(frees) = self.taken.pop_front() {
            self.exchange.reader.freed += frees;
            self.publish_if_due(false);
        }
    }

    /// Handles all that this side can see; then parks, unless there is something to do again.
    fn park(&mut self) {
        while !self.completions.is_empty() {
            self.take();
        }
        while !self.taken.is_empty() {
            self.free();
        }
        if let Some(bytes) = self.refused {
            self.send(bytes);
        }
        self.read();
        self.publish_if_due(true);
        self.send_unsent();
        if self.refused.is_some() && !self.has_room() {
            self.request();
        }
        self.read();
        self.parked = self.refused.is_none() || !self.has_room();
    }

    fn has_room(&self) -> bool {
        let mut credit = self.exchange.credit;
        credit.take(LONGEST).is_some()
    }

    fn write(&mut self, other: &mut Self) {
        let announced = match self.writes.pop_front() {
            Some(Write::Packet { immediate }) => Some(immediate),
            Some(Write::Words { words, wakes }) => {
                other.memory = words;
                wakes.then_some(0)
            }
            None => None,
        };
        if let Some(immediate) = announced {
            // Without a descriptor, the NIC would break the connection.
            other.posted = other.posted.checked_sub(1).expect("a posted descriptor");
            other.unseen.push_back(immediate);
        }
    }

    fn complete(&mut self) {
        if let Some(immediate) = self.unseen.pop_front() {
            self.completions.push_back(immediate);
            self.parked = false;
        }
    }
}

/// Has `side` take one step.
fn take_step(side: &mut Side, other: &mut Side, step: Step) {
    match step {
        Step::Wake => side.parked = false,
        Step::Write => side.write(other),
        Step::Complete => other.complete(),
        // A parked process does nothing until it is woken.
        _ if side.parked => {}
        Step::Send(bytes) if side.refused.is_none() => side.send(bytes),
        Step::Send(_) => {}
        Step::Free => side.free(),
        Step::Take => side.take(),
        Step::Park => side.park(),
    }
}

/// Runs both sides until both are parked and nothing is under way.
fn settle(sides: &mut [Side; 2]) {
    for _ in 0..10_000 {
        let [one, other] = sides;
        one.write(other);
        other.write(one);
        one.complete();
        other.complete();
        let is_idle = |side: &Side| side.parked && side.writes.is_empty() && side.unseen.is_empty();
        if sides.iter().all(is_idle) {
            return;
        }
        sides.iter_mut().filter(|side| !side.parked).for_each(Side::park);
    }
    panic!("requests and replies never end: {sides:?}");
}

fn steps() -> impl Strategy<Value = Step> {
    // Completions are rare, so that much is in memory that no process has been told of.
    prop_oneof![
        6 => (1..=LONGEST).prop_map(Step::Send),
        2 => Just(Step::Free),
        2 => Just(Step::Take),
        4 => Just(Step::Park),
        4 => Just(Step::Wake),
        8 => Just(Step::Write),
        2 => Just(Step::Complete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Checks for any order of steps: no write lacks a descriptor, no process parks for ever with a refused packet, and
    /// all packets arrive.
    #[test]
    fn no_process_waits_for_credit_for_ever(
        steps in proptest::collection::vec((any::<bool>(), steps()), 1..400),
    ) {
        let mut sides = [Side::new(), Side::new()];
        for (first, step) in steps {
            let [one, other] = &mut sides;
            if first { take_step(one, other, step) } else { take_step(other, one, step) }
        }
        settle(&mut sides);
        for (at, side) in sides.iter().enumerate() {
            prop_assert_eq!(side.refused, None, "side {} parks with a refused packet: {:?}", at, sides);
            prop_assert_eq!(side.sent, sides[1 - at].received);
        }
    }
}
