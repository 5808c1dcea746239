//! Changes end although the queues for control messages are full when the members send theirs.

use std::time::Duration;

use midplane_nicvm::control::ControlConfig;
use midplane_nicvm::extension::Epoch;
use midplane_nicvm::install::{self, INSTALLER, Installer, Policy, QUARANTINE, ROLL_BACK};
use midplane_simhw::host::Host;
use midplane_simhw::id::{ExtensionId, NodeId};
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::{Command, Status};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::region::RegionRef;
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;

use super::cluster::Cluster;
use super::tally::TALLY;

const NODES: u16 = 7;
const OTHER: ExtensionId = ExtensionId(TALLY.0 + 1);

/// Creates a cluster whose NICs queue one control message for each peer.
fn cluster() -> Cluster {
    let link = LinkProfile::ethernet(LineRate::mbps(1_000), Duration::from_nanos(500));
    let topology = Topology::star(NODES, link, SwitchProfile::new(Buffer::Bytes(256 << 10)));
    let config = ControlConfig::default().window(1).queue(0);
    let mut cluster = Cluster::configured(config, &topology, NicProfile::MODERN, NODES, 1, false);
    cluster.pass(Duration::from_millis(10));
    cluster
}

/// Posts commands of a node's host at once, with `module` in their region. All end as done within a second.
fn run(cluster: &mut Cluster, node: u16, module: &[u8], make: fn(RegionRef) -> Vec<Command>) {
    let (host, module) = (cluster.world.host(NodeId(node)), module.to_vec());
    let (ended, of_task) = std::sync::mpsc::channel();
    cluster.world.spawn(NodeId(node), async move {
        let mut port = host.open_port().unwrap();
        let region = port.register(module.len()).unwrap();
        region.write(0, &module).unwrap();
        let commands = make(region.whole());
        for command in &commands {
            port.submit(command).unwrap();
        }
        for _ in commands {
            ended.send(port.completion().await.unwrap().status).unwrap();
        }
    });
    cluster.pass(Duration::from_secs(1));
    let statuses: Vec<Status> = of_task.try_iter().collect();
    let commands = make(RegionRef::default()).len();
    assert_eq!(statuses, vec![Status::Done; commands]);
    for node in (0..NODES).map(NodeId) {
        let installer = cluster.world.firmware(node).extension::<Installer>(INSTALLER).unwrap();
        assert!(!installer.is_changing(), "node {node}");
    }
}

fn install_tally(region: RegionRef) -> Vec<Command> {
    vec![install::install(TALLY, Policy::Deactivate, region, 1)]
}

#[test]
fn changes_end_on_all_members() {
    let mut cluster = cluster();
    run(&mut cluster, 2, b"A", install_tally);
    cluster.assert_all_run(1);
    run(&mut cluster, 5, &[b'B'; 8_192], install_tally);
    cluster.assert_all_run(2);
    run(&mut cluster, 0, b"-", |_| vec![install::about(ROLL_BACK, TALLY, 1)]);
    cluster.assert_all_run(3);
}

#[test]
fn two_versions_that_are_taken_down_at_once_stop_on_all_members() {
    let mut cluster = cluster();
    run(&mut cluster, 2, b"A", install_tally);
    run(&mut cluster, 2, b"B", |at| vec![install::install(OTHER, Policy::Deactivate, at, 1)]);
    let runs = |cluster: &Cluster| {
        let nodes = (0..NODES).map(|node| cluster.world.firmware(NodeId(node)));
        nodes.map(|unit| [TALLY, OTHER].map(|number| unit.epoch(number))).collect::<Vec<_>>()
    };
    assert_eq!(runs(&cluster), [[Some(Epoch(1)); 2]; NODES as usize]);
    run(&mut cluster, 4, b"-", |_| {
        [TALLY, OTHER].map(|number| install::about(QUARANTINE, number, 1)).to_vec()
    });
    assert_eq!(runs(&cluster), [[None; 2]; NODES as usize]);
}
