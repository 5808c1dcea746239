//! Tests hosts on one cable: frames are conserved and in order, and collisions cost what they should.

use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::fault::Faults;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::medium::MediumProfile;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::topology::{MediumId, Topology};
use proptest::prelude::*;

use crate::sim::conservation::{any_scripts, scripts};
use crate::sim::harness::{A, B, C, RATE, ROOMY, Sending, assert_conserved, at, scripted_world};

const CABLE: MediumId = MediumId(0);

fn shared(hosts: u16) -> Topology {
    Topology::shared(hosts, MediumProfile::ETHERNET_10)
}

#[test]
fn a_frame_arrives_after_serialisation_and_propagation() {
    let script = vec![Sending { at: 0, to: B, length: 1000 }];
    let (mut world, log) = scripted_world(&shared(2), NicProfile::FREE, 1, vec![script]);
    world.run();
    // 1,000 bytes, our header of 48 and 54 bytes of preamble and headers take 800 ns each; the cable adds 2 us.
    assert_eq!(log.entries()[0].at, at((1000 + 48 + 54) * 800 + 2_000));
}

#[test]
fn three_senders_share_the_rate_that_one_has_alone() {
    let script = |_| (0..400).map(|_| Sending { at: 0, to: A, length: 1400 }).collect();
    let (mut world, log) =
        scripted_world(&shared(3), NicProfile::FREE, 7, (0..3).map(script).collect());
    world.run_until(at(400_000_000));
    assert_conserved(&world);
    // 400 ms suffice for 327 frames of 1,514 bytes on the wire; collisions take some of it.
    let frames = log.entries();
    assert!((290..328).contains(&frames.len()), "{}", frames.len());
    for node in [A, B, C] {
        let own = frames.iter().filter(|frame| frame.source == node).count();
        // The latest sender wins more often: the capture effect of exponential backoff.
        assert!(own > 20, "node {node} sent {own}");
    }
    assert!(world.medium(CABLE).unwrap().collisions > 0);
}

#[test]
fn hosts_on_no_cable_or_another_are_not_reached() {
    let mut topology = shared(2);
    let other = topology.add_medium(MediumProfile::ETHERNET_10);
    let there = topology.add_host_on(other);
    let switch = topology.add_switch(ROOMY);
    let behind = topology.add_host(switch, LinkProfile::ethernet(RATE, Duration::ZERO));
    assert_eq!(topology.path(A, B).map(|path| path.len()), Some(2));
    assert_eq!(topology.path(A, there), None);
    assert_eq!(topology.path(behind, A), None);
    let script =
        [B, there, behind, NodeId(99)].map(|to| Sending { at: 0, to, length: 10 }).to_vec();
    let (mut world, log) = scripted_world(&topology, NicProfile::FREE, 1, vec![script]);
    world.run();
    assert_conserved(&world);
    assert_eq!(log.entries().len(), 1);
    assert_eq!(world.traffic().drops.of(DropCause::NoRoute), 3);
    assert_eq!(world.medium(other).unwrap().passed, 0);
    assert!(world.medium(MediumId(2)).is_none());
}

#[test]
fn a_sender_that_retries_when_full_delivers_every_frame() {
    let script = (0..50).map(|_| Sending { at: 0, to: B, length: 5_000 }).collect();
    let profile = NicProfile { transmit_slots: 2, ..NicProfile::FREE };
    let faults = Faults { loss: 0.2, duplicate: 0.2, ..Faults::NONE };
    let (mut world, log) = scripted_world(&shared(2), profile, 3, vec![script]);
    world.set_faults(faults);
    world.run();
    assert_conserved(&world);
    let traffic = world.traffic();
    assert_eq!(log.entries().len() as u64, traffic.sent - traffic.drops.total());
    assert!(traffic.sent > 50, "some were doubled");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_frame_is_lost_without_a_name_on_a_cable(
        hosts in 1_u16..6, raw in any_scripts(), seed: u64, crash in 0_u64..2_000_000,
        loss in 0.0..0.3_f64, duplicate in 0.0..0.3_f64, reorder in 0.0..0.3_f64,
        slots in 1_u16..6,
    ) {
        let profile = NicProfile { transmit_slots: slots, ..NicProfile::MODERN };
        let (mut world, log) = scripted_world(&shared(hosts), profile, seed, scripts(raw, hosts + 1));
        let delay = Duration::from_micros(300);
        world.set_faults(Faults { loss, duplicate, reorder, delay, jitter: delay, ..Faults::NONE });
        world.run_until(at(crash));
        world.crash(A);
        if hosts > 2 {
            world.cut(B, C);
        }
        assert_conserved(&world);
        world.run_until(at(crash + 1_000_000));
        world.restart(A);
        world.heal(B, C);
        world.run();
        assert_conserved(&world);
        prop_assert_eq!(world.frames_under_way(), 0);
        prop_assert_eq!(world.traffic().delivered, log.entries().len() as u64);
    }

    #[test]
    fn frames_of_one_sender_stay_in_order_and_the_same_seed_gives_the_same_digest(
        hosts in 1_u16..6, raw in any_scripts(), seed: u64,
    ) {
        let run = || {
            let scripts = scripts(raw.clone(), hosts);
            let (mut world, log) = scripted_world(&shared(hosts), NicProfile::FREE, seed, scripts);
            world.run();
            (world.digest(), log.entries())
        };
        let (digest, frames) = run();
        let mut last = std::collections::BTreeMap::new();
        for frame in &frames {
            let before = last.insert(frame.source, frame.sequence);
            prop_assert!(before.is_none_or(|before| before < frame.sequence), "{:?}", frame);
        }
        prop_assert_eq!(run(), (digest, frames));
    }
}
