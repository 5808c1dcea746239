//! Random scenarios: faults of all kinds, after which all connections recover.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use midplane_nicvm::control::{ControlConfig, DEFAULT_DEAD_AFTER, Event};
use midplane_simhw::id::NodeId;
use midplane_simhw::rng::Rng;
use proptest::prelude::*;

use super::network::{Faults, Network};

const STEPS: usize = 60;

#[test]
fn delivery_is_exactly_once_and_recovers_after_faults() {
    for seed in 0..500 {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(seed))) {
            eprintln!("scenario of seed {seed}");
            resume_unwind(panic);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn delivery_is_exactly_once_and_recovers_after_faults_from_new_seeds(seed: u64) {
        scenario(seed);
    }
}

#[test]
fn the_same_seed_gives_the_same_frames() {
    let digest = |seed| {
        let network = run_into_trouble(seed, &mut Rng::new(seed, "steps"));
        (
            network.now,
            network.frames_sent(),
            network.units.iter().map(|u| u.events.clone()).collect::<Vec<_>>(),
        )
    };
    assert_eq!(digest(11), digest(11));
}

fn scenario(seed: u64) {
    let mut rng = Rng::new(seed, "steps");
    let mut network = run_into_trouble(seed, &mut rng);
    heal(&mut network);
    cut_off_and_restart(&mut network, &mut rng);
}

fn run_into_trouble(seed: u64, rng: &mut Rng) -> Network {
    let units = rng.between(2, 3) as usize;
    let mut config = ControlConfig::default();
    config = config.window(rng.between(1, 32) as u16).queue(rng.between(0, 60) as usize);
    let mut network = Network::new(seed, units, config);
    network.latency = [1_000, 50_000, 3_000_000][rng.below(3) as usize];
    for _ in 0..STEPS {
        random_step(&mut network, rng);
    }
    network
}

fn random_step(network: &mut Network, rng: &mut Rng) {
    let node = |rng: &mut Rng| rng.below(network.units.len() as u64) as usize;
    let (a, b) = (node(rng), node(rng));
    match rng.below(100) {
        0..40 if a != b => {
            for _ in 0..rng.between(1, 20) {
                let _ = network.send(a, b);
            }
        }
        0..70 => network.drive_for(Duration::from_micros(rng.between(1, 3_000))),
        70..80 => (0..rng.between(1, 20)).for_each(|_| network.replay_any()),
        80..85 => {
            network.faults = Faults {
                loss: [0.0, 0.02, 0.3][rng.below(3) as usize],
                doubling: [0.0, 0.2][rng.below(2) as usize],
                jitter: [0, 100_000, 20_000_000][rng.below(3) as usize],
            };
        }
        85..88 => {
            network.cut.insert((a, b));
        }
        88..91 => network.cut.clear(),
        91..94 => network.restart(a),
        _ => network.drive_for(Duration::from_millis(rng.between(1, 700))),
    }
}

/// Ends all faults. First the units learn what was lost; from then on nothing may be lost, in spite of old frames.
fn heal(network: &mut Network) {
    network.faults = Faults::default();
    network.cut.clear();
    let took = network.drive_until_quiet();
    assert!(took < 2 * DEFAULT_DEAD_AFTER, "quiet only after {took:?}");
    for _ in 0..2 {
        exchange(network, 1);
    }
    let before: Vec<_> = received(network);
    exchange(network, 20);
    let each = 20 * (network.units.len() - 1);
    let expected: Vec<_> = before.iter().map(|(count, news)| (count + each, *news)).collect();
    assert_eq!(received(network), expected, "after healing nothing is lost and nothing is news");
}

fn received(network: &Network) -> Vec<(usize, usize)> {
    let nodes = 0..network.units.len();
    nodes.map(|node| (network.received(node), network.news(node).len())).collect()
}

fn exchange(network: &mut Network, messages: usize) {
    let units = network.units.len();
    for _ in 0..messages {
        for (a, b) in (0..units).flat_map(|a| (0..units).map(move |b| (a, b))) {
            if a != b {
                while network.send(a, b).is_err() {
                    network.drive_for(Duration::from_micros(100));
                }
            }
        }
        network.replay_any();
    }
    let took = network.drive_until_quiet();
    assert!(took < DEFAULT_DEAD_AFTER, "exchanged only after {took:?}");
    for (a, unit) in network.units.iter().enumerate() {
        for b in 0..units {
            assert_eq!(unit.control.pending(NodeId(b as u16)), 0, "from {a} to {b}");
        }
    }
}

/// Checks that a dead peer is declared down in time although old frames of it keep arriving.
fn cut_off_and_restart(network: &mut Network, rng: &mut Rng) {
    network.cut_both(0, 1);
    let old = network.frames_sent();
    network.send(0, 1).unwrap();
    let before = network.news(0).len();
    for _ in 0..100 {
        network.drive_for(DEFAULT_DEAD_AFTER / 100);
        (0..rng.below(3)).for_each(|_| network.replay_of_first(old));
    }
    let down = Event::PeerDown { node: NodeId(1) };
    assert_eq!(network.news(0)[before..], [down], "down, and never up again");
    assert_eq!(network.units[0].control.pending(NodeId(1)), 0);
    network.restart(1);
    (0..10).for_each(|_| network.replay_any());
    heal(network);
}
