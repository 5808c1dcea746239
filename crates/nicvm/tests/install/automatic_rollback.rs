//! The rollback that follows the failure of a version whose policy is to roll back.

use std::time::Duration;

use midplane_nicvm::extension::Epoch;
use midplane_nicvm::install::{self, INSTALLER, Installer, MAX_MODULE, Policy};
use midplane_nicvm::messages;
use midplane_simhw::host::Host;
use midplane_simhw::id::{ExtensionId, NodeId, PortId};
use midplane_simhw::port::{Command, Status};

use super::cluster::Cluster;
use super::tally::{FAIL, TALLY};

/// An application that has port 0 receives the completions of its own commands alone.
#[test]
fn a_rollback_that_no_application_has_asked_for_completes_on_no_port() {
    for nodes in [1, 3] {
        let mut cluster = Cluster::new(nodes, 1, false);
        for module in [b"A", b"B"] {
            assert_eq!(cluster.install(0, module, Policy::RollBack).status, Status::Done);
        }
        let host = cluster.world.host(NodeId(0));
        let run = async move {
            let mut port = host.open_port().unwrap();
            assert_eq!(port.id(), PortId(0));
            let fail = Command { extension: TALLY, opcode: FAIL, cookie: 7, ..Command::default() };
            let region = port.register(1_000).unwrap();
            let mut ended = Vec::new();
            // This command waits throughout.
            port.submit(&messages::receive(region.range(0, 10).unwrap(), 8)).unwrap();
            for command in [fail, install::list(region.whole(), 9)] {
                port.submit(&command).unwrap();
                let done = port.completion().await.unwrap();
                ended.push((done.cookie, done.status));
                host.sleep_until(host.now() + Duration::from_millis(100)).await;
            }
            ended
        };
        let ended = cluster.world.block_on(NodeId(0), run).unwrap();
        assert_eq!(ended, [(7, Status::ExtensionDown), (9, Status::Done)], "{nodes} nodes");
        cluster.assert_all_run(3);
    }
}

/// All members roll back at once, and refuse each other's offers.
#[test]
fn a_version_that_starts_on_no_member_is_rolled_back() {
    for nodes in [1, 2, 3, 4, 7] {
        let mut cluster = Cluster::new(nodes, 1, false);
        for module in [b"A", b"Y"] {
            assert_eq!(cluster.install(0, module, Policy::RollBack).status, Status::Done);
        }
        cluster.pass(Duration::from_secs(1));
        cluster.assert_all_run(3);
    }
}

#[test]
fn a_version_that_fails_during_another_change_is_rolled_back_after_it() {
    let mut cluster = Cluster::new(3, 1, false);
    for module in [b"A", b"B"] {
        assert_eq!(cluster.install(0, module, Policy::RollBack).status, Status::Done);
    }
    let other = ExtensionId(TALLY.0 + 1);
    cluster.begin(0, other, &[b'C'; MAX_MODULE]);
    let is_changing = |cluster: &Cluster| {
        let unit = cluster.world.firmware(NodeId(2));
        unit.extension::<Installer>(INSTALLER).unwrap().is_changing()
    };
    for _ in 0..1_000 {
        if is_changing(&cluster) {
            break;
        }
        cluster.pass(Duration::from_micros(10));
    }
    let fail = |_| Command { extension: TALLY, opcode: FAIL, ..Command::default() };
    assert_eq!(cluster.order(2, Vec::new(), fail).status, Status::ExtensionDown);
    assert!(is_changing(&cluster), "it fails while the other module is on its way");
    cluster.pass(Duration::from_secs(1));
    cluster.assert_all_run(3);
    for node in (0..3).map(NodeId) {
        assert_eq!(cluster.world.firmware(node).epoch(other), Some(Epoch(1)));
    }
}
