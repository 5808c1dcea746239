//! Tests of credit at the sender and the receiver.

use midplane_simhw::rng::Rng;
use proptest::prelude::*;

use super::{Config, Engine, Peer};
use crate::message::envelope::{Context, Tag};
use crate::message::matching::Pattern;
use crate::message::memory::{MemoryConfig, network};
use crate::message::request::{Load, Mode, Operation, Request};
use crate::message::transport::{Claim, Wait};

const PROCESSES: u32 = 3;
/// A context whose messages are ordered only within a tag; context 0 orders them all.
const BY_TAG: Context = Context(1);

type Process = Engine;

fn cluster(memory: MemoryConfig, config: Config) -> Vec<Process> {
    let everyone: Vec<_> = (0..PROCESSES).map(Peer).collect();
    let ends = network(PROCESSES as usize, memory).into_iter();
    let mut engines: Vec<_> = ends.map(|end| Engine::new(end, config)).collect();
    for engine in &mut engines {
        engine.init().unwrap();
        engine.add_processes(&everyone).unwrap();
        engine.assert_no_any_tag(BY_TAG);
    }
    engines
}

fn settle(engines: &mut [Process]) {
    for _ in 0..600 {
        for engine in &mut *engines {
            engine.advance(Wait::Not);
        }
    }
}

/// Checks, once no packet is in flight, that a sender has charged the bytes that its receiver holds or has not reported
/// as free.
#[track_caller]
fn conserved(engines: &[Process], window: u64) {
    for (from, sender) in engines.iter().enumerate() {
        assert_eq!(sender.counters().malformed, 0);
        for (to, receiver) in engines.iter().enumerate() {
            let (out, into) = (&sender.core.links[to], &receiver.core.links[from]);
            assert_eq!(out.charged, into.arrived);
            assert_eq!(out.limit, into.granted());
            assert_eq!(out.flows.taken(), into.arrived - into.reported);
            assert_eq!(into.freed - into.reported, into.unreported.bytes());
            assert!(into.arrived - into.freed <= window);
        }
    }
}

fn step(rng: &mut Rng, engine: &mut Process, requests: &mut Vec<Request>) {
    let context = Context(rng.below(2) as u32);
    let tag = Tag(rng.below(4) as u32);
    match rng.below(8) {
        0..=2 => {
            let to = Peer(rng.below(PROCESSES.into()) as u32);
            let mode = if rng.chance(0.7) { Mode::Standard } else { Mode::Synchronous };
            let send = engine.build(Operation::Send { mode, to, context, tag }).unwrap();
            let length = [0, 30, 100, 300][rng.below(4) as usize];
            engine.start(send, Load::Copy(&vec![7; length])).unwrap();
            requests.push(send);
        }
        3 | 4 => {
            let tag = (context == BY_TAG || rng.chance(0.5)).then_some(tag);
            let pattern = Pattern { context, source: None, tag };
            let receive = engine.build(Operation::Receive(pattern)).unwrap();
            engine.start(receive, Load::anything()).unwrap();
            requests.push(receive);
        }
        5 if !requests.is_empty() => {
            let at = rng.below(requests.len() as u64) as usize;
            engine.requests().cancel(requests[at]);
        }
        6 if !requests.is_empty() => {
            let at = rng.below(requests.len() as u64) as usize;
            engine.destroy(requests.swap_remove(at), rng.chance(0.5));
        }
        _ => {
            let pattern = Pattern { context, source: None, tag: Some(tag) };
            let found = engine.iprobe(&pattern, Claim::Take).and_then(|found| found.claimed);
            if let Some(request) = found {
                engine.destroy(request, false);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn credits_are_conserved_whatever_is_cancelled_or_dropped(
        seed: u64, steps in 1_usize..300, depth in 1_usize..6,
        window in prop_oneof![Just(256_usize), Just(900), Just(5000)],
    ) {
        let memory = MemoryConfig::default().depth(depth).room(64).seed(seed);
        let config = Config::default().eager(100).window(window).batch(5);
        let mut engines = cluster(memory, config);
        let mut rng = Rng::new(seed, "credits");
        let mut requests = vec![vec![]; PROCESSES as usize];
        for _ in 0..steps {
            let at = rng.below(PROCESSES.into()) as usize;
            step(&mut rng, &mut engines[at], &mut requests[at]);
            engines[rng.below(PROCESSES.into()) as usize].advance(Wait::Not);
        }
        settle(&mut engines);
        conserved(&engines, window as u64);
    }
}

#[test]
fn all_windows_together_are_no_larger_than_configured() {
    let config = Config::default().window(10_000).total(12_000);
    let mut engines = cluster(MemoryConfig::default(), config);
    settle(&mut engines);
    for engine in &engines {
        let own = engine.core.own;
        let others = || (0..).map(Peer).zip(&engine.core.links).filter(|(peer, _)| *peer != own);
        assert_eq!(others().map(|(_, link)| link.window).sum::<u64>(), 12_000);
        assert!(others().all(|(_, link)| link.limit == 6_000));
    }
}

#[test]
fn a_stream_that_is_not_received_leaves_the_others_their_credit() {
    let mut engines =
        cluster(MemoryConfig::default(), Config::default().eager(1000).window(1 << 16));
    settle(&mut engines);
    let send = |engine: &mut Process, context, tag, length: usize| {
        let (mode, to) = (Mode::Standard, Peer(1));
        let send = engine.build(Operation::Send { mode, to, context, tag: Tag(tag) }).unwrap();
        engine.start(send, Load::Copy(&vec![1; length])).unwrap();
    };
    for _ in 0..500 {
        send(&mut engines[0], BY_TAG, 1, 1000);
    }
    settle(&mut engines);
    let before = engines[0].counters().demoted;
    assert!(before > 400, "{before} of 500 wait at their sender");
    assert!(engines[1].unexpected_bytes() <= 1 << 13, "no more than an eighth of the window");
    // Messages of another stream, and of another context, are still sent whole.
    for tag in 2..6 {
        send(&mut engines[0], BY_TAG, tag, 1000);
        send(&mut engines[0], Context(0), tag, 1000);
    }
    settle(&mut engines);
    assert_eq!(engines[0].counters().demoted, before);
    conserved(&engines, 1 << 16);
}
