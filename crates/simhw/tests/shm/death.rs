//! Tests processes that are killed: their exit is reported to their peers, and their memory is freed.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use midplane_simhw::id::NodeId;
use midplane_simhw::shm::{ShmConfig, ShmNic};

use crate::shm::firmware::{Probe, name, payload, run, start};

/// The environment variable with the name of the fabric that a child joins, as node 1.
const FABRIC: &str = "MIDPLANE_TEST_FABRIC";
/// Most time until a peer's exit is reported: the system reports it at once, but the machine may be busy.
const BOUND: Duration = Duration::from_secs(5);

/// Not a test by itself: the process that the others start and kill.
#[test]
fn child_that_floods_until_it_is_killed() {
    let Ok(fabric) = std::env::var(FABRIC) else { return };
    run(async {
        let (probe, _) = Probe::new(true);
        let _nic = ShmNic::start(ShmConfig::new(fabric, NodeId(1), 2), probe).unwrap();
        // Exits if the parent is killed: the parent holds the other end of standard input.
        let parent_ends = || std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        tokio::task::spawn_blocking(parent_ends).await.unwrap().unwrap();
    });
}

struct Killed(Child);

impl Killed {
    fn start(fabric: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command.args(["--exact", "shm::death::child_that_floods_until_it_is_killed"]);
        command.env(FABRIC, fabric).stdin(Stdio::piped()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        // SIGKILL, which the process cannot handle.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a condition holds that causes no wake-up.
async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns the number of segments of fabrics that this process has mapped.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:midplane")).count()
}

#[test]
fn a_killed_peer_is_reported_at_once_and_may_reconnect() {
    let fabric = name("killed");
    run(async {
        let (nic, seen) = start(ShmConfig::new(&fabric, NodeId(0), 2));
        let mut peers = nic.peers();
        for round in 0..3 {
            let mut child = Killed::start(&fabric);
            let joined = peers.wait_for(|peers| peers == &[NodeId(1)]);
            tokio::time::timeout(BOUND * 4, joined).await.expect("it connects").unwrap();
            // Killed while it sends, at any instruction.
            let sends = until(|| seen.0.lock().unwrap().len() > 500 * round);
            tokio::time::timeout(BOUND * 4, sends).await.expect("it sends");
            child.kill();
            let left = peers.wait_for(Vec::is_empty);
            tokio::time::timeout(BOUND, left).await.expect("its exit is reported").unwrap();
            let seen = std::mem::take(&mut *seen.0.lock().unwrap());
            // Frames that it sent before it was connected were dropped at its own NIC.
            let first = seen[0].0.sequence;
            for (number, (header, bytes)) in (first..).zip(seen) {
                assert_eq!(header.sequence, number, "nothing is lost or doubled");
                assert_eq!(bytes, payload(number), "every frame is whole");
            }
        }
        assert_eq!(nic.counters().drops, midplane_simhw::drops::Drops::default());
        // Other tests of this process map segments as well, until they end.
        let unmapped = tokio::time::timeout(BOUND * 12, until(|| mapped() == 0)).await;
        unmapped.expect("segments of disconnected peers are unmapped");
        nic.shutdown().await;
    });
}
