//! Tests faults on the links of live NICs: each frame arrives, or is counted under a named cause.

use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::fault::{FaultKind, Faults};
use midplane_simhw::host::Host as _;
use midplane_simhw::id::NodeId;
use midplane_simhw::nic::{FaultInjector, NicCounters};
use midplane_simhw::port::Status;
use midplane_simhw::seal::Key;
use midplane_simhw::udp::UdpConfig;

use crate::udp::firmware::{Cluster, SEND, command, completion, run};

const FRAMES: u64 = 400;

/// Sends frames from node 0 to node 1, which injects faults; returns node 1's counters.
async fn send_with(injector: &FaultInjector, configure: fn(UdpConfig) -> UdpConfig) -> NicCounters {
    let faults = injector.clone();
    let cluster = Cluster::start("127.0.0.1", 2, move |config| configure(config).faults(&faults));
    let mut port = cluster.nics[0].host().open_port().unwrap();
    let region = port.register(500).unwrap();
    for _ in 0..FRAMES {
        port.submit(&command(SEND, 1, &region)).unwrap();
        assert_eq!(completion(&mut port).await.status, Status::Done);
    }
    // Longer than any delay.
    for _ in 0..500 {
        let counted = cluster.nics[1].counters();
        if counted.frames_received + counted.drops.total() >= FRAMES {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    cluster.nics[1].counters()
}

#[test]
fn frames_are_lost_damaged_copied_and_delayed_and_none_is_uncounted() {
    run(async {
        let injector = FaultInjector::new(11);
        let delay = Duration::from_millis(2);
        let (loss, corrupt) = (0.2, 0.1);
        let faults = Faults { loss, corrupt, duplicate: 0.3, reorder: 0.3, delay, ..Faults::NONE };
        injector.set(faults).unwrap();
        let counted = send_with(&injector, |config| config).await;
        let fired = injector.fired();
        let copies = fired.of(FaultKind::Duplicate);
        assert_eq!(counted.frames_received + counted.drops.total(), FRAMES + copies);
        assert_eq!(counted.drops.of(DropCause::LinkLoss), fired.of(FaultKind::Loss));
        assert_eq!(counted.drops.of(DropCause::Corrupt), fired.of(FaultKind::Corrupt));
        let kinds = [FaultKind::Loss, FaultKind::Corrupt, FaultKind::Duplicate, FaultKind::Reorder];
        assert!(kinds.iter().all(|kind| fired.of(*kind) > 10), "{fired:?}");
    });
}

#[test]
fn a_partition_stops_keys_as_well_as_frames_and_ends_when_it_is_healed() {
    run(async {
        let injector = FaultInjector::new(11);
        injector.cut(NodeId(0), NodeId(1));
        let faults = injector.clone();
        let key = || Key::new(1, [7; 32]);
        let cluster =
            Cluster::start("127.0.0.1", 2, move |config| config.key(key()).faults(&faults));
        let mut port = cluster.nics[0].host().open_port().unwrap();
        let region = port.register(5).unwrap();
        port.submit(&command(SEND, 1, &region)).unwrap();
        completion(&mut port).await;
        while injector.fired().of(FaultKind::Partition) < 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(cluster.seen[1].arrivals().is_empty());
        injector.heal(NodeId(0), NodeId(1));
        port.submit(&command(SEND, 1, &region)).unwrap();
        completion(&mut port).await;
        cluster.seen[1].wait_for(1).await;
    });
}

#[test]
fn a_copy_of_a_sealed_datagram_is_refused_as_a_replay() {
    run(async {
        let injector = FaultInjector::new(11);
        injector.set(Faults { duplicate: 1.0, ..Faults::NONE }).unwrap();
        let counted = send_with(&injector, |config| config.key(Key::new(1, [7; 32]))).await;
        assert_eq!(counted.frames_received, FRAMES);
        assert!(counted.drops.of(DropCause::Replayed) >= FRAMES, "{:?}", counted.drops);
    });
}
