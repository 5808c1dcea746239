//! A message engine whose carrier delivers forged packets of its peers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use midplane_simhw::region::Payload;
use midplane_via::message::carrier::{Carrier, Event, Refusal};
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Context, Envelope, LONGEST, Peer, Tag};
use midplane_via::message::matching::Pattern;
use midplane_via::message::request::{Load, Mode, Operation, Request};
use midplane_via::message::transport::{Claim, InitError, Wait};

/// Forged packets: sender, envelope, payload.
type Packets = Arc<Mutex<VecDeque<(u32, Vec<u8>, Vec<u8>)>>>;

/// A carrier that delivers the test's packets, and records the envelopes that the engine posts.
#[derive(Debug, Default)]
struct Script {
    packets: Packets,
    posted: Vec<(Peer, Envelope)>,
    current: Vec<u8>,
}

impl Carrier for Script {
    fn own(&self) -> Peer {
        Peer(0)
    }
    fn connect(&mut self, _: &[Peer]) -> Result<(), InitError> {
        Ok(())
    }
    fn room(&self) -> usize {
        256
    }
    fn post(&mut self, to: Peer, envelope: &Envelope, _: &[u8]) -> Result<(), Refusal> {
        self.posted.push((to, *envelope));
        Ok(())
    }
    fn poll(&mut self) -> Option<Event<'_>> {
        loop {
            let next = self.packets.lock().unwrap().pop_front();
            let (from, header, payload) = next?;
            let Ok(envelope) = Envelope::parse(&header) else { continue };
            self.current = payload;
            let payload = Payload::from(&self.current[..]);
            return Some(Event::Packet { from: Peer(from), envelope, payload });
        }
    }
    fn arm_wakeup(&mut self, _: &Waker) -> bool {
        true
    }
    fn close(&mut self) {}
}

/// A step of a run: a packet of a peer, or an operation of the engine's program.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Packet { from: u32, words: [u32; 6], handles: [u64; 2], payload: usize, repair: bool },
    Send { synchronous: bool, length: usize },
    Receive { wild: bool, room: usize },
    Claim,
    Cancel(usize),
    Destroy(usize, bool),
}

const WINDOW: usize = 4096;

struct Run {
    script: Vec<(u32, Vec<u8>, Vec<u8>)>,
    /// The packets that the engine's carrier delivers next.
    packets: Packets,
    engine: Engine,
    requests: Vec<Request>,
    /// For each process, the number that its next packet has if it follows the protocol.
    sequences: [u32; 4],
}

impl Run {
    fn new() -> Self {
        let packets = Packets::default();
        let script = Script { packets: Arc::clone(&packets), ..Script::default() };
        let config = Config::default().window(WINDOW).eager(200);
        let mut engine = Engine::new(script, config);
        engine.init().unwrap();
        engine.add_processes(&[Peer(1), Peer(2)]).unwrap();
        Self { script: vec![], packets, engine, requests: vec![], sequences: [0; 4] }
    }

    /// Appends a packet to the script. If `repair`, first corrects the fields that its sender must set.
    fn packet(&mut self, op: &Op) {
        let Op::Packet { from, mut words, handles, payload, repair } = *op else { return };
        let matched = matches!(words[2] & 0xFF, 1 | 2);
        if repair {
            words[3] = from;
            words[0] = if words[2] & 0xFF == 2 { words[0] % 5000 } else { payload as u32 };
            words[5] = self.sequences[from as usize];
            self.sequences[from as usize] += u32::from(matched);
        }
        let mut header: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        header.extend(handles.iter().flat_map(|handle| handle.to_le_bytes()));
        assert_eq!(header.len(), LONGEST);
        let payload = if repair && words[2] & 0xFF == 2 { vec![] } else { vec![7; payload] };
        self.script.push((from, header, payload));
    }

