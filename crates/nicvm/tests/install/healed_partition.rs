//! The two sides of a partition install different modules under one epoch: once they are connected again, all members
//! run the same one.

use std::time::Duration;

use midplane_nicvm::extension::Epoch;
use midplane_nicvm::install::{self, Hash, INSTALLER, Installer, Policy, QUARANTINE, ROLL_BACK};
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::port::{Command, Status};

use super::cluster::Cluster;
use super::tally::{ASK, TALLY};

/// The modules of the two sides, in both orders of their hashes.
const MODULES: [[&[u8]; 2]; 2] = [[b"B", b"C"], [b"C", b"B"]];

/// Installs a module on the members that a node reaches; the first attempts find out which ones those are.
fn install_without_others(cluster: &mut Cluster, node: u16, module: &[u8]) {
    let mut attempts = (0..3).map(|_| cluster.install(node, module, Policy::Deactivate).status);
    assert!(attempts.any(|status| status == Status::Done), "node {node}");
}

/// Installs A on all members, then one module on nodes 0 and 1 and another on node 2, which does not reach them.
fn divided(modules: [&[u8]; 2]) -> Cluster {
    let mut cluster = Cluster::new(3, 1, false);
    assert_eq!(cluster.install(0, b"A", Policy::Deactivate).status, Status::Done);
    for other in [0, 1].map(NodeId) {
        cluster.world.cut(NodeId(2), other);
    }
    for (node, module) in [0, 2].into_iter().zip(modules) {
        install_without_others(&mut cluster, node, module);
    }
    cluster.assert_all_run(2);
    cluster
}

/// Connects the sides, and lets node 2 send node 0 a message.
fn heal(cluster: &mut Cluster) {
    // Messages to the other side are dropped first.
    cluster.pass(Duration::from_secs(1));
    for other in [0, 1].map(NodeId) {
        cluster.world.heal(NodeId(2), other);
    }
    let host = cluster.world.host(NodeId(2));
    cluster.world.spawn(NodeId(2), async move {
        let mut port = host.open_port().unwrap();
        let ask = Command { extension: TALLY, opcode: ASK, node: NodeId(0), ..Command::default() };
        port.submit(&ask).unwrap();
        std::future::pending::<()>().await;
    });
    cluster.pass(Duration::from_secs(2));
}

fn installed(cluster: &Cluster) -> Vec<(Epoch, Hash)> {
    let units = (0..3).map(|node| cluster.world.firmware(NodeId(node)));
    let installers = units.map(|unit| unit.extension::<Installer>(INSTALLER).unwrap());
    installers.map(|installer| installer.installed(TALLY).unwrap()).collect()
}

#[test]
fn all_members_run_the_module_of_the_greater_hash_and_roll_it_back() {
    for modules in MODULES {
        let mut cluster = divided(modules);
        heal(&mut cluster);
        let greater = modules.map(install::hash).into_iter().max().unwrap();
        assert_eq!(installed(&cluster), [(Epoch(2), greater); 3]);
        cluster.assert_all_run(2);
        let done = cluster.about(0, ROLL_BACK);
        assert_eq!((done.status, done.args[1]), (Status::Done, 3));
        assert_eq!(installed(&cluster), [(Epoch(3), install::hash(b"A")); 3]);
        cluster.assert_all_run(3);
    }
}

#[test]
fn a_version_that_one_side_has_taken_down_stays_down_on_both() {
    for modules in MODULES {
        let mut cluster = divided(modules);
        assert_eq!(cluster.about(0, QUARANTINE).status, Status::Done);
        heal(&mut cluster);
        assert_eq!(cluster.versions(), [None; 3]);
    }
}
