//! Programs that end if sends never block, and the engines that run them.

use std::collections::BTreeMap;
use std::thread;

use midplane_simhw::rng::Rng;
use midplane_via::message::engine::{Config, WhenFull};
use midplane_via::message::envelope::{Context, Peer, Tag};
use midplane_via::message::matching::Pattern;
use midplane_via::message::memory::MemoryConfig;
use midplane_via::message::request::{Load, Mode, Operation, Request, State};
use midplane_via::message::transport::{Claim, Wait};

use crate::engines::{Process, cluster, message};

/// The contexts: one in which receives name their source, and one in which none does.
const NAMED: u32 = 0;
const ANY: u32 = 1;

/// A step of a process; messages and receives have numbers of their own.
#[derive(Clone, Copy, Debug)]
enum Op {
    Send {
        number: usize,
    },
    Receive {
        number: usize,
        pattern: Pattern,
    },
    /// Polls until the message is there; claims and receives it, or leaves it.
    Probe {
        pattern: Pattern,
        expected: usize,
        claims: bool,
    },
    WaitSend {
        number: usize,
    },
    WaitReceive {
        number: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    from: u32,
    to: u32,
    context: u32,
    tag: u32,
    length: usize,
    mode: Mode,
}

impl Sent {
    fn is_for(&self, at: u32, pattern: &Pattern) -> bool {
        self.to == at
            && Context(self.context) == pattern.context
            && pattern.source.is_none_or(|source| source.0 == self.from)
            && pattern.tag.is_none_or(|tag| tag.0 == self.tag)
    }
}

/// A program, and the receive that each message meets.
#[derive(Debug, Default)]
struct Program {
    scripts: Vec<Vec<Op>>,
    sent: Vec<Sent>,
    /// By receive: the process that posted it, and its pattern.
    posted: Vec<(u32, Pattern)>,
    met: Vec<Option<usize>>,
    /// By message: its receive, or `Some(None)` if a probe has claimed it.
    receives: Vec<Option<Option<usize>>>,
    waited_sends: Vec<bool>,
    waited_receives: Vec<bool>,
}

impl Program {
    fn draw(rng: &mut Rng) -> Self {
        let processes = rng.between(2, 8) as u32;
        let scripts = vec![vec![]; processes as usize];
        let mut program = Self { scripts, ..Self::default() };
        let tags = rng.between(1, 4);
        let eager = rng.chance(0.5);
        for _ in 0..rng.between(10, 150) {
            let at = rng.below(processes.into()) as u32;
            match rng.below(10) {
                0..=3 => program.send(rng, at, tags),
                4 | 5 if eager => program.receive(rng, at, tags),
                4..=6 => program.receive_something(rng, at),
                7 => program.probe(rng, at),
                8 => _ = program.wait_send(rng, at, false),
                _ => _ = program.wait_receive(rng, at),
            }
        }
        // Some messages are never received; all receives that meet one are waited for.
        program.finish(rng);
        program
    }

    fn processes(&self) -> u64 {
        self.scripts.len() as u64
    }

    fn send(&mut self, rng: &mut Rng, from: u32, tags: u64) {
        let to = rng.below(self.processes()) as u32;
        let context = if rng.chance(0.8) { NAMED } else { ANY };
        let length = [8, 30, 200, 500, 1500][rng.below(5) as usize];
        let mode = if rng.chance(0.8) { Mode::Standard } else { Mode::Synchronous };
        let sent = Sent { from, to, context, tag: rng.below(tags) as u32, length, mode };
        let number = self.sent.len();
        self.scripts[from as usize].push(Op::Send { number });
        self.sent.push(sent);
        self.waited_sends.push(false);
        let first = (0..self.posted.len()).find(|receive| {
            let (at, pattern) = &self.posted[*receive];
            self.met[*receive].is_none() && sent.is_for(*at, pattern)
        });
        if let Some(receive) = first {
            self.met[receive] = Some(number);
        }
        self.receives.push(first.map(Some));
    }

    fn post(&mut self, at: u32, pattern: Pattern) {
        let number = self.posted.len();
        self.scripts[at as usize].push(Op::Receive { number, pattern });
        self.posted.push((at, pattern));
        self.waited_receives.push(false);
        let first = self.unreceived(at, &pattern);
        if let Some(message) = first {
            self.receives[message] = Some(Some(number));
        }
        self.met.push(first);
    }

    /// Returns the first message that a receive would meet.
    fn unreceived(&self, at: u32, pattern: &Pattern) -> Option<usize> {
        (0..self.sent.len())
            .find(|n| self.receives[*n].is_none() && self.sent[*n].is_for(at, pattern))
    }