    fn apply(&mut self, op: &Op) {
        let context = Context(0);
        match *op {
            Op::Packet { .. } => self.packet(op),
            Op::Send { synchronous, length } => {
                let mode = if synchronous { Mode::Synchronous } else { Mode::Standard };
                let send = Operation::Send { mode, to: Peer(1), context, tag: Tag(0) };
                let request = self.engine.build(send).unwrap();
                self.engine.start(request, Load::Copy(&vec![1; length])).unwrap();
                self.requests.push(request);
            }
            Op::Receive { wild, room } => {
                let source = (!wild).then_some(Peer(1));
                let pattern = Pattern { context, source, tag: None };
                let request = self.engine.build(Operation::Receive(pattern)).unwrap();
                self.engine.start(request, Load::Room { room, storage: Vec::new() }).unwrap();
                self.requests.push(request);
            }
            Op::Claim => {
                let pattern = Pattern { context, source: None, tag: None };
                let found = self.engine.iprobe(&pattern, Claim::Take);
                self.requests.extend(found.and_then(|found| found.claimed));
            }
            Op::Cancel(at) if !self.requests.is_empty() => {
                let request = self.requests[at % self.requests.len()];
                self.engine.requests().cancel(request);
            }
            Op::Destroy(at, undo) if !self.requests.is_empty() => {
                let request = self.requests.swap_remove(at % self.requests.len());
                self.engine.destroy(request, undo);
            }
            _ => {}
        }
    }
}

/// Runs steps in order. Checks that the engine does not panic, stores no more than its limits, and can still send to
/// itself at the end.
pub(crate) fn run(ops: &[Op]) {
    run_in_turns(ops, false);
    run_in_turns(ops, true);
}

/// Does the same as `run`. If `together`, consecutive packets arrive in one turn of the engine.
fn run_in_turns(ops: &[Op], together: bool) {
    // All packets of the run are made first; the program's operations then run between them.
    let mut run = Run::new();
    ops.iter().for_each(|op| run.packet(op));
    let mut packets = std::mem::take(&mut run.script).into_iter();
    let mut run = Run::new();
    for (at, op) in ops.iter().enumerate() {
        if matches!(op, Op::Packet { .. }) {
            let packet = packets.next().expect("one each");
            run.packets.lock().unwrap().push_back(packet);
        } else {
            run.apply(op);
        }
        if together && matches!(ops.get(at + 1), Some(Op::Packet { .. })) {
            continue;
        }
        run.engine.advance(Wait::Not);
        assert!(run.engine.unexpected_bytes() <= 2 * WINDOW as u64);
        let _ = run.engine.explain().to_string();
    }
    // No forged packet is from this process, so it can still send to itself.
    let (to, context, tag) = (Peer(0), Context(9), Tag(1));
    let own = Operation::Send { mode: Mode::Synchronous, to, context, tag };
    let send = run.engine.build(own).unwrap();
    run.engine.start(send, Load::Copy(&[5; 300])).unwrap();
    let pattern = Pattern { context, source: Some(to), tag: None };
    let receive = run.engine.build(Operation::Receive(pattern)).unwrap();
    run.engine.start(receive, Load::anything()).unwrap();
    for _ in 0..20 {
        run.engine.advance(Wait::Not);
    }
    assert_eq!(run.engine.requests().take(receive).expect("it is here").bytes, [5; 300]);
}

/// Bytes of the input for one step.
pub(crate) const STEP: usize = 24;

/// Decodes steps from bytes, [`STEP`] each: any sequence of bytes is a run.
pub(crate) fn steps(input: &[u8]) -> Vec<Op> {
    input.as_chunks::<STEP>().0.iter().map(step).collect()
}

fn step(bytes: &[u8; STEP]) -> Op {
    let short = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let handle = |at: usize| match bytes[at] % 4 {
        0 => u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")),
        _ => u64::from(bytes[at + 1] % 6) | u64::from(bytes[at + 2] % 6) << 32,
    };
    let [kind, flag, ..] = *bytes;
    let (flag, repair) = (flag & 1 != 0, flag & 2 != 0);
    match kind % 16 {
        0 | 1 => Op::Send { synchronous: flag, length: short(2) % 400 },
        2 | 3 => Op::Receive { wild: flag, room: short(2) % 400 },
        4 => Op::Claim,
        5 => Op::Cancel(short(2)),
        6 => Op::Destroy(short(2), flag),
        _ => {
            let small = |at: usize, below: u8| u32::from(bytes[at] % below);
            let length = if bytes[4] < 224 { small(4, 224) } else { u32::MAX - small(5, 8) };
            let what = small(6, 14) | small(7, 16) << 8;
            let words = [length, small(5, 2), what, 1 + small(2, 2), small(3, 2), small(1, 4)];
            let handles = [handle(8), handle(16)];
            Op::Packet { from: 1 + small(2, 3), words, handles, payload: short(22) % 300, repair }
        }
    }
}
