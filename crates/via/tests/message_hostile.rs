//! Whatever a process sends, the others do not panic, keep their memory bounded and go on talking.

use std::collections::VecDeque;
use std::task::Waker;

use midplane_simhw::region::Payload;
use midplane_via::message::carrier::{Carrier, Event, Refusal};
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Context, Envelope, LONGEST, Peer, Tag};
use midplane_via::message::matching::Pattern;
use midplane_via::message::progression::{Claim, InitError, Progression, Wait};
use midplane_via::message::request::{Load, Mode, Operation, Request};
use proptest::prelude::*;

/// Hands in what the test says, and remembers what the engine posts.
#[derive(Debug, Default)]
struct Script {
    packets: VecDeque<(u32, Vec<u8>, Vec<u8>)>,
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
        while let Some((from, header, payload)) = self.packets.pop_front() {
            let Ok(envelope) = Envelope::parse(&header) else { continue };
            self.current = payload;
            let payload = Payload::from(&self.current[..]);
            return Some(Event::Packet { from: Peer(from), envelope, payload });
        }
        None
    }
    fn arm(&mut self, _: &Waker) -> bool {
        true
    }
    fn close(&mut self) {}
}

/// What the other side does: mostly what it may, with one thing wrong now and then.
#[derive(Clone, Debug)]
enum Op {
    Packet { from: u32, words: [u32; 6], handles: [u64; 2], payload: usize, mend: bool },
    Send { synchronous: bool, length: usize },
    Receive { wild: bool, room: usize },
    Claim,
    Cancel(usize),
    Destroy(usize, bool),
}

fn operation() -> impl Strategy<Value = Op> {
    let handle = prop_oneof![
        4 => (0_u64..6, 0_u64..6).prop_map(|(slot, generation)| slot | generation << 32),
        1 => any::<u64>(),
        1 => 0_u64..5000,
    ];
    let words = (
        prop_oneof![3 => 0_u32..300, 1 => any::<u32>()],
        0_u32..2,
        (prop_oneof![1_u32..9, Just(2_u32)], prop_oneof![Just(0_u32), 0_u32..16])
            .prop_map(|(kind, marks)| kind | marks << 8),
        1_u32..3,
        0_u32..2,
        0_u32..4,
    )
        .prop_map(<[u32; 6]>::from);
    let packet = (1_u32..4, words, [handle.clone(), handle], 0_usize..300, any::<bool>());
    prop_oneof![
        6 => packet.prop_map(|(from, words, handles, payload, mend)| Op::Packet {
            from, words, handles, payload, mend
        }),
        2 => (any::<bool>(), 0_usize..400).prop_map(|(synchronous, length)| Op::Send {
            synchronous, length
        }),
        2 => (any::<bool>(), 0_usize..400).prop_map(|(wild, room)| Op::Receive { wild, room }),
        1 => Just(Op::Claim),
        1 => any::<usize>().prop_map(Op::Cancel),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(at, undo)| Op::Destroy(at, undo)),
    ]
}

const WINDOW: usize = 4096;

struct Run {
    script: Vec<(u32, Vec<u8>, Vec<u8>)>,
    engine: Engine<Script>,
    requests: Vec<Request>,
    /// What a well-behaved process 1 and 2 would number next.
    sequences: [u32; 4],
}

impl Run {
    fn new(packets: Vec<(u32, Vec<u8>, Vec<u8>)>) -> Self {
        let script = Script { packets: packets.into(), ..Script::default() };
        let config = Config::default().window(WINDOW).eager(200);
        let mut engine = Engine::new(script, config);
        engine.init().unwrap();
        engine.addprocs(&[Peer(1), Peer(2)]).unwrap();
        Self { script: vec![], engine, requests: vec![], sequences: [0; 4] }
    }

    /// A packet as `emit` would write it; mended, it is one that its sender may send.
    fn packet(&mut self, op: &Op) {
        let Op::Packet { from, mut words, handles, payload, mend } = *op else { return };
        let matched = matches!(words[2] & 0xFF, 1 | 2);
        if mend {
            words[3] = from;
            words[0] = if words[2] & 0xFF == 2 { words[0] % 5000 } else { payload as u32 };
            words[5] = self.sequences[from as usize];
            self.sequences[from as usize] += u32::from(matched);
        }
        let mut header: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        header.extend(handles.iter().flat_map(|handle| handle.to_le_bytes()));
        assert_eq!(header.len(), LONGEST);
        let payload = if mend && words[2] & 0xFF == 2 { vec![] } else { vec![7; payload] };
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_packets_panic_or_pass_the_window(ops in proptest::collection::vec(operation(), 0..60)) {
        // The packets of the whole run are known first; between them, the program does its part.
        let mut run = Run::new(vec![]);
        ops.iter().for_each(|op| run.packet(op));
        let mut packets = std::mem::take(&mut run.script).into_iter();
        let mut run = Run::new(vec![]);
        for op in &ops {
            if matches!(op, Op::Packet { .. }) {
                let packet = packets.next().expect("one each");
                run.engine.carrier_mut().packets.push_back(packet);
            } else {
                run.apply(op);
            }
            run.engine.advance(Wait::Not);
            prop_assert!(run.engine.unexpected_bytes() <= 2 * WINDOW as u64);
            let _ = run.engine.explain().to_string();
        }
        // The process that nobody else speaks for still reaches itself.
        let own = Operation::Send { mode: Mode::Synchronous, to: Peer(0), context: Context(9), tag: Tag(1) };
        let send = run.engine.build(own).unwrap();
        run.engine.start(send, Load::Copy(&[5; 300])).unwrap();
        let pattern = Pattern { context: Context(9), source: Some(Peer(0)), tag: None };
        let receive = run.engine.build(Operation::Receive(pattern)).unwrap();
        run.engine.start(receive, Load::anything()).unwrap();
        for _ in 0..20 {
            run.engine.advance(Wait::Not);
        }
        prop_assert_eq!(run.engine.requests().take(receive).expect("it is here").bytes, [5; 300]);
    }
}