    fn pattern(rng: &mut Rng, sent: &Sent) -> Pattern {
        let tag = rng.chance(0.8).then_some(Tag(sent.tag));
        match sent.context {
            NAMED => Pattern { context: Context(NAMED), source: Some(Peer(sent.from)), tag },
            _ => Pattern { context: Context(ANY), source: None, tag: None },
        }
    }

    /// Posts a receive for which there may be no message.
    fn receive(&mut self, rng: &mut Rng, at: u32, tags: u64) {
        let from = rng.below(self.processes()) as u32;
        let context = if rng.chance(0.8) { NAMED } else { ANY };
        let tag = rng.below(tags) as u32;
        let like = Sent { from, to: at, context, tag, length: 0, mode: Mode::Standard };
        let pattern = Self::pattern(rng, &like);
        self.post(at, pattern);
    }

    fn any_message(&self, rng: &mut Rng, at: u32) -> Option<Sent> {
        let here: Vec<_> = (0..self.sent.len())
            .filter(|n| self.receives[*n].is_none() && self.sent[*n].to == at)
            .collect();
        let count = here.len() as u64;
        (count > 0).then(|| self.sent[here[rng.below(count) as usize]])
    }

    /// Posts a receive for a message that was sent, which is not always the first.
    fn receive_something(&mut self, rng: &mut Rng, at: u32) {
        if let Some(sent) = self.any_message(rng, at) {
            let pattern = Self::pattern(rng, &sent);
            self.post(at, pattern);
        }
    }

    fn probe(&mut self, rng: &mut Rng, at: u32) {
        let Some(sent) = self.any_message(rng, at).filter(|sent| sent.context == NAMED) else {
            return;
        };
        let pattern = Self::pattern(rng, &sent);
        let expected = self.unreceived(at, &pattern).expect("it was sent");
        let claims = rng.chance(0.5);
        self.scripts[at as usize].push(Op::Probe { pattern, expected, claims });
        if claims {
            self.receives[expected] = Some(None);
        }
    }

    /// Waits for a send. Receives from any source may meet messages in any order, so their sends are waited for only
    /// once `all` messages have a receive. Returns whether there was one.
    fn wait_send(&mut self, rng: &mut Rng, at: u32, all: bool) -> bool {
        let ready: Vec<_> = (0..self.sent.len())
            .filter(|n| self.sent[*n].from == at && !self.waited_sends[*n])
            .filter(|n| self.receives[*n].is_some() && (all || self.sent[*n].context == NAMED))
            .collect();
        if !ready.is_empty() {
            let number = ready[rng.below(ready.len() as u64) as usize];
            self.waited_sends[number] = true;
            self.scripts[at as usize].push(Op::WaitSend { number });
        }
        !ready.is_empty()
    }

    /// Waits for a receive that has met a message; returns whether there was one.
    fn wait_receive(&mut self, rng: &mut Rng, at: u32) -> bool {
        let ready: Vec<_> = (0..self.posted.len())
            .filter(|n| self.posted[*n].0 == at && !self.waited_receives[*n])
            .filter(|n| self.met[*n].is_some() && self.may_wait(*n))
            .collect();
        if !ready.is_empty() {
            let number = ready[rng.below(ready.len() as u64) as usize];
            self.waited_receives[number] = true;
            self.scripts[at as usize].push(Op::WaitReceive { number });
        }
        !ready.is_empty()
    }

    /// Returns whether a receive surely completes. A receive from any source may meet any message, so those before it
    /// must have met one.
    fn may_wait(&self, receive: usize) -> bool {
        let (at, pattern) = self.posted[receive];
        let mut before = (0..receive).filter(|n| self.posted[*n] == (at, pattern));
        pattern.source.is_some() || before.all(|n| self.met[n].is_some())
    }

    fn finish(&mut self, rng: &mut Rng) {
        let keeps = rng.chance(0.5);
        for number in 0..self.sent.len() {
            let unreceived = self.receives[number].is_none();
            if unreceived && (!keeps || self.sent[number].context == ANY || rng.chance(0.5)) {
                let sent = self.sent[number];
                self.post(sent.to, Self::pattern(rng, &sent));
            }
        }
        for at in 0..self.scripts.len() as u32 {
            while self.wait_receive(rng, at) | self.wait_send(rng, at, true) {}
        }
    }
}

/// A running program.
struct Run<'a> {
    program: &'a Program,
    engines: Vec<Process>,
    at: Vec<usize>,
    sends: BTreeMap<usize, Request>,
    receives: BTreeMap<usize, Request>,
    /// In the context of any source: the last message received from each sender by each receiver.
    last: BTreeMap<(u32, u32), usize>,
}

