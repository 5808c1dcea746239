//! Verdicts over random programs: none false, none missed, and the monitors agree.

mod monitor;

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use midplane_gang::channel::geometry::{FifoSize, Geometry};
use midplane_gang::context::{ChannelContext, NetworkContext, ReceivedMessage, SentMessage};
use midplane_gang::detect::Verdict;
use midplane_gang::names::{Epoch, JobId, Rank};
use midplane_gang::wait::WaitState;
use midplane_simhw::rng::Rng;
use monitor::{Activity, FourCounters, Token, TokenMove};
use proptest::prelude::*;

const FIFOS: Geometry = Geometry {
    send: FifoSize { messages: 3, bytes: 4096 },
    receive: FifoSize { messages: 3, bytes: 4096 },
    message: 8,
};
const TAGS: u64 = 3;

#[derive(Clone, Copy, Debug)]
enum Act {
    Work,
    Send(usize, u32),
    Receive(Option<usize>, Option<u32>),
}

#[derive(Debug, Default)]
struct Process {
    script: VecDeque<Act>,
    activity: Activity,
    /// To send: receiver and tag. Received: sender and tag. Held: taken out of the FIFO without a matching receive.
    send: VecDeque<(usize, u32)>,
    receive: VecDeque<(usize, u32)>,
    held: VecDeque<(usize, u32)>,
}

