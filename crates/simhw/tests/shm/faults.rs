//! Faults on the links of NICs over shared memory: each frame arrives, or is counted under a named cause.

use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::fault::{FaultKind, Faults};
use midplane_simhw::id::NodeId;
use midplane_simhw::nic::FaultInjector;
use midplane_simhw::shm::{ShmConfig, ShmNic};

use crate::shm::firmware::{Probe, name, payload, run, start};

#[test]
fn each_lost_damaged_copied_or_delayed_frame_is_counted() {
    run(async {
        let fabric = name("faults");
        let injector = FaultInjector::new(11);
        let faults =
            Faults { loss: 0.2, corrupt: 0.1, duplicate: 0.2, reorder: 0.2, ..Faults::NONE };
        let delay = Duration::from_micros(500);
        injector.set(Faults { delay, jitter: delay / 10, ..faults }).unwrap();
        let (nic, seen) = start(ShmConfig::new(&fabric, NodeId(0), 2).faults(&injector));
        let (probe, _) = Probe::new(true);
        let flood = ShmNic::start(ShmConfig::new(&fabric, NodeId(1), 2), probe).unwrap();
        while nic.counters().frames_received < 2_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let sent = flood.shutdown().await.frames_sent;
        let counted = loop {
            let counted = nic.counters();
            let copies = injector.fired().of(FaultKind::Duplicate);
            // Waits for frames that are still in flight, or delayed.
            if counted.frames_received + counted.drops.total() >= sent + copies {
                assert_eq!(counted.frames_received + counted.drops.total(), sent + copies);
                break counted;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let fired = injector.fired();
        assert_eq!(counted.drops.of(DropCause::LinkLoss), fired.of(FaultKind::Loss));
        assert_eq!(counted.drops.of(DropCause::Corrupt), fired.of(FaultKind::Corrupt));
        let kinds = [FaultKind::Loss, FaultKind::Corrupt, FaultKind::Duplicate, FaultKind::Reorder];
        assert!(kinds.iter().all(|kind| fired.of(*kind) > 10), "{fired:?}");
        let seen = std::mem::take(&mut *seen.0.lock().unwrap());
        assert!(seen.iter().all(|(header, bytes)| *bytes == payload(header.sequence)));
        assert!(
            !seen.is_sorted_by_key(|(header, _)| header.sequence),
            "some frames overtake others"
        );
    });
}
