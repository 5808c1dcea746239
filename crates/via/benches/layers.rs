//! What each layer of messages costs, over the carrier in memory, on one thread.
//!
//! `cargo bench -p midplane-via --bench layers`. Nanoseconds a message, both sides' work together:
//! the median of 301 rounds of 500 messages (shorter than a time slice). What a layer costs is the
//! difference to the line above it: nothing crosses to another core here.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::time::Instant;

use midplane_via::message::carrier::{Carrier, Event};
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine};
use midplane_via::message::envelope::{Context, Envelope, Kind, Marks, Peer, Tag};
use midplane_via::message::group::{Rank, Scope};
use midplane_via::message::matching::Pattern;
use midplane_via::message::memory::{MemoryCarrier, MemoryConfig, network};
use midplane_via::message::process::{Parker, Process};
use midplane_via::message::progression::{Progression, Wait};
use midplane_via::message::request::{Load, Mode, Operation, State};

const MESSAGES: usize = 500;
const ROUNDS: usize = 301;
type Lower = Engine<MemoryCarrier>;

/// Median nanoseconds a message.
fn measure(mut message: impl FnMut()) -> f64 {
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..MESSAGES).for_each(|_| message());
            start.elapsed().as_nanos() as f64 / MESSAGES as f64
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    times[ROUNDS / 2]
}

/// The packets of a message alone: posted, polled, copied out.
fn carrier(bytes: &[u8]) -> f64 {
    let mut ends = network(2, MemoryConfig::default()).into_iter();
    let (mut a, mut b) = (ends.next().expect("two"), ends.next().expect("two"));
    let envelope = Envelope {
        length: bytes.len() as u32,
        tag: Tag(1),
        kind: Kind::Eager,
        marks: Marks::NONE,
        source: Peer(0),
        context: Context(0),
        sequence: 0,
        to: 0,
        from: 0,
    };
    let mut out = vec![0; bytes.len()];
    let mut side = |from: &mut MemoryCarrier, to: &mut MemoryCarrier| {
        from.post(to.own(), &envelope, bytes).expect("it is empty");
        match to.poll() {
            Some(Event::Packet { payload, .. }) => {
                assert_eq!(payload.copy_to(&mut out), bytes.len())
            }
            other => panic!("{other:?}"),
        }
        assert!(to.poll().is_none());
    };
    measure(|| {
        side(&mut a, &mut b);
        std::mem::swap(&mut a, &mut b);
    })
}

fn engine(bytes: &[u8]) -> f64 {
    let mut ends = network(2, MemoryConfig::default()).into_iter();
    let mut pair = [(); 2].map(|()| Engine::new(ends.next().expect("two"), Config::default()));
    for engine in &mut pair {
        engine.init().expect("it is new");
        engine.addprocs(&[Peer(0), Peer(1)]).expect("there are two");
    }
    // Each tells the other its window.
    for engine in &mut pair {
        engine.advance(Wait::Not);
    }
    let mut storage = Vec::with_capacity(bytes.len());
    let context = Context(0);
    let mut side = |from: &mut Lower, to: &mut Lower, source, target| {
        let pattern = Pattern { context, source: Some(source), tag: Some(Tag(1)) };
        let receive = to.build(Operation::Receive(pattern)).expect("it is known");
        let room = Load::Room { room: bytes.len(), storage: std::mem::take(&mut storage) };
        to.start(receive, room).expect("it is built");
        let mode = Mode::Standard;
        let send = Operation::Send { mode, to: target, context, tag: Tag(1) };
        let send = from.build(send).expect("it is known");
        from.start(send, Load::Copy(bytes)).expect("it is built");
        assert!(from.requests().take(send).expect("it has left").result.is_ok());
        from.destroy(send, false);
        while to.requests().state(receive) != Some(State::Done) {
            to.advance(Wait::Not);
        }
        storage = to.requests().take(receive).expect("it is here").bytes;
        to.destroy(receive, false);
    };
    let [a, b] = &mut pair;
    measure(|| {
        side(a, b, Peer(0), Peer(1));
        side(b, a, Peer(1), Peer(0));
    }) / 2.0
}

fn processes() -> [(Process<Lower>, Scope); 2] {
    let mut ends = network(2, MemoryConfig::default()).into_iter();
    [(); 2].map(|()| {
        let engine = Engine::new(ends.next().expect("two"), Config::default());
        Process::new(engine, 2).expect("it comes up")
    })
}

fn process(bytes: &[u8]) -> f64 {
    let [(mut a, at_a), (mut b, at_b)] = processes();
    let parker = Parker::default();
    let mut storage = Vec::with_capacity(bytes.len());
    let mut side = |(from, at_from): (&mut Process<Lower>, &Scope),
                    (to, at_to): (&mut Process<Lower>, &Scope)| {
        let room = Load::Room { room: bytes.len(), storage: std::mem::take(&mut storage) };
        let receive = to.ireceive(at_to, Some(at_from.rank()), Some(Tag(1)), room).expect("known");
        from.send(at_from, Mode::Standard, at_to.rank(), Tag(1), bytes, &parker).expect("it is up");
        loop {
            if let Some(outcome) = to.finish(receive) {
                storage = outcome.bytes;
                break;
            }
        }
    };
    measure(|| {
        side((&mut a, &at_a), (&mut b, &at_b));
        side((&mut b, &at_b), (&mut a, &at_a));
    }) / 2.0
}

/// Futures that own what they receive: they allocate, and take a lock.
fn futures(bytes: &[u8]) -> f64 {
    let [a, b] = processes().map(|(process, scope)| Communicator::world(process, scope));
    let message = bytes::Bytes::copy_from_slice(bytes);
    let side = |from: &Communicator<Lower>, to: &Communicator<Lower>, source: u32, target: u32| {
        let mut receive = to.ireceive(Rank(source), Tag(1)).expect("it is known");
        from.block_on(from.send(Rank(target), Tag(1), message.clone())).expect("it is up");
        while receive.test().is_none() {}
    };
    measure(|| {
        side(&a, &b, 0, 1);
        side(&b, &a, 1, 0);
    }) / 2.0
}

fn main() {
    println!("ns a message, both sides on one thread; asked of the layers above the carrier: 40");
    println!(
        "{:>8} {:>10} {:>10} {:>10} {:>10} {:>22}",
        "bytes", "carrier", "engine", "process", "futures", "process over carrier"
    );
    for length in [8, 64, 1024, 4096] {
        let bytes = vec![7; length];
        let all = [carrier(&bytes), engine(&bytes), process(&bytes), futures(&bytes)];
        let [carrier, engine, process, futures] = all;
        let over = process - carrier;
        println!(
            "{length:>8} {carrier:>10.1} {engine:>10.1} {process:>10.1} {futures:>10.1} {over:>22.1}"
        );
    }
}