/// Ranks with random programs. A rank whose program has ended may start another when a message arrives.
struct Model {
    dice: Rng,
    ranks: Vec<Process>,
    /// Further programs that messages may start.
    reactions: u32,
    moves: u64,
    last_move: Vec<u64>,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut dice = Rng::new(seed, "programs");
        let ranks = dice.between(2, 5) as usize;
        let mut model = Self {
            dice,
            ranks: (0..ranks).map(|_| Process::default()).collect(),
            reactions: 6,
            moves: 0,
            last_move: vec![0; ranks],
        };
        for rank in 0..ranks {
            let length = model.dice.below(8);
            // Some jobs never wait for a particular message: they terminate.
            let waits = seed.is_multiple_of(3);
            model.ranks[rank].script = (0..length).map(|_| model.act(rank, waits)).collect();
        }
        model
    }

    fn act(&mut self, rank: usize, waits: bool) -> Act {
        let other = self.dice.below(self.ranks.len() as u64) as usize;
        let tag = self.dice.below(TAGS) as u32;
        match self.dice.below(if waits { 5 } else { 3 }) {
            0 => Act::Work,
            1 | 2 if other != rank => Act::Send(other, tag),
            3 | 4 => {
                let from = (self.dice.chance(0.7)).then_some(other);
                Act::Receive(from, self.dice.chance(0.7).then_some(tag))
            }
            _ => Act::Work,
        }
    }

    fn state(&self, rank: usize) -> WaitState {
        let process = &self.ranks[rank];
        match process.script.front() {
            None => WaitState::Idle,
            Some(Act::Work) => WaitState::Running,
            Some(Act::Send(to, _)) if process.send.len() >= 3 => {
                WaitState::Send { to: Rank(*to as u16) }
            }
            Some(Act::Send(..)) => WaitState::Running,
            Some(Act::Receive(from, tag)) => match self.matching(rank, *from, *tag, true) {
                Some(_) => WaitState::Running,
                None => WaitState::Receive { from: from.map(|from| Rank(from as u16)), tag: *tag },
            },
        }
    }

    /// Returns the position of the first message that matches a receive: among the held ones, or in the FIFO.
    fn matching(
        &self,
        rank: usize,
        from: Option<usize>,
        tag: Option<u32>,
        held: bool,
    ) -> Option<usize> {
        let process = &self.ranks[rank];
        let queue = if held { &process.held } else { &process.receive };
        queue.iter().position(|(sender, its)| {
            from.is_none_or(|from| from == *sender) && tag.is_none_or(|tag| tag == *its)
        })
    }

    /// Performs the next act of a rank, if it can.
    fn step(&mut self, rank: usize) -> bool {
        let moved = match self.ranks[rank].script.front().copied() {
            None => self.react(rank),
            Some(Act::Work) => self.ranks[rank].script.pop_front().is_some(),
            Some(Act::Send(to, tag)) => {
                let process = &mut self.ranks[rank];
                let room = process.send.len() < 3;
                if room {
                    process.send.push_back((to, tag));
                    process.activity.on_send();
                    process.script.pop_front();
                }
                room
            }
            Some(Act::Receive(from, tag)) => self.receive(rank, from, tag),
        };
        self.ranks[rank].activity.is_idle =
            self.ranks[rank].script.is_empty() && self.ranks[rank].held.is_empty();
        if moved {
            self.moves += 1;
            self.last_move[rank] = self.moves;
        }
        moved
    }

    fn react(&mut self, rank: usize) -> bool {
        let process = &mut self.ranks[rank];
        if process.held.pop_front().is_none() {
            if process.receive.pop_front().is_none() {
                return false;
            }
            process.activity.on_receive();
        }
        if self.reactions > 0 && self.dice.chance(0.5) {
            self.reactions -= 1;
            let length = self.dice.below(4);
            self.ranks[rank].script = (0..length).map(|_| self.act(rank, false)).collect();
        }
        true
    }

    fn receive(&mut self, rank: usize, from: Option<usize>, tag: Option<u32>) -> bool {
        if let Some(at) = self.matching(rank, from, tag, true) {
            self.ranks[rank].held.remove(at);
        } else if let Some(at) = self.matching(rank, from, tag, false) {
            self.ranks[rank].receive.remove(at);
            self.ranks[rank].activity.on_receive();
        } else {
            // It empties its FIFO for the awaited message; that is no progress of its own.
            let process = &mut self.ranks[rank];
            if process.receive.len() >= 3 {
                while let Some(message) = process.receive.pop_front() {
                    process.activity.on_receive();
                    process.held.push_back(message);
                }
            }
            return false;
        }
        self.ranks[rank].script.pop_front();
        true
    }

    /// Delivers the first message of a rank to a receiver with room, if there is one.
    fn deliver(&mut self, rank: usize) -> bool {
        for at in 0..self.ranks[rank].send.len() {
            let (to, tag) = self.ranks[rank].send[at];
            let first = !self.ranks[rank].send.iter().take(at).any(|(other, _)| *other == to);
            if first && self.ranks[to].receive.len() < 3 {
                self.ranks[rank].send.remove(at);
                self.ranks[to].receive.push_back((rank, tag));
                return true;
            }
        }
        false
    }

    /// Performs one act of a rank, or one delivery; `false` if none is possible.
    fn turn(&mut self) -> bool {
        let count = self.ranks.len();
        let first = self.dice.below(2 * count as u64) as usize;
        // Twice, because a rank that only empties its FIFO may make deliveries possible.
        (0..4 * count).map(|step| (first + step) % (2 * count)).any(|at| match at < count {
            true => self.step(at),
            false => self.deliver(at - count),
        })
    }

    fn cut(&self) -> NetworkContext {
        let ranks = (0..self.ranks.len()).map(|rank| {
            let process = &self.ranks[rank];
            let bytes = |tag: u32| Bytes::copy_from_slice(&tag.to_le_bytes());
            let send = process.send.iter().map(|(to, tag)| SentMessage {
                to: Rank(*to as u16),
                position: 0,
                length: 4,
                taken: false,
                bytes: bytes(*tag),
            });
            let receive = process.receive.iter().map(|(from, tag)| ReceivedMessage {
                from: Rank(*from as u16),
                position: 0,
                bytes: bytes(*tag),
            });
            // A process that holds messages works on them: it publishes that it runs.
            let idle = process.script.is_empty() && !process.held.is_empty();
            ChannelContext {
                send: send.collect(),
                receive: receive.collect(),
                wait: if idle { WaitState::Running } else { self.state(rank) },
                ..ChannelContext::fresh(Rank(rank as u16), FIFOS)
            }
        });
        NetworkContext { job: JobId(1), epoch: Epoch(1), ranks: ranks.collect() }
    }
}

