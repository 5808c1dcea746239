//! Tests NICs with keys of their own: a stranger cannot join, and no node can pose as another.

use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::host::Host as _;
use midplane_simhw::id::NodeId;
use midplane_simhw::nic::StartError;
use midplane_simhw::seal::{Identity, Key, PublicKey, SealConfigError, SecretKey};
use midplane_simhw::udp::{UdpConfig, UdpNic};

use crate::udp::firmware::{Cluster, Probe, SEND, command, completion, run};

/// Returns the secrets of three nodes, and the list of their public keys.
fn secrets() -> (Vec<SecretKey>, Vec<PublicKey>) {
    let secrets: Vec<SecretKey> = (0..3).map(|_| SecretKey::generate().unwrap()).collect();
    let list = secrets.iter().map(SecretKey::public).collect();
    (secrets, list)
}

/// Sends a frame from `nic` to node 0 every few milliseconds, until `done`.
async fn send_until(nic: &UdpNic, mut done: impl FnMut() -> bool) {
    let mut port = nic.host().open_port().unwrap();
    let region = port.register(8).unwrap();
    for _ in 0..2_000 {
        if done() {
            return;
        }
        port.submit(&command(SEND, 0, &region)).unwrap();
        completion(&mut port).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never came: {:?}", nic.counters());
}

#[test]
fn a_stranger_joins_nothing_and_no_node_speaks_as_another() {
    run(async {
        let (secrets, list) = secrets();
        let fabric = Key::new(1, [5; 32]);
        let configure = |config: UdpConfig| {
            let node = config.node();
            let secret = secrets[node.index()].clone();
            let identity = Identity::new(node, secret, list.clone()).unwrap();
            config.key(fabric.clone()).identity(identity)
        };
        let mut cluster = Cluster::start("127.0.0.1", 3, configure);
        assert!(cluster.nics.iter().all(|nic| nic.is_identified() && nic.is_sealed()));
        // Node 2 is replaced by NICs with node 1's secret, a stranger's and none, all at its address and with the
        // fabric's key.
        cluster.nics.remove(2).shutdown().await;
        let stranger = SecretKey::generate().unwrap();
        for secret in [Some(secrets[1].clone()), Some(stranger), None] {
            let before = cluster.nics[0].counters().drops.of(DropCause::Unsealed);
            let (probe, _) = Probe::new();
            let config = UdpConfig::new(NodeId(2), cluster.peers.clone()).key(fabric.clone());
            let lie = secret.map(|secret| {
                let list = vec![list[0], stranger_or(&list, 1, &secret), secret.public()];
                Identity::new(NodeId(2), secret, list).unwrap()
            });
            let config = lie.into_iter().fold(config, UdpConfig::identity);
            let impostor = UdpNic::start(config, probe).unwrap();
            let refused = || cluster.nics[0].counters().drops.of(DropCause::Unsealed) > before;
            send_until(&impostor, refused).await;
            impostor.shutdown().await;
            assert!(cluster.seen[0].arrivals().is_empty());
        }
        // Frames of a listed node are accepted, under its name.
        send_until(&cluster.nics[1], || !cluster.seen[0].arrivals().is_empty()).await;
        assert!(
            cluster.seen[0].arrivals().iter().all(|arrival| arrival.header.source == NodeId(1))
        );
    });
}

/// Returns the key of node `at`, or a new one if that is the liar's own: a list names no key twice.
fn stranger_or(list: &[PublicKey], at: usize, secret: &SecretKey) -> PublicKey {
    if list[at] == secret.public() { SecretKey::generate().unwrap().public() } else { list[at] }
}

#[test]
fn an_identity_of_another_node_does_not_start() {
    run(async {
        let (secrets, list) = secrets();
        let identity = Identity::new(NodeId(1), secrets[1].clone(), list).unwrap();
        let peers = (1..4).map(|port| format!("127.0.0.1:{port}").parse().unwrap()).collect();
        let config = UdpConfig::new(NodeId(0), peers).identity(identity);
        let error =
            SealConfigError::Identity { named: NodeId(1), keys: 3, node: NodeId(0), nodes: 3 };
        assert_eq!(UdpNic::start(config, Probe::new().0).map(drop), Err(StartError::Keys(error)));
    });
}
