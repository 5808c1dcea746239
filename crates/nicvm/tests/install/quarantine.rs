//! Extensions that were taken down on all members stay down until another version is installed.

use std::sync::Arc;
use std::time::Duration;

use midplane_nicvm::extension::{Epoch, Extension};
use midplane_nicvm::install::{
    self, INSTALLER, Installer, LIST, Listed, MAX_MODULE, Policy, QUARANTINE, ROLL_BACK,
};
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Status};

use super::cluster::{Cluster, silence_panics};
use super::tally::{FAIL, TALLY, Tally};
use crate::harness::{Harness, command, memory};

/// Returns the only entry of a node's list of extensions.
fn listed(cluster: &mut Cluster, node: u16) -> Listed {
    let host = cluster.world.host(NodeId(node));
    let listed = cluster.world.block_on(NodeId(node), async move {
        let mut port = host.open_port().unwrap();
        let region = port.register(1_000).unwrap();
        port.submit(&Command { opcode: LIST, ..install::list(region.whole(), 1) }).unwrap();
        let done = port.completion().await.unwrap();
        assert_eq!(done.args[0], 1);
        let mut line = [0; Listed::BYTES];
        region.read(0, &mut line).unwrap();
        Listed::parse(&line)
    });
    listed.unwrap()
}

#[test]
fn a_member_that_restarts_does_not_run_a_version_that_was_taken_down() {
    let mut cluster = Cluster::new(3, 1, false);
    assert_eq!(cluster.install(1, b"A", Policy::Deactivate).status, Status::Done);
    assert_eq!(cluster.about(0, QUARANTINE).status, Status::Done);
    for restarted in [2, 0] {
        cluster.pass(Duration::from_millis(10));
        cluster.world.crash(NodeId(restarted));
        cluster.pass(Duration::from_millis(10));
        cluster.world.restart(NodeId(restarted));
        cluster.pass(Duration::from_secs(2));
        assert_eq!(cluster.versions(), [None; 3]);
        let listed = listed(&mut cluster, restarted);
        assert_eq!((listed.number, listed.epoch, listed.is_down), (TALLY, Epoch(1), true));
    }
    // The next version runs everywhere.
    assert_eq!(cluster.install(2, b"B", Policy::Deactivate).status, Status::Done);
    cluster.assert_all_run(2);
}

#[test]
fn a_member_that_was_away_takes_the_version_down_when_it_is_back() {
    let mut cluster = Cluster::new(3, 1, false);
    assert_eq!(cluster.install(1, b"A", Policy::Deactivate).status, Status::Done);
    for other in [0, 1].map(NodeId) {
        cluster.world.cut(NodeId(2), other);
    }
    assert_eq!(cluster.about(0, QUARANTINE).status, Status::Done);
    cluster.pass(Duration::from_secs(3));
    assert_eq!(cluster.versions(), [None, None, Some(Epoch(1))]);
    for other in [0, 1].map(NodeId) {
        cluster.world.heal(NodeId(2), other);
    }
    // The first message between them makes them report their versions.
    let other = ExtensionId(TALLY.0 + 1);
    let make = move |region| install::install(other, Policy::Deactivate, region, 1);
    cluster.order(2, b"C".to_vec(), make);
    cluster.pass(Duration::from_secs(1));
    assert_eq!(cluster.versions(), [None; 3]);
}

#[test]
fn a_member_does_not_run_a_version_that_is_taken_down_while_the_member_fetches_it() {
    let mut module = vec![0; MAX_MODULE];
    module[0] = b'A';
    for after_micros in (0..2_000).step_by(50) {
        let mut cluster = Cluster::new(3, 1, false);
        assert_eq!(cluster.install(1, &module, Policy::Deactivate).status, Status::Done);
        cluster.world.crash(NodeId(2));
        cluster.world.restart(NodeId(2));
        cluster.pass(Duration::from_micros(after_micros));
        assert_eq!(cluster.about(0, QUARANTINE).status, Status::Done);
        cluster.pass(Duration::from_secs(2));
        assert_eq!(cluster.versions(), [None; 3], "{after_micros} us after the restart");
    }
}

#[test]
fn a_version_that_waits_for_its_restart_stays_down_once_it_is_taken_down() {
    for nodes in [1, 3] {
        let mut cluster = Cluster::new(nodes, 1, false);
        assert_eq!(cluster.install(0, b"A", Policy::Restart).status, Status::Done);
        let fail = |_| Command { extension: TALLY, opcode: FAIL, ..Command::default() };
        assert_eq!(cluster.order(0, Vec::new(), fail).status, Status::ExtensionDown);
        assert_eq!(cluster.about(nodes - 1, QUARANTINE).status, Status::Done);
        cluster.pass(Duration::from_secs(1));
        assert_eq!(cluster.versions(), vec![None; nodes.into()]);
    }
}

#[test]
fn a_version_that_was_taken_down_can_be_rolled_back() {
    let mut cluster = Cluster::new(3, 1, false);
    for module in [b"A", b"B"] {
        assert_eq!(cluster.install(1, module, Policy::Deactivate).status, Status::Done);
    }
    assert_eq!(cluster.about(0, QUARANTINE).status, Status::Done);
    cluster.pass(Duration::from_millis(10));
    assert_eq!(cluster.versions(), [None; 3]);
    assert_eq!(cluster.about(2, ROLL_BACK).status, Status::Done);
    cluster.assert_all_run(3);
}

#[test]
fn the_failure_of_a_version_is_not_that_of_its_successor() {
    silence_panics();
    let port = PortId(0);
    let loader = |_: &[u8]| {
        let (label, nodes, held, seen) = (b'A', 1, Vec::new(), Arc::default());
        let tally = Tally { label, nodes, chatty: false, sent: 0, held, handled: 0, seen };
        Ok(Box::new(tally) as Box<dyn Extension>)
    };
    let mut unit = Unit::default();
    unit.install(INSTALLER, Installer::new(vec![NodeId(1)], loader)).unwrap();
    let mut harness = Harness::new(unit);
    let install = install::install(TALLY, Policy::Deactivate, memory(port, 10), 1);
    harness.post(port, install);
    assert_eq!(harness.unit.epoch(TALLY), Some(Epoch(1)));
    // Both commands are handled before the unit runs the next version.
    harness.hw.commands.push_back((port, install));
    harness.post(port, command(TALLY, FAIL));
    assert_eq!(harness.unit.epoch(TALLY), Some(Epoch(2)));
    assert_eq!(harness.unit.extension_counters(TALLY).unwrap().traps, 1);
    let counters = harness.unit.extension::<Installer>(INSTALLER).unwrap().counters();
    assert_eq!((counters.committed, counters.reports), (2, 0));
}