#[derive(Debug, Default)]
struct Tally {
    terminated: u32,
    deadlocked: u32,
    cycles: u32,
    unmatched: u32,
}

fn random_run(seed: u64, tally: &mut Tally) {
    let mut model = Model::new(seed);
    let count = model.ranks.len();
    let (mut token, mut counters) = (Token::new(), FourCounters::new());
    let mut doomed: BTreeSet<Rank> = BTreeSet::new();
    let mut terminated_at = None;
    let mut visited = 0;
    loop {
        if model.dice.below(6) == 0 {
            let verdict = model.cut().verdict();
            match verdict {
                Verdict::Live => {
                    assert!(doomed.is_empty() && terminated_at.is_none(), "seed {seed}")
                }
                Verdict::Terminated => {
                    terminated_at.get_or_insert(model.moves);
                }
                Verdict::Deadlocked(deadlock) => {
                    let now: BTreeSet<Rank> = deadlock.waiting.keys().copied().collect();
                    assert!(now.is_superset(&doomed), "seed {seed}: a verdict was taken back");
                    doomed = now;
                }
            }
        }
        // Each monitor visits one rank, while the job continues.
        let at = token.at();
        let is_over = |model: &Model| {
            (0..count).all(|rank| model.state(rank) == WaitState::Idle)
                && model.cut().in_transit().next().is_none()
                && model.ranks.iter().all(|process| process.held.is_empty())
        };
        for rank in &mut model.ranks {
            rank.activity.is_idle = rank.script.is_empty() && rank.held.is_empty();
        }
        if token.leave(&mut model.ranks[at].activity, count) == TokenMove::Terminated {
            assert!(is_over(&model), "seed {seed}: the token is wrong");
        }
        if counters.visit(&model.ranks[visited % count].activity, count) {
            assert!(is_over(&model), "seed {seed}: the counters are wrong");
        }
        visited += 1;
        let before = model.last_move.clone();
        if !model.turn() {
            break;
        }
        assert!(terminated_at.is_none_or(|at| at == model.moves), "seed {seed}: it had terminated");
        for rank in &doomed {
            let (was, is) = (before[rank.index()], model.last_move[rank.index()]);
            assert_eq!(was, is, "seed {seed}: rank {rank} was deadlocked, and went on");
        }
    }
    at_the_end(seed, &model, tally, (token, counters, visited));
}

/// Checks that the verdict and the monitors detect the end, when no rank can progress any more.
fn at_the_end(
    seed: u64,
    model: &Model,
    tally: &mut Tally,
    (mut token, mut counters, mut visited): (Token, FourCounters, usize),
) {
    let count = model.ranks.len();
    let waiting: BTreeSet<Rank> = (0..count)
        .filter(|rank| model.state(*rank) != WaitState::Idle)
        .map(|rank| Rank(rank as u16))
        .collect();
    match model.cut().verdict() {
        Verdict::Live => panic!("seed {seed}: nothing moves, and the verdict is that it lives"),
        Verdict::Terminated => {
            assert!(waiting.is_empty(), "seed {seed}: {waiting:?} wait");
            tally.terminated += 1;
        }
        Verdict::Deadlocked(deadlock) => {
            let named: BTreeSet<Rank> = deadlock.waiting.keys().copied().collect();
            assert_eq!(named, waiting, "seed {seed}");
            for pair in deadlock.cycle.windows(2) {
                assert!(waiting.contains(&pair[0]) && waiting.contains(&pair[1]));
            }
            tally.deadlocked += 1;
            tally.cycles += u32::from(!deadlock.cycle.is_empty());
            tally.unmatched += u32::from(!deadlock.unmatched.is_empty());
            assert!(!deadlock.to_string().is_empty());
        }
    }
    let mut activities: Vec<Activity> =
        model.ranks.iter().map(|process| process.activity).collect();
    for (activity, process) in activities.iter_mut().zip(&model.ranks) {
        activity.is_idle = process.script.is_empty() && process.held.is_empty();
    }
    let (mut by_token, mut by_counters) = (false, false);
    for _ in 0..4 * count {
        let at = token.at();
        by_token |= token.leave(&mut activities[at], count) == TokenMove::Terminated;
        by_counters |= counters.visit(&activities[visited % count], count);
        visited += 1;
    }
    let over = waiting.is_empty();
    assert_eq!((by_token, by_counters), (over, over), "seed {seed}: after four rounds");
}

