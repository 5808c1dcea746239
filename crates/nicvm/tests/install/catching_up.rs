//! Members that were down fetch modules from members that die midway, or that send them several at once.

use std::time::Duration;

use midplane_nicvm::control::Address;
use midplane_nicvm::extension::{Epoch, Extension};
use midplane_nicvm::install::{self, INSTALLER, Installer, MAX_MODULE, Policy};
use midplane_nicvm::unit::Unit;
use midplane_simhw::frame::Kind;
use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::port::Status;

use super::cluster::Cluster;
use super::tally::TALLY;
use crate::harness::{Effect, Harness, Peer};

/// Creates a cluster that has installed `modules` modules of the greatest size while its last member was down.
fn without_last(nodes: u16, seed: u64, modules: u8) -> Cluster {
    let mut cluster = Cluster::new(nodes, seed, false);
    cluster.pass(Duration::from_millis(10));
    cluster.world.crash(NodeId(nodes - 1));
    // The first change finds out that the member is down.
    assert_eq!(cluster.install(0, b"A", Policy::Deactivate).status, Status::Refused);
    for index in 0..modules {
        let number = ExtensionId(TALLY.0 + index);
        let module = vec![b'A' + index; MAX_MODULE];
        let make = move |region| install::install(number, Policy::Deactivate, region, 1);
        assert_eq!(cluster.order(0, module, make).status, Status::Done);
    }
    cluster
}

#[test]
fn a_member_whose_source_dies_fetches_the_module_from_another() {
    for source in [0, 1] {
        for after_micros in [200, 400, 800, 1_600, 3_200, 6_400, 12_800] {
            let mut cluster = without_last(3, 1, 1);
            cluster.world.restart(NodeId(2));
            cluster.pass(Duration::from_micros(after_micros));
            cluster.world.crash(NodeId(source));
            cluster.pass(Duration::from_secs(3));
            assert_eq!(
                cluster.versions(),
                [Some(Epoch(1)); 2],
                "node {source} died after {after_micros} us"
            );
            let unit = cluster.world.firmware(NodeId(2));
            let counters = unit.extension::<Installer>(INSTALLER).unwrap().counters();
            assert_eq!((counters.caught_up, counters.malformed), (1, 0));
        }
    }
}

#[test]
fn a_member_that_lacks_more_modules_than_a_queue_holds_fetches_all() {
    let mut cluster = without_last(2, 1, 3);
    cluster.world.restart(NodeId(1));
    cluster.pass(Duration::from_secs(2));
    let unit = cluster.world.firmware(NodeId(1));
    for index in 0..3 {
        assert_eq!(unit.epoch(ExtensionId(TALLY.0 + index)), Some(Epoch(1)), "module {index}");
    }
    let counters = unit.extension::<Installer>(INSTALLER).unwrap().counters();
    assert_eq!((counters.caught_up, counters.malformed), (3, 0));
    let refused = cluster.world.firmware(NodeId(0)).counters().control_refused;
    assert_eq!(refused, 0, "pieces filled the queue");
}

/// Encodes a report that `number` runs in version 1, with this module.
fn runs(number: u8, module: u32) -> Vec<u8> {
    let hash = install::hash(&module.to_le_bytes()).0;
    let length = (MAX_MODULE as u32).to_le_bytes();
    [&[11, number, 1, 0][..], &hash, &length, &[0, 0]].concat()
}

#[test]
fn a_member_fetches_one_module_for_each_extension_number_however_many_are_named() {
    let loader = |_: &[u8]| Err::<Box<dyn Extension>, _>("never".to_owned());
    let mut unit = Unit::default();
    unit.install(INSTALLER, Installer::new(vec![NodeId(1), NodeId(2)], loader)).unwrap();
    let mut harness = Harness::new(unit);
    let mut peer = Peer::new(NodeId(2));
    let to = Address { extension: INSTALLER, epoch: Epoch::FIRST };
    let mut fetches = 0;
    for module in 0..1_000 {
        let effects = peer.send(&mut harness, to, &runs(20 + (module % 2) as u8, module));
        let is_fetch = |effect: &&Effect| matches!(effect, Effect::Sent(h) if h.kind == Kind::Control && h.length == 33);
        fetches += effects.iter().filter(is_fetch).count();
    }
    assert_eq!(fetches, 2);
}