impl Run<'_> {
    /// Takes a process's next step; returns whether it was possible.
    fn step(&mut self, process: usize) -> bool {
        let Some(op) = self.program.scripts[process].get(self.at[process]).copied() else {
            return false;
        };
        let engine = &mut self.engines[process];
        let done = match op {
            Op::Send { number } => {
                let Sent { from, to, context, tag, length, mode } = self.program.sent[number];
                let (to, context, tag) = (Peer(to), Context(context), Tag(tag));
                let request = engine.build(Operation::Send { mode, to, context, tag }).unwrap();
                let bytes = message(from, number as u32, length);
                engine.start(request, Load::Copy(&bytes)).unwrap();
                self.sends.insert(number, request);
                true
            }
            Op::Receive { number, pattern } => {
                let request = engine.build(Operation::Receive(pattern)).unwrap();
                engine.start(request, Load::anything()).unwrap();
                self.receives.insert(number, request);
                true
            }
            Op::Probe { pattern, expected, claims } => {
                let claim = if claims { Claim::Take } else { Claim::Leave };
                match engine.iprobe(&pattern, claim) {
                    None => false,
                    Some(found) => {
                        let Sent { from, tag, length, .. } = self.program.sent[expected];
                        let key = (found.key.source.0, found.key.tag.0, found.length);
                        assert_eq!(key, (from, tag, length), "message {expected}");
                        if let Some(request) = found.claimed {
                            engine.start(request, Load::anything()).unwrap();
                        }
                        true
                    }
                }
            }
            Op::WaitSend { number } => {
                engine.requests().state(self.sends[&number]) == Some(State::Done)
            }
            Op::WaitReceive { number } => self.wait_receive(process, number),
        };
        self.at[process] += usize::from(done);
        done
    }

    fn wait_receive(&mut self, process: usize, number: usize) -> bool {
        let request = self.receives[&number];
        let Some(outcome) = self.engines[process].requests().take(request) else { return false };
        outcome.result.unwrap();
        let got = u32::from_le_bytes(outcome.bytes[4..8].try_into().unwrap()) as usize;
        let sent = self.program.sent[got];
        assert_eq!(outcome.bytes, message(sent.from, got as u32, sent.length), "whole");
        if sent.context == NAMED {
            assert_eq!(Some(got), self.program.met[number], "receive {number}");
        } else {
            self.last.insert((sent.from, sent.to), got);
        }
        true
    }

    fn explain(&self) -> String {
        let stuck = self.program.scripts.iter().zip(&self.at).zip(&self.engines);
        let lines = stuck.enumerate().map(|(process, ((script, at), engine))| {
            format!("{process} at {:?}\n{}\n", script.get(*at), engine.explain())
        });
        lines.collect()
    }
}

/// Draws a program from a seed and runs it to its end.
pub(crate) fn run(seed: u64) {
    let seed_printer = SeedPrinter(seed);
    let mut rng = Rng::new(seed, "program");
    let program = Program::draw(&mut rng);
    let memory = MemoryConfig::default()
        .depth(rng.between(1, 6) as usize)
        .room([40, 100, 600][rng.below(3) as usize])
        .seed(seed);
    let window = [256, 300, 600, 1300, 5000][rng.below(5) as usize];
    let policy = if rng.chance(0.7) { WhenFull::Rendezvous } else { WhenFull::Wait };
    let config = Config::default().eager(500).window(window).when_full(policy).batch(5);
    let processes = program.scripts.len();
    let mut run = Run {
        program: &program,
        engines: cluster(processes, memory, config),
        at: vec![0; processes],
        sends: BTreeMap::new(),
        receives: BTreeMap::new(),
        last: BTreeMap::new(),
    };
    let mut idle = 0;
    while program.scripts.iter().zip(&run.at).any(|(script, at)| *at < script.len()) {
        let process = rng.below(processes as u64) as usize;
        if rng.chance(0.7) {
            run.engines[process].advance(Wait::Not);
        }
        idle = if run.step(process) { 0 } else { idle + 1 };
        assert!(idle < 20_000, "stuck:\n{}", run.explain());
        let held = run.engines[process].unexpected_bytes();
        assert!(held <= (window * processes) as u64, "{held} bytes are held");
    }
    for engine in &run.engines {
        assert_eq!(engine.counters().malformed, 0);
    }
    drop(seed_printer);
}

/// Prints the seed if a run fails.
struct SeedPrinter(u64);

impl Drop for SeedPrinter {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the program of seed {} failed: programs::run({})", self.0, self.0);
        }
    }
}