fn random_runs(count: u64) -> Tally {
    let mut tally = Tally::default();
    for seed in 0..count {
        random_run(seed, &mut tally);
    }
    tally
}

#[test]
fn verdicts_are_never_false_and_never_missed() {
    let tally = random_runs(100_000);
    assert!(tally.terminated > 20_000 && tally.deadlocked > 20_000, "{tally:?}");
    assert!(tally.cycles > 5_000 && tally.unmatched > 5_000, "{tally:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]
    #[test]
    fn verdicts_are_never_false_and_never_missed_from_new_seeds(seed: u64) {
        random_run(seed, &mut Tally::default());
    }
}

#[test]
fn a_sender_to_a_waiting_rank_finds_room_and_is_not_deadlocked() {
    random_run(11_139, &mut Tally::default());
}

/// Regression: a receiver without room for the longest message counted as full.
#[test]
fn a_receiver_with_room_for_the_next_message_is_not_full() {
    // A message of 100 bytes takes 104: 39 of them fill the send FIFO.
    let bytes = Bytes::from_static(&[7; 100]);
    let position = |number: u64| number * 104;
    let rank = |own: u16| {
        let other = Rank(1 - own);
        let sent = |number| SentMessage {
            to: other,
            position: position(number),
            length: 100,
            taken: false,
            bytes: bytes.clone(),
        };
        let received = |number| ReceivedMessage {
            from: other,
            position: position(number),
            bytes: bytes.clone(),
        };
        ChannelContext {
            receive_tail: position(36),
            send: (0..39).map(sent).collect(),
            receive: (0..36).map(received).collect(),
            wait: WaitState::Send { to: other },
            ..ChannelContext::fresh(Rank(own), Geometry::SMALL)
        }
    };
    let ranks = vec![rank(0), rank(1)];
    let mut cut = NetworkContext { job: JobId(1), epoch: Epoch(1), ranks };
    assert_eq!(cut.verdict(), Verdict::Live);
    // Three more messages fill both receive FIFOs.
    for context in &mut cut.ranks {
        for number in 36..39 {
            let from = context.receive[0].from;
            context.receive.push(ReceivedMessage {
                from,
                position: position(number),
                bytes: bytes.clone(),
            });
        }
        context.receive_tail = position(39);
    }
    assert!(matches!(cut.verdict(), Verdict::Deadlocked(_)));
}

#[test]
fn a_deadlock_names_its_cycle_and_the_unmatched_messages() {
    let receive = |from, tag| WaitState::Receive { from: Some(Rank(from)), tag: Some(tag) };
    let mut ranks: Vec<ChannelContext> =
        (0..4).map(|rank| ChannelContext::fresh(Rank(rank), FIFOS)).collect();
    ranks[0].wait = receive(1, 7);
    ranks[1].wait = receive(2, 7);
    ranks[2].wait = receive(0, 7);
    ranks[3].wait = WaitState::Idle;
    let bytes = Bytes::copy_from_slice(&8_u32.to_le_bytes());
    ranks[0].receive.push(ReceivedMessage { from: Rank(1), position: 0, bytes });
    let cut = NetworkContext { job: JobId(1), epoch: Epoch(1), ranks };
    let Verdict::Deadlocked(deadlock) = cut.verdict() else { panic!("it is deadlocked") };
    assert_eq!(
        deadlock.to_string(),
        "cycle: 0 > 1 > 2 > 0\n\
         rank 0 waits for tag 7 from rank 1; 1 has sent tag 8, 4 bytes\n\
         rank 1 waits for tag 7 from rank 2\n\
         rank 2 waits for tag 7 from rank 0\n"
    );
}
